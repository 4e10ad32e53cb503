// planner/scaling.cpp: a search for each number of devices; Daly's formula.
#include "tutti/planner/scaling.h"

#include <algorithm>
#include <cmath>

#include "tutti/base/error.h"
#include "tutti/base/units.h"
#include "tutti/models/flops.h"
#include "tutti/optim/rules.h"
#include "tutti/planner/finalists.h"
#include "tutti/planner/rules.h"

namespace tutti::planner {

using report::GoodputTerms;

GoodputTerms failures_of(const hardware::Cluster& cluster, int ranks, double state, const ScalingOptions& o,
                         double memory_every, bool beside) {
    const double nodes = std::max(1.0, double(ranks) / cluster.per_node), saving = state / (nodes * o.storage_per_node);
    GoodputTerms terms{.between_failures = cluster.mtbf_hours * 3600 / ranks,
                       .restart = o.restart_s,
                       .disk_stall = saving,
                       .disk_share = 1,
                       .disk_restart = saving};
    if (memory_every <= 0) return terms;
    terms.memory_every = memory_every;
    const double of_rank = state / ranks, writing = of_rank / o.memory_per_rank;
    terms.memory_stall = beside ? of_rank / o.state_per_rank + std::max(0.0, writing - memory_every) : writing;
    terms.memory_lag = beside ? writing : 0;
    if (nodes > 1) terms.disk_share = o.disk_share;
    return terms;
}

double checkpoint_interval(const GoodputTerms& t) {
    return std::sqrt(2 * t.disk_stall * t.between_failures / (t.memory_every > 0 ? t.disk_share : 1));
}

double checkpoint_bytes(const spec::RunSpec& run) {
    return double(saved_bytes(optim::state_bytes(models::outline(run.model).parameters(), run), run));
}

double goodput(GoodputTerms t, double interval) {
    const double M = t.between_failures;
    if (t.memory_every > 0) {
        // From seconds of training to seconds: the pauses lie in both intervals.
        const double stretch = 1 + t.memory_stall / t.memory_every + t.disk_stall / interval;
        t.memory_every *= stretch;
        t.disk_every = interval * stretch;
        return report::expected_goodput(t);
    }
    return interval / (M * std::exp(t.restart / M) * std::expm1((interval + t.disk_stall) / M));
}

std::vector<ScalingRow> scale(const Request& request, const ScalingOptions& o) {
    check_request(request);
    check<UsageError>(o.first <= o.last, "--scaling begins at ", o.first,
                      " devices; required --gpus of at least that, got ", o.last);
    std::vector<ScalingRow> rows;
    double first_rate = 0;  // tokens/s of a device
    const double price = o.price.value_or(request.cluster.price_per_hour);
    const double state = checkpoint_bytes(request.run);
    const double flops =
        models::counts_of(models::outline(request.run.model), request.run.train.seq_len, "none").model.causal();
    for (int gpus = o.first; gpus <= o.last; gpus *= 2) {
        Request r = request;
        r.gpus = gpus;
        const SearchResult found = search(r, target_of(r));
        ScalingRow row{.gpus = gpus};
        if (found.best.empty()) {
            row.problem = found.least_bytes > r.cluster.memory
                              ? concat("needs ", format_bytes(found.least_bytes), " of ",
                                       format_bytes(r.cluster.memory), " at least")
                          : found.host_is_short
                              ? "offloads more than the host of a node holds"
                              : concat("a batch of ", r.run.train.global_batch, " cannot be divided over the devices");
            rows.push_back(row);
            continue;
        }
        row.best = found.best.front();
        const auto tokens = double(r.run.train.global_batch * r.run.train.seq_len);
        row.tokens_per_s = tokens / row.best.seconds;
        row.mfu = flops * tokens / (row.best.seconds * gpus * r.cluster.peak(peak_of(r)));
        if (first_rate == 0) first_rate = row.tokens_per_s / gpus;
        row.efficiency = row.tokens_per_s / gpus / first_rate;
        row.failures = failures_of(r.cluster, gpus, state, o, double(r.run.checkpoint.memory_every) * row.best.seconds,
                                   r.run.checkpoint.async);
        row.failures.disk_every = checkpoint_interval(row.failures);
        row.goodput = goodput(row.failures, row.failures.disk_every);
        if (price > 0) row.dollars_per_billion_tokens = price * gpus / 3600 / row.useful_tokens_per_s() * 1e9;
        rows.push_back(row);
    }
    return rows;
}

std::string render(const Request& request, const ScalingOptions& o, const std::vector<ScalingRow>& rows) {
    const double price = o.price.value_or(request.cluster.price_per_hour);
    std::string text =
        concat(name_of(request.run.model), " on ", request.cluster.name, ", global batch ",
               request.run.train.global_batch, " of ", request.run.train.seq_len,
               " tokens at every size; best layout by probes of the engine\n\n", right("gpus", 7), right("step", 9),
               right("MFU", 8), right("scaling", 9), right("tokens/s", 10), right("goodput", 9),
               right("save every", 11), right("job MTBF", 10), price > 0 ? right("$/B tokens", 12) : "", "  layout\n");
    for (const ScalingRow& row : rows) {
        text += right(std::to_string(row.gpus), 7);
        if (!row.problem.empty()) {
            text += concat("  ", row.problem, '\n');
            continue;
        }
        text += concat(right(format_time(row.best.seconds), 9), right(format_percent(row.mfu), 8),
                       right(format_percent(row.efficiency), 9), right(format_count(row.tokens_per_s), 10),
                       right(format_percent(row.goodput), 9), right(format_duration(row.failures.disk_every), 11),
                       right(format_duration(row.failures.between_failures), 10),
                       price > 0 ? right(format_fixed(row.dollars_per_billion_tokens, 0), 12) : "", "  ",
                       describe_layout(row.best.run), '\n');
    }
    text += concat("\nfailures: a device with its share of the node fails every ", request.cluster.mtbf_hours,
                   " h, so a job of N every ", request.cluster.mtbf_hours, " / N h\n", "checkpoint: ",
                   format_fixed(checkpoint_bytes(request.run) / double(models::parameter_count(request.run.model)), 1),
                   " bytes a parameter at ", format_bytes(o.storage_per_node), "/s of each node; restart ",
                   format_duration(o.restart_s), "\n",
                   "save every sqrt(2 C MTBF) (Young 1974, Daly 2006); goodput = share of the time that trains "
                   "(Daly, eq. 13)\n");
    if (request.run.checkpoint.memory_every > 0)
        text += concat("copies in memory every ", request.run.checkpoint.memory_every, " steps at ",
                       format_bytes(o.memory_per_rank), "/s of each rank",
                       request.run.checkpoint.async
                           ? concat(" beside the steps, after a pause at ", format_bytes(o.state_per_rank), "/s")
                           : "",
                       "; ", format_percent(o.disk_share),
                       " of failures need the disk, all of them on one node; goodput = (1 - (R + (1 - p) (s kt/2 + w) "
                       "+ p (s T/2 + C)) / MTBF) / s, s = 1 + c/kt + C/T, T = sqrt(2 C MTBF / p), w = time of a copy "
                       "beside the steps\n");
    if (price > 0)
        text += concat("price: ", price, " $ of a device and hour\n");
    else
        text += "no price: the cluster file has no [site] price_per_hour; give --price\n";
    return text;
}

Json to_json(const std::vector<ScalingRow>& rows) {
    Json all = Json::array();
    for (const ScalingRow& row : rows) {
        if (!row.problem.empty()) {
            all.push_back({{"gpus", row.gpus}, {"problem", row.problem}});
            continue;
        }
        all.push_back({{"gpus", row.gpus},
                       {"layout", describe_layout(row.best.run)},
                       {"step_time_s", row.best.seconds},
                       {"mfu_causal", row.mfu},
                       {"tokens_per_s", row.tokens_per_s},
                       {"efficiency", row.efficiency},
                       {"goodput", row.goodput},
                       {"checkpoint_interval_s", row.failures.disk_every},
                       {"checkpoint_s", row.failures.disk_stall},
                       {"restart_s", row.failures.restart},
                       {"mtbf_s", row.failures.between_failures},
                       {"memory_every_s", row.failures.memory_every},
                       {"memory_s", row.failures.memory_stall},
                       {"disk_share", row.failures.disk_share},
                       {"dollars_per_billion_tokens",
                        row.dollars_per_billion_tokens > 0 ? Json(row.dollars_per_billion_tokens) : Json(nullptr)}});
    }
    return {{"rows", all}};
}

}  // namespace tutti::planner
