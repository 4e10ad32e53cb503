// cli/bench/comm.cpp: `tutti bench comm`: every collective over sizes, with the bandwidths as nccl-tests defines them
// (https://github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md), beside the copy bandwidth of the same machine measured in
// the same run. Ranks are threads, or processes started by a launcher.
#include <algorithm>
#include <cstring>

#include "tutti/base/build_info.h"
#include "tutti/base/json.h"
#include "tutti/base/to_size.h"
#include "tutti/base/units.h"
#include "tutti/cli/bench/bench.h"
#include "tutti/cli/io.h"
#include "tutti/comm/run.h"
#include "tutti/diagnose/measure.h"

namespace tutti::cli {

namespace {

using comm::Communicator;
using diagnose::time_together;

constexpr int64_t kLargestMessage = 64 << 20;  // bytes

// A collective on `bytes` of the full tensor: what nccl-tests calls the size.
struct Case {
    const char* name;
    double (*bus_factor)(double ranks);  // bus bandwidth / algorithm bandwidth
    void (*call)(Communicator&, const Tensor& full, const Tensor& other);
};

double none(double) { return 1; }
double once_around(double n) { return (n - 1) / n; }
double twice_around(double n) { return 2 * (n - 1) / n; }

Tensor part_of(const Communicator& group, const Tensor& full) {
    const int64_t part = full.numel() / group.size();
    return full.narrow(0, group.rank() * part, part);
}

constexpr Case kCases[] = {
    {"all_reduce", twice_around, [](Communicator& g, const Tensor& x, const Tensor&) { g.all_reduce(x).wait(); }},
    {"reduce_scatter", once_around,
     [](Communicator& g, const Tensor& x, const Tensor&) { g.reduce_scatter(x, part_of(g, x)).wait(); }},
    {"all_gather", once_around,
     [](Communicator& g, const Tensor& x, const Tensor&) { g.all_gather(part_of(g, x), x).wait(); }},
    {"broadcast", none, [](Communicator& g, const Tensor& x, const Tensor&) { g.broadcast(x, 0).wait(); }},
    {"all_to_all", once_around,
     [](Communicator& g, const Tensor& x, const Tensor& y) {
         const std::vector<int64_t> counts(to_size(g.size()), x.numel() / g.size());
         g.all_to_all(x, counts, y, counts).wait();
     }},
    {"send_receive", none,
     [](Communicator& g, const Tensor& x, const Tensor& y) {  // to the next rank, from the one before
         if (g.size() == 1) return;
         comm::Work out = g.send(x, (g.rank() + 1) % g.size());
         g.receive(y, (g.rank() + g.size() - 1) % g.size()).wait();
         out.wait();
     }},
};

class CommBench {
  public:
    CommBench(comm::World& world, const BenchCommArguments& arguments, std::ostream& text)
        : arguments_(arguments),
          text_(text),
          world_(world),
          group_(world.everyone("bench")),
          device_(make_cpu_device(1)) {
        const int64_t n = kLargestMessage / 4 / world.size() * world.size();
        x_ = Tensor::empty(*device_, {n}, DType::f32, Purpose::communication);
        y_ = Tensor::empty(*device_, {n}, DType::f32, Purpose::communication);
        std::memset(x_.view().data, 0, to_size(x_.bytes()));
        std::memset(y_.view().data, 0, to_size(y_.bytes()));
    }

    Json run() {
        print_head();
        Json rows = Json::array();
        std::vector<double> copies = {copy_rate()};
        Json left_out = Json::array();
        for (const Case& c : kCases) {
            for (int64_t bytes = 1 << 10; bytes <= kLargestMessage; bytes *= 4) {
                rows.push_back(run_case(c, bytes, copies[0]));
                // A message of the next size takes four times as long, three times at least. Equal on all ranks.
                const double next = 3 * 4 * rows.back()["median_s"].get<double>();
                if (next <= 10 * seconds_of_case() || bytes == kLargestMessage) continue;
                left_out.push_back({{"collective", c.name}, {"above_bytes", bytes}});
                text_ << "larger messages are left out: they need more than --seconds " << arguments_.seconds
                      << std::endl;
                break;
            }
            copies.push_back(copy_rate());
        }
        const double copy = timing_of(std::move(copies)).median;
        for (size_t i = 0; i < rows.size(); ++i)
            rows[i]["share_of_copy"] = rows[i]["bus_bytes_per_s"].get<double>() / copy;
        const Timing barrier = time_together(*group_, seconds_of_case(), [&] { group_->barrier(); });
        text_ << "\nbarrier " << format_time(barrier.median) << " (fastest " << format_time(barrier.min) << "); copy "
              << format_bytes(copy) << "/s by all ranks together (fastest " << format_bytes(fastest_copy_) << "/s)\n";
        return {{"bench", "comm"},
                {"version", build_info().version},
                {"machine", cpu_model()},
                {"cores", available_cores()},
                {"backend", world_.backend()},
                {"ranks", world_.size()},
                {"copy_bytes_per_s", copy},
                {"copy_bytes_per_s_fastest", fastest_copy_},
                {"barrier_s", barrier.median},
                {"barrier_s_min", barrier.min},
                {"rows", rows},
                {"left_out", left_out}};
    }

  private:
    double seconds_of_case() const { return arguments_.seconds / static_cast<double>(std::size(kCases) * 9 + 8); }

    // Bytes copied per second by all ranks together, each in its own memory: what a collective that moves every byte
    // once could reach at most.
    double copy_rate() {
        const Timing m = time_together(*group_, seconds_of_case(),
                                       [&] { std::memcpy(y_.view().data, x_.view().data, to_size(x_.bytes())); });
        fastest_copy_ = std::max(fastest_copy_, static_cast<double>(x_.bytes()) * group_->size() / m.min);
        return static_cast<double>(x_.bytes()) * group_->size() / m.median;
    }

    Json run_case(const Case& c, int64_t bytes, double copy) {
        const int64_t n = std::max<int64_t>(bytes / 4 / group_->size(), 1) * group_->size();
        const Tensor x = x_.narrow(0, 0, n), y = y_.narrow(0, 0, n);
        const Timing m = time_together(*group_, seconds_of_case(), [&] { c.call(*group_, x, y); });
        const double algorithm = static_cast<double>(x.bytes()) / m.median,
                     bus = algorithm * c.bus_factor(group_->size());
        text_ << left(c.name, 16) << right(format_bytes(x.bytes()), 10) << right(format_time(m.median), 11)
              << right(format_time(m.min), 11) << right(format_time(m.max), 11)
              << right(format_fixed(algorithm / 1e9, 2), 10) << right(format_fixed(bus / 1e9, 2), 9)
              << right(format_percent(bus / copy), 9) << std::endl;
        return {{"collective", c.name},
                {"bytes", x.bytes()},
                {"median_s", m.median},
                {"min_s", m.min},
                {"max_s", m.max},
                {"runs", m.runs},
                {"algorithm_bytes_per_s", algorithm},
                {"bus_bytes_per_s", bus},
                {"share_of_copy", bus / copy}};
    }

    void print_head() {
        text_ << "tutti bench comm: " << counted(world_.size(), "rank") << ", backend " << world_.backend() << ", "
              << available_cores() << " cores, f32\n\n"
              << left("", 16) << right("size", 10) << right("median", 11) << right("fastest", 11)
              << right("slowest", 11) << right("alg GB/s", 10) << right("bus GB/s", 9) << right("of copy", 9)
              << std::endl;
    }

    const BenchCommArguments& arguments_;
    std::ostream& text_;
    comm::World& world_;
    std::unique_ptr<Communicator> group_;
    std::unique_ptr<Device> device_;
    Tensor x_, y_;
    double fastest_copy_ = 0;
};

}  // namespace

int bench_comm(const BenchCommArguments& arguments, const Io& io) {
    const comm::Launch launch = comm::this_launch(arguments.launcher);
    const bool threads = launch.launcher == comm::Launcher::none;
    const int ranks = arguments.ranks > 0 ? arguments.ranks : threads ? 2 : 1;
    comm::run(launch, ranks, {.timeout_s = 60, .progress_thread = arguments.progress_thread}, [&](comm::World& world) {
        std::ostream silent(nullptr);
        CommBench bench(world, arguments, world.rank() == 0 ? io.text() : silent);
        const Json document = bench.run();
        if (world.rank() == 0) io.print(document);
    });
    return 0;
}

}  // namespace tutti::cli
