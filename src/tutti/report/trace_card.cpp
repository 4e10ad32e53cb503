// report/trace_card.cpp: the cards of communication: the counters of each group, where the time of the traced steps
// went on each rank, one of those steps as a drawing, and the pipeline beside its timeline.
#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <map>
#include <set>

#include "tutti/base/error.h"
#include "tutti/base/units.h"
#include "tutti/report/parts.h"
#include "tutti/report/svg.h"
#include "tutti/schedule/schedule.h"
#include "tutti/schedule/timeline.h"

namespace tutti::report {

namespace {

constexpr size_t kTableRanks = 64, kDrawnRanks = 8;

// The colour of a span and its name in the legend. Later entries are drawn over earlier ones.
struct Kind {
    std::string_view label;
    int colour;
};
constexpr Kind kForward{"forward", 1}, kBackward{"backward", 2}, kRecompute{"recompute", 3}, kOptimizer{"optimizer", 5},
    kData{"data", 6}, kOther{"other", 8}, kWaits{"waits", 4}, kCommunication{"communication", 7};

const Kind& kind_of(const TracedSpan& s) {
    if (s.activity == "wait" || s.activity == "begin") return kWaits;
    if (s.activity == "communication") return kCommunication;
    if (s.activity == "data") return kData;
    if (s.activity != "compute" && s.activity != "gpu") return kOther;
    for (const Kind* kind : {&kForward, &kBackward, &kRecompute})
        if (s.name.starts_with(kind->label)) return *kind;
    return kOptimizer;
}

// Operations of each group, and the GPU's compute, have separate rows.
bool has_row(const TracedSpan& s) { return s.activity == "communication" || s.activity == "gpu"; }

std::string percent(double part, double whole) { return whole > 0 ? short_number(100 * part / whole) + " %" : "–"; }

std::string times_table(const std::vector<RankTimes>& all) {
    std::string rows;
    for (size_t i = 0; i < std::min(all.size(), kTableRanks); ++i) {
        const RankTimes& t = all[i];
        rows += row_of({concat(t.rank), short_number(t.step_ms), short_number(t.compute_ms),
                        percent(t.compute_ms, t.step_ms), short_number(t.data_ms), short_number(t.wait_ms),
                        percent(t.wait_ms, t.step_ms), short_number(t.communication_ms),
                        percent(t.hidden_ms, t.communication_ms)});
    }
    std::string text = table({"rank", "step, ms", "compute, ms", "of the step", "data, ms", "waits, ms", "of the step",
                              "communication, ms", "hidden"},
                             rows);
    if (all.size() > kTableRanks)
        text += concat("<p class=\"quiet\">and ", all.size() - kTableRanks, " more ranks in trace.json.</p>");
    return text;
}

// The traced step with the median duration on the first rank.
const TracedSpan* typical_step(const TracedRank& rank) {
    std::vector<const TracedSpan*> steps;
    for (const TracedSpan& s : rank.spans)
        if (s.activity == "step") steps.push_back(&s);
    if (steps.empty()) return nullptr;
    const auto middle = steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2);
    std::nth_element(steps.begin(), middle, steps.end(), [](const TracedSpan* a, const TracedSpan* b) {
        return a->end_us - a->begin_us < b->end_us - b->begin_us;
    });
    return *middle;
}

// One step of a trace; `id` is unique on the page, `whose` "Step" or "Predicted step".
std::string drawing(const std::vector<TracedRank>& trace, const std::string& id, const std::string& whose) {
    const TracedSpan* step = typical_step(trace[0]);
    if (step == nullptr) return "";
    double begin = step->begin_us, end = step->end_us;
    for (const TracedRank& rank : trace)
        for (const TracedSpan& s : rank.spans) {
            if (s.activity != "step" || s.step != step->step) continue;
            begin = std::min(begin, s.begin_us);
            end = std::max(end, s.end_us);
        }
    Timeline chart{.id = id,
                   .title = concat(whose, " ", step->step),
                   .description = concat("What each rank did in step ", step->step, "; the table has the numbers."),
                   .x_label = concat("ms since the beginning of step ", step->step),
                   .end = (end - begin) / 1000};
    std::map<int, std::string_view> used;
    for (size_t i = 0; i < std::min(trace.size(), kDrawnRanks); ++i) {
        const TracedRank& rank = trace[i];
        if (i > 0) chart.rows.emplace_back("", 6);  // between ranks
        const size_t first = chart.rows.size();
        chart.rows.emplace_back(concat("rank ", rank.rank), 15);
        chart.rows.emplace_back("", 6);
        std::map<std::string, size_t> row_of_group;
        for (const TracedSpan& s : rank.spans)
            if (has_row(s)) row_of_group[s.group] = 0;
        for (auto& [group, row] : row_of_group) {
            row = chart.rows.size();
            chart.rows.emplace_back(group, 9);
        }
        for (const TracedSpan& s : rank.spans) {
            if (s.activity == "step" || s.end_us < begin || s.begin_us > end) continue;
            const Kind& kind = kind_of(s);
            used[kind.colour] = kind.label;
            const size_t row = has_row(s) ? row_of_group[s.group] : &kind == &kWaits ? first + 1 : first;
            std::string title = concat(s.name, ", ", short_number((s.end_us - s.begin_us) / 1000), " ms");
            if (!s.group.empty() && s.activity != "gpu") title += concat(", operation ", s.number, " of ", s.group);
            if (s.bytes > 0) title += ", " + short_bytes(static_cast<double>(s.bytes));
            chart.bars.push_back(
                {row, (s.begin_us - begin) / 1000, (s.end_us - begin) / 1000, kind.colour, std::move(title)});
        }
    }
    std::string legend;
    for (const auto& [colour, label] : used)
        legend +=
            concat("<li><svg class=\"c", colour, "\" viewBox=\"0 0 24 10\" aria-hidden=\"true\"><rect class=\"span c",
                   colour, "\" x=\"2\" y=\"1\" width=\"20\" height=\"8\"/></svg>", label, "</li>");
    std::string more;
    if (trace.size() > kDrawnRanks)
        more = concat("<p class=\"quiet\">Ranks 0 to ", kDrawnRanks - 1, " of ", trace.size(), " are drawn.</p>");
    return concat("<figcaption><b>", whose, " ", step->step,
                  "</b><span class=\"unit\">of each rank: computing, under it its ",
                  "waits, and the operations of each group</span><ul class=\"legend\">", legend,
                  "</ul></figcaption><div class=\"drawing\">", timeline(chart), "</div>", more);
}

}  // namespace

std::string trace_card(const RunHistory& run) {
    if (run.trace.empty()) return "";
    return concat(
        "<figure class=\"card full\">", drawing(run.trace, "timeline", "Step"),
        "</figure>\n<section class=\"card full\">", "<h2>Where the time of a step goes</h2>",
        times_table(times_of(run.trace)), "<p class=\"quiet\">Means of the ", times_of(run.trace)[0].steps,
        " traced steps. Communication: at least one operation was under way; hidden: the share of that time in "
        "which the rank computed. Without a progress thread data moves while a rank waits or begins another "
        "operation. trace.json opens in ui.perfetto.dev and chrome://tracing.</p></section>\n");
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
    const auto middle_of = [&](Field number) { return median(finite(values_of(run, number))); };
    const auto ms = [](double v) { return short_number(v) + " ms"; };
    row("step", 1e3 * p.step_s, middle_of(&LoggedStep::step_ms), ms,
        concat(ms(1e3 * p.low_s), " to ", ms(1e3 * p.high_s), " in 8 of 10 runs"));
    row("memory at the peak", p.peak_bytes, middle_of(&LoggedStep::mem_peak_bytes), short_bytes);
    for (const auto& [group, sent] : p.sent) {
        std::vector<double> all;
        for (const LoggedStep& step : run.steps) {
            const auto found = step.comm.find(group);
            if (found != step.comm.end() && found->second.bytes) all.push_back(*found->second.bytes);
        }
        row("sent in " + group, sent, median(all), short_bytes, "of the first rank, a step");
    }
    if (!run.trace.empty() && !p.trace.empty()) {
        const RankTimes predicted = times_of(p.trace)[0], measured = times_of(run.trace)[0];
        row("compute", predicted.compute_ms, measured.compute_ms, ms, "of the first rank, traced steps");
        row("waits", predicted.wait_ms, measured.wait_ms, ms);
        row("communication", predicted.communication_ms, measured.communication_ms, ms);
    }
    std::string card =
        concat("<section class=\"card full\"><h2>Predicted and measured</h2>",
               table({"", "predicted", "measured", "error", ""}, rows), "<p class=\"quiet\">Predicted for ",
               escape_html(p.machine), ". Measured: medians over the logged steps.</p></section>\n");
    if (!p.trace.empty())
        card += concat("<figure class=\"card full\">", drawing(p.trace, "predicted-timeline", "Predicted step"),
                       "</figure>\n");
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
            const auto middle = median(all);
            return middle ? format(*middle) : std::string("–");
        };
        const auto count = [](double v) { return short_number(v, 4); };
        rows += row_of({name, cell(values[0], count), cell(values[1], short_bytes), cell(values[2], count)});
    }
    return "<section class=\"card\"><h2>Communication per step</h2>" +
           table({"group", "operations", "sent", "waits, ms"}, rows) +
           "<p class=\"quiet\">Of the first rank, medians over the logged steps.</p></section>\n";
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

// As an image, whose styles are its own.
std::string image(const std::string& svg, const std::string& alt) {
    constexpr std::string_view kHex = "0123456789ABCDEF";
    std::string data;
    for (const char c : svg) {
        const auto byte = static_cast<unsigned char>(c);
        if (std::isalnum(byte) || c == ' ' || c == '-' || c == '.' || c == '/' || c == '=' || c == ':')
            data += c;
        else
            data += {'%', kHex[byte >> 4], kHex[byte & 15]};
    }
    return concat("<div class=\"drawing\"><img alt=\"", alt, "\" src=\"data:image/svg+xml,", data, "\"></div>");
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
    std::string rows;
    for (const auto& rank : passes) {
        for (const Measured& pass : rank) rows += schedule::to_string(pass.action) + ",";
        rows += "\n";
    }
    try {
        schedule::Schedule s = schedule::parse_csv(rows, concat("step ", step));
        const auto measured = timeline_of(passes);
        const auto computed = schedule::simulate(s, mean_times(passes, s.placement.stages));
        return concat(
            "<section class=\"card full\"><h2>The pipeline in step ", step, "</h2>", sentence("Measured", measured),
            image(draw_svg(measured, s), "the passes of each rank, measured"),
            sentence("The same actions with the mean measured F, I and W of each stage, without messages", computed),
            image(draw_svg(computed, s), "the passes of each rank, computed"),
            "<p class=\"quiet\">Time in ms to the right, a row for each rank of the pipeline; hatched: the rank "
            "waits. bubble: what the busiest rank waits.</p></section>\n");
    } catch (const Error& error) {  // the trace had no room for all of the step
        return concat("<section class=\"card full\"><h2>The pipeline in step ", step, "</h2><p>",
                      escape_html(error.what()), "</p></section>\n");
    }
}

}  // namespace tutti::report
