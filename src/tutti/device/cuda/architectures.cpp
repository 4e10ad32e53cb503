#include "tutti/device/cuda/architectures.h"

#include <algorithm>
#include <charconv>

#include "tutti/base/strings.h"

namespace tutti::cuda {

namespace {

bool one_runs_on(std::string_view architecture, int major, int minor) {
    int number = 0;
    const auto [rest, error] = std::from_chars(architecture.begin(), architecture.end(), number);
    if (error != std::errc()) return true;
    const std::string_view kind(rest, static_cast<size_t>(architecture.end() - rest));
    const int capability = 10 * major + minor;
    if (kind.starts_with("a")) return number == capability;
    const bool forward = number <= capability, same_major = number / 10 == major;
    if (kind.starts_with("f") || kind.ends_with("-real")) return forward && same_major;
    return forward;
}

}  // namespace

std::string_view compiled_architectures() { return TUTTI_CUDA_ARCHITECTURES; }

bool runs_on(std::string_view architectures, int major, int minor) {
    const auto parts = split(architectures, ',');
    return std::any_of(parts.begin(), parts.end(),
                       [&](std::string_view part) { return one_runs_on(part, major, minor); });
}

}  // namespace tutti::cuda
