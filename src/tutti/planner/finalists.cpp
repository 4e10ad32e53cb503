// planner/finalists.cpp: validates and rehearses candidates in order of time, several at once.
#include "tutti/planner/finalists.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/base/units.h"
#include "tutti/device/device.h"
#include "tutti/device/on_cores.h"
#include "tutti/planner/rules.h"
#include "tutti/spec/validate.h"

namespace tutti::planner {

namespace {

// Layouts that differ in ZeRO, HSDP and offload only are shown once; so are layouts that divide a rank's tokens into
// sequences differently.
auto core_of(const spec::RunSpec& run) {
    const spec::ParallelSpec& p = run.parallel;
    return std::tuple(p.tp, p.pp, p.ep, p.etp, double(run.train.micro_batch) / double(p.cp), p.schedule,
                      p.virtual_stages, run.recompute.policy);
}

// For layouts that agree in these, prices differ from rehearsals by nearly the same factor.
auto kind_of(const spec::RunSpec& run) {
    const spec::ParallelSpec& p = run.parallel;
    return std::tuple(p.tp, p.sequence_parallel, p.pp, p.ep, p.etp, p.schedule, p.virtual_stages, run.recompute.policy,
                      p.zero, run.offload.optimizer, run.offload.params, run.offload.activations);
}

struct Attempt {
    Candidate candidate;
    std::optional<Finalist> finalist;
    std::string problem;
    bool too_large = false;
};

// The run of a candidate, rehearsed; `problem` says why it is none.
void attempt(const Request& r, const rehearsal::Target& target, Attempt& a) {
    try {
        spec::RunSpec run = a.candidate.run;
        spec::validate(run, r.gpus);
        const auto fitting = [&] { return simulate::rehearse_sums(run, target, r.gpus, r.cluster, r.constants, true); };
        RehearsedRun f;
        try {
            f.step = fitting();
        } catch (const OutOfMemory&) {
            if (run.parallel.reductions == 1) throw;
            run.parallel.reductions = 1;
            f.step = fitting();
        }
        f.run = run;
        a.problem =
            simulate::host_memory_problem(simulate::host_memory(f.run, static_cast<double>(f.step.offloaded),
                                                                static_cast<double>(f.step.saved), r.gpus, r.cluster),
                                          r.cluster);
        if (a.problem.empty()) a.finalist = Finalist{std::move(f), a.candidate};
    } catch (const OutOfMemory&) {
        a.too_large = true;
        a.problem = concat("needs ", format_bytes(a.candidate.bytes), " of ", format_bytes(target.device.memory_bytes),
                           ", but no free block was large enough when rehearsed");
    } catch (const UsageError& error) {
        a.problem = error.what();
    }
}

Finalists choose_among(const Request& request, const std::vector<Candidate>& best, size_t count,
                       const rehearsal::Target& target, size_t most) {
    const auto start = std::chrono::steady_clock::now();
    Finalists all;
    std::set<decltype(core_of(best.front().run))> taken;
    using Kind = decltype(kind_of(best.front().run));
    std::map<Kind, double> too_large;  // bytes as priced
    std::map<Kind, double> slower;     // times the price
    double fastest = std::numeric_limits<double>::infinity();
    const size_t threads = to_size(std::max(1, available_cores()));
    size_t next = 0, tried = 0;
    // A layout that takes longer than its price may hide one behind it.
    constexpr double kFaster = 0.99;
    const auto may_be_fastest = [&](const Candidate& c) {
        const auto known = slower.find(kind_of(c.run));
        return c.seconds * (known == slower.end() ? 1 : known->second) < kFaster * fastest;
    };
    while (next < best.size() && tried < most) {
        const size_t missing = count - std::min(count, all.chosen.size());
        if (missing == 0 && best[next].seconds >= kFaster * fastest) break;
        // One attempt for each processor core, each of another core_of(); results count in order of time.
        std::vector<Attempt> attempts;
        auto planned = taken;
        while (attempts.size() < (missing > 0 ? std::min(threads, missing) : threads) && next < best.size() &&
               tried + attempts.size() < most) {
            const Candidate& c = best[next];
            const auto known = too_large.find(kind_of(c.run));
            if (taken.count(core_of(c.run)) == 0 && (missing > 0 || may_be_fastest(c))) {
                if (known != too_large.end() && c.bytes >= known->second) {
                    all.dropped.push_back(
                        {c, concat("priced at ", format_bytes(c.bytes), ": a layout of its kind did not fit with ",
                                   format_bytes(known->second))});
                } else {
                    if (!planned.insert(core_of(c.run)).second) break;  // needed only if the other one fails
                    attempts.push_back({c, {}, {}});
                }
            }
            ++next;
        }
        for_each_on_cores(attempts.size(), [&](size_t i) { attempt(request, target, attempts[i]); });
        tried += attempts.size();
        for (Attempt& a : attempts) {
            if (a.finalist) {
                taken.insert(core_of(a.candidate.run));
                const double seconds = a.finalist->seconds();
                slower[kind_of(a.candidate.run)] = seconds / a.candidate.seconds;
                fastest = std::min(fastest, seconds);
                all.chosen.push_back(std::move(*a.finalist));
            } else {
                all.dropped.push_back({a.candidate, a.problem});
                if (!a.too_large) continue;
                double& least = too_large.try_emplace(kind_of(a.candidate.run), a.candidate.bytes).first->second;
                least = std::min(least, a.candidate.bytes);
            }
        }
    }
    std::ranges::stable_sort(all.chosen, {}, &Finalist::seconds);
    all.chosen.resize(std::min(count, all.chosen.size()));
    all.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return all;
}

}  // namespace

rehearsal::Target target_of(const Request& request) {
    rehearsal::Target target = rehearsal::target_for(request.cluster, spec::compute_type_of(request.run));
    target.expert_loads = request.expert_loads;
    return target;
}

RehearsedRun rehearsed(const Request& r, const rehearsal::Target& target, const spec::RunSpec& run, bool spans) {
    return {run, spans ? simulate::rehearse_on(run, target, r.gpus, r.cluster, r.constants, true)
                       : simulate::rehearse_sums(run, target, r.gpus, r.cluster, r.constants)};
}

Finalists choose(const Request& request, const SearchResult& found, size_t count, const rehearsal::Target& target) {
    constexpr size_t kMost = 60;
    Finalists fastest = choose_among(request, found.best, count, target, kMost);
    if (!fastest.chosen.empty()) return fastest;
    Finalists smaller = choose_among(request, found.front, count, target, found.front.size());
    if (smaller.chosen.empty()) return fastest;
    smaller.dropped = std::move(fastest.dropped);
    smaller.seconds += fastest.seconds;
    return smaller;
}

}  // namespace tutti::planner
