// planner/search.cpp: loops over the axes. An axis is outside of those whose rules, bounds and prices depend on it.
#include "tutti/planner/search.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>

#include "tutti/base/error.h"
#include "tutti/planner/price.h"
#include "tutti/planner/rules.h"
#include "tutti/simulate/footprint.h"
#include "tutti/simulate/rehearsed.h"
#include "tutti/simulate/step_time.h"

namespace tutti::planner {

namespace {

using simulate::Job;
using simulate::Recompute;

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr int kMostMicroBatch = 64, kMostExpertTp = 8;
constexpr size_t kMostMethods = 64;  // of context parallelism that the rules allow for one cp
constexpr double kSpare = 0.85;      // of the memory; most closed forms are within 7 % of the rehearsed memory

simulate::Offload offload_of(unsigned bits) { return {(bits & 1) != 0, (bits & 4) != 0, (bits & 2) != 0}; }

// The `keep` fastest.
class Fastest {
  public:
    explicit Fastest(size_t keep) : keep_(keep) {}
    double limit() const { return heap_.size() < keep_ ? kNever : heap_.front().seconds; }
    void add(const Candidate& c) {
        if (c.seconds >= limit()) return;
        if (heap_.size() == keep_) {
            std::pop_heap(heap_.begin(), heap_.end(), faster);
            heap_.pop_back();
        }
        heap_.push_back(c);
        std::push_heap(heap_.begin(), heap_.end(), faster);
    }
    std::vector<Candidate> take() {
        std::sort(heap_.begin(), heap_.end(), faster);
        return std::move(heap_);
    }

  private:
    static bool faster(const Candidate& a, const Candidate& b) {
        if (a.seconds != b.seconds) return a.seconds < b.seconds;
        if (a.bytes != b.bytes) return a.bytes < b.bytes;
        return std::abs(a.job.zero - 1) < std::abs(b.job.zero - 1);  // where nothing is sharded, the usual one
    }
    size_t keep_;
    std::vector<Candidate> heap_;
};

// The fastest of each slice of the memory.
class Front {
  public:
    explicit Front(double memory) : slice_(memory / kSlices) { at_most_.fill(kNever); }

    // Whether a layout with at most this memory, to within a slice, is at least as fast.
    bool beats(double seconds, double bytes) const { return at_most_[index(bytes)] <= seconds; }
    void add(const Candidate& c) {
        if (beats(c.seconds, c.bytes)) return;
        const size_t at = index(c.bytes);
        best_[at] = c;
        for (size_t i = at; i < kSlices; ++i) at_most_[i] = std::min(at_most_[i], c.seconds);
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
    size_t index(double bytes) const { return std::min(kSlices - 1, static_cast<size_t>(bytes / slice_)); }

    double slice_;
    std::array<double, kSlices> at_most_;  // fastest of this slice and those below
    std::array<Candidate, kSlices> best_;
};

// Layouts of one grid differ in what a search by closed forms judges well.
auto grid_of(const Job& j) { return std::tuple(j.tp, j.cp, j.pp, j.ep, j.etp); }
auto variant_of(const Job& j) {
    return std::tuple(grid_of(j), j.micro_batch, j.recompute, j.schedule, j.zero, j.offload.activations);
}

class Search {
  public:
    // `apart`: the fastest of each variant_of() in place of the `keep` fastest of all.
    Search(const Request& r, size_t keep, double memory, bool apart)
        : r_(r),
          apart_(apart),
          memory_(memory),
          fixed_(simulate::kStepFixed),
          job_(plain_job(r)),
          run_(run_of(r, job_)),
          pricer_(job_, r.cluster, r.constants),
          fastest_(keep),
          front_(memory),
          micro_batches_(divisors(r.global_batch, kMostMicroBatch)) {
        if (r.model.moe.experts > 0) {
            for (const int ep : divisors(r.model.moe.experts, r.gpus))
                for (const int etp : divisors(r.model.moe.ffn, kMostExpertTp)) experts_.push_back({ep, etp});
        } else {
            experts_ = {{1, 1}};
        }
        for (const auto& [ep, etp] : experts_) imbalances_[ep] = simulate::imbalance_of(r.expert_loads, ep);
    }

    Found run() {
        const auto start = std::chrono::steady_clock::now();
        for (const int tp : divisors(r_.gpus, r_.gpus))
            for (const int cp : divisors(r_.gpus / tp, r_.gpus))
                for (const int pp : divisors(r_.gpus / tp / cp, r_.gpus)) grid(tp, cp, pp);
        found_.best = fastest_.take();
        for (const auto& [variant, candidate] : variants_) found_.best.push_back(candidate);
        found_.front = front_.take();
        found_.gates.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        return std::move(found_);
    }

  private:
    void count(int64_t Gates::*gate, int64_t layouts) {
        found_.gates.*gate += layouts;
        ++found_.gates.visited;
    }
    void set_schedule(const char* name) {
        job_.schedule = name;
        run_.parallel.schedule = name;
        offloads_ = {};
        for (const int zero : {0, 3})
            for (const unsigned bit : {1, 2, 4}) {
                const simulate::Offload offload = offload_of(bit);
                run_.parallel.zero = zero;
                run_.offload.params = offload.weights;
                if (spec::offloaded_weights_are_gathered(run_) && offload_allowed(r_, name, offload))
                    offloads_[zero == 3 ? 1 : 0] |= bit;
            }
    }
    void replicate(int replicas) {
        run_.parallel.dp_replicate = job_.dp_replicate = replicas;
        run_.parallel.dp_shard = job_.dp() / replicas;
    }
    void count_methods(int64_t Gates::*gate, int64_t layouts) {
        count(gate, layouts * static_cast<int64_t>(methods_.size()));
    }
    // All that can be offloaded, and the number of ways to offload some of it.
    unsigned most_offload(int zero) const { return offloads_[zero == 3 ? 1 : 0]; }
    int64_t offloads(int zero) const { return int64_t{1} << std::popcount(most_offload(zero)); }
    // dp_replicate, ZeRO and offload: ZeRO-0 has nothing to shard.
    int64_t data_layouts() const {
        const auto replicates = static_cast<int64_t>(replicates_.size());
        return offloads(0) * (1 + 2 * replicates) + offloads(3) * replicates;
    }
    int most_virtual() const { return static_cast<int>((r_.model.layers + 2) / job_.pp); }
    // The number of layouts that agree on all axes that a pass depends on.
    int64_t layouts_of_pass() {
        int64_t layouts = 0;
        for (const Schedule& s : schedules()) {
            set_schedule(s.name);
            if (job_.pp == 1) return data_layouts();
            layouts += data_layouts() * (s.chunks > 0 ? 1 : std::max(0, most_virtual() - 1));
        }
        return layouts;
    }

    void grid(int tp, int cp, int pp) {
        run_.parallel.tp = job_.tp = tp;
        run_.parallel.cp = job_.cp = cp;
        run_.parallel.pp = job_.pp = pp;
        const int dp = job_.dp();
        replicates_ = divisors(dp, dp);
        replicate(1);
        const int64_t of_pass = layouts_of_pass();
        const int64_t of_method = (tp > 1 ? 2 : 1) * static_cast<int64_t>(experts_.size()) * 3 * of_pass;
        methods_ = context_methods(cp);
        const int64_t of_batch = static_cast<int64_t>(methods_.size()) * of_method;
        found_.gates.all += of_batch * static_cast<int64_t>(micro_batches_.size());
        if (!r_.limits.allow_grid(tp, cp, pp) || !spec::tp_fits(run_) ||
            !spec::stages_have_layers(r_.model.layers, pp, true))
            return count(&Gates::rules, of_batch * static_cast<int64_t>(micro_batches_.size()));
        std::erase_if(methods_, [&](const ContextMethod& how) {
            how.set(run_.parallel);
            return (r_.limits.plain_context && how.ulysses > 1) || !spec::cp_fits(run_);
        });
        check(methods_.size() < kMostMethods, "search: ", methods_.size(), " methods for cp ", cp);
        const int64_t of_allowed = static_cast<int64_t>(methods_.size()) * of_method;
        for (const int micro_batch : micro_batches_) {
            run_.train.micro_batch = micro_batch;
            const bool allowed = Limits::in(r_.limits.micro_batch, micro_batch) && spec::batch_divides(run_, r_.gpus);
            count(&Gates::rules, allowed ? of_batch - of_allowed : of_batch);
            if (!allowed || methods_.empty()) continue;
            job_.micro_batch = micro_batch;
            batch_layouts(of_pass);
        }
    }

    void batch_layouts(int64_t of_pass) {
        for (const bool sequence_parallel : {true, false}) {
            if (job_.tp == 1 && !sequence_parallel) continue;
            run_.parallel.sequence_parallel = job_.sequence_parallel = sequence_parallel;
            const bool divides = spec::sequence_parallel_fits(run_);
            for (const auto& [ep, etp] : experts_) {
                run_.parallel.ep = job_.ep = ep;
                run_.parallel.etp = job_.etp = etp;
                job_.imbalance = imbalances_.at(ep);
                replicate(1);  // sharded over all of dp at most
                const bool held = Limits::in(r_.limits.ep, ep) && Limits::in(r_.limits.etp, etp);
                if (!divides || !held || !spec::ep_fits(run_, r_.gpus)) {
                    count_methods(&Gates::rules, 3 * of_pass);
                    continue;
                }
                for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
                    if (!Limits::in(r_.limits.recompute, name_of(recompute))) {
                        count_methods(&Gates::rules, of_pass);
                        continue;
                    }
                    job_.recompute = recompute;
                    passes_of_.assign(methods_.size(), nullptr);
                    pipelines();
                }
            }
        }
    }

    void pipelines() {
        set_schedule("1f1b");
        job_.virtual_stages = 1;
        if (job_.pp == 1) return stages();
        const auto microbatches = static_cast<int64_t>(job_.microbatches());
        for (const Schedule& s : schedules()) {
            set_schedule(s.name);
            const bool runs = Limits::in(r_.limits.schedules, s.name) && schedule_allowed(s, job_.pp, microbatches) &&
                              spec::aux_loss_fits_schedule(run_);
            const int first = s.chunks > 0 ? s.chunks : 2, last = s.chunks > 0 ? s.chunks : most_virtual();
            for (job_.virtual_stages = first; job_.virtual_stages <= last; ++job_.virtual_stages)
                if (runs && Limits::in(r_.limits.virtual_stages, job_.virtual_stages) &&
                    stages_allowed(r_.model.layers, job_.pp * job_.virtual_stages))
                    stages();
                else
                    count_methods(&Gates::rules, data_layouts());
        }
    }

    // The least memory of all layouts that differ in data parallelism and offload alone: sharded over all ranks. Over
    // few of them the buffers of ZeRO-2 and ZeRO-3 are more than what these shard.
    double least_bytes() {
        replicate(1);
        double least = kNever;
        for (job_.zero = 1; job_.zero <= 3; ++job_.zero) {
            job_.offload = offload_of(most_offload(job_.zero));
            least = std::min(least, footprint(job_, parts_).total());
        }
        return least;
    }
    bool fits(const simulate::Footprint& f) const {
        const double node = f.offloaded * std::min(r_.gpus, r_.cluster.per_node);
        return f.total() <= memory_ && (r_.cluster.host_memory <= 0 || node <= r_.cluster.host_memory);
    }
    bool hopeless(double seconds, double bytes) const {
        constexpr double kFar = 1.6;  // times the fastest: the closed forms are hardly further off
        return seconds >= (apart_ ? kFar * fastest_of_all_ : fastest_.limit()) && front_.beats(seconds, bytes);
    }
    void add_variant(double seconds, double bytes) {
        fastest_of_all_ = std::min(fastest_of_all_, seconds);
        Candidate& known = variants_[variant_of(job_)];
        if (known.seconds == 0 || seconds < known.seconds) known = {job_, seconds, bytes};
    }
    const simulate::PassPrice& pass() {
        if (passes_of_[method_] != nullptr) return *passes_of_[method_];
        uint64_t key =
            (static_cast<uint64_t>(job_.recompute) * kMostMethods + method_) * 2 + (job_.sequence_parallel ? 1 : 0);
        for (const auto& [part, bits] : {std::pair(job_.tp, 12), std::pair(job_.cp, 20), std::pair(job_.ep, 12),
                                         std::pair(job_.etp, 4), std::pair(static_cast<int>(job_.micro_batch), 7)})
            key = (key << bits) + static_cast<uint64_t>(part);
        const auto [known, is_new] = passes_.try_emplace(key);
        if (is_new) known->second = pricer_.pass(job_);
        return *(passes_of_[method_] = &known->second);
    }

    // A ring needs the least memory of all methods of context parallelism, and the bound has no communication.
    void stages() {
        job_.cp_method = simulate::Context::ring;
        job_.cp_ulysses = 1;
        const simulate::FootprintParts ring = parts_ = footprint_parts(job_);
        const double least = least_bytes();
        if (found_.least_bytes == 0 || least < found_.least_bytes) found_.least_bytes = least;
        if (least > memory_) return count_methods(&Gates::memory, data_layouts());
        if (hopeless(pricer_.lower_bound(job_), least)) return count_methods(&Gates::flops, data_layouts());
        std::optional<simulate::FootprintParts> exchanging;
        for (method_ = 0; method_ < methods_.size(); ++method_) {
            job_.cp_method = methods_[method_].method;
            job_.cp_ulysses = methods_[method_].ulysses;
            // The memory depends on whether heads are exchanged, and on nothing else of the method.
            if (job_.exchanging() > 1 && !exchanging) exchanging = footprint_parts(job_);
            parts_ = job_.exchanging() > 1 ? *exchanging : ring;
            price_method(least);
        }
    }

    void price_method(double least) {
        job_.zero = 1;
        job_.offload = {};
        const simulate::StepTime t = pricer_.step(job_, pass());
        // The time that does not depend on data parallelism or offload; the factor is for rounding.
        const double without = (t.total() - t.dp - t.optimizer - t.other + fixed_) * (1 - 1e-9);
        if (hopeless(without, least)) return count(&Gates::compute, data_layouts());
        for (const int zero : {1, 0, 2, 3}) data_parallel(zero, without);
    }

    void data_parallel(int zero, double without) {
        job_.zero = zero;
        const unsigned most = most_offload(zero);
        Candidate best{{}, kNever, 0}, spare = best;  // spare: with memory to spare
        const size_t replications = zero == 0 ? 1 : replicates_.size();
        if (!Limits::in(r_.limits.zero, zero))
            return count(&Gates::rules, static_cast<int64_t>(replications) * offloads(zero));
        for (size_t i = 0; i < replications; ++i) {
            replicate(replicates_[i]);
            if (!spec::ep_fits(run_, r_.gpus) || !Limits::in(r_.limits.dp_replicate, replicates_[i])) {
                count(&Gates::rules, offloads(zero));
                continue;
            }
            // All that can be offloaded bounds the memory, nothing offloaded the time. More replicas need more memory.
            job_.offload = offload_of(most);
            const double least = footprint(job_, parts_).total();
            const bool too_large = least > memory_;
            if (too_large || hopeless(without, least)) {
                const auto rest = static_cast<int64_t>(replications - i);
                count(too_large ? &Gates::memory : &Gates::compute, rest * offloads(zero));
                break;
            }
            job_.offload = {};
            const double fastest = pricer_.step(job_, pass()).total() * (1 - 1e-9);
            if (hopeless(fastest, least)) {
                count(&Gates::compute, offloads(zero));
                continue;
            }
            for (unsigned bits = 0; bits <= most; ++bits) {
                if ((bits & ~most) != 0) continue;
                job_.offload = offload_of(bits);
                const simulate::Footprint memory = footprint(job_, parts_);
                if (!fits(memory)) {
                    count(&Gates::memory, 1);
                    continue;
                }
                const double bytes = memory.total();
                if (hopeless(fastest, bytes)) {
                    count(&Gates::compute, 1);
                    continue;
                }
                const double seconds = pricer_.step(job_, pass()).total();
                count(&Gates::priced, 1);
                if (!front_.beats(seconds, bytes)) front_.add({job_, seconds, bytes});
                if (apart_) {
                    add_variant(seconds, bytes);
                    continue;
                }
                if (seconds >= fastest_.limit()) continue;
                if (seconds < best.seconds) best = {job_, seconds, bytes};
                if (bytes <= kSpare * memory_ && seconds < spare.seconds) spare = {job_, seconds, bytes};
            }
        }
        if (best.seconds < kNever) fastest_.add(best);
        if (spare.seconds < kNever && spare.seconds > best.seconds) fastest_.add(spare);
    }

    const Request& r_;
    const bool apart_;
    double fastest_of_all_ = kNever;
    std::map<decltype(variant_of(Job())), Candidate> variants_;
    const double memory_, fixed_;
    Job job_;            // the layout in hand
    spec::RunSpec run_;  // the same in the words of the engine's rules
    const simulate::StepPricer pricer_;
    simulate::FootprintParts parts_;  // of the layout in hand
    Fastest fastest_;
    Front front_;
    const std::vector<int> micro_batches_;
    std::vector<std::pair<int, int>> experts_;    // ep, etp
    std::unordered_map<int, double> imbalances_;  // of ep
    std::array<unsigned, 2> offloads_;            // of the schedule, below ZeRO-3 and with it: bits of offload_of()
    std::vector<int> replicates_;
    std::unordered_map<uint64_t, simulate::PassPrice> passes_;
    std::vector<ContextMethod> methods_;                 // that the rules allow
    size_t method_ = 0;                                  // in hand
    std::vector<const simulate::PassPrice*> passes_of_;  // of each method; null: not priced yet
    Found found_;
};

}  // namespace

Found propose(const Request& request, size_t keep, double memory) {
    return Search(request, keep, memory > 0 ? memory : request.cluster.memory, false).run();
}

Found search(const Request& request, const rehearsal::Target& target) {
    const auto start = std::chrono::steady_clock::now();
    constexpr double kSlack = 1.15;                 // of the memory: probes count it again
    constexpr double kNear = 1.25;                  // times the fastest so far
    constexpr size_t kMostGrids = 120, kFirst = 2;  // grids, and layouts of each
    constexpr size_t kGrids = 6, kAll = 24;         // of these the best ones, and layouts of each
    const double capacity = target.device.memory_bytes > 0 ? double(target.device.memory_bytes) : kNever;
    Found found = Search(request, 1, kSlack * std::min(capacity, request.cluster.memory), true).run();
    const auto faster = [](const Candidate& a, const Candidate& b) { return a.seconds < b.seconds; };
    std::sort(found.best.begin(), found.best.end(), faster);
    struct Grid {
        std::vector<Candidate> proposed;  // fastest first by the closed forms
        double seconds = kNever;          // of the fastest priced one
    };
    std::map<decltype(grid_of(Job())), size_t> places;
    std::vector<Grid> grids;  // in the order of their fastest by the closed forms
    for (Candidate& c : found.best) {
        const auto [place, is_new] = places.try_emplace(grid_of(c.job), grids.size());
        if (is_new) grids.emplace_back();
        grids[place->second].proposed.push_back(std::move(c));
    }
    found.best.clear();
    Front front(request.cluster.memory);
    Pricer pricer(request, target);
    double fastest = kNever;
    const auto price = [&](Grid& grid, size_t begin, size_t end) {
        for (size_t i = begin; i < std::min(end, grid.proposed.size()); ++i) {
            const Job& job = grid.proposed[i].job;
            spec::RunSpec run = run_of(request, job);
            try {
                ++found.gates.by_probes;
                std::optional<Price> priced = pricer.price(run, kNear * fastest);
                if (!priced || priced->bytes > capacity) continue;
                const simulate::HostMemory host =
                    simulate::host_memory(priced->offloaded, priced->saved, request.gpus, request.cluster);
                if (!simulate::host_memory_problem(host, request.cluster).empty()) continue;
                run.parallel.reductions = 2;  // as the finalists, where that is faster
                const std::optional<Price> two = job.zero > 0 ? pricer.price(run, priced->seconds) : std::nullopt;
                const bool overlaps = two && two->bytes <= capacity;
                if (overlaps) priced = two;
                found.best.push_back({job, priced->seconds, priced->bytes, overlaps ? 2 : 1});
                front.add(found.best.back());
                grid.seconds = std::min(grid.seconds, priced->seconds);
                fastest = std::min(fastest, priced->seconds);
            } catch (const UsageError&) {
                ++found.gates.rules;  // such as a schedule that does not exist for these numbers
                --found.gates.priced;
            }
        }
    };
    grids.resize(std::min(grids.size(), kMostGrids));
    for (Grid& grid : grids) price(grid, 0, kFirst);
    std::stable_sort(grids.begin(), grids.end(), [](const Grid& a, const Grid& b) { return a.seconds < b.seconds; });
    for (size_t g = 0; g < std::min(kGrids, grids.size()); ++g) price(grids[g], kFirst, kAll);
    std::sort(found.best.begin(), found.best.end(), faster);
    found.front = front.take();
    found.gates.probes = static_cast<int64_t>(pricer.probes());
    found.gates.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return found;
}

}  // namespace tutti::planner
