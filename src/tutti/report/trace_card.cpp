// report/trace_card.cpp: the cards of communication: the counters of each group, where the time of the traced steps
// went on each rank, one of those steps as a drawing, and the pipeline beside its timeline.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "tutti/base/error.h"
#include "tutti/base/units.h"
#include "tutti/report/parts.h"
#include "tutti/report/svg.h"
#include "tutti/report/trace_picture.h"
#include "tutti/schedule/schedule.h"
#include "tutti/schedule/timeline.h"

namespace tutti::report {

namespace {

constexpr size_t kTableRanks = 64;

std::string times_table(const std::vector<RankTimes>& all) {
    std::string rows;
    for (size_t i = 0; i < std::min(all.size(), kTableRanks); ++i) {
        const RankTimes& t = all[i];
        rows += row_of({concat(t.rank), short_number(t.step_ms), short_number(t.compute_ms),
                        share_text(t.compute_ms, t.step_ms), short_number(t.data_ms), short_number(t.wait_ms),
                        share_text(t.wait_ms, t.step_ms), short_number(t.communication_ms),
                        share_text(t.hidden_ms, t.communication_ms)});
    }
    std::string text = table({"rank", "step, ms", "compute, ms", "of the step", "data, ms", "waits, ms", "of the step",
                              "communication, ms", "hidden"},
                             rows);
    if (all.size() > kTableRanks) text += quiet(concat("and ", all.size() - kTableRanks, " more ranks in trace.json."));
    return text;
}

std::string drawing(const std::vector<TracedRank>& trace, const std::string& id, const std::string& whose) {
    const TracedSpan* step = typical_step(trace[0]);
    if (step == nullptr) return "";
    const svg::Bars chart = bars_of(trace, *step, concat(whose, " ", step->step));
    std::string more;
    if (trace.size() > kDrawnRanks)
        more = quiet(concat("Ranks 0 to ", kDrawnRanks - 1, " of ", trace.size(), " are drawn."));
    return concat("<figure class=\"card full\">",
                  figure(chart, id, "of each rank: computing, under it its waits, and the operations of each group"),
                  more, "</figure>\n");
}

}  // namespace

std::string trace_card(const RunHistory& run) {
    if (run.trace.empty()) return "";
    const std::vector<RankTimes> times = times_of(run.trace);
    return concat(drawing(run.trace, "timeline", "Step"),
                  section("Where the time of a step goes",
                          times_table(times) +
                              quiet(concat("Means of the ", times[0].steps,
                                           " traced steps. Communication: at least one operation was in flight; "
                                           "hidden: the share of that time in which the rank computed. Without a "
                                           "progress thread data moves while a rank waits or begins another operation. "
                                           "trace.json opens in ui.perfetto.dev and chrome://tracing."))));
}

std::string prediction_card(const RunHistory& run) {
    if (!run.predicted) return "";
    const PredictedStep& p = *run.predicted;
    std::string rows;
    const auto row = [&](const std::string& what, double predicted, const std::optional<double>& measured, auto format,
                         const std::string& remark = "") {
        const std::string error = measured && *measured > 0 ? (predicted >= *measured ? "+" : "") +
                                                                  short_number(100 * (predicted / *measured - 1)) + " %"
                                                            : "–";
        rows += row_of({what, format(predicted), measured ? format(*measured) : "–", error, remark});
    };
    const RunHistory predicted = predicted_steps(run);
    const auto middle_of = [&](Field number) { return median(finite(values_of(predicted, number))); };
    const auto ms = [](double v) { return short_number(v) + " ms"; };
    row("step", 1e3 * p.step_s, middle_of(&LoggedStep::step_ms), ms,
        concat(ms(1e3 * p.low_s), " to ", ms(1e3 * p.high_s), " in 8 of 10 runs"));
    std::vector<double> peaks;
    for (const LoggedStep& step : predicted.steps)
        if (const auto bytes = fullest_bytes(step); bytes && std::isfinite(*bytes)) peaks.push_back(*bytes);
    row("memory at the peak", p.peak_bytes, median(std::move(peaks)), short_bytes, "of the rank with the most");
    const std::map<std::string, double> measured_sent = sent_by_group(predicted);
    for (const auto& [group, sent] : p.sent) {
        const auto found = measured_sent.find(group);
        row("sent in " + group, sent, found == measured_sent.end() ? std::nullopt : std::optional(found->second),
            short_bytes, "of the first rank, a step");
    }
    if (!run.trace.empty() && !p.trace.empty()) {
        const RankTimes forecast = times_of(p.trace)[0], measured = times_of(run.trace)[0];
        row("compute", forecast.compute_ms, measured.compute_ms, ms, "of the first rank, traced steps");
        row("waits", forecast.wait_ms, measured.wait_ms, ms);
        row("communication", forecast.communication_ms, measured.communication_ms, ms);
    }
    std::string card =
        section("Predicted and measured",
                table({"", "predicted", "measured", "error", ""}, rows) +
                    quiet(concat("Predicted for ", escape_html(p.machine), ". Measured: medians over the logged steps",
                                 p.last > 0 ? concat(" from ", p.first, " to ", p.last) : "", ".")));
    if (!p.trace.empty()) card += drawing(p.trace, "predicted-timeline", "Predicted step");
    return card;
}

std::string groups_card(const RunHistory& run) {
    std::map<std::string, std::array<std::vector<double>, 3>> groups;
    for (const LoggedStep& step : run.steps)
        for (const auto& [name, group] : step.comm) {
            const std::array values = {group.operations, group.bytes, group.wait_ms};
            for (size_t i = 0; i < values.size(); ++i)
                if (values[i] && std::isfinite(*values[i])) groups[name][i].push_back(*values[i]);
        }
    if (groups.empty()) return "";
    std::string rows;
    for (const auto& [name, values] : groups) {
        const auto cell = [](const std::vector<double>& all, auto format) {
            return shown(median(all), format).value_or("–");
        };
        const auto count = [](double v) { return short_number(v, 4); };
        rows += row_of({name, cell(values[0], count), cell(values[1], short_bytes), cell(values[2], count)});
    }
    return section("Communication per step",
                   table({"group", "operations", "sent", "waits, ms"}, rows) +
                       quiet("Of the first rank, medians over the logged steps."),
                   "card");
}

// --- pipeline -------------------------------------------------------------------------------------------------------
// A traced step of a pipeline as it was measured, beside the timeline of the same actions with the measured times of F,
// I and W: they differ by messages and by waits inside passes.

namespace {

using schedule::Op;
using Measured = schedule::Span<double>;

// Passes of one step, by rank, in ms; of ranks that work on the same stages the first. Empty: there is no pipeline.
std::vector<std::vector<Measured>> passes_of(const std::vector<TracedRank>& trace, int64_t step) {
    std::vector<std::vector<Measured>> ranks;
    std::set<std::set<std::pair<int, int>>> seen;
    for (const TracedRank& rank : trace) {
        std::vector<Measured> passes;
        std::set<std::pair<int, int>> chunks;
        for (const TracedSpan& s : rank.spans) {
            if (s.activity != "action" || s.step != step) continue;
            passes.push_back({s.begin_us / 1000, s.end_us / 1000, schedule::parse_action(s.name)});
            for (const schedule::Action& part : schedule::Parts(passes.back().action))
                chunks.insert({part.replica, part.stage});
        }
        if (!passes.empty() && seen.insert(chunks).second) ranks.push_back(std::move(passes));
    }
    if (ranks.size() < 2) return {};
    double first = ranks[0][0].start;
    for (auto& rank : ranks) {
        std::sort(rank.begin(), rank.end(), [](const Measured& a, const Measured& b) { return a.start < b.start; });
        first = std::min(first, rank.front().start);
    }
    for (auto& rank : ranks)
        for (Measured& pass : rank) pass.start -= first, pass.end -= first;
    return ranks;
}

schedule::Timeline<double> timeline_of(std::vector<std::vector<Measured>> ranks) {
    schedule::Timeline<double> t;
    double busiest = 0;
    for (const auto& rank : ranks) {
        double busy = 0;
        for (const Measured& pass : rank) {
            busy += pass.end - pass.start;
            t.makespan = std::max(t.makespan, pass.end);
        }
        busiest = std::max(busiest, busy);
    }
    t.bubble = t.makespan - busiest;
    t.ranks = std::move(ranks);
    return t;
}

// Means over a stage, and over all overlaps. A B is half I and half W where the stage has none by themselves.
schedule::Times<double> mean_times(const std::vector<std::vector<Measured>>& ranks, int stages) {
    std::map<std::pair<int, Op>, std::pair<double, int>> sums;
    for (const auto& rank : ranks)
        for (const Measured& pass : rank) {
            auto& [sum, count] = sums[{pass.action.stage, pass.action.op}];
            sum += pass.end - pass.start;
            ++count;
        }
    schedule::Times<double> times;
    std::pair<double, int> overlaps;
    for (const auto& [key, sum] : sums)
        if (key.second == Op::overlap) overlaps.first += sum.first, overlaps.second += sum.second;
    if (overlaps.second > 0) times.overlap = overlaps.first / overlaps.second;
    times.stages.clear();
    for (int stage = 0; stage < stages; ++stage) {
        const auto mean = [&](Op op) {
            const auto found = sums.find({stage, op});
            return found == sums.end() ? 0 : found->second.first / found->second.second;
        };
        const double whole = mean(Op::backward), input = mean(Op::backward_input), weight = mean(Op::backward_weight);
        const bool split = input > 0 || weight > 0;
        times.stages.push_back({mean(Op::forward), split ? input : whole / 2, split ? weight : whole / 2});
    }
    return times;
}

std::string drawn(const std::string& id, const svg::Bars& bars) {
    return concat("<div class=\"drawing\">", svg::in_page(svg::draw_with_legend(bars), id), "</div>");
}

std::string sentence(const char* what, const schedule::Timeline<double>& t) {
    return concat("<p><b>", what, "</b>: ", format_fixed(t.makespan, 1), " ms, bubble ",
                  format_percent(t.makespan > 0 ? t.bubble / t.makespan : 0), "</p>");
}

}  // namespace

std::string pipeline_card(const RunHistory& run) {
    std::vector<int64_t> steps;
    for (const TracedRank& rank : run.trace)
        for (const TracedSpan& s : rank.spans)
            if (s.activity == "action" && (steps.empty() || steps.back() != s.step)) steps.push_back(s.step);
    if (steps.empty()) return "";
    const int64_t step = steps[steps.size() / 2];
    const auto passes = passes_of(run.trace, step);
    if (passes.empty()) return "";
    const std::string title = concat("The pipeline in step ", step);
    std::string rows;
    for (const auto& rank : passes) {
        for (const Measured& pass : rank) rows += schedule::to_string(pass.action) + ",";
        rows += "\n";
    }
    try {
        schedule::Schedule s = schedule::parse_csv(rows, concat("step ", step));
        const auto measured = timeline_of(passes);
        const auto computed = schedule::simulate(s, mean_times(passes, s.placement.stages));
        return section(
            title,
            concat(sentence("Measured", measured), drawn("measured", picture_of(measured, s, "ms")),
                   sentence("The same actions with the mean measured F, I and W of each stage, without messages",
                            computed),
                   drawn("computed", picture_of(computed, s, "ms")),
                   quiet("Time in ms to the right, a row for each rank of the pipeline; empty: the rank waits. bubble: "
                         "what the busiest rank waits.")));
    } catch (const Error& error) {  // the trace had no room for all of the step
        return section(title, concat("<p>", escape_html(error.what()), "</p>"));
    }
}

}  // namespace tutti::report
