// cli/health.cpp: `tutti health`: measures all ranks and links at once and names those that are slow or wrong, as text
// or as JSON. Measurements and judgement: diagnose/health.h.
#include "tutti/diagnose/health.h"

#include <algorithm>

#include "tutti/base/build_info.h"
#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/units.h"
#include "tutti/cli/command.h"
#include "tutti/cli/commands.h"
#include "tutti/cli/io.h"
#include "tutti/comm/run.h"
#include "tutti/kernels/backends.h"

namespace tutti::cli {

namespace {

struct HealthArguments : MeasuringArguments {
    std::string device = "auto";
    int threads = 0;          // of a rank; 0: its part of the cores
    double margin = 0.2;      // slow means below 1 - margin of the peers' median
    bool one_by_one = false;  // measure one link at a time
};

using diagnose::ClusterHealth, diagnose::Figure, diagnose::HealthFinding, diagnose::LinkHealth, diagnose::RankHealth,
    diagnose::Verdict;

constexpr int kUnhealthy = 1;
constexpr int kMostOneByOne = 64;  // 2016 links

void print_ranks(const ClusterHealth& c, std::ostream& text) {
    size_t host_width = 6, device_width = 8;
    for (const RankHealth& rank : c.ranks) {
        host_width = std::max(host_width, rank.host_name().size() + 2);
        device_width = std::max(device_width, rank.device_name().size() + 2);
    }
    text << right("rank", 5) << "  " << left("host", host_width) << left("device", device_width)
         << right("bf16 products", 16) << right("f32 products", 16) << right("memory", 13) << right("to device", 13)
         << right("from device", 13) << right("repeats", 9) << '\n';
    for (int r = 0; r < c.size(); ++r) {
        const RankHealth& rank = c.rank(r);
        const auto rate = [&](Figure figure, size_t width) {
            return right(format_rate_of(figure, rank.rate(figure)), width);
        };
        text << right(std::to_string(r), 5) << "  " << left(rank.host_name(), host_width)
             << left(rank.device_name(), device_width) << rate(Figure::bf16_products, 16)
             << rate(Figure::f32_products, 16) << rate(Figure::memory, 13) << rate(Figure::to_device, 13)
             << rate(Figure::from_device, 13) << right(std::to_string(rank.repeats), 9) << '\n';
    }
}

void print_links(const ClusterHealth& c, std::ostream& text) {
    for (const bool same_host : {true, false}) {
        std::vector<double> rates, latencies;
        for (int a = 0; a < c.size(); ++a)
            for (int b = a + 1; b < c.size(); ++b) {
                if (c.same_host(a, b) != same_host) continue;
                rates.push_back(c.link(a, b).bytes_per_s / 1e9);
                latencies.push_back(c.link(a, b).latency_s);
            }
        if (rates.empty()) continue;
        std::sort(rates.begin(), rates.end());
        std::sort(latencies.begin(), latencies.end());
        const size_t middle = rates.size() / 2;
        text << '\n'
             << counted(std::ssize(rates), "link") << ' ' << (same_host ? "within a host: " : "between hosts: ")
             << format_fixed(rates[middle], 2) << " GB/s each way (" << format_fixed(rates.front(), 2) << " to "
             << format_fixed(rates.back(), 2) << "), latency " << format_time(latencies[middle]) << " ("
             << format_time(latencies.front()) << " to " << format_time(latencies.back()) << ")";
    }
    if (c.size() > 1)
        text << "\nall_reduce of " << format_bytes(c.all_reduce_bytes) << ": " << format_time(c.all_reduce_s)
             << ", bus " << format_fixed(c.all_reduce_bus_rate() / 1e9, 2) << " GB/s\n";
}

void print_verdict(const Verdict& verdict, double margin, std::ostream& text) {
    text << '\n';
    for (const std::string& note : verdict.notes) text << "note: " << note << '\n';
    for (const HealthFinding& f : verdict.findings)
        text << (f.share > 0 ? "slow: " : "WRONG: ") << f.text << "\n  try: " << f.advice << '\n';
    if (verdict.findings.empty())
        text << "Healthy: nothing is wrong, nothing slower than its peers by more than " << format_percent(margin)
             << ".\n";
}

Json to_json(const ClusterHealth& c, const Verdict& verdict, const std::string& backend, double margin) {
    Json ranks = Json::array(), links = Json::array(), findings = Json::array();
    for (int r = 0; r < c.size(); ++r) {
        const RankHealth& rank = c.rank(r);
        Json row = {{"rank", r}, {"host", rank.host_name()}, {"device", rank.device_name()}};
        for (size_t f = 0; f < diagnose::kFigures; ++f)
            row[name_of(static_cast<Figure>(f))] = rank.rates[f] > 0 ? Json(rank.rates[f]) : Json(nullptr);
        row["wrong_rows"] = rank.wrong_rows;
        row["repeats"] = rank.repeats;
        row["changed"] = rank.changed;
        row["digest"] = rank.digest;
        ranks.push_back(row);
        for (int peer = r + 1; peer < c.size(); ++peer) {
            const LinkHealth& link = c.link(r, peer);
            links.push_back({{"ranks", {r, peer}},
                             {"same_host", c.same_host(r, peer)},
                             {"bytes_per_s", link.bytes_per_s},
                             {"latency_s", link.latency_s},
                             {"wrong_words", link.wrong_words + c.link(peer, r).wrong_words}});
        }
    }
    for (const HealthFinding& f : verdict.findings)
        findings.push_back({{"finding", f.share > 0 ? "slow" : "wrong"},
                            {"what", f.what},
                            {"ranks", f.ranks},
                            {"share_of_peers", f.share > 0 ? Json(f.share) : Json(nullptr)},
                            {"text", f.text},
                            {"try", f.advice}});
    return {
        {"version", build_info().version},
        {"backend", backend},
        {"margin", margin},
        {"healthy", verdict.findings.empty()},
        {"ranks", ranks},
        {"links", links},
        {"all_reduce",
         {{"bytes", c.all_reduce_bytes}, {"median_s", c.all_reduce_s}, {"bus_bytes_per_s", c.all_reduce_bus_rate()}}},
        {"findings", findings},
        {"notes", verdict.notes}};
}

// One for each GPU; without GPUs two, as threads.
int default_ranks(const HealthArguments& arguments) {
    const int gpus = kernels::gpus_for(arguments.device);
    return gpus > 0 ? gpus : 2;
}

int health(const HealthArguments& arguments, const Io& io) {
    const comm::Launch launch = comm::this_launch(arguments.launcher);
    const bool threads = launch.launcher == comm::Launcher::none;
    const comm::WorldOptions meeting{.timeout_s = 60 + arguments.seconds};
    int asked = 1, ranks = 1;
    comm::before_ranks_meet(launch, meeting, [&] {
        check_device(arguments.device);
        asked = arguments.ranks > 0 ? arguments.ranks : threads ? default_ranks(arguments) : 1;
        ranks = launch.ranks(asked);
        check<UsageError>(!arguments.one_by_one || ranks <= kMostOneByOne, "--one-by-one is for at most ",
                          kMostOneByOne, " ranks, got ", ranks, " with ", ranks * (ranks - 1) / 2,
                          " links: leave it out to measure the pairs of a round at once");
    });
    warn_of_threads(io, launch, arguments.threads, ranks);
    int code = 0;
    comm::run(launch, asked, meeting, [&](comm::World& world) {
        std::ostream silent(nullptr);
        std::ostream& text = world.rank() == 0 ? io.text() : silent;
        const LocalRank local = comm::local_rank(launch, world);
        const auto device = make_device(arguments.device, arguments.threads, local);
        ops::Context ctx{*device, kernels::table_for(*device, ComputeType::bf16)};
        text << "tutti health: " << counted(world.size(), "rank") << ", backend " << world.backend() << ", about "
             << format_duration(arguments.seconds) << "\n"
             << std::endl;
        const ClusterHealth cluster = diagnose::measure_health(
            world, ctx, {.seconds = arguments.seconds, .local = local, .one_by_one = arguments.one_by_one});
        int found = 0;
        if (world.rank() == 0) {  // which reports the result
            const Verdict verdict = diagnose::judge(cluster, arguments.margin);
            print_ranks(cluster, text);
            print_links(cluster, text);
            print_verdict(verdict, arguments.margin, text);
            io.print(to_json(cluster, verdict, world.backend(), arguments.margin));
            found = verdict.findings.empty() ? 0 : 1;
        }
        const bool unhealthy = world.everyone("verdict")->max(found) > 0;
        if (unhealthy && (world.rank() == 0 || launch.size > 1)) code = kUnhealthy;
    });
    return code;
}

}  // namespace

Command health_command(Arguments& all, const Io& io) {
    auto& a = all.add<HealthArguments>();
    const Options options = {
        device_option(a.device),
        threads_option(a.threads),
        {"--margin", "M", "0.2", "slow: below 1 - M of the median of the peers", &a.margin, Between{1e-3, 0.999}},
        {"--one-by-one", "", "", "measure one link at a time, not all pairs of a round at once", &a.one_by_one}};
    return command_of(
        "health", "find slow or wrong ranks and links", a, io, health,
        joined_options({measuring_options(a, "one per GPU, or 2"), options}),
        "All ranks measure at the same time: matrix products, memory, copies to and from a GPU, every link\n"
        "between two ranks. A product of known values is checked and repeated: its bits must not change, and\n"
        "must equal those of the same devices. Exit code 0: healthy; 1: the findings are printed last.\n\n"
        "Examples:\n"
        "  tutti health --ranks 4\n"
        "  mpirun -n 16 tutti health --device cuda\n"
        "  srun tutti health --margin 0.05 --seconds 60 --json");
}

}  // namespace tutti::cli
