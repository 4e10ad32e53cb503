#include "tutti/diagnose/doctor.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tutti/base/build_info.h"
#include "tutti/base/error.h"
#include "tutti/base/units.h"
#include "tutti/comm/processes/process_world.h"
#include "tutti/kernels/backends.h"
#include "tutti/text/sentencepiece.h"

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

FactSection look_at_build(MachineFacts& facts) {
    const BuildInfo build = build_info();
    FactSection s{"build", "This build"};
    s.add_text("version", "version", build.version);
    s.add_text("build_type", "build type", build.build_type);
    s.add_text("compiler", "compiler", build.compiler);
    if (!build.sanitizer.empty()) s.add_text("sanitizer", "sanitizer", build.sanitizer);
    s.add_text("gemm_implementation", "matrix products", kernels::gemm_implementations());
    s.add({"openmp", "threads in a rank", build.openmp ? "OpenMP" : "none: built without OpenMP", build.openmp});
    const std::string sentencepiece = text::sentencepiece_version();
    s.add({"sentencepiece", "tokenizer models",
           sentencepiece.empty() ? "no *.model: sentencepiece is neither in this build nor beside it"
                                 : "*.model: " + sentencepiece,
           sentencepiece});
    const std::string mpi = comm::mpi_library(comm::Launcher::none);
    s.add({"mpi", "ranks as processes",
           mpi.empty() ? "over TCP; no MPI library is found (libmpi.so.40, libmpi.so.12; TUTTI_MPI names another file)"
                       : mpi,
           mpi.empty() ? FactValue() : FactValue(mpi)});
    if (build.build_type != "Release" && build.build_type != "RelWithDebInfo")
        facts.warnings.push_back("build type " + build.build_type +
                                 ": slow; configure with -DCMAKE_BUILD_TYPE=Release");
    if (!build.sanitizer.empty()) facts.warnings.push_back("built with the " + build.sanitizer + " sanitizer: slow");
    if (!build.openmp) facts.warnings.push_back("built without OpenMP: a rank uses one core");
    return s;
}

// In cores; nullopt: no limit.
std::optional<double> cgroup_cpu_limit() {
    std::ifstream limit("/sys/fs/cgroup/cpu.max");
    double quota = 0, period = 0;
    if (limit >> quota >> period && period > 0) return quota / period;
    return std::nullopt;
}

// Features that Tutti or its GEMM library uses: "avx2", "amx_bf16".
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

FactSection look_at_processor(MachineFacts& facts) {
    FactSection s{"processor", "Processor"};
    s.add_text("model", "model", cpu_model());
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    s.add({"cores", "cores for this process", concat(available_cores(), " of ", online), available_cores()});
    s.add({"cores_online", "cores online", std::to_string(online), int64_t{online}});
    const auto limit = cgroup_cpu_limit();
    s.add({"cgroup_cores", "cgroup limit", limit ? format_fixed(*limit, 2) + " cores" : "none",
           limit ? FactValue(*limit) : FactValue()});
    const std::vector<std::string> features = cpu_features();
    s.add({"features", "instructions", joined(features, " "), features});
    try {
        const kernels::Isa isa = kernels::chosen_isa();
        s.add_text("isa", "kernels that run", kernels::cpu_table(isa).name);
        if (isa < kernels::Isa::avx512_bf16)
            facts.warnings.push_back(concat(kernels::cpu_table(isa).name,
                                            " multiplies bf16 as f32, at f32's rate: bf16 saves memory, not time"));
    } catch (const Error& unfit) {
        s.add({"isa", "kernels that run", "none", {}});
        facts.problems.push_back(unfit.what());
    }
    return s;
}

// The libraries of a back end are looked for only where it has found a GPU.
void look_at_backend(const kernels::Backend& backend, const std::vector<Gpu>& found, MachineFacts& facts,
                     FactSection& s) {
    const std::string driver = backend.driver();
    if (!found.empty() || !driver.empty())
        s.add({"driver", backend.driver_title, driver.empty() ? "unknown" : driver,
               driver.empty() ? FactValue() : FactValue(driver)});
    if (found.empty()) return;
    s.add_text("architectures", "kernels compiled for", backend.architectures());
    for (const Gpu& gpu : found)
        if (const std::string why = backend.why_unfit(gpu); !why.empty()) facts.problems.push_back(why);
    try {
        const kernels::KernelTable& table = *backend.table(ComputeType::bf16);
        s.add_text("gemm_implementation", "matrix products", table.gemm_implementations());
        s.add_text("attention_implementation", "attention", table.attention_implementations());
    } catch (const Error& missing) {
        s.add({"gemm_implementation", "matrix products", "none", {}});
        facts.problems.push_back(missing.what());
    }
    if (const kernels::AttentionLibrary* library = backend.attention_library) {
        const std::string label = concat("attention by ", library->title);
        try {
            const std::string version = library->version();
            s.add({library->name, label, concat(version, ", can be chosen: --set train.attention=", library->name),
                   true});
        } catch (const Error& missing) {
            s.add({library->name, label, concat("none: ", missing.what()), false});
        }
    }
}

FactSection look_at_gpus(MachineFacts& facts) {
    FactSection s{"gpu", "GPUs"};
    std::vector<Gpu> all;
    std::vector<std::string> why_none;
    FactSection more;
    for (const kernels::Backend& backend : kernels::backends()) {
        if (backend.find == nullptr) continue;
        const Gpus gpus = backend.find();
        all.insert(all.end(), gpus.found.begin(), gpus.found.end());
        if (gpus.found.empty()) why_none.push_back(gpus.why_none);
        look_at_backend(backend, gpus.found, facts, more);
    }
    const std::string text = joined(all, "; ", [](const Gpu& gpu) {
        return concat(gpu.name, ", ", format_bytes(gpu.memory_bytes), ", compute capability ", gpu.major, ".",
                      gpu.minor);
    });
    s.add({"gpus", "found", all.empty() ? "none: " + joined(why_none, "; ") : text, all});
    s.facts.insert(s.facts.end(), more.facts.begin(), more.facts.end());
    return s;
}

FactSection look_at_memory(MachineFacts& facts) {
    FactSection s{"memory", "Memory"};
    s.add_bytes("total_bytes", "of the host", host_memory_bytes());
    s.add_bytes("available_bytes", "available now", least_available(host_memory_limits()));
    const auto limit = cgroup_memory_limit();
    s.add({"cgroup_bytes", "cgroup limit", limit ? format_bytes(*limit) : "none",
           limit ? FactValue(*limit) : FactValue()});
    std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
    std::string line, chosen = "unknown";
    if (std::getline(file, line) && line.find('[') != std::string::npos)
        chosen = line.substr(line.find('[') + 1, line.find(']') - line.find('[') - 1);
    s.add_text("huge_pages", "huge pages", chosen);
    if (chosen == "never")
        facts.warnings.push_back("transparent huge pages are off: matrix products lose several percent to TLB misses");
    return s;
}

Fact limit_fact(const char* key, const char* label, decltype(RLIMIT_AS) resource, bool bytes) {
    rlimit limit{};
    getrlimit(resource, &limit);
    if (limit.rlim_cur == RLIM_INFINITY) return {key, label, "unlimited", {}};
    const auto value = static_cast<int64_t>(limit.rlim_cur);
    return {key, label, bytes ? format_bytes(value) : std::to_string(value), value};
}

FactSection look_at_limits() {
    return {"limits",
            "Limits",
            {limit_fact("address_space_bytes", "address space", RLIMIT_AS, true),
             limit_fact("file_size_bytes", "file size", RLIMIT_FSIZE, true),
             limit_fact("open_files", "open files", RLIMIT_NOFILE, false),
             limit_fact("locked_memory_bytes", "locked memory", RLIMIT_MEMLOCK, true),
             limit_fact("stack_bytes", "stack", RLIMIT_STACK, true)}};
}

FactSection look_at_disk(MachineFacts& facts) {
    std::error_code gone;
    const std::string directory = std::filesystem::current_path(gone).string();
    FactSection s{"disk", "Disk of the working directory"};
    if (gone) {
        s.add({"directory", "directory", gone.message(), {}});
        facts.warnings.push_back("the working directory was removed: go to another one");
        return s;
    }
    s.add_text("directory", "directory", directory);
    struct statvfs disk {};
    if (statvfs(directory.c_str(), &disk) == 0) {
        const auto free = static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
        s.add_bytes("free_bytes", "free", free);
        if (free < (int64_t{1} << 30))
            facts.warnings.push_back("less than 1 GiB free in " + directory + ": checkpoints may not fit");
    }
    const auto problem = fsync_problem(directory);
    s.add({"fsync", "write, fsync, rename", problem ? *problem : "work", !problem.has_value()});
    if (problem)
        facts.warnings.push_back("runs cannot be saved in " + directory + " (" + *problem + "): use --out elsewhere");
    return s;
}

}  // namespace

MachineFacts examine_machine() {
    MachineFacts facts;
    facts.sections.push_back(look_at_build(facts));
    facts.sections.push_back(look_at_processor(facts));
    facts.sections.push_back(look_at_gpus(facts));
    facts.sections.push_back(look_at_memory(facts));
    facts.sections.push_back(look_at_limits());
    facts.sections.push_back(look_at_disk(facts));
    return facts;
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
