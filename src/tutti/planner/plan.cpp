// planner/plan.cpp: the search and its finalists; the comparison of two layouts.
#include "tutti/planner/plan.h"

#include "tutti/base/error.h"
#include "tutti/base/units.h"
#include "tutti/planner/rules.h"

namespace tutti::planner {

namespace {

[[noreturn]] void refuse(const Request& r, const SearchResult& found) {
    const std::string what = concat("no layout of ", name_of(r.run.model), " on ", r.gpus, " x ", r.cluster.name,
                                    " with a global batch of ", r.run.train.global_batch, " is possible");
    const std::string least = concat(": the least that a rank needs is ", format_bytes(found.least_bytes), " of ",
                                     format_bytes(r.cluster.memory));
    check<UsageError>(found.least_bytes <= r.cluster.memory, what, least,
                      "; try more --gpus, a shorter --seq-len, or a device with more memory");
    check<UsageError>(!found.host_is_short, what, least, ", and what it offloads is more than the ",
                      format_bytes(r.cluster.host_memory),
                      " of a node's host hold; try more --gpus, or a host with more memory "
                      "(--set-cluster host.memory_gb=...)");
    throw UsageError(concat(what, ": of ", format_count(double(found.counts.all)),
                            " layouts none keeps the rules. The ranks that the model's axes leave (of ", r.gpus,
                            "; heads ", r.run.model.heads, ", layers ", r.run.model.layers,
                            ") must divide the global batch; try a --global-batch that is a multiple of ", r.gpus,
                            ", or other --gpus"));
}

}  // namespace

Plan make_plan(const Request& request, size_t top) {
    check_request(request);
    Plan plan{request, {}, {}, {}};
    const rehearsal::Target target = target_of(request);
    plan.certified = concat("rehearsed by the engine for ", target.device.name);
    plan.found = search(request, target);
    if (plan.found.best.empty()) refuse(request, plan.found);
    plan.finalists = choose(request, plan.found, top, target);
    if (plan.finalists.chosen.empty()) {
        throw UsageError(concat("none of the ", plan.finalists.dropped.size(), " fastest layouts of ",
                                name_of(request.run.model), " runs, and none with less memory: ",
                                plan.finalists.dropped.front().reason, "; try more --gpus or a shorter --seq-len"));
    }
    return plan;
}

Comparison compare(const simulate::RehearsedStep& best, const simulate::RehearsedStep& other) {
    Comparison c;
    c.slower = other.seconds / best.seconds - 1;
    const auto mine = simulate::kinds_of(best.time), theirs = simulate::kinds_of(other.time);
    for (size_t i = 0; i < mine.size(); ++i) {
        const double difference = theirs[i].second - mine[i].second;
        if (difference <= c.difference) continue;
        c.kind = mine[i].first;
        c.difference = difference;
    }
    c.within_error = other.seconds < best.seconds * best.high;
    return c;
}

}  // namespace tutti::planner
