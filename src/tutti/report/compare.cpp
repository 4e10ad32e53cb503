// report/compare.cpp: render_comparison() of report.h: the curves of several runs in one chart, their results and the
// differences of their configs side by side.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <string_view>

#include "tutti/base/error.h"
#include "tutti/base/strings.h"
#include "tutti/report/parts.h"

namespace tutti::report {
namespace {

int colour_of(size_t run) { return static_cast<int>(run) + 1; }

struct Comparison {
    const std::vector<RunHistory>& runs;
    std::vector<std::string> names;
    CurveAxis axis;
};

bool same_tokens_per_step(const std::vector<RunHistory>& runs) {
    std::set<double> rates;
    for (const RunHistory& run : runs)
        if (!run.steps.empty() && run.steps.back().tokens && run.steps.back().step > 0)
            rates.insert(std::round(*run.steps.back().tokens / static_cast<double>(run.steps.back().step)));
    return rates.size() <= 1;
}

std::vector<Card> charts(const Comparison& c) {
    const std::string unit = c.runs.front().totals.loss_unit;
    const Curve curve_of_loss{"loss", "Loss", unit.c_str(), &LoggedStep::loss, 1, true};
    const auto chart = [&](const Curve& curve, const CurveAxis& axis) {
        Chart all = chart_of(curve, axis);
        for (size_t i = 0; i < c.runs.size(); ++i) add_run(all, curve, c.names[i], colour_of(i), c.runs[i], axis);
        return all;
    };
    std::vector<Card> cards = {{"loss", wide_card(chart(curve_of_loss, c.axis))}};
    // Tokens in place of steps, to compare runs of different batch sizes.
    if (c.axis.x == View::X::step && !same_tokens_per_step(c.runs)) {
        const Curve over_tokens{"loss-tokens", "Loss over tokens", "", &LoggedStep::loss, 1, true};
        cards.push_back({over_tokens.id, chart_card(chart(over_tokens, axis_of({View::X::tokens}, c.runs)))});
    }
    Chart eval{.id = "eval", .title = "Evaluation loss", .x_label = c.axis.label, .y_unit = unit};
    for (size_t i = 0; i < c.runs.size(); ++i) {
        Series series{c.names[i], colour_of(i), Mark::dots, values_of(c.runs[i], &LoggedStep::eval_loss, 1, c.axis)};
        eval.description += in_words(series, c.axis);
        if (!series.points.empty()) eval.series.push_back(std::move(series));
    }
    cards.push_back({eval.id, chart_card(eval)});
    for (const Curve& curve : {kGradientNorm, kLearningRate, kThroughput, kStepTime, kMfu})
        cards.push_back({curve.id, chart_card(chart(curve, c.axis))});
    return cards;
}

// --- tables: a row for each fact, a column for each run -------------------------------------------------------------

std::string comparison_table(const Comparison& c, const std::vector<std::vector<std::string>>& rows) {
    std::string html = "<div class=\"scroll\"><table class=\"runs\"><thead><tr><th></th>";
    for (size_t i = 0; i < c.names.size(); ++i)
        html += concat("<th scope=\"col\"><span class=\"key c", colour_of(i), "\"></span>", escape_html(c.names[i]),
                       "</th>");
    html += "</tr></thead><tbody>";
    for (const auto& row : rows) {
        html += "<tr><th scope=\"row\">" + escape_html(row[0]) + "</th>";
        for (size_t i = 1; i < row.size(); ++i) html += "<td>" + escape_html(row[i].empty() ? "–" : row[i]) + "</td>";
        html += "</tr>";
    }
    return html + "</tbody></table></div>";
}

using Fact = std::function<std::optional<std::string>(const RunHistory&)>;  // nothing: not known

std::optional<double> lowest_of(const RunHistory& run, Field field) {
    const auto values = finite(values_of(run, field));
    return values.empty() ? std::nullopt : std::optional(*std::min_element(values.begin(), values.end()));
}

std::vector<std::pair<std::string, Fact>> facts() {
    const auto count = [](double value) { return short_number(value); };
    const auto loss = [](double value) { return short_number(value, 5); };
    return {
        {"model", [](const RunHistory& r) { return r.totals.model; }},
        {"machine", [](const RunHistory& r) { return r.totals.machine; }},
        {"parameters", [=](const RunHistory& r) { return shown(r.totals.parameters, count); }},
        {"last step",
         [](const RunHistory& r) {
             return r.steps.empty() ? std::nullopt : std::optional(concat(r.steps.back().step));
         }},
        {"tokens", [=](const RunHistory& r) { return shown(last_of(r, &LoggedStep::tokens), count); }},
        {"final loss", [=](const RunHistory& r) { return shown(last_of(r, &LoggedStep::loss), loss); }},
        {"lowest loss", [=](const RunHistory& r) { return shown(lowest_of(r, &LoggedStep::loss), loss); }},
        {"final evaluation loss", [=](const RunHistory& r) { return shown(last_of(r, &LoggedStep::eval_loss), loss); }},
        {"lowest evaluation loss",
         [=](const RunHistory& r) { return shown(lowest_of(r, &LoggedStep::eval_loss), loss); }},
        {"tokens/s, median", median_throughput},
        {"MFU, median", median_mfu},
        {"memory peak", memory_peak},
        {"time in steps", [](const RunHistory& r) { return shown(r.totals.wall_s, duration); }},
        {"skipped steps", [](const RunHistory& r) {
             int64_t skipped = 0;
             for (const LoggedStep& step : r.steps) skipped += step.skipped_before;
             return concat(skipped);
         }}};
}

std::string results_card(const Comparison& c) {
    std::vector<std::vector<std::string>> rows;
    for (const auto& [name, fact] : facts()) {
        std::vector<std::string> row = {name};
        for (const RunHistory& run : c.runs) row.push_back(fact(run).value_or(""));
        const bool known =
            std::any_of(row.begin() + 1, row.end(), [](const std::string& cell) { return !cell.empty(); });
        if (known) rows.push_back(std::move(row));
    }
    return section("Results", comparison_table(c, rows));
}

// The largest of each purpose: measured, or predicted where a run has no measurement.
std::string memory_card(const Comparison& c) {
    constexpr double kMiB = 1 << 20;
    svg::Bars bars{.title = "Memory by purpose", .description = "The largest of each purpose. ", .x_label = "MiB"};
    for (size_t i = 0; i < c.runs.size(); ++i) {
        double at = 0;
        for (const MemoryUse& use : c.runs[i].totals.memory) {
            const double bytes = use.measured_bytes.value_or(use.predicted_bytes.value_or(0));
            if (bytes <= 0) continue;
            const std::string said = short_bytes(bytes);
            bars.bars.push_back({i, at, at + bytes / kMiB, use.purpose, concat(use.purpose, ": ", said), said});
            bars.description += concat(c.names[i], ", ", use.purpose, ": ", said, ". ");
            at += bytes / kMiB;
        }
        bars.rows.push_back(
            {.label = c.names[i], .height = 24, .value = at > 0 ? short_bytes(at * kMiB) : "not known"});
        bars.end = std::max(bars.end, at);
    }
    if (bars.bars.empty()) return "";
    return concat("<figure class=\"card full\">",
                  figure(bars, "memory", "of a rank: the largest of each purpose, which need not be at one time"),
                  "</figure>\n");
}

// Medians over the logged steps of what the first rank of each run sends in a step, by group.
std::string sent_card(const Comparison& c) {
    std::map<std::string, std::vector<std::string>> rows;
    std::vector<double> sums(c.runs.size(), 0);
    for (size_t i = 0; i < c.runs.size(); ++i)
        for (const auto& [group, sent] : sent_by_group(c.runs[i])) {
            rows.try_emplace(group, c.runs.size() + 1).first->second[i + 1] = short_bytes(sent);
            sums[i] += sent;
        }
    if (rows.empty()) return "";
    std::vector<std::vector<std::string>> table;
    for (auto& [group, row] : rows) {
        row[0] = group;
        table.push_back(std::move(row));
    }
    table.push_back({"all groups"});
    for (const double sum : sums) table.back().push_back(short_bytes(sum));
    return section("Sent by a rank in a step",
                   comparison_table(c, table) + quiet("Of the first rank, medians over the logged steps."));
}

// "train.lr" -> "3e-4" of a resolved config, which has one key per line; "stage 2: train.lr" of its second [[stage]].
std::map<std::string, std::string> keys_of(const std::string& config) {
    std::map<std::string, std::string> keys;
    std::map<std::string, int> tables;  // of a list of tables, so far
    std::string section;
    for (const std::string_view whole : split(config, '\n')) {
        const std::string_view line = trimmed(whole, " \t\r");
        const size_t equals = line.find('='), end = line.find(']');
        if (line.starts_with("[[") && end != line.npos) {
            const std::string list(line.substr(2, end - 2));
            section = concat(list, " ", ++tables[list], ": ");
        } else if (line.starts_with('[') && end != line.npos) {
            section = concat(line.substr(1, end - 1), ".");
        } else if (!line.starts_with('#') && equals != line.npos) {
            keys[concat(section, trimmed(line.substr(0, equals)))] = trimmed(line.substr(equals + 1));
        }
    }
    return keys;
}

std::string config_card(const Comparison& c) {
    std::vector<std::map<std::string, std::string>> configs;
    std::set<std::string> keys;
    for (const RunHistory& run : c.runs) {
        configs.push_back(keys_of(run.config));
        for (const auto& [key, value] : configs.back()) keys.insert(key);
    }
    std::vector<std::vector<std::string>> rows;
    for (const std::string& key : keys) {
        std::vector<std::string> row = {key};
        for (const auto& config : configs) row.push_back(config.contains(key) ? config.at(key) : "");
        if (std::any_of(row.begin() + 2, row.end(), [&](const std::string& v) { return v != row[1]; }))
            rows.push_back(std::move(row));
    }
    const size_t equal = keys.size() - rows.size();
    return section(
        "Differences of the configs",
        rows.empty() ? quiet("None.") : comparison_table(c, rows) + quiet(concat(equal, " other keys are the same.")));
}

std::vector<std::string> notes(const Comparison& c) {
    std::vector<std::string> all;
    for (size_t i = 0; i < c.runs.size(); ++i)
        for (const std::string& note : c.runs[i].notes) all.push_back(c.names[i] + ": " + note);
    return all;
}

}  // namespace

std::vector<Card> cards_of(const std::vector<RunHistory>& runs, const View& view) {
    check<UsageError>(runs.size() >= 2 && runs.size() <= kMostCompared, "a comparison takes 2 to ", kMostCompared,
                      " runs, since more curves cannot be told apart; got ", runs.size());
    const Comparison c{runs, names_of(runs), axis_of(view, runs)};
    std::vector<Card> cards = charts(c);
    cards.push_back({"results", results_card(c)});
    cards.push_back({"memory", memory_card(c)});
    cards.push_back({"sent", sent_card(c)});
    cards.push_back({"configs", config_card(c)});
    std::erase_if(cards, [](const Card& card) { return card.html.empty(); });
    return cards;
}

std::string render_comparison(const std::vector<RunHistory>& runs) {
    const std::string cards = joined(cards_of(runs, {}), "", &Card::html);
    std::string body = concat("<header><p>Tutti run report</p><h1>", runs.size(), " runs side by side</h1></header>\n");
    body += notes_box(notes({runs, names_of(runs), {}})) + "<div class=\"grid\">\n" + cards + "</div>\n";
    body +=
        "<footer><p>Bold lines are exponential moving averages where a faint line, the logged values, runs behind "
        "them. Drawn from metrics.jsonl, run.json and config.toml of each run by <code>tutti report</code>.</p>"
        "</footer>\n";
    return page(concat(runs.size(), " runs – Tutti run report"), body);
}

}  // namespace tutti::report
