#include "tutti/diagnose/machine.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

#include "tutti/base/error.h"

namespace tutti::diagnose {

namespace {

class OpenFile {
  public:
    OpenFile(const std::string& path, int flags) : descriptor_(open(path.c_str(), flags | O_CLOEXEC, 0600)) {}
    ~OpenFile() {
        if (descriptor_ >= 0) close(descriptor_);
    }
    OpenFile(const OpenFile&) = delete;
    OpenFile& operator=(const OpenFile&) = delete;
    int get() const { return descriptor_; }

  private:
    int descriptor_;
};

}  // namespace

std::optional<double> cgroup_cpu_limit() {
    std::ifstream limit("/sys/fs/cgroup/cpu.max");
    double quota = 0, period = 0;
    if (limit >> quota >> period && period > 0) return quota / period;
    return std::nullopt;
}

std::vector<std::string> cpu_features() {
    std::ifstream info("/proc/cpuinfo");
    std::vector<std::string> all;
    for (std::string line; std::getline(info, line);) {
        if (!line.starts_with("flags")) continue;
        std::istringstream words(line.substr(line.find(':') + 1));
        for (std::string word; words >> word;) all.push_back(word);
        break;
    }
    std::vector<std::string> found;
    for (const char* name : {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni",
                             "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8"})
        if (std::find(all.begin(), all.end(), name) != all.end()) found.emplace_back(name);
    return found;
}

std::optional<std::string> fsync_problem(const std::string& directory) {
    const std::string path = concat(directory, "/.tutti-doctor.", getpid()), renamed = path + ".renamed";
    const auto failed = [&](const char* what) -> std::optional<std::string> {
        const std::string reason = std::strerror(errno);
        std::remove(path.c_str());
        std::remove(renamed.c_str());
        return concat(what, ": ", reason);
    };
    {
        const OpenFile file(path, O_WRONLY | O_CREAT | O_EXCL);
        if (file.get() < 0) return failed("a file cannot be made");
        if (write(file.get(), "tutti\n", 6) != 6) return failed("a file cannot be written");
        if (fsync(file.get()) != 0) return failed("fsync of a file");
    }
    if (std::rename(path.c_str(), renamed.c_str()) != 0) return failed("rename");
    const OpenFile folder(directory, O_RDONLY | O_DIRECTORY);
    if (folder.get() < 0 || fsync(folder.get()) != 0) return failed("fsync of the directory");
    if (std::remove(renamed.c_str()) != 0) return failed("remove");
    return std::nullopt;
}

}  // namespace tutti::diagnose
