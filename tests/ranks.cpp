// tests/ranks.cpp: one rank of a test of the backend of processes, started by a launcher:
//   process_ranks conformance [tcp] [progress] [hosts=0,0,1,1]   every check of comm/testing/conformance.h
//   process_ranks bits [tcp] [hosts=…]                           the same collectives over threads give the same bits
//   process_ranks collide tcp [hosts=…]                    two groups whose tags would be equal
//   process_ranks WAY_TO_FAIL                              throw, exit, disagree, absent, loop (until a signal comes)
// Over MPI, or with `tcp` over TCP. Exit code 0: all well. TUTTI_TEST_DIR: where `loop` says that it runs, and flight
// records go.
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <random>
#include <thread>

#include "tutti/comm/processes/process_world.h"
#include "tutti/comm/processes/tags.h"
#include "tutti/comm/testing/conformance.h"
#include "tutti/comm/threads/thread_world.h"

namespace {

using namespace tutti;
using namespace tutti::comm;

struct Arguments {
    std::string mode;
    WorldOptions options{.timeout_s = 60};
    AssignedHosts hosts;
    bool tcp = false;
};

Arguments read(int argc, char** argv) {
    Arguments a;
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        if (word == "progress")
            a.options.progress_thread = true;
        else if (word == "tcp")
            a.tcp = true;
        else if (word.starts_with("timeout="))
            a.options.timeout_s = std::stod(word.substr(8));
        else if (word.starts_with("hosts="))
            for (const char c : word.substr(6))
                if (c != ',') a.hosts.push_back(c - '0');
        if (i == 1) a.mode = word;
    }
    if (const char* directory = std::getenv("TUTTI_TEST_DIR")) {
        a.options.flight_directory = std::string(directory) + "/flight";
        a.options.run_directory = directory;
    }
    return a;
}

void conformance_checks(World& world) {
    const auto device = make_cpu_device(1);
    for (const auto& check : conformance::checks()) {
        try {
            check.body(world, *device);
        } catch (const Aborted&) {
            throw;
        } catch (const std::exception& error) {
            throw Error(concat(check.name, ": ", error.what()));
        }
    }
    // Nothing of one check may be left to the next: all once more, the other way round.
    const auto checks = conformance::checks();
    for (auto check = checks.rbegin(); check != checks.rend(); ++check) check->body(world, *device);
}

// Everything a rank gets out of a fixed list of collectives, as bytes.
std::vector<std::byte> outcome(World& world) {
    std::vector<std::byte> bytes;
    const auto group = world.everyone("bits");
    const auto device = make_cpu_device(1);
    const int n = world.size();
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
        for (const int64_t size : {1, 1000, 70001}) {
            const auto make = [&](int64_t count, unsigned salt) {
                const Tensor x = Tensor::empty(*device, {count}, dtype, Purpose::communication);
                std::minstd_rand random(static_cast<unsigned>(8 * world.rank()) + salt + 1);
                for (int64_t i = 0; i < count; ++i) {
                    // Many magnitudes: no two orders of addition round alike.
                    const float v = std::ldexp(static_cast<float>(random()) - 1e9f, static_cast<int>(i % 12) - 32);
                    if (dtype == DType::f32) x.view().as<float>()[i] = v;
                    if (dtype == DType::bf16) x.view().as<bf16>()[i] = bf16(v);
                    if (dtype == DType::f16) x.view().as<f16>()[i] = f16(v);
                    if (dtype == DType::f64) x.view().as<double>()[i] = v;
                }
                return x;
            };
            const Tensor sum = make(size, 0), largest = make(size, 1), wide = make(size * n, 2);
            const Tensor part = make(size, 3), all = make(size * n, 4);
            const Tensor part_f32 = Tensor::empty(*device, {size}, DType::f32, Purpose::communication);
            group->all_reduce(sum).wait();
            group->all_reduce(largest, Reduce::max).wait();
            group->reduce_scatter(wide, part).wait();
            if (size_of(dtype) < 4) group->reduce_scatter(wide, part_f32).wait();
            group->all_gather(part, all).wait();
            const Tensor sent = make(size, 5), exchanged = make(size * n, 6), got = make(size * n, 7);
            group->broadcast(sent, n / 2).wait();
            const std::vector<int64_t> counts(static_cast<size_t>(n), size);
            group->all_to_all(exchanged, counts, got, counts).wait();
            const Tensor message = make(size, 3);
            if (n > 1) {
                Work out = group->send(part, (world.rank() + 1) % n);
                group->receive(message, (world.rank() + n - 1) % n).wait();
                out.wait();
            }
            for (const Tensor& x : {sum, largest, part, all, sent, got, message}) {
                const auto* data = x.view().as<const std::byte>();
                bytes.insert(bytes.end(), data, data + x.bytes());
            }
            if (size_of(dtype) == 2) {
                const auto* data = part_f32.view().as<const std::byte>();
                bytes.insert(bytes.end(), data, data + part_f32.bytes());
            }
        }
    }
    return bytes;
}

// Rank 0 gathers all outcomes and repeats the run with threads: eight processes of eight threads would need a larger
// machine.
void same_bits_as_threads(World& world) {
    const auto here = outcome(world);
    const auto device = make_cpu_device(1);
    const auto size = static_cast<int64_t>(here.size());
    const auto n = static_cast<size_t>(world.size());
    const Tensor own = Tensor::empty(*device, {size}, DType::u8, Purpose::communication);
    std::memcpy(own.view().data, here.data(), here.size());
    const Tensor all = Tensor::empty(*device, {size * world.size()}, DType::u8, Purpose::communication);
    const auto group = world.everyone("outcomes");
    group->all_gather(own, all).wait();
    if (world.rank() != 0) return;
    std::vector<std::vector<std::byte>> there(n);
    run_ranks(world.size(), {.timeout_s = 60},
              [&](World& thread) { there[static_cast<size_t>(thread.rank())] = outcome(thread); });
    for (size_t r = 0; r < n; ++r)
        check(there[r].size() == here.size() &&
                  std::memcmp(there[r].data(), all.view().as<std::byte>() + r * here.size(), here.size()) == 0,
              "the backends of processes and of threads differ in their bits on rank ", r);
}

// Two groups of all ranks whose names have equal hashes among the tags of TCP: both work, one between the other's
// operations.
void names_that_collide(World& world) {
    std::vector<int> all;
    for (int r = 0; r < world.size(); ++r) all.push_back(r);
    std::map<int, std::string> seen;  // by tag
    for (int i = 0;; ++i) {
        const std::string name = concat("group ", i);
        const auto [other, is_new] =
            seen.try_emplace(processes::preferred_tag(processes::group_key(name, all, 0), 0x7fffffff), name);
        if (is_new) continue;
        const auto first = world.group(other->second, all), second = world.group(name, all);
        const auto device = make_cpu_device(1);
        const auto values = [&](float v) {
            return Tensor::from_host<float>(*device, {1000}, std::vector<float>(1000, v), Purpose::communication);
        };
        const Tensor a = values(1), b = values(10);
        Work of_a = first->all_reduce(a), of_b = second->all_reduce(b);
        of_b.wait();
        of_a.wait();
        const auto n = static_cast<float>(world.size());
        check(a.view().as<float>()[999] == n && b.view().as<float>()[999] == 10 * n, "the sums are mixed up");
        return;
    }
}

// --- ways to fail; rank 1 is at fault --------------------------------------------------------------------------------

void fail_by_exception(World& world) {
    const auto group = world.everyone("dp");
    for (int i = 0; i < 5; ++i) group->barrier();
    if (world.rank() == 1) throw DataError("the disk of rank 1 is gone");
    group->barrier();
}

void fail_by_exit(World& world) {
    const auto group = world.everyone("dp");
    group->sum(1);
    if (world.rank() == 1) _exit(0);
    group->sum(1);
}

void fail_by_absence(World& world) {
    const auto group = world.everyone("dp"), other = world.everyone("tp");
    group->sum(1);
    other->barrier();
    if (world.rank() == 1) {
        while (true) std::this_thread::sleep_for(std::chrono::seconds(1));
    }
    group->sum(1);
}

void fail_by_disagreement(World& world) {
    const auto group = world.everyone("dp");
    const auto device = make_cpu_device(1);
    const Tensor x = Tensor::from_host<float>(*device, {8}, std::vector<float>(8, 1), Purpose::communication);
    group->all_reduce(x).wait();
    if (world.rank() == 1)
        group->broadcast(x, 0).wait();
    else
        group->all_reduce(x).wait();
}

// Runs until a signal stops one of the ranks; the file tells whom.
void loop(World& world) {
    const auto group = world.everyone("dp");
    const auto device = make_cpu_device(1);
    const Tensor x = Tensor::empty(*device, {100000}, DType::f32, Purpose::communication);
    std::fill_n(x.view().as<float>(), 100000, 0.0f);
    for (int i = 0;; ++i) {
        group->all_reduce(x).wait();
        if (i == 20) {
            const std::string name =
                std::string(std::getenv("TUTTI_TEST_DIR")) + "/pid-" + std::to_string(world.rank());
            std::ofstream(name + ".new") << getpid() << std::endl;
            std::filesystem::rename(name + ".new", name);
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    const std::map<std::string, void (*)(World&)> modes = {{"conformance", conformance_checks},
                                                           {"bits", same_bits_as_threads},
                                                           {"collide", names_that_collide},
                                                           {"throw", fail_by_exception},
                                                           {"exit", fail_by_exit},
                                                           {"absent", fail_by_absence},
                                                           {"disagree", fail_by_disagreement},
                                                           {"loop", loop}};
    try {
        const Arguments a = read(argc, argv);
        const auto mode = modes.find(a.mode);
        check<UsageError>(mode != modes.end(), "unknown mode '", a.mode, "'");
        const Launch launch = detect_launcher(process_environment());
        (a.tcp ? run_tcp : run_mpi)(launch, a.options, mode->second, a.hosts);
        return 0;
    } catch (const Error& error) {
        std::cerr << "process_ranks: " << error.what() << std::endl;
        return error.exit_code();
    } catch (const std::exception& error) {
        std::cerr << "process_ranks: " << error.what() << std::endl;
        return 4;
    }
}
