// bench/comm_vs_mpi.cpp: all_reduce of f32 over two ranks or more: Tutti's backend of threads, its backend of
// processes, and MPI_Allreduce of the MPI library itself, interleaved in one run. Not part of the build:
//   mpicxx -std=c++20 -O2 -Isrc bench/comm_vs_mpi.cpp build/release/libtutti_{comm,mesh,tensor,device,base}.a
//          -fopenmp -o comm_vs_mpi && mpirun --bind-to none -n 2 ./comm_vs_mpi [ROUNDS]
// The threads run in rank 0's process while the other processes sleep. One JSON document; medians and minima of all
// rounds; copy: bytes copied per second by all ranks together, each in its own memory, as `tutti bench comm` does.
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tutti/comm/processes/process_world.h"
#include "tutti/comm/threads/thread_world.h"

using namespace tutti;
using namespace tutti::comm;

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Seconds of one call on the slowest rank; `max` and `barrier` are the contender's own.
template <class Barrier, class Max, class Call>
double timed(int calls, const Barrier& barrier, const Max& max, const Call& call) {
    call();
    barrier();
    const double begin = now();
    for (int i = 0; i < calls; ++i) call();
    return max(now() - begin) / calls;
}

int calls_for(int64_t bytes) { return static_cast<int>(std::clamp<int64_t>((int64_t{16} << 20) / bytes, 1, 2000)); }

// How a world does it, and how fast the same ranks copy.
void measure_tutti(World& world, int64_t bytes, double& all_reduce, double& copy) {
    const auto group = world.everyone("bench");
    const auto device = make_cpu_device(1);
    const Tensor x = Tensor::empty(*device, {bytes / 4}, DType::f32, Purpose::communication);
    const Tensor y = Tensor::empty(*device, {bytes / 4}, DType::f32, Purpose::communication);
    std::memset(x.view().data, 0, static_cast<size_t>(bytes));
    std::memset(y.view().data, 0, static_cast<size_t>(bytes));
    const auto barrier = [&] { group->barrier(); };
    const auto max = [&](double v) { return group->max(v); };
    const double reduced = timed(calls_for(bytes), barrier, max, [&] { group->all_reduce(x).wait(); });
    const double copied = timed(calls_for(bytes), barrier, max,
                                [&] { std::memcpy(y.view().data, x.view().data, static_cast<size_t>(bytes)); });
    if (world.rank() != 0) return;
    all_reduce = reduced;
    copy = copied / world.size();
}

double measure_mpi(int64_t bytes) {
    std::vector<float> x(static_cast<size_t>(bytes / 4));
    const auto max = [](double v) {
        MPI_Allreduce(MPI_IN_PLACE, &v, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        return v;
    };
    return timed(
        calls_for(bytes), [] { MPI_Barrier(MPI_COMM_WORLD); }, max,
        [&] { MPI_Allreduce(MPI_IN_PLACE, x.data(), static_cast<int>(x.size()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); });
}

// MPI's own barrier spins: this one leaves the cores to the threads of rank 0.
void sleep_until_all_are_here() {
    MPI_Request request;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    for (int done = 0; done == 0;) {
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (done == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
}

void print(const std::map<std::string, std::vector<double>>& times, int64_t bytes, bool last) {
    std::printf("  {\"bytes\": %lld", static_cast<long long>(bytes));
    for (auto [name, t] : times) {
        std::sort(t.begin(), t.end());
        std::printf(", \"%s_median_s\": %.4g, \"%s_min_s\": %.4g", name.c_str(), t[t.size() / 2], name.c_str(), t[0]);
    }
    std::printf("}%s\n", last ? "" : ",");
}

}  // namespace

int main(int argc, char** argv) {
    const int rounds = argc > 1 ? std::atoi(argv[1]) : 11;
    run_mpi(detect_launcher(process_environment()), {.timeout_s = 120}, [&](World& world) {
        const std::vector<int64_t> sizes = {1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20};
        if (world.rank() == 0)
            std::printf("{\"ranks\": %d, \"rounds\": %d, \"mpi\": \"%s\", \"rows\": [\n", world.size(), rounds,
                        mpi_library(Launcher::none).c_str());
        for (const int64_t bytes : sizes) {
            std::map<std::string, std::vector<double>> times;
            for (int round = 0; round < rounds; ++round) {
                double processes = 0, threads = 0, copy = 0, ignored = 0;
                sleep_until_all_are_here();
                times["mpi_library"].push_back(measure_mpi(bytes));
                sleep_until_all_are_here();
                measure_tutti(world, bytes, processes, ignored);
                sleep_until_all_are_here();
                if (world.rank() == 0)
                    run_ranks(world.size(), {.timeout_s = 120},
                              [&](World& w) { measure_tutti(w, bytes, threads, copy); });
                sleep_until_all_are_here();
                times["tutti_processes"].push_back(processes);
                times["tutti_threads"].push_back(threads);
                times["copy_per_tensor"].push_back(copy);  // one tensor's bytes, at the rate of all ranks together
            }
            if (world.rank() == 0) print(times, bytes, bytes == sizes.back());
        }
        if (world.rank() == 0) std::printf("]}\n");
    });
    return 0;
}
