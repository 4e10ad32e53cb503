#include "tutti/checkpoint/owner.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>

#include "tutti/device/device.h"

namespace tutti::checkpoint {

namespace {

// The host's name with only letters, digits and '_', so that '-' separates the parts.
std::string plain_host_name() {
    std::string host = host_name();
    if (host.size() > 64) host.resize(64);
    for (char& c : host) {
        const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!plain) c = '_';
    }
    return host;
}

}  // namespace

std::string this_owner() { return plain_host_name() + "-" + std::to_string(::getpid()); }

OwnerState state_of(std::string_view owner) {
    if (owner == this_owner()) return OwnerState::this_process;
    const size_t dash = owner.rfind('-');
    if (dash == std::string_view::npos || owner.substr(0, dash) != plain_host_name()) return OwnerState::elsewhere;
    const std::string_view digits = owner.substr(dash + 1);
    pid_t pid = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), pid);
    if (error != std::errc() || end != digits.data() + digits.size() || pid <= 0) return OwnerState::elsewhere;
    return ::kill(pid, 0) == 0 || errno == EPERM ? OwnerState::running : OwnerState::gone;
}

}  // namespace tutti::checkpoint
