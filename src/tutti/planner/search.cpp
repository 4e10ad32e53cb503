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
#include <span>
#include <tuple>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/device/on_cores.h"
#include "tutti/planner/node.h"
#include "tutti/planner/price.h"
#include "tutti/planner/rules.h"
#include "tutti/spec/recipe.h"

namespace tutti::planner {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Times the fastest estimate: nodes that are opened, as the price may be a few percent lower; layouts that are
// proposed, among which one needs less memory.
constexpr double kOpened = 1.05, kFar = 1.6;

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

using RankedNode = std::pair<double, Node>;  // with seconds of its fastest pipeline, or a bound of them

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
          layouts_(r, pricer_, capacity_),
          micro_batches_(micro_batches_of(r)),
          front_(r.cluster.memory) {}

    SearchResult run() {
        const auto start = std::chrono::steady_clock::now();
        found_.counts.all = layouts_.layouts_of_space();
        explore();
        estimate_data_parallelism();
        price_proposals();
        check<SizeError>(!ranked_.empty() || too_many_values_.empty(), too_many_values_);
        SearchCounts& g = found_.counts;
        found_.least_bytes = too_large_.least > 0 && found_.best.empty() ? too_large_.least : seen_memory_.least;
        found_.host_is_short = too_large_.host || seen_memory_.host;
        g.unopened = g.all - g.rules - g.memory - g.passes - g.estimated;
        g.probes = static_cast<int64_t>(pricer_.probes());
        g.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        return std::move(found_);
    }

  private:
    // Estimates of several nodes, side by side, know the fastest layout before them; what they say is taken one after
    // another, with the fastest layout until then. So the result depends on no number of cores.
    static constexpr size_t kAtOnce = 8;
    static constexpr size_t kMostPipelines = 500;  // whose data parallelism is estimated

    // --- Nodes

    void push(const Node& node, double bound) {
        if (seen_.insert(node).second) open_.emplace(bound, node);
    }

    void explore() {
        // A first layout, so that what is slower is not opened: on one node each.
        const int64_t experts = r_.run.model.moe.experts;
        const Node first{.tp = std::min(r_.gpus, r_.cluster.per_node),
                         .ep = experts > 0 ? std::gcd(experts, int64_t{r_.gpus}) : 1};
        if (r_.gpus % first.tp == 0 && seen_.insert(first).second) visit(first, estimate_node(first));
        for (const int ep : divisors(std::max<int64_t>(1, experts), r_.gpus)) push({.ep = ep}, 0);
        for (std::vector<RankedNode> next; open_.size() > 0; next.clear()) {
            while (next.size() < kAtOnce && !open_.empty() && open_.top().first <= kOpened * fastest_) {
                next.push_back(open_.top());
                open_.pop();
            }
            if (next.empty()) break;
            const std::vector<std::optional<NodeEstimate>> estimates = estimate_nodes(next);
            for (size_t i = 0; i < next.size(); ++i)
                if (next[i].first <= kOpened * fastest_) visit(next[i].second, estimates[i]);
        }
        constexpr size_t kMost = 24, kClimbs = 12;
        const auto sort = [&] { std::ranges::stable_sort(ranked_, {}, &RankedNode::first); };
        sort();
        // Larger micro batches of the best, as long as they are not far behind.
        std::vector<RankedNode> climbing = fastest_nodes(kClimbs);
        while (!climbing.empty()) {
            std::vector<RankedNode> next;
            for (auto [seconds, node] : climbing)
                if (++node.micro_batch < micro_batches_.size() && seen_.insert(node).second)
                    next.emplace_back(seconds, node);
            const std::vector<std::optional<NodeEstimate>> estimates = estimate_nodes(next);
            climbing.clear();
            for (size_t i = 0; i < next.size(); ++i) {
                visit(next[i].second, estimates[i]);
                if (ranked_.back().second == next[i].second && ranked_.back().first <= kFar * fastest_)
                    climbing.push_back(ranked_.back());
            }
        }
        sort();
        estimate_variants(fastest_nodes(kMost));
    }
    std::vector<RankedNode> fastest_nodes(size_t most) const {
        return {ranked_.begin(), ranked_.begin() + std::min(std::ssize(ranked_), static_cast<std::ptrdiff_t>(most))};
    }

    // What the search may take; a node that is left out may still lead to others.
    bool taken(const Node& node) const {
        const Limits& l = r_.limits;
        return Limits::in(l.tp, node.tp) && Limits::in(l.cp, node.cp) && Limits::in(l.ep, node.ep) &&
               Limits::in(l.etp, node.etp) && Limits::in(l.micro_batch, micro_batches_[node.micro_batch]) &&
               !(l.plain_context && node.how.ulysses > 1) &&
               (node.tp > 1 || !spec::gathers_codes_of_sequences(r_.run.precision));
    }

    // Layers that neither recompute nor offload, with a whole backward.
    struct NodeEstimate {
        double seconds = 0;         // of the layers of a step, on all devices
        double fastest = kNever;    // of its pipelines
        int64_t against_rules = 0;  // layouts
        MemorySeen seen;
        std::string problem = {};  // a rank has more values than a kernel takes
    };
    // Nothing for a node that the rules do not allow.
    std::optional<NodeEstimate> estimate_node(const Node& node) {
        NodeLayouts layouts(r_, pricer_, capacity_);
        if (!layouts.set(node)) return std::nullopt;
        const LayerProbe* known = nullptr;
        try {
            known = &pricer_.probe(layouts.run());
        } catch (const SizeError& error) {
            return NodeEstimate{.problem = error.what()};
        }
        const LayerProbe& probe = *known;
        double all = probe.embedding.seconds() + probe.head.seconds();
        for (const size_t kind : probe.kind_of_layer) all += probe.kinds[kind].seconds();
        const double microbatches = double(r_.run.train.global_batch) / double(micro_batches_[node.micro_batch]);
        NodeEstimate estimate{.seconds = microbatches * double(node.tp * node.cp) / r_.gpus * all};
        if (estimate.seconds > kOpened * fastest_ || !taken(node)) return estimate;
        // A pipeline as it is, or where that needs too much memory, as if it were recomputed: the forward twice, and of
        // a layer its input is kept.
        LayerProbe again = probe;
        for (UnitProbe& kind : again.kinds) {
            for (UnitPass* pass : {&kind.input, &kind.backward}) pass->pieces.front().seconds += kind.forward.seconds();
            kind.kept = again.hidden;
        }
        NodePipelines pipelines = layouts.pipelines(node, probe, true);
        estimate.against_rules = pipelines.against_rules;
        for (PipelineEstimate& each : pipelines.pipelines) {
            const double limit = std::min(estimate.fastest, kFar * fastest_);
            if (each.least > limit) break;
            layouts.estimate(each, probe, limit);
            if (!each.seconds) layouts.estimate(each, again, limit);
            estimate.fastest = std::min(estimate.fastest, each.seconds.value_or(kNever));
            estimate.seen.add(each.seen);
        }
        return estimate;
    }
    // All at once, on all cores.
    std::vector<std::optional<NodeEstimate>> estimate_nodes(const std::vector<RankedNode>& nodes) {
        std::vector<std::optional<NodeEstimate>> estimates(nodes.size());
        for_each_on_cores(nodes.size(), [&](size_t i) { estimates[i] = estimate_node(nodes[i].second); });
        return estimates;
    }

    void visit(const Node& node, const std::optional<NodeEstimate>& estimate) {
        if (!estimate) return;
        if (!estimate->problem.empty()) {
            too_many_values_ = estimate->problem;
            if (node.micro_batch == 0) push_larger(node, 0);
            return;
        }
        // A larger micro batch may take up to so much less time.
        if (node.tp * node.cp == 1 && node.micro_batch + 1 < micro_batches_.size()) {
            Node larger = node;
            const double before = micro_batches_[node.micro_batch];
            ++larger.micro_batch;
            push(larger, estimate->seconds * before / micro_batches_[larger.micro_batch]);
        }
        if (estimate->seconds > kOpened * fastest_) return;
        if (taken(node)) {
            ranked_.emplace_back(estimate->fastest, node);
            fastest_ = std::min(fastest_, estimate->fastest);
            found_.counts.rules += estimate->against_rules;
            seen_memory_.add(estimate->seen);
        }
        if (node.micro_batch == 0) push_larger(node, estimate->seconds);
    }

    // More ranks of tensor, context or expert tensor parallelism make the layers no faster.
    void push_larger(const Node& node, double seconds) {
        const int64_t left = r_.gpus / (node.tp * node.cp);
        for (const int64_t prime : divisors(left, left)) {
            if (prime == 1 || divisors(prime, prime).size() > 2) continue;
            Node next = node;
            next.tp *= prime;
            push(next, seconds);
            next = node;
            next.cp *= prime;
            for (const ContextMethod& how : context_methods(next.cp)) {
                next.how = how;
                if (grows_to(node, how, prime)) push(next, seconds);
            }
        }
        if (node.etp >= kMostExpertTp || r_.run.model.moe.experts == 0) return;
        Node next = node;
        next.etp *= 2;
        push(next, seconds);
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

    // --- Pipelines

    // Of nodes with a whole and a split backward, and where memory is short with recompute and offloaded activations.
    void estimate_variants(const std::vector<RankedNode>& best) {
        const auto may_recompute = [&](int how) { return Limits::in(r_.limits.recompute, kPolicies[to_size(how)]); };
        std::vector<Node> plain, thrifty;
        const auto add = [&](std::vector<Node>& to, Node node) {
            to.push_back(node);
            node.splits = true;
            if (!node.offloads && r_.gpus > node.tp * node.cp) to.push_back(node);
        };
        for (const auto& [seconds, node] : best)
            if (seconds <= kFar * fastest_ && may_recompute(0)) add(plain, node);
        estimate_pipelines(plain, false);  // the estimates counted their layouts against a rule
        for (auto [seconds, node] : best) {
            if (seconds > kFar * fastest_ || (may_recompute(0) && !short_of_memory_.contains(node))) continue;
            for (const bool offloads : {false, true})
                for (const int recompute : {0, 1, 2}) {
                    if ((!offloads && recompute == 0) || !may_recompute(recompute)) continue;
                    if (offloads && !layouts_.may_offload("1f1b", true)) continue;
                    node.offloads = offloads;
                    node.recompute = recompute;
                    add(thrifty, node);
                }
        }
        estimate_pipelines(thrifty, true);
    }

    // Best first, as long as one may be among the fastest kMostPipelines.
    void estimate_pipelines(const std::vector<Node>& nodes, bool counts_rules) {
        constexpr size_t kEstimatedAtOnce = 64;
        std::vector<NodePipelines> of_node(nodes.size());
        for_each_on_cores(nodes.size(), [&](size_t i) {
            NodeLayouts layouts(r_, pricer_, capacity_);
            layouts.set(nodes[i]);
            of_node[i] = layouts.pipelines(nodes[i], pricer_.probe(layouts.run()), false);
        });
        std::vector<PipelineEstimate> all;
        for (const NodePipelines& each : of_node) {
            if (counts_rules) found_.counts.rules += each.against_rules;
            all.insert(all.end(), each.pipelines.begin(), each.pipelines.end());
        }
        std::ranges::stable_sort(all, {}, &PipelineEstimate::least);
        for (size_t begin = 0; begin < all.size(); begin += kEstimatedAtOnce) {
            const double limit = fastest_pipelines_.size() < kMostPipelines ? kNever : fastest_pipelines_.top();
            const auto now = std::span(all).subspan(begin, std::min(kEstimatedAtOnce, all.size() - begin));
            const auto wanted = [&](const PipelineEstimate& each) {
                return each.least <= limit && each.passes <= kFar * fastest_;
            };
            for_each_on_cores(now.size(), [&](size_t i) {
                if (!wanted(now[i])) return;
                NodeLayouts layouts(r_, pricer_, capacity_);
                layouts.set(now[i]);
                layouts.estimate(now[i], pricer_.probe(layouts.run()), std::min(limit, kFar * fastest_));
            });
            for (const PipelineEstimate& each : now) take(each, wanted(each));
        }
    }
    void take(const PipelineEstimate& pipeline, bool wanted) {
        if (!wanted) {
            found_.counts.passes += pipeline.layouts;
            return;
        }
        seen_memory_.add(pipeline.seen);
        if (pipeline.seen.scarce) {
            Node node = pipeline.node;
            node.splits = false;
            short_of_memory_.insert(node);
        }
        if (!pipeline.seconds) {
            found_.counts.memory += pipeline.layouts;
            return;
        }
        fastest_ = std::min(fastest_, *pipeline.seconds);
        fastest_pipelines_.push(*pipeline.seconds);
        if (fastest_pipelines_.size() > kMostPipelines) fastest_pipelines_.pop();
        pipelines_.push_back(pipeline);
    }

    // All data parallelism of the fastest pipelines.
    void estimate_data_parallelism() {
        std::ranges::stable_sort(pipelines_, {}, &PipelineEstimate::seconds);
        for (size_t begin = 0; begin < pipelines_.size(); begin += kAtOnce) {
            std::vector<DataEstimates> all(std::min(kAtOnce, pipelines_.size() - begin));
            for_each_on_cores(all.size(), [&](size_t i) {
                if (begin + i < kMostPipelines && pipelines_[begin + i].passes <= kFar * fastest_)
                    all[i] = NodeLayouts(r_, pricer_, capacity_).data_parallel(pipelines_[begin + i], kFar * fastest_);
            });
            for (size_t i = 0; i < all.size(); ++i) {
                const PipelineEstimate& pipeline = pipelines_[begin + i];
                if (begin + i >= kMostPipelines || pipeline.passes > kFar * fastest_)
                    found_.counts.passes += pipeline.layouts;
                else
                    take(pipeline, all[i]);
            }
        }
    }
    void take(const PipelineEstimate& pipeline, const DataEstimates& all) {
        SearchCounts& counts = found_.counts;
        counts.rules += all.against_rules;
        counts.memory += all.too_large;
        counts.passes += all.not_needed;
        seen_memory_.add(all.seen);
        layouts_.set(pipeline);
        for (const DataEstimate& each : all.fitting) {
            if (each.seconds > kFar * fastest_) {
                ++counts.passes;
                continue;
            }
            ++counts.estimated;
            if (each.bytes <= capacity_) fastest_ = std::min(fastest_, each.seconds);
            layouts_.set(each);
            const spec::RunSpec& run = layouts_.run();
            const spec::ParallelSpec& p = run.parallel;
            Candidate& known = proposals_[{grid_of(run), run.train.micro_batch, run.recompute.policy, p.schedule,
                                           p.zero, run.offload.activations}];
            if (known.seconds == 0 || each.seconds < known.seconds) known = {run, each.seconds, each.bytes};
        }
    }

    // --- Prices

    // A few layouts of each of the best grids, and more of the best few.
    void price_proposals() {
        constexpr size_t kMostGrids = 120, kFirst = 3, kGrids = 6, kAll = 24;
        std::vector<Candidate> proposed;
        for (auto& [variant, candidate] : proposals_) proposed.push_back(std::move(candidate));
        std::ranges::sort(proposed, {}, &Candidate::seconds);
        struct Grid {
            std::vector<const Candidate*> proposed;  // fastest first
            double seconds = kNever;                 // of the fastest priced one
        };
        std::map<decltype(grid_of(spec::RunSpec())), size_t> places;
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
            constexpr size_t kPricedAtOnce = 12;
            constexpr double kNear = 1.25;
            for (size_t begin = 0; begin < wanted.size(); begin += kPricedAtOnce) {
                std::vector<std::optional<Candidate>> priced_now(std::min(kPricedAtOnce, wanted.size() - begin));
                for_each_on_cores(priced_now.size(), [&](size_t i) {
                    priced_now[i] = priced(*wanted[begin + i].second, kNear * fastest_);
                });
                for (size_t i = 0; i < priced_now.size(); ++i) {
                    ++found_.counts.priced;
                    if (!priced_now[i]) continue;
                    Candidate& c = *priced_now[i];
                    if (const bool fits = c.bytes <= capacity_; c.seconds == kNever) {
                        too_large_.add({c.bytes, false, fits});
                        continue;
                    }
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
        std::ranges::stable_sort(grids, {}, &Grid::seconds);
        for (size_t g = 0; g < std::min(kGrids, grids.size()); ++g) want(grids[g], kFirst, kAll);
        price();
        std::ranges::sort(found_.best, {}, &Candidate::seconds);
        found_.front = front_.take();
    }

    // A proposal with its price, if it takes no longer than `limit`. One that does not fit takes for ever.
    std::optional<Candidate> priced(Candidate c, double limit) {
        c.run.parallel.reductions = 1;
        std::optional<Price> price = pricer_.price(c.run, limit);
        if (!price) return std::nullopt;  // or a schedule of fewer microbatches was proposed, and this one deadlocks
        if (price->bytes > capacity_ || !layouts_.on_host(c.run, *price)) {
            c.seconds = kNever;
            c.bytes = price->bytes;
            return c;
        }
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
    NodeLayouts layouts_;
    const std::vector<int> micro_batches_;
    Front front_;
    double fastest_ = kNever;
    MemorySeen seen_memory_, too_large_;  // of estimates; of prices that do not fit
    std::set<Node> seen_;
    std::priority_queue<RankedNode, std::vector<RankedNode>, std::greater<>> open_;
    std::vector<RankedNode> ranked_;  // of all nodes so far
    std::string too_many_values_;     // the problem of the latest node that has one
    std::vector<PipelineEstimate> pipelines_;
    std::priority_queue<double> fastest_pipelines_;  // seconds of at most kMostPipelines
    std::set<Node> short_of_memory_;
    // The fastest of each grid, micro batch, recompute, schedule, ZeRO stage and offload of activations.
    std::map<std::tuple<decltype(grid_of(spec::RunSpec())), int64_t, std::string, std::string, int64_t, bool>,
             Candidate>
        proposals_;
    SearchResult found_;
};

}  // namespace

SearchResult search(const Request& request, const rehearsal::Target& target) { return Search(request, target).run(); }

}  // namespace tutti::planner
