// report/run_cards.cpp: the cards of what a run did beside its curves: the time of a step beside the plan's band, the
// ranks by what they wait for others, what the time was spent on, the stages.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/base/units.h"
#include "tutti/report/parts.h"
#include "tutti/spec/stages.h"
#include "tutti/spec/toml.h"

namespace tutti::report {

namespace {

// --- ranks ---

std::string tile(const RankFigures& of, double step_ms, bool gone, const std::string& last) {
    const double share = step_ms > 0 ? std::clamp(of.wait_ms / step_ms, 0.0, 1.0) : 0;
    return concat("<li class=\"w", std::lround(10 * share), gone ? " gone" : "", "\" title=\"rank ", of.rank, " waits ",
                  short_number(of.wait_ms), " ms a step", last.empty() ? "" : ", last operation: ", escape_html(last),
                  "\"><b>", of.rank, gone ? " ✕" : "", "</b>", share_text(of.wait_ms, step_ms), "</li>");
}

std::string ranks_table(const RunHistory& run, const LoggedStep& step) {
    const bool failed = run.flight.written > 0;
    std::string rows;
    for (const RankFigures& of : step.ranks) {
        const double predicted = predicted_bytes(run, of.rank);
        std::vector<std::string> cells = {
            concat(of.rank), short_number(of.wait_ms), share_text(of.wait_ms, step.step_ms.value_or(0)),
            short_bytes(of.mem_peak_bytes), predicted > 0 ? short_bytes(predicted) : std::string("–")};
        if (failed) {
            const auto found = run.flight.last_operations.find(of.rank);
            cells.push_back(found == run.flight.last_operations.end() ? "no record" : found->second);
        }
        rows += row_of(cells);
    }
    std::vector<std::string> head = {"rank", "waits, ms a step", "of the step", "memory peak", "predicted"};
    if (failed) head.emplace_back("last operation");
    return table(head, rows);
}

// --- what the time was spent on ---

struct Part {
    const char* label;
    int colour;
};
constexpr Part kParts[] = {{"trained", 3},  // by kTimes
                           {"lost: steps done again", 2},
                           {"saving", 5},
                           {"restarting", 4},
                           {"other: first start, evaluations", 8}};
static_assert(std::size(kParts) == std::size(kTimes));

// Nothing without config.toml, or with that of another version.
std::optional<spec::RunSpec> config_of(const RunHistory& run) {
    try {
        if (!run.config.empty()) return spec::parse_text(run.config, "config.toml");
    } catch (const Error&) {
    }
    return std::nullopt;
}

// The goodput that the formula gives with what this run itself shows; nothing before a first save, or without the
// config.
std::optional<double> expected_of_itself(const RunHistory& run, const TimeSpent& spent) {
    const std::optional<spec::RunSpec> config = config_of(run);
    if (!config || run.steps.empty() || spent.trained <= 0) return std::nullopt;
    const int64_t steps = run.steps.back().step, every = config->checkpoint.every;
    const int64_t memory_every = config->checkpoint.memory_every, first = memory_every > 0 ? memory_every : every;
    if (first <= 0 || steps < first) return std::nullopt;
    // Copies are the most of the pauses where there are some: checkpoints are written beside the steps.
    const double saves = static_cast<double>((steps + spent.lost_steps) / first),
                 step_s = spent.trained / double(steps);
    const double stall = spent.saving / saves, starts = static_cast<double>(spent.deaths + spent.stops);
    GoodputTerms terms{.between_failures = spent.deaths > 0 ? spent.total() / static_cast<double>(spent.deaths)
                                                            : std::numeric_limits<double>::infinity(),
                       .restart = starts > 0 ? spent.restarting / starts : 0};
    if (memory_every > 0) {
        terms.memory_every = step_s * double(memory_every) + stall;
        terms.memory_stall = stall;
        terms.disk_every = terms.memory_every * double(every > 0 ? every : steps) / double(memory_every);
        // A stop saves on disk, and is no failure.
        terms.disk_share = spent.deaths > spent.from_memory ? 1 - double(spent.from_memory) / double(spent.deaths) : 0;
    } else {
        terms.disk_every = step_s * double(every) + stall;
        terms.disk_stall = stall;
    }
    return expected_goodput(terms);
}

}  // namespace

std::string slowest_of(const std::vector<LoggedStep>& steps) {
    constexpr size_t kLines = 20;
    std::vector<int> ranks;
    std::vector<std::vector<double>> shares;  // of a step that the rank waited, by rank and line
    size_t lines = 0;
    for (auto line = steps.rbegin(); line != steps.rend() && lines < kLines; ++line) {
        if (line->ranks.empty() || line->step_ms.value_or(0) <= 0) continue;
        std::vector<int> here;
        for (const RankFigures& of : line->ranks) here.push_back(of.rank);
        if (lines == 0) {
            ranks = here;
            shares.resize(ranks.size());
        }
        if (here != ranks) break;
        for (size_t r = 0; r < ranks.size(); ++r) shares[r].push_back(line->ranks[r].wait_ms / *line->step_ms);
        ++lines;
    }
    if (ranks.size() < 2) return "";
    std::vector<double> usual;
    for (const std::vector<double>& of_rank : shares) usual.push_back(*median(of_rank));
    const auto least = std::min_element(usual.begin(), usual.end());
    std::vector<double> sorted = usual;
    std::ranges::sort(sorted);
    const double middle = sorted[sorted.size() / 2];
    if (middle - *least < 0.05) return "No rank keeps the others waiting.";
    return concat("The others wait for rank ", ranks[to_size(least - usual.begin())], ": it waits ",
                  share_text(*least, 1), " of a step, the rank in the middle ", share_text(middle, 1),
                  lines > 1 ? concat(", in the median of ", lines, " logged steps") : "", ".");
}

std::string step_time_card(const RunHistory& run, const CurveAxis& axis) {
    Chart chart = chart_of(kStepTime, axis);
    add_run(chart, kStepTime, "measured", 1, run, axis);
    std::vector<Point> line;
    if (run.predicted) line = values_of(predicted_steps(run), kStepTime.field, 1, axis);
    if (!line.empty() && !chart.series.empty()) {
        Series band{"predicted, 8 of 10 runs", 2, Mark::bound, {}};
        for (const double seconds : {run.predicted->low_s, run.predicted->high_s}) {
            band.points.push_back({line.front().x, 1000 * seconds});
            band.points.push_back({line.back().x, 1000 * seconds});
            band.points.push_back({line.back().x, std::nan("")});
        }
        chart.description += concat("Predicted ", short_number(1000 * run.predicted->low_s), " to ",
                                    short_number(1000 * run.predicted->high_s), " ms. ");
        chart.series.push_back(std::move(band));
    }
    return chart_card(chart);
}

std::string ranks_card(const RunHistory& run) {
    const LoggedStep* step = nullptr;
    for (const LoggedStep& line : run.steps)
        if (!line.ranks.empty()) step = &line;
    const bool failed = run.flight.written > 0;
    if (step == nullptr && !failed) return "";
    std::string body;
    for (const std::string& finding : run.flight.findings) body += "<p>" + escape_html(finding) + "</p>";
    if (step != nullptr) {
        const double step_ms = step->step_ms.value_or(0);
        std::string tiles;
        for (const RankFigures& of : step->ranks) {
            const auto& missing = run.flight.missing;
            const auto last = run.flight.last_operations.find(of.rank);
            tiles += tile(of, step_ms, std::find(missing.begin(), missing.end(), of.rank) != missing.end(),
                          last == run.flight.last_operations.end() ? "" : last->second);
        }
        body += concat("<ul class=\"ranks\">", tiles, "</ul><p>", slowest_of(run.steps), "</p><details",
                       failed ? " open" : "", "><summary>As a table</summary>", ranks_table(run, *step), "</details>");
    }
    const bool some = !run.steps.empty() && run.steps.back().ranks.size() == 3 && run.totals.ranks.size() > kMostRanks;
    return section("Ranks",
                   quiet(concat("The share of a step that each rank waits for others",
                                step != nullptr ? concat(", at step ", step->step) : "",
                                some ? ": of all ranks those that wait least, in the middle and most" : "", ".")) +
                       body);
}

std::string spent_card(const RunHistory& run) {
    const std::optional<TimeSpent> spent = newest_times(run);
    if (!spent || !spent->goodput()) return "";
    std::vector<ShareBar> bars;
    std::string rows, words;
    for (size_t i = 0; i < std::size(kTimes); ++i) {
        const double seconds = (*spent).*kTimes[i].second;
        bars.push_back({kParts[i].label, kParts[i].colour, seconds / spent->total()});
        words += concat(kParts[i].label, " ", duration(seconds), ". ");
        rows += concat("<tr><td><span class=\"key c", kParts[i].colour, "\"></span>", kParts[i].label, "</td><td>",
                       duration(seconds), "</td><td>", share_text(seconds, spent->total()), "</td></tr>");
    }
    std::string text = concat("<p>Goodput, the share that trained: <b>", format_percent(*spent->goodput()), "</b>. ",
                              counted(spent->deaths, "restart"), " after a death, with ",
                              counted(spent->lost_steps, "step"), " done again, and ", spent->stops, " after a stop.");
    if (spent->from_memory > 0)
        text += concat(" ", spent->from_memory, " of ", counted(spent->deaths + spent->stops, "restart"),
                       " continued from copies in memory, the others from disk.");
    text += "</p>";
    if (const auto expected = expected_of_itself(run, *spent))
        text += concat("<p>Expected with the intervals, pauses and failures of this run: ", format_percent(*expected),
                       ".</p>");
    if (run.predicted && run.predicted->goodput > 0)
        text +=
            concat("<p>Forecast for ", escape_html(run.predicted->machine), ", where a failure comes every ",
                   duration(run.predicted->between_failures_s), ": ", format_percent(run.predicted->goodput), ".</p>");
    return section("Where the time went",
                   concat("<div class=\"share\">", share_bar("spent", "Where the time went", words, bars), "</div>",
                          table({"", "time", "share"}, rows), text),
                   "card");
}

std::string stages_card(const RunHistory& run) {
    const std::optional<spec::RunSpec> config = config_of(run);
    if (!config || config->stages.empty()) return "";
    const std::vector<spec::RunSpec> stages = spec::stages_of(*config);
    std::vector<RunHistory> logs(stages.size());
    for (const LoggedStep& step : run.steps) logs[spec::stage_at(stages, step.step)].steps.push_back(step);
    std::string rows;
    for (size_t i = 0; i < stages.size(); ++i) {
        const auto number = [](const std::optional<double>& value) { return number_cell(value, 3); };
        const bool changes = !config->stages[i].set.empty();
        const std::string row =
            row_of({concat(i + 1), concat(stages[i].place.first, " to ", spec::last_step(stages[i])),
                    number(median(finite(values_of(logs[i], kStepTime.field)))),
                    number(median(finite(values_of(logs[i], kThroughput.field)))),
                    number(last_of(logs[i], &LoggedStep::loss))});
        rows += changes ? concat("<tr class=\"has-reason\">", row.substr(4), "<tr><td colspan=\"5\" class=\"reason\">",
                                 escape_html(spec::stage_keys_text(*config, i)), "</td></tr>")
                        : row;
    }
    return section("Stages", table({"stage", "steps", "ms a step, median", "tokens/s, median", "last loss"}, rows));
}

}  // namespace tutti::report
