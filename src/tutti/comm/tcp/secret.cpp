#include "tutti/comm/tcp/secret.h"

#include <dirent.h>
#include <fcntl.h>
#include <sodium/crypto_generichash.h>
#include <sodium/utils.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tutti/base/digits.h"
#include "tutti/base/error.h"
#include "tutti/base/read_file.h"

namespace tutti::comm::tcp {

namespace {

constexpr size_t kShortest = 16;  // of a secret, in bytes

// Network file systems may cache for a minute that a file does not exist; opening the directory invalidates the cache.
void refresh(const std::string& directory) {
    if (DIR* opened = opendir(directory.c_str())) closedir(opened);
}

}  // namespace

// std::random_device of libstdc++ 12 needs glibc 2.36, but the packages must run on 2.35.
Nonce fresh_nonce() {
    Nonce nonce{};
    const bool filled = getrandom(nonce.data(), nonce.size(), 0) == static_cast<ssize_t>(nonce.size());
    check(filled, "getrandom failed: ", std::strerror(errno));
    return nonce;
}

std::string fresh_hex() { return to_hex(fresh_nonce()); }

Proof prove(const Key& key, std::string_view label, std::initializer_list<std::string_view> parts) {
    crypto_generichash_state state;
    crypto_generichash_init(&state, key.data(), key.size(), sizeof(Proof));
    const auto add = [&](std::string_view part) {  // with its length, so that different lists have different bytes
        const uint64_t size = part.size();
        crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(&size), sizeof size);
        crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(part.data()), part.size());
    };
    add(label);
    for (const std::string_view part : parts) add(part);
    Proof proof{};
    crypto_generichash_final(&state, proof.data(), proof.size());
    return proof;
}

bool is_same(const Proof& a, const Proof& b) { return sodium_memcmp(a.data(), b.data(), a.size()) == 0; }

bool is_same(std::string_view a, std::string_view b) {
    return a.size() == b.size() && sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

Secret::Secret(const std::string& setting, const std::string& run_directory, const Environment& environment) {
    const auto text = environment("TUTTI_SECRET"), file = environment("TUTTI_SECRET_FILE");
    if (setting == "none") return;
    if (setting != "auto") {
        file_ = setting;
        return;
    }
    if (text == "none") return;
    if (text && !text->empty()) {
        text_ = *text;
    } else if (file && !file->empty()) {
        file_ = *file;
    } else {
        check<UsageError>(!run_directory.empty(),
                          "ranks of several hosts that connect over TCP need a shared secret: on every rank, set "
                          "comm.secret or TUTTI_SECRET_FILE to the path of a file, or TUTTI_SECRET to the secret; "
                          "TUTTI_SECRET=none lets any program join that reaches the port of rank 0");
        file_ = (std::filesystem::path(run_directory) / kSecretFile).string();
        is_of_run_ = true;
    }
}

void Secret::make() const {
    if (!is_of_run_) return;
    const std::filesystem::path path = file_;
    std::error_code error;
    std::filesystem::create_directories(path.parent_path(), error);
    // The file is complete before it gets its name, and link() never replaces an existing file.
    const std::string text = fresh_hex() + "\n", unnamed = file_ + ".tmp." + fresh_hex();
    const int fd = ::open(unnamed.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    const bool is_written = fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                            ::fsync(fd) == 0 && (::link(unnamed.c_str(), file_.c_str()) == 0 || errno == EEXIST);
    const int code = errno;
    if (fd >= 0) {
        ::close(fd);
        ::unlink(unnamed.c_str());
    }
    check_written(is_written, code, "the secret of this job cannot be written to ", file_, ": ", std::strerror(code),
                  "; TUTTI_SECRET, set on every rank, makes the file unnecessary");
}

std::optional<Key> Secret::key(std::string& why) const {
    if (text_.empty() && file_.empty()) return Key{};
    std::string text = text_;
    if (!file_.empty()) {
        if (is_of_run_) refresh(std::filesystem::path(file_).parent_path().string());
        struct stat status {};
        std::ifstream in(file_);
        if (!in || stat(file_.c_str(), &status) != 0) {
            why = concat(
                file_, ", the secret of this job, cannot be read: ", std::strerror(errno),
                is_of_run_ ? " (rank 0 makes it; is the run directory shared by all hosts? Otherwise set TUTTI_SECRET)"
                           : "");
            check<UsageError>(is_of_run_ && errno == ENOENT, why);
            return std::nullopt;
        }
        check<UsageError>((status.st_mode & 0007) == 0, file_,
                          ": every user can read the secret of this job; chmod 600 (in Kubernetes: defaultMode: 0400)");
        std::ostringstream all;
        all << in.rdbuf();
        text = all.str();
    }
    while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) text.pop_back();
    check<UsageError>(text.size() >= kShortest, origin(), ": the secret of a job must have at least ", kShortest,
                      " bytes, got ", text.size(), "; `openssl rand -hex 32` prints a good one");
    return prove({}, "tutti key 1", {text});
}

std::string Secret::origin() const {
    return file_.empty() ? text_.empty() ? "no secret" : "TUTTI_SECRET" : concat("the file ", file_);
}

}  // namespace tutti::comm::tcp
