// report/pipeline_card.cpp: a traced step of a pipeline as it was measured, beside the timeline of the same actions
// with the measured times of F, I and W: what differs are messages and waits inside passes.
#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include "tutti/base/error.h"
#include "tutti/base/units.h"
#include "tutti/report/parts.h"
#include "tutti/report/svg.h"
#include "tutti/schedule/csv.h"
#include "tutti/schedule/drawing.h"

namespace tutti::report {

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
    return concat("<img alt=\"", alt, "\" style=\"max-width:100%\" src=\"data:image/svg+xml,", data, "\">");
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
