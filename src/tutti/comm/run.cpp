#include "tutti/comm/run.h"

#include <algorithm>
#include <exception>
#include <filesystem>

#include "tutti/comm/processes/process_world.h"
#include "tutti/comm/tcp/secret.h"
#include "tutti/comm/threads/thread_world.h"

namespace tutti::comm {

namespace fs = std::filesystem;

namespace {

// `options.backend` if given, else what the launcher offers. Slurm starts processes with or without MPI.
bool over_mpi(const Launch& launch, const WorldOptions& options) {
    switch (options.backend) {
        case ProcessBackend::mpi: return true;
        case ProcessBackend::tcp: return false;
        case ProcessBackend::of_launcher: break;
    }
    switch (launch.launcher) {
        case Launcher::slurm: return !mpi_library(launch.launcher).empty();
        case Launcher::open_mpi:
        case Launcher::mpich: return true;
        default: return false;
    }
}

// Whether the launcher starts the MPI of its processes, too.
bool starts_mpi(const Launch& launch) {
    return launch.launcher != Launcher::torchrun && launch.launcher != Launcher::environment &&
           launch.launcher != Launcher::tutti;
}

void check_ranks(const Launch& launch, int ranks, const WorldOptions& options) {
    constexpr double kLongest = 1e9;  // 30 years; deadlines overflow beyond 300
    check<UsageError>(options.timeout_s > 0 && options.timeout_s <= kLongest,
                      "comm.timeout_s must be above 0 and at most 1e9 seconds, got ", options.timeout_s);
    if (launch.launcher == Launcher::none) {
        check<UsageError>(
            ranks == 1 || options.backend == ProcessBackend::of_launcher,
            "comm.backend asks for ranks that are processes, but no launcher started this process, and --ranks ", ranks,
            " makes threads: use tutti launch, mpirun, srun or torchrun, or leave comm.backend out");
        return;
    }
    check<UsageError>(ranks == 1 || ranks == launch.size, "--ranks ", ranks, ", but ", name_of(launch.launcher),
                      " started ", launch.size, " (", launch.evidence, "): leave --ranks out");
    check<UsageError>(launch.size == 1 || !over_mpi(launch, options) || starts_mpi(launch),
                      "comm.backend = \"mpi\", but ", name_of(launch.launcher), " (", launch.evidence,
                      ") does not start MPI: set comm.backend to \"tcp\" or \"auto\" to communicate over TCP");
}

}  // namespace

ProcessBackend process_backend_of(std::string_view name) {
    if (name == "mpi") return ProcessBackend::mpi;
    if (name == "tcp") return ProcessBackend::tcp;
    check<UsageError>(name == "auto", "comm.backend must be auto, mpi or tcp, got '", name, "'");
    return ProcessBackend::of_launcher;
}

void run(const Launch& launch, int ranks, const WorldOptions& options, const std::function<void(World&)>& body) {
    before_ranks_meet(launch, options, [&] { check_ranks(launch, ranks, options); });
    if (launch.launcher == Launcher::none) return run_ranks(ranks, options, body);
    if (launch.size == 1) return run_ranks(1, options, body);  // needs no address
    over_mpi(launch, options) ? run_mpi(launch, options, body) : run_tcp(launch, options, body);
}

void before_ranks_meet(const Launch& launch, const WorldOptions& options, const std::function<void()>& prepare) {
    try {
        prepare();
    } catch (const std::exception&) {
        constexpr double kLongest = 10;  // seconds; the other ranks may have ended already
        const bool over_tcp = !starts_mpi(launch) || !over_mpi(launch, options);
        const bool others_wait = launch.size > 1 && launch.launcher != Launcher::tutti && over_tcp;
        const std::exception_ptr refusal = std::current_exception();
        WorldOptions of_refusal = options;
        of_refusal.flight_directory.clear();  // nothing has been sent
        of_refusal.timeout_s = options.timeout_s > 0 ? std::min(options.timeout_s, kLongest) : kLongest;
        const bool is_new = !options.run_directory.empty() && !fs::exists(options.run_directory);
        try {
            if (others_wait) run_tcp(launch, of_refusal, [&](World&) { std::rethrow_exception(refusal); });
        } catch (const std::exception&) {  // the refusal, or why the others were not told; the refusal is thrown below
        }
        if (is_new && launch.rank == 0) {  // made for the secret alone
            std::error_code error;
            fs::remove(fs::path(options.run_directory) / tcp::kSecretFile, error);
            fs::remove(options.run_directory, error);
        }
        throw;
    }
}

}  // namespace tutti::comm
