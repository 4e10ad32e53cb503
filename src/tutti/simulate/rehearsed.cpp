#include "tutti/simulate/rehearsed.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "tutti/base/ceil_div.h"
#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/base/units.h"
#include "tutti/device/on_cores.h"
#include "tutti/parallel/groups.h"
#include "tutti/rehearsal/present.h"
#include "tutti/simulate/prediction.h"
#include "tutti/spec/recipe.h"
#include "tutti/spec/rules.h"

namespace tutti::simulate {

RehearsedStep rehearse_in_time(const spec::RunSpec& run, const rehearsal::Target& target, int ranks,
                               const MachineProfile& profile, bool with_spans, const std::map<int, double>& slow) {
    const int threads = std::max(1, target.device.threads);
    const KernelProfile& kernels = profile.kernels_of(run.precision.compute, threads);
    RehearsedStep step;
    std::vector<rehearsal::Program> programs;
    for (int rank = 0; rank < ranks; ++rank) {
        rehearsal::Rehearsal rehearsal = rehearsal::rehearse(run, target, ranks, rank);
        programs.push_back(rehearsal.program);
        if (step.traffic.empty()) step.traffic = rehearsal.communication;
        if (rank == 0 || rehearsal.memory.peak() > step.shown.memory.peak()) step.shown = std::move(rehearsal);
    }
    // A kernel is faster while other cores idle, and how long they do follows from the times: a few rounds agree.
    const int cores = std::max(1, profile.cores / threads);
    double others_busy = ranks >= cores ? 1 : (ranks - 1.0) / std::max(1, cores - 1);
    constexpr int kRounds = 4;
    for (int round = 0; round < kRounds; ++round) {
        const double factor = kernels.alone + (1 - kernels.alone) * others_busy;
        TimelinePrices prices;
        prices.kernel = [&](const rehearsal::KernelCall& call) {
            return factor * kernels.seconds(call.kernel, call.work) + kernels.between_kernels;
        };
        prices.operation = [&](const comm::Summary& what, const std::vector<int>& members) {
            // With more ranks than cores a partner is seldom on a core when it is needed, however small the group.
            const int waiting = ranks > cores ? ranks : static_cast<int>(members.size());
            return profile.operation_seconds(what.kind, waiting, static_cast<double>(what.bytes));
        };
        prices.beside_kernels = run.comm.progress_thread;
        prices.step = kernels.of_step;
        prices.slow = slow;
        step.timeline = lay_out(programs, prices, with_spans && round + 1 == kRounds);
        step.seconds = on_cores(step.timeline, cores);
        const double busy = std::accumulate(step.timeline.busy.begin(), step.timeline.busy.end(), 0.0);
        if (cores > 1) others_busy = std::clamp((busy / step.seconds - 1) / (cores - 1), 0.0, 1.0);
    }
    for (const auto& [kernel, calls] : step.timeline.kernels) {
        const double between = static_cast<double>(calls.number) * kernels.between_kernels;
        step.kernels[kernel] = calls.seconds - between;
        step.between += between;
    }
    constexpr double kEightyPercent = 1.2816, kDeviation = 0.08;
    step.high = std::exp(kEightyPercent * kDeviation);
    step.low = 1 / step.high;
    return step;
}

TimelinePrices prices_on(const spec::RunSpec& run, const hardware::Cluster& cluster, const Physics& physics) {
    const auto price = std::make_shared<const MachinePrices>(
        cluster, physics, std::string(hardware::peak_name(spec::compute_type_of(run))));
    TimelinePrices prices;
    prices.beside_kernels = true;
    prices.contention = physics.contention;
    prices.launch = run.train.cuda_graphs ? 0 : price->native_launch();
    prices.host = [price](double bytes) { return price->host_copy(bytes); };
    prices.kernel = [price](const rehearsal::KernelCall& call) {
        const double on_host = call.host_bytes > 0 ? price->host_copy(call.host_bytes) : 0;
        return std::max(on_host, price->kernel(call));
    };
    prices.operation = [price](const comm::Summary& what, const std::vector<int>& members) {
        return price->operation(what, members);
    };
    return prices;
}

namespace {

double& kind_of(StepTime& time, const std::string& place, const rehearsal::KernelCall& call) {
    using Kind = kernels::ProblemShape::Kind;
    if (place == "optimizer") return time.optimizer;
    if (place.starts_with("recompute")) return time.recompute;
    if (call.work.shape.kind == Kind::product) return time.products;
    return call.work.shape.kind == Kind::attention ? time.attention : time.elementwise;
}

// By the axes in the name of a group, "dp_shard+cp".
double& kind_of(StepTime& time, const std::string& group) {
    const auto names = [&](const char* text) { return group.find(text) != std::string::npos; };
    if (group == "host") return time.offload;
    if (names("pp ") || names("pp>") || group == "pp" || names("world")) return time.bubble;
    if (names("dp")) return time.dp;
    if (names("ep") || names("etp")) return time.ep;
    if (names("cp")) return time.cp;
    return names("tp") ? time.tp : time.other;
}

StepTime time_of(const Timeline& timeline, const std::vector<rehearsal::Program>& programs,
                 const TimelinePrices& prices) {
    const auto busiest = to_size(std::max_element(timeline.busy.begin(), timeline.busy.end()) - timeline.busy.begin());
    StepTime time;
    const rehearsal::Program& program = programs[busiest];
    struct Seconds {
        double on_device, all;
    };
    std::vector<Seconds> of_call;
    for (rehearsal::KernelCall call : program.calls) {
        const double all = prices.kernel(call);
        call.host_bytes = 0;
        of_call.push_back({prices.kernel(call), all});
    }
    for (const rehearsal::Action& action : program.actions)
        if (const auto* run = std::get_if<rehearsal::RunKernel>(&action.what)) {
            const auto times = static_cast<double>(action.times);
            const auto [on_device, all] = of_call[run->call];
            kind_of(time, program.places[action.place], program.calls[run->call]) += times * on_device;
            time.offload += times * (all - on_device);
        }
    for (const auto& [group, seconds] : timeline.waited_for[busiest]) kind_of(time, group) += seconds;
    // The two sums may exceed the whole by their rounding.
    time.bubble += std::max(0.0, timeline.seconds - timeline.busy[busiest] - timeline.waited[busiest]);
    return time;
}

}  // namespace

void check_machine(const spec::RunSpec& run, const hardware::Cluster& cluster) {
    const ComputeType compute = spec::compute_type_of(run);
    const std::string_view type = hardware::peak_name(compute);
    std::vector<std::string_view> others;
    for (const ComputeType each : kComputeTypes)
        if (cluster.has(hardware::peak_name(each))) others.push_back(name_of(each));
    check<UsageError>(cluster.has(type), cluster.name, " has no ", type, " products (it has ", cluster.types(),
                      "), which [precision] compute = \"", name_of(compute), "\" needs; set precision.compute to ",
                      joined(others, " or "), ", or name another machine");
    rehearsal::check_recipe(run, rehearsal::target_for(cluster, compute));
    if (spec::recipe_of(run.precision) && !run.precision.emulate)
        check<UsageError>(cluster.has("fp8"), cluster.name, " has no fp8 products (it has ", cluster.types(),
                          "), which [precision] recipe = \"", run.precision.recipe,
                          "\" needs; set precision.emulate = true, which decodes codes before each product, or name "
                          "another machine");
    if (run.offload.params || run.offload.optimizer || run.offload.activations)
        MachinePrices(cluster, {}, std::string(type)).host_copy(0);
}

namespace {

// The chains that may be the slowest: those with slow ranks, and `first`, or another one, that has none.
std::vector<std::vector<int>> chains_of(const spec::RunSpec& run, int ranks, const std::vector<int>& first,
                                        const std::map<int, double>& slow) {
    const mesh::Mesh mesh = parallel::make_mesh(run, ranks);
    const mesh::Axes axes = rehearsal::chained_axes(run.model);
    std::set<std::vector<int>> slow_ones;
    for (const auto& [rank, factor] : slow) slow_ones.insert(mesh.group(rank, axes));
    std::vector<std::vector<int>> chains(slow_ones.begin(), slow_ones.end());
    std::vector<int> even = first;
    for (int rank = 0; rank < ranks && slow_ones.contains(even); ++rank) even = mesh.group(rank, axes);
    if (!slow_ones.contains(even)) chains.push_back(std::move(even));
    return chains;
}

RehearsedStep laid_out(rehearsal::RankRehearsals of, const spec::RunSpec& run, const rehearsal::Target& target,
                       int ranks, const hardware::Cluster& cluster, const Physics& physics, bool with_spans = false,
                       const std::map<int, double>& slow = {}, bool every_rank = false) {
    RehearsedStep step{.traffic = of.all.front().communication,
                       .offloaded = of.offloaded,
                       .saved = of.saved,
                       .ranks = ranks,
                       .tokens = static_cast<double>(run.train.global_batch * run.train.seq_len),
                       .peak = cluster.peak(hardware::peak_name(spec::compute_type_of(run)))};
    std::vector<int> chain;
    std::vector<rehearsal::Program> programs;
    for (size_t i = 0; i < of.chain; ++i) {
        chain.push_back(of.all[i].rank);
        programs.push_back(std::move(of.all[i].program));
    }
    step.shown = std::move(of.all[of.fullest]);
    step.shown.fits = of.fit;

    TimelinePrices prices = prices_on(run, cluster, physics);
    prices.slow = slow;
    std::vector<std::vector<int>> chains = {std::vector<int>(to_size(ranks))};
    if (every_rank)
        std::iota(chains.front().begin(), chains.front().end(), 0);
    else
        chains = chains_of(run, ranks, chain, slow);
    for (const std::vector<int>& along : chains) {
        std::vector<rehearsal::Program> others;
        if (along != chain)
            for (const int rank : along)
                others.push_back(rehearsal::rehearse(run, target, ranks, rank, {}, &step.shown).program);
        const std::vector<rehearsal::Program>& of_ranks = along == chain ? programs : others;
        Timeline timeline = lay_out(along, of_ranks, prices, with_spans);
        if (!step.timeline.ranks.empty() && timeline.seconds <= step.seconds) continue;
        step.seconds = timeline.seconds;
        step.timeline = std::move(timeline);
        step.time = time_of(step.timeline, of_ranks, prices);
    }
    for (const auto& [kernel, calls] : step.timeline.kernels) step.kernels[kernel] = calls.seconds;
    // What a layout adds to the error of a stranger's run is rehearsed here; the device and the loads of experts are
    // not.
    std::vector<std::string> kinds = {simulate::kind_of(cluster)};
    if (run.model.moe.experts > 0) kinds.emplace_back("experts");
    step.high = std::exp(half_width(kinds, false));
    step.low = 1 / step.high;
    return step;
}

// Whether the blocks of each rank need as much for a round of microbatches more.
bool need_the_same(const rehearsal::RankRehearsals& few, const rehearsal::RankRehearsals& more) {
    const auto same = [](const rehearsal::Rehearsal& a, const rehearsal::Rehearsal& b) {
        return a.rank == b.rank && a.memory.peak() == b.memory.peak() && a.memory.offloaded == b.memory.offloaded;
    };
    return std::ranges::equal(few.all, more.all, same);
}

// The ranks that may not fit with more microbatches, one of those alike: gaps between blocks grow with their number.
std::vector<int> ranks_with_little_left(const rehearsal::RankRehearsals& few, const rehearsal::RankRehearsals& more) {
    constexpr double kGaps = 1.1;  // 1.03 was the most of 45 layouts: decision 83
    std::map<std::tuple<int64_t, int64_t, int64_t>, int> ranks;
    for (size_t i = 0; i < more.all.size(); ++i) {
        const rehearsal::Rehearsal& r = more.all[i];
        const int64_t peak = r.memory.peak();
        if (r.memory_capacity > 0 && kGaps * double(peak) > double(r.memory_capacity))
            ranks.emplace(std::tuple(-peak, few.all[i].memory.reserved, r.memory.reserved), r.rank);
    }
    std::vector<int> all;
    for (const auto& [need, rank] : ranks) all.push_back(rank);
    return all;
}

}  // namespace

RehearsedStep rehearse_on(const spec::RunSpec& run, const rehearsal::Target& target, int ranks,
                          const hardware::Cluster& cluster, const Physics& physics, bool with_spans,
                          const std::map<int, double>& slow, bool every_rank) {
    check_machine(run, cluster);
    return laid_out(rehearsal::rehearse_ranks(run, target, ranks, false), run, target, ranks, cluster, physics,
                    with_spans, slow, every_rank);
}

RehearsedStep rehearse_sums(const spec::RunSpec& run, const rehearsal::Target& target, int ranks,
                            const hardware::Cluster& cluster, const Physics& physics, bool must_fit) {
    check_machine(run, cluster);
    const auto ranks_of = [&](const spec::RunSpec& of, bool all_fit) {
        return rehearsal::rehearse_ranks(of, target, ranks, false, std::nullopt, all_fit);
    };
    const auto laid = [&](const spec::RunSpec& of, rehearsal::RankRehearsals rehearsals) {
        return laid_out(std::move(rehearsals), of, target, ranks, cluster, physics);
    };
    const int64_t of_microbatch = run.train.micro_batch * spec::data_parallel_ranks(run.parallel, ranks);
    const int64_t microbatches = run.train.global_batch / of_microbatch;
    const int64_t pp = run.parallel.pp;
    // Every schedule takes an even multiple of pp more. Times may alternate from one to the next, so several are a
    // round.
    const int64_t round = round_up(12, pp % 2 == 0 ? pp : 2 * pp);
    const int64_t least = std::max<int64_t>(3 * pp, 16);
    spec::RunSpec few = run, more = run;
    few.train.global_batch = (least + (microbatches - least) % round) * of_microbatch;
    more.train.global_batch = few.train.global_batch + round * of_microbatch;
    const auto whole = [&] { return laid(run, ranks_of(run, must_fit)); };
    if (pp == 1 || few.train.global_batch + more.train.global_batch >= run.train.global_batch) return whole();
    rehearsal::RankRehearsals with_few, with_more;
    try {
        with_few = ranks_of(few, true);
        with_more = ranks_of(more, true);
    } catch (const OutOfMemory&) {
        return whole();
    }
    if (!need_the_same(with_few, with_more)) return whole();
    const std::vector<int> doubtful = ranks_with_little_left(with_few, with_more);
    std::atomic<bool> fit = true;
    for_each_on_cores(doubtful.size(), [&](size_t i) {
        if (fit && !rehearsal::fits(run, target, ranks, doubtful[i])) fit = false;
    });
    if (must_fit && !fit) throw OutOfMemory(concat("a rank does not fit ", target.device.name));
    const RehearsedStep first = laid(few, std::move(with_few));
    RehearsedStep step = laid(more, std::move(with_more));
    const double times = static_cast<double>(run.train.global_batch - more.train.global_batch) /
                         static_cast<double>(round * of_microbatch);
    step.time = extended(first.time, step.time, times);
    step.seconds += times * (step.seconds - first.seconds);
    step.tokens += times * (step.tokens - first.tokens);
    step.shown.fits = fit;
    step.timeline = {};
    step.traffic.clear();
    step.kernels.clear();
    return step;
}

Json describe(const RehearsedStep& step) {
    const MemoryByPurpose& memory = step.shown.memory.at_peak;
    return {{"step_time_s", step.seconds},
            {"step_time_low_s", step.seconds * step.low},
            {"step_time_high_s", step.seconds * step.high},
            {"tokens_per_s", step.tokens_per_s()},
            {"tokens_per_s_per_rank", step.tokens_per_s() / step.ranks},
            {"mfu_causal", step.mfu()},
            {"mfu_full", step.mfu_full()},
            {"hfu", step.hfu()},
            {"mfu_of_precision_peak", step.mfu()},
            {"peak_bytes", memory.total()},
            {"offloaded_bytes", static_cast<double>(step.shown.memory.offloaded)},
            {"memory", rehearsal::to_json(memory)},
            {"time", to_json(step.time)}};
}

HostMemory host_memory(const spec::RunSpec& run, double offloaded_of_rank, double saved_of_rank, int ranks,
                       const hardware::Cluster& cluster) {
    constexpr double kSystem = 0.05;  // of the host: kernel, page cache of the data, the processes themselves
    const double of_node = std::min(ranks, cluster.per_node);
    const int copies = spec::copies_in_memory(run, ranks > cluster.per_node);
    return {of_node * offloaded_of_rank, of_node * saved_of_rank, copies * of_node * saved_of_rank,
            kSystem * cluster.host_memory};
}

std::string text_of(const HostMemory& need, const hardware::Cluster& cluster) {
    const auto text = format_bytes;
    return concat(
        text(need.offloaded), " offloaded, ", text(need.saves), " for copies of a save, ",
        need.copies > 0 ? concat(text(need.copies), " for the copies in memory (checkpoint.memory_every), ") : "",
        text(need.system), " for the system: ", text(need.total()), " of ",
        cluster.host_memory > 0 ? text(cluster.host_memory) : "an unknown size ([host] memory_gb)");
}

Json to_json(const HostMemory& need, const hardware::Cluster& cluster) {
    return {{"offloaded_bytes", need.offloaded},
            {"saves_bytes", need.saves},
            {"copies_bytes", need.copies},
            {"system_bytes", need.system},
            {"needed_bytes", need.total()},
            {"capacity_bytes", cluster.host_memory},
            {"fits", host_memory_problem(need, cluster).empty()}};
}

std::string host_memory_problem(const HostMemory& need, const hardware::Cluster& cluster) {
    if (cluster.host_memory <= 0 || need.offloaded + need.copies <= 0 || need.total() <= cluster.host_memory) return "";
    return concat("the host of a node has too little memory: ", text_of(need, cluster));
}

}  // namespace tutti::simulate
