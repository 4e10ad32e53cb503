// planner/search.cpp: nodes best first, the layouts of each, and the prices of the most promising.
#include "tutti/planner/search.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <queue>
#include <set>
#include <tuple>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/device/on_cores.h"
#include "tutti/planner/price.h"
#include "tutti/planner/rules.h"
#include "tutti/simulate/rehearsed.h"

namespace tutti::planner {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Times the fastest estimate: nodes that are opened, as the price may be a few percent lower; layouts that are
// proposed, among which one needs less memory.
constexpr double kOpened = 1.05, kFar = 1.6;
constexpr double kSlack = 1.1;  // of the memory: the price counts it again
constexpr int kMostMicroBatch = 64, kMostExpertTp = 8;

// The fastest of each slice of the memory.
class Front {
  public:
    explicit Front(double memory) : slice_(memory / kSlices) {}
    void add(const Candidate& c) {
        Candidate& known = best_[std::min(kSlices - 1, static_cast<size_t>(c.bytes / slice_))];
        if (known.seconds == 0 || c.seconds < known.seconds) known = c;
    }
    std::vector<Candidate> take() const {
        std::vector<Candidate> front;
        double fastest = kNever;
        for (const Candidate& c : best_) {
            if (c.seconds <= 0 || c.seconds >= fastest) continue;
            fastest = c.seconds;
            front.push_back(c);
        }
        std::reverse(front.begin(), front.end());
        return front;
    }

  private:
    static constexpr size_t kSlices = 128;
    double slice_;
    std::array<Candidate, kSlices> best_;
};

// What changes a layer.
struct Node {
    int64_t tp = 1, cp = 1, ep = 1, etp = 1;
    ContextMethod how;
    size_t micro_batch = 0;  // in Search::micro_batches_
    int recompute = 0;       // in kPolicies
    bool offloads = false, splits = false;
    auto operator<=>(const Node&) const = default;
};
constexpr std::array kPolicies = {"none", "selective", "full"};
using Hope = std::pair<double, Node>;  // seconds of its fastest pipeline, or a bound of them

struct Pipeline {
    double seconds = 0;  // of a layout that fits
    double passes = 0;   // of a step without data parallelism
    Node node;
    int64_t pp = 1;
    std::string_view schedule;
    int64_t virtual_stages = 1;
};

auto grid_of(const spec::RunSpec& run) {
    const spec::ParallelSpec& p = run.parallel;
    return std::tuple(p.tp, p.cp, p.pp, p.ep, p.etp);
}

class Search {
  public:
    Search(const Request& r, const rehearsal::Target& target)
        : r_(r),
          capacity_(
              std::min(target.device.memory_bytes > 0 ? double(target.device.memory_bytes) : kNever, r.cluster.memory)),
          pricer_(r, target),
          run_(plain_run(r)),
          micro_batches_(divisors(r.run.train.global_batch, kMostMicroBatch)),
          front_(r.cluster.memory) {}

    Found run() {
        const auto start = std::chrono::steady_clock::now();
        found_.gates.all = layouts_of_space();
        explore();
        estimate_pipelines();
        price_proposals();
        Gates& g = found_.gates;
        g.unopened = g.all - g.rules - g.memory - g.passes - g.estimated;
        g.probes = static_cast<int64_t>(pricer_.probes());
        g.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        return std::move(found_);
    }

  private:
    // --- Nodes

    void push(const Node& node, double bound) {
        if (seen_.insert(node).second) open_.emplace(bound, node);
    }

    void explore() {
        // A first layout, so that what is slower is not opened: on one node each.
        Node first;
        first.tp = std::min(r_.gpus, r_.cluster.per_node);
        first.ep = r_.run.model.moe.experts > 0 ? std::gcd(r_.run.model.moe.experts, int64_t{r_.gpus}) : 1;
        if (r_.gpus % first.tp == 0 && seen_.insert(first).second) visit(first);
        for (const int ep : divisors(std::max<int64_t>(1, r_.run.model.moe.experts), r_.gpus)) {
            Node node;
            node.ep = ep;
            push(node, 0);
        }
        // Some at a time, whose probes are rehearsed at once.
        constexpr size_t kAtOnce = 8;
        for (std::vector<Hope> next; open_.size() > 0; next.clear()) {
            while (next.size() < kAtOnce && !open_.empty() && open_.top().first <= kOpened * fastest_) {
                next.push_back(open_.top());
                open_.pop();
            }
            if (next.empty()) break;
            prepare(next);
            for (const auto& [bound, node] : next)
                if (bound <= kOpened * fastest_) visit(node);
        }
        constexpr size_t kMost = 24, kClimbs = 12;
        const auto sort = [&] {
            std::stable_sort(hopes_.begin(), hopes_.end(),
                             [](const auto& a, const auto& b) { return a.first < b.first; });
        };
        sort();
        // Larger micro batches of the best, as long as they are not far behind.
        std::vector<Hope> climbing = first_hopes(kClimbs);
        while (!climbing.empty()) {
            std::vector<Hope> next;
            for (auto [seconds, node] : climbing)
                if (++node.micro_batch < micro_batches_.size() && seen_.insert(node).second)
                    next.emplace_back(seconds, node);
            prepare(next);
            climbing.clear();
            for (const auto& [seconds, node] : next) {
                visit(node);
                if (hopes_.back().second == node && hopes_.back().first <= kFar * fastest_)
                    climbing.push_back(hopes_.back());
            }
        }
        sort();
        std::vector<Hope> best = first_hopes(kMost), split = best;
        for (auto& [seconds, node] : split) node.splits = true;
        std::erase_if(split, [&](const auto& hope) { return r_.gpus == hope.second.tp * hope.second.cp; });
        prepare(split);
        for (const auto& [seconds, node] : best)
            if (seconds <= kFar * fastest_) variants(node);
    }
    std::vector<Hope> first_hopes(size_t most) const {
        return {hopes_.begin(), hopes_.begin() + std::min(std::ssize(hopes_), static_cast<std::ptrdiff_t>(most))};
    }

    // Rehearses the probes of nodes that are likely to be asked for, on all cores.
    void prepare(const std::vector<Hope>& likely) {
        std::vector<spec::RunSpec> runs;
        for (const auto& [bound, node] : likely)
            if (bound <= kFar * fastest_ && set(node)) runs.push_back(run_);
        pricer_.prepare(runs);
    }

    // Whether the rules allow layers like these.
    bool set(const Node& node) {
        spec::ParallelSpec& p = run_.parallel;
        p.tp = node.tp;
        p.cp = node.cp;
        p.cp_method = node.how.name;
        p.cp_ulysses = node.how.ulysses;
        p.ep = node.ep;
        p.etp = node.etp;
        p.dp_replicate = 1;
        p.dp_shard = r_.gpus / (node.tp * node.cp);
        p.zero = 0;
        p.sequence_parallel = true;
        if (!spec::sequence_parallel_fits(run_)) p.sequence_parallel = false;
        set_pipeline(node.splits ? 2 : 1, node.splits ? "zb-h1" : "1f1b", 1);
        run_.train.micro_batch = micro_batches_[node.micro_batch];
        run_.recompute.policy = kPolicies[to_size(node.recompute)];
        run_.offload = {};
        run_.offload.activations = node.offloads;
        return spec::tp_fits(run_) && spec::cp_fits(run_) && spec::ep_has_experts(run_) &&
               spec::divides(node.etp, r_.run.model.moe.ffn) && node.ep * node.etp <= r_.gpus;
    }
    // What the search may take; a node that is left out may still lead to others.
    bool taken(const Node& node) const {
        const Limits& l = r_.limits;
        return Limits::in(l.tp, node.tp) && Limits::in(l.cp, node.cp) && Limits::in(l.ep, node.ep) &&
               Limits::in(l.etp, node.etp) && Limits::in(l.micro_batch, run_.train.micro_batch) &&
               !(l.plain_context && node.how.ulysses > 1);
    }

    // Layers that neither recompute nor offload, with a whole backward.
    void visit(const Node& node) {
        if (!set(node)) return;
        const LayerProbe& probe = pricer_.probe(run_);
        double all = probe.embedding.passes() + probe.head.passes();
        for (const size_t kind : probe.kind_of_layer) all += probe.kinds[kind].passes();
        const double microbatches = double(r_.run.train.global_batch) / double(run_.train.micro_batch);
        const double seconds = microbatches * double(node.tp * node.cp) / r_.gpus * all;  // on all devices
        // A larger micro batch may take up to so much less time.
        if (node.tp * node.cp == 1 && node.micro_batch + 1 < micro_batches_.size()) {
            Node larger = node;
            const double before = micro_batches_[node.micro_batch];
            ++larger.micro_batch;
            push(larger, seconds * before / micro_batches_[larger.micro_batch]);
        }
        if (seconds > kOpened * fastest_) return;
        if (taken(node)) hopes_.emplace_back(hope(node, probe), node);
        if (node.micro_batch == 0) lead_on(node, seconds);
    }

    // The fastest pipeline of a node: as it is, or where that needs too much memory, as if it were recomputed: the
    // forward twice, and of a layer its input is kept.
    double hope(const Node& node, const LayerProbe& probe) {
        LayerProbe again = probe;
        for (UnitProbe& kind : again.kinds) {
            kind.input += kind.forward;
            kind.kept = again.hidden;
        }
        double fastest = kNever;
        for_each_allowed(node, [&](std::string_view, int64_t) {
            if (pricer_.passes(run_, probe) > std::min(fastest, kFar * fastest_)) return;
            for (const LayerProbe* each : {&probe, static_cast<const LayerProbe*>(&again)})
                if (const auto seconds = first_estimate(*each)) {
                    fastest = std::min(fastest, *seconds);
                    return;
                }
        });
        fastest_ = std::min(fastest_, fastest);
        return fastest;
    }

    void lead_on(const Node& node, double seconds) {
        const auto more = [&](auto change, double bound) {
            Node next = node;
            change(next);
            push(next, bound);
        };
        const int64_t left = r_.gpus / (node.tp * node.cp);
        for (const int64_t prime : divisors(left, left)) {
            if (prime == 1 || divisors(prime, prime).size() > 2) continue;
            more([&](Node& n) { n.tp *= prime; }, seconds);
            for (const ContextMethod& how : context_methods(node.cp * prime))
                if (grows_to(node, how, prime))
                    more(
                        [&](Node& n) {
                            n.cp *= prime;
                            n.how = how;
                        },
                        seconds);
        }
        if (node.etp < kMostExpertTp && r_.run.model.moe.experts > 0) more([](Node& n) { n.etp *= 2; }, seconds);
    }
    // A node with a split backward, and where memory is short with recompute and offloaded activations.
    void variants(const Node& plain) {
        std::vector<Hope> all, thrifty;
        for (const bool offloads : {false, true})
            for (const int recompute : {0, 1, 2})
                for (const bool splits : {false, true}) {
                    if (splits && (offloads || r_.gpus == plain.tp * plain.cp)) continue;
                    if (offloads && !may_offload("1f1b", true)) continue;
                    Node node = plain;
                    node.offloads = offloads;
                    node.recompute = recompute;
                    node.splits = splits;
                    all.emplace_back(0, node);
                    if ((offloads || recompute > 0) && taken_policy(node)) thrifty.push_back(all.back());
                }
        scarce_ = false;
        for (const auto& [bound, node] : all) {
            if (node.offloads || node.recompute > 0) {
                if (!scarce_) continue;
                prepare(thrifty);
                thrifty.clear();
            }
            if (taken_policy(node))
                pipelines_of(node);
            else
                scarce_ = true;
        }
    }
    bool taken_policy(const Node& node) const {
        return Limits::in(r_.limits.recompute, kPolicies[to_size(node.recompute)]);
    }
    void pipelines_of(const Node& node) {
        set(node);
        const LayerProbe& probe = pricer_.probe(run_);
        for_each_allowed(node, [&](std::string_view schedule, int64_t v) {
            if ((run_.parallel.pp > 1 && splits_backward(schedule)) != node.splits) return;
            if (node.offloads && !may_offload(schedule, true)) return;
            const int64_t layouts = data_layouts(run_.parallel.dp_shard * run_.parallel.dp_replicate, schedule);
            const double passes = pricer_.passes(run_, probe);
            if (passes > kFar * fastest_) {
                found_.gates.passes += layouts;
                return;
            }
            const auto seconds = first_estimate(probe);
            if (!seconds) {
                found_.gates.memory += layouts;
                return;
            }
            fastest_ = std::min(fastest_, *seconds);
            pipelines_.push_back({*seconds, passes, node, run_.parallel.pp, schedule, v});
        });
    }
    // Of the ranks that exchange heads and those that pass keys on, one number grows.
    static bool grows_to(const Node& from, const ContextMethod& how, int64_t by) {
        if (from.cp == 1) return true;
        const auto heads = [](const ContextMethod& m, int64_t cp) {
            return m.name == "ulysses" ? cp : std::max<int64_t>(m.ulysses, 1);
        };
        const int64_t before = heads(from.how, from.cp), after = heads(how, from.cp * by);
        if (how.name == "ulysses" || from.how.name == "ulysses") return from.how.name == "ulysses" && after >= before;
        return how.name == from.how.name && (after == before || after == before * by);
    }
    // --- The layouts of a node

    void set_pipeline(int64_t pp, std::string_view schedule, int64_t virtual_stages) {
        run_.parallel.pp = pp;
        run_.parallel.schedule = schedule;
        run_.parallel.virtual_stages = virtual_stages;
        set_stages(run_);
    }
    void replicate(int64_t dp, int64_t replicas) {
        run_.parallel.dp_replicate = replicas;
        run_.parallel.dp_shard = dp / replicas;
    }

    // Calls visit(schedule, virtual stages) for each pipeline of `pp` ranks.
    template <class Visit>
    void for_each_pipeline(int64_t pp, Visit visit) const {
        if (pp == 1) return visit(std::string_view("1f1b"), int64_t{1});
        for (const schedule::Kind* kind : schedules()) {
            const int64_t first = kind->chunks > 0 ? kind->chunks : 2;
            const int64_t last = kind->chunks > 0 ? kind->chunks : (r_.run.model.layers + 2) / pp;
            for (int64_t v = first; v <= last; ++v) visit(kind->name, v);
        }
    }
    bool may_offload(std::string_view schedule, bool activations) const {
        spec::OffloadSpec all;
        all.optimizer = true;
        all.activations = activations;
        return offload_allowed(r_, schedule, all);
    }
    // ZeRO, replicas and offload of state: ZeRO-0 has nothing to shard.
    int64_t data_layouts(int64_t dp, std::string_view schedule) const {
        const auto replicas = static_cast<int64_t>(divisors(dp, dp).size());
        const int64_t offloads = may_offload(schedule, false) ? 2 : 1;
        return offloads * (1 + 2 * replicas) + offloads * offloads * replicas;
    }
    int64_t layouts_of_space() const {
        int64_t all = 0, experts = 0;
        for (const int ep : divisors(std::max<int64_t>(1, r_.run.model.moe.experts), r_.gpus))
            for (int64_t etp = 1; etp <= (r_.run.model.moe.experts > 0 ? kMostExpertTp : 1); etp *= 2)
                experts += ep * etp <= r_.gpus ? 1 : 0;
        for (const int64_t tp : divisors(r_.gpus, r_.gpus))
            for (const int64_t cp : divisors(r_.gpus / tp, r_.gpus)) {
                int64_t of_grid = 0;
                for (const int64_t pp : divisors(r_.gpus / tp / cp, r_.gpus))
                    for_each_pipeline(pp, [&](std::string_view schedule, int64_t) {
                        of_grid +=
                            data_layouts(r_.gpus / (tp * cp * pp), schedule) * (may_offload(schedule, true) ? 2 : 1);
                    });
                all += of_grid * static_cast<int64_t>(context_methods(cp).size());
            }
        return all * experts * std::ssize(micro_batches_) * std::ssize(kPolicies);
    }

    // Calls visit(schedule, virtual stages) with the layout in hand for each pipeline that the rules allow.
    template <class Visit>
    void for_each_allowed(const Node& node, Visit visit) {
        const Limits& l = r_.limits;
        const int64_t left = r_.gpus / (node.tp * node.cp);
        for (const int64_t pp : divisors(left, left))
            for_each_pipeline(pp, [&](std::string_view schedule, int64_t v) {
                const int64_t dp = left / pp;
                const bool held =
                    Limits::in(l.pp, pp) &&
                    (pp == 1 || (Limits::in(l.schedules, std::string(schedule)) && Limits::in(l.virtual_stages, v)));
                if (held && stages_allowed(r_.run.model.layers, pp * v)) {
                    set_pipeline(pp, schedule, v);
                    replicate(dp, 1);
                    run_.parallel.zero = 0;
                    if (spec::keeps_rules(run_, r_.gpus)) try {
                            return visit(schedule, v);
                        } catch (const UsageError&) {
                            // Such as a schedule that does not exist for these numbers.
                        }
                }
                found_.gates.rules += data_layouts(dp, schedule);
            });
    }

    void data_parallel(int64_t dp, int zero) {
        spec::ParallelSpec& p = run_.parallel;
        p.zero = zero;
        const bool host = may_offload(p.schedule, false);
        bool too_large = false;
        for (const int replicas : zero == 0 ? std::vector{1} : divisors(dp, dp)) {
            replicate(dp, replicas);
            const bool held = Limits::in(r_.limits.zero, zero) && Limits::in(r_.limits.dp_replicate, replicas) &&
                              spec::ep_fits(run_, r_.gpus);
            bool fits = false, tried = false;
            for (const bool weights : {false, true})
                for (const bool optimizer : {false, true}) {
                    if ((weights || optimizer) && !host) continue;
                    if (weights && zero < 3) continue;
                    run_.offload.params = weights;
                    run_.offload.optimizer = optimizer;
                    if (!held)
                        ++found_.gates.rules;
                    else if (fits)
                        ++found_.gates.passes;  // offload of what fits is slower
                    else if (too_large)
                        ++found_.gates.memory;
                    else {
                        fits = propose();
                        tried = true;
                    }
                }
            run_.offload.params = run_.offload.optimizer = false;
            too_large = too_large || (tried && !fits);  // more replicas need more memory
        }
    }

    bool on_host(const spec::RunSpec& run, const Price& price) const {
        return simulate::host_memory_problem(
                   simulate::host_memory(run, price.offloaded, price.saved, r_.gpus, r_.cluster), r_.cluster)
            .empty();
    }
    // Seconds of the pipeline in hand with ZeRO-1, or where that is too large with ZeRO-2 or 3, or with all its state
    // on the host; nothing where none of them fits.
    std::optional<double> first_estimate(const LayerProbe& probe) {
        const auto fits = [&](int zero, bool offload) -> std::optional<double> {
            if (offload && !may_offload(run_.parallel.schedule, false)) return std::nullopt;
            run_.parallel.zero = zero;
            run_.offload.params = run_.offload.optimizer = offload;
            const Price price = estimate(probe);
            run_.offload.params = run_.offload.optimizer = false;
            if (price.bytes > capacity_ || !on_host(run_, price)) return std::nullopt;
            return price.seconds;
        };
        std::optional<double> fastest;
        for (const int zero : {1, 0, 2, 3}) {  // ZeRO-0 where only that may be taken
            const auto seconds = Limits::in(r_.limits.zero, zero) ? fits(zero, false) : std::nullopt;
            if (seconds && (!fastest || *seconds < *fastest)) fastest = seconds;
            if (fastest && zero == 1) break;
        }
        return fastest ? fastest : fits(3, true);
    }
    Price estimate(const LayerProbe& probe) {
        constexpr double kScarce = 0.8;                             // of the memory
        run_.parallel.reductions = run_.parallel.zero > 0 ? 2 : 1;  // in flight: faster, where they fit
        Price price = pricer_.estimate(run_, probe, capacity_);
        if (price.bytes > capacity_) {
            run_.parallel.reductions = 1;
            price = pricer_.estimate(run_, probe, kSlack * capacity_);
        }
        if (found_.least_bytes == 0 || price.bytes < found_.least_bytes) found_.least_bytes = price.bytes;
        if (price.bytes > kScarce * capacity_) scarce_ = true;
        return price;
    }
    // Whether the layout in hand fits.
    bool propose() {
        const Price price = estimate(pricer_.probe(run_));
        if (price.bytes > kSlack * capacity_ || !on_host(run_, price)) {
            ++found_.gates.memory;
            return false;
        }
        if (price.seconds > kFar * fastest_) {
            ++found_.gates.passes;
            return true;
        }
        ++found_.gates.estimated;
        if (price.bytes <= capacity_) fastest_ = std::min(fastest_, price.seconds);
        const spec::ParallelSpec& p = run_.parallel;
        Candidate& known = proposals_[{grid_of(run_), run_.train.micro_batch, run_.recompute.policy, p.schedule, p.zero,
                                       run_.offload.activations}];
        if (known.seconds == 0 || price.seconds < known.seconds) known = {run_, price.seconds, price.bytes};
        return true;
    }

    // All data parallelism of the fastest pipelines.
    void estimate_pipelines() {
        constexpr size_t kMost = 500;
        std::sort(pipelines_.begin(), pipelines_.end(),
                  [](const Pipeline& a, const Pipeline& b) { return a.seconds < b.seconds; });
        for (size_t i = 0; i < pipelines_.size(); ++i) {
            const Pipeline& each = pipelines_[i];
            set(each.node);
            set_pipeline(each.pp, each.schedule, each.virtual_stages);
            const int64_t dp = r_.gpus / (each.node.tp * each.node.cp * each.pp);
            if (i >= kMost || each.passes > kFar * fastest_)
                found_.gates.passes += data_layouts(dp, each.schedule);
            else
                for (const int zero : {1, 0, 2, 3}) data_parallel(dp, zero);
        }
    }

    // --- Prices

    // A few layouts of each of the best grids, and more of the best few.
    void price_proposals() {
        constexpr size_t kMostGrids = 120, kFirst = 3, kGrids = 6, kAll = 24;
        std::vector<Candidate> proposed;
        for (auto& [variant, candidate] : proposals_) proposed.push_back(std::move(candidate));
        const auto faster = [](const Candidate& a, const Candidate& b) { return a.seconds < b.seconds; };
        std::sort(proposed.begin(), proposed.end(), faster);
        struct Grid {
            std::vector<const Candidate*> proposed;  // fastest first
            double seconds = kNever;                 // of the fastest priced one
        };
        std::map<decltype(grid_of(run_)), size_t> places;
        std::vector<Grid> grids;  // in the order of their fastest
        for (const Candidate& c : proposed) {
            const auto [place, is_new] = places.try_emplace(grid_of(c.run), grids.size());
            if (is_new) grids.emplace_back();
            grids[place->second].proposed.push_back(&c);
        }
        fastest_ = kNever;
        std::vector<std::pair<Grid*, const Candidate*>> wanted;
        const auto want = [&](Grid& grid, size_t begin, size_t end) {
            for (size_t i = begin; i < std::min(end, grid.proposed.size()); ++i)
                wanted.emplace_back(&grid, grid.proposed[i]);
        };
        // Some at a time: those that are near the fastest so far.
        const auto price = [&] {
            constexpr size_t kAtOnce = 12;
            constexpr double kNear = 1.25;
            for (size_t begin = 0; begin < wanted.size(); begin += kAtOnce) {
                std::vector<std::optional<Candidate>> priced_now(std::min(kAtOnce, wanted.size() - begin));
                for_each_on_cores(priced_now.size(), [&](size_t i) {
                    priced_now[i] = priced(*wanted[begin + i].second, kNear * fastest_);
                });
                for (size_t i = 0; i < priced_now.size(); ++i) {
                    ++found_.gates.priced;
                    if (!priced_now[i]) continue;
                    Candidate& c = *priced_now[i];
                    front_.add(c);
                    double& of_grid = wanted[begin + i].first->seconds;
                    of_grid = std::min(of_grid, c.seconds);
                    fastest_ = std::min(fastest_, c.seconds);
                    found_.best.push_back(std::move(c));
                }
            }
            wanted.clear();
        };
        grids.resize(std::min(grids.size(), kMostGrids));
        for (Grid& grid : grids) want(grid, 0, kFirst);
        price();
        std::stable_sort(grids.begin(), grids.end(),
                         [](const Grid& a, const Grid& b) { return a.seconds < b.seconds; });
        for (size_t g = 0; g < std::min(kGrids, grids.size()); ++g) want(grids[g], kFirst, kAll);
        price();
        std::sort(found_.best.begin(), found_.best.end(), faster);
        found_.front = front_.take();
    }

    // A proposal with its price, if it fits and takes no longer than `limit`.
    std::optional<Candidate> priced(Candidate c, double limit) {
        c.run.parallel.reductions = 1;
        std::optional<Price> price;
        try {
            price = pricer_.price(c.run, limit);
        } catch (const UsageError&) {
            return std::nullopt;  // a schedule of fewer microbatches was proposed in its place, and this one deadlocks
        }
        if (!price || price->bytes > capacity_ || !on_host(c.run, *price)) return std::nullopt;
        if (c.run.parallel.zero > 0) {  // two reductions in flight, where that is faster
            c.run.parallel.reductions = 2;
            const std::optional<Price> two = pricer_.price(c.run, price->seconds);
            if (two && two->bytes <= capacity_)
                price = two;
            else
                c.run.parallel.reductions = 1;
        }
        c.seconds = price->seconds;
        c.bytes = price->bytes;
        return c;
    }

    const Request& r_;
    const double capacity_;
    Pricer pricer_;
    spec::RunSpec run_;  // the layout in hand
    const std::vector<int> micro_batches_;
    Front front_;
    double fastest_ = kNever;
    bool scarce_ = false;  // a layout of the node in hand needs most of the memory, or more
    std::set<Node> seen_;
    std::priority_queue<Hope, std::vector<Hope>, std::greater<>> open_;
    std::vector<Hope> hopes_;  // of all nodes so far
    std::vector<Pipeline> pipelines_;
    // The fastest of each grid, micro batch, recompute, schedule, ZeRO stage and offload of activations.
    std::map<std::tuple<decltype(grid_of(spec::RunSpec())), int64_t, std::string, std::string, int64_t, bool>,
             Candidate>
        proposals_;
    Found found_;
};

}  // namespace

Found search(const Request& request, const rehearsal::Target& target) { return Search(request, target).run(); }

}  // namespace tutti::planner
