// report/report.cpp: the page of one run, card by card, and render_csv() (RFC 4180: fields with commas, quotes or line
// ends are quoted). The cards of a trace are in trace_card.cpp.
#include "tutti/report/report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/units.h"
#include "tutti/report/parts.h"
#include "tutti/report/svg.h"

namespace tutti::report {

namespace {

constexpr size_t kTableRows = 50;

bool is_bad(const LoggedStep& step) {
    const auto not_finite = [](const std::optional<double>& value) { return value && !std::isfinite(*value); };
    return step.skipped_before > 0 || not_finite(step.loss) || not_finite(step.grad_norm);
}

std::string loss_card(const RunHistory& run, const CurveAxis& axis) {
    Chart chart{
        .id = "loss", .title = "Loss", .x_label = axis.label, .y_unit = run.totals.loss_unit, .allow_log = true};
    add_series(chart, "train", 1, values_of(run, &LoggedStep::loss, 1, axis), axis);
    Series eval{"evaluation", 2, Mark::dots, values_of(run, &LoggedStep::eval_loss, 1, axis)};
    chart.description += in_words(eval, axis);
    if (!eval.points.empty()) chart.series.push_back(std::move(eval));
    Series skipped{"skipped or not finite", 4, Mark::ticks, {}};
    for (const LoggedStep& step : run.steps)
        if (const auto place = place_of(run, step, axis); place && is_bad(step)) skipped.points.push_back({*place, 0});
    if (!skipped.points.empty()) chart.series.push_back(std::move(skipped));

    std::string card = wide_card(chart);
    if (!card.empty()) return card;
    const bool lacks_axis = !finite(values_of(run, &LoggedStep::loss)).empty();
    return concat("<section class=\"card full\">",
                  quiet(lacks_axis ? "The log of this run, of an earlier version, does not say when its steps were."
                                   : "No step with a finite loss was logged yet."),
                  "</section>\n");
}

// The losses of tokens further ahead, a curve for each depth of multi-token prediction.
std::string mtp_card(const RunHistory& run, const CurveAxis& axis) {
    size_t depths = 0;
    for (const LoggedStep& step : run.steps) depths = std::max(depths, step.mtp_losses.size());
    if (depths == 0) return "";
    Chart chart{.id = "mtp-loss",
                .title = "Losses of tokens further ahead",
                .x_label = axis.label,
                .y_unit = run.totals.loss_unit};
    for (size_t k = 0; k < depths; ++k) {
        std::vector<Point> points;
        for (const LoggedStep& step : run.steps)
            if (const auto place = place_of(run, step, axis); place && k < step.mtp_losses.size())
                points.push_back({*place, step.mtp_losses[k]});
        add_series(chart, name_of_mtp_loss(k), 1 + static_cast<int>(k % 8), points, axis);
    }
    return chart_card(chart);
}

std::string curve_card(const RunHistory& run, const Curve& curve, const char* label, const CurveAxis& axis) {
    Chart chart = chart_of(curve, axis);
    add_run(chart, curve, label, 1, run, axis);
    return chart_card(chart);
}

std::string mfu_card(const RunHistory& run, const CurveAxis& axis) {
    Chart mfu = chart_of(kMfu, axis);
    add_run(mfu, kMfu, "MFU", 1, run, axis);
    const std::vector<Point> hardware = values_of(run, &LoggedStep::hfu, 100, axis);
    // Without recompute MFU and HFU are equal, so HFU is left out.
    if (finite(values_of(run, kMfu.field, kMfu.scale, axis)) != finite(hardware)) {
        mfu.title = "MFU and HFU";
        add_series(mfu, "HFU", 3, hardware, axis);
    }
    return chart_card(mfu);
}

std::string memory_card(const RunHistory& run) {
    std::vector<MemoryBar> bars;
    for (const MemoryUse& use : run.totals.memory)
        bars.push_back({use.purpose, use.predicted_bytes.value_or(-1), use.measured_bytes.value_or(-1)});
    const std::string svg = memory_bars("memory", "Memory by purpose", bars);
    if (svg.empty()) return "";
    const auto box = [](const char* style) {
        return concat("<rect class=\"", style, "\" x=\"2\" y=\"1\" width=\"20\" height=\"8\" rx=\"2\"/>");
    };
    const std::string items = legend_item(box("bar-predicted c8"), "predicted") + legend_item(box("c8"), "measured");
    return concat("<figure class=\"card\">", caption("Memory by purpose", "peak", legend_list(items)), svg,
                  "</figure>\n");
}

// Over the last tenth of the steps, at least one.
std::vector<std::vector<double>> mean_load(const std::vector<const LoggedStep*>& steps) {
    const size_t last = std::max<size_t>(1, steps.size() / 10);
    std::vector<std::vector<double>> sums = steps.back()->expert_load;
    size_t count = 1;
    for (size_t i = steps.size() - last; i + 1 < steps.size(); ++i) {
        const auto& load = steps[i]->expert_load;
        if (load.size() != sums.size()) continue;  // of another model that used the directory before
        ++count;
        for (size_t l = 0; l < sums.size(); ++l)
            for (size_t e = 0; e < std::min(sums[l].size(), load[l].size()); ++e) sums[l][e] += load[l][e];
    }
    for (auto& layer : sums)
        for (double& value : layer) value /= static_cast<double>(count);
    return sums;
}

// How evenly a mixture of experts spread its tokens.
std::string experts_card(const RunHistory& run, const CurveAxis& axis) {
    std::vector<const LoggedStep*> steps;
    for (const LoggedStep& step : run.steps)
        if (!step.expert_load.empty()) steps.push_back(&step);
    if (steps.empty()) return "";
    HeatMap map{.id = "expert-load",
                .title = "Load of the experts",
                .x_label = "expert",
                .values = mean_load(steps),
                .column = "expert"};
    const std::vector<int64_t>& layers = steps.back()->expert_layers;
    double largest = 0;
    for (size_t l = 0; l < map.values.size(); ++l) {
        map.rows.push_back(layers.empty() ? concat("mixture ", l) : concat("layer ", layers[l]));
        largest = std::max(largest, *std::max_element(map.values[l].begin(), map.values[l].end()));
    }
    map.description =
        concat("choices of each expert as a multiple of the mean; the largest is ", short_number(largest));

    Chart load{
        .id = "largest-load", .title = "Largest load of an expert", .x_label = axis.label, .y_unit = "times the mean"};
    std::vector<Point> largest_loads;
    for (const LoggedStep* step : steps) {
        double most = 0;
        for (const auto& layer : step->expert_load)
            for (const double value : layer) most = std::max(most, value);
        if (const auto place = place_of(run, *step, axis)) largest_loads.push_back({*place, most});
    }
    add_series(load, "largest load", 1, largest_loads, axis);
    constexpr Curve kBalancing{"aux-loss", "Balancing loss", "added to the loss", &LoggedStep::aux_loss};
    constexpr Curve kEntropy{
        "router-entropy", "Entropy of the routers", "nats per token", &LoggedStep::router_entropy, 1, false, true};
    return chart_card(load) + curve_card(run, kBalancing, "balancing loss", axis) +
           curve_card(run, kEntropy, "entropy", axis) +
           concat("<figure class=\"card full\">",
                  caption(map.title, "multiples of the mean, last tenth of the run; red: above the mean, blue: below"),
                  "<div class=\"drawing\">", heat_map(map), "</div></figure>\n");
}

std::string skipped_card(const RunHistory& run) {
    std::string rows;
    size_t count = 0;
    for (const LoggedStep& step : run.steps) {
        if (!is_bad(step) || ++count > kTableRows) continue;
        const bool why = !step.skip_reason.empty();
        rows +=
            concat(why ? "<tr class=\"has-reason\">" : "<tr>", "<td>", step.step, "</td><td>", step.skipped_before,
                   "</td><td>", number_cell(step.loss, 4), "</td><td>", number_cell(step.grad_norm, 4), "</td></tr>");
        if (why) rows += "<tr><td colspan=\"4\" class=\"reason\">" + escape_html(step.skip_reason) + "</td></tr>";
    }
    std::string body = quiet("None: every logged loss and gradient norm is finite.");
    if (count > 0) {
        body =
            "<table><thead><tr><th scope=\"col\">step</th><th scope=\"col\">skipped</th><th scope=\"col\">loss</th>"
            "<th scope=\"col\">gradient norm</th></tr></thead><tbody>" +
            rows + "</tbody></table>";
    }
    if (count > kTableRows) body += quiet(concat("and ", count - kTableRows, " more in metrics.jsonl."));
    return section("Skipped and non-finite steps", body, "card");
}

std::string texts(const RunHistory& run) {
    std::string cards;
    if (!run.totals.sample.empty())
        cards += section("Sample", concat("<pre class=\"sample\">", escape_html(run.totals.sample), "</pre>"),
                         "card full long");
    if (!run.config.empty()) {
        cards += "<section class=\"card full long\"><details><summary>Config, as resolved</summary><pre>" +
                 escape_html(run.config) + "</pre></details></section>\n";
    }
    return cards;
}

std::string quoted(const std::string& text) {
    if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
    std::string field = "\"";
    for (const char c : text) field += c == '"' ? std::string("\"\"") : std::string(1, c);
    return field + "\"";
}

// The fewest digits that read back to the same bits; counts without a point.
std::string cell(const std::optional<double>& value) {
    if (!value) return "";
    if (!std::isfinite(*value)) return "nan";
    if (*value == std::floor(*value) && std::abs(*value) < 9e15) return std::to_string(static_cast<int64_t>(*value));
    return Json(*value).dump();
}

}  // namespace

std::string facts_box(const RunHistory& run) {
    std::string items;
    const auto add = [&](std::string_view name, const std::optional<std::string>& value) {
        if (value) items += concat("<div><dt>", name, "</dt><dd>", escape_html(*value), "</dd></div>");
    };
    const auto count = [](double value) { return short_number(value); };
    const auto loss = [](double value) { return short_number(value, 4); };
    const RunTotals& totals = run.totals;
    if (!totals.model.empty()) add("model", totals.model);
    add("parameters", shown(totals.parameters, count));
    add("steps", run.steps.empty() ? std::nullopt : std::optional(concat(run.steps.back().step)));
    add("tokens", shown(totals.tokens ? totals.tokens : last_of(run, &LoggedStep::tokens), count));
    add("time in steps", shown(totals.wall_s, duration));
    add("final loss", shown(totals.final_loss ? totals.final_loss : last_of(run, &LoggedStep::loss), loss));
    add("evaluation loss", shown(last_of(run, &LoggedStep::eval_loss), loss));
    add("tokens/s, median", median_throughput(run));
    add("MFU, median", median_mfu(run));
    add("memory peak", memory_peak(run));
    return items.empty() ? "" : "<dl class=\"facts\">" + items + "</dl>\n";
}

std::vector<Card> cards_of(const RunHistory& run, const View& view) {
    constexpr Curve kLossScale{"loss-scale", "Loss scale", "factor of the gradients", &LoggedStep::loss_scale};
    constexpr Curve kSaturated{"fp8-saturated", "Saturated in 8 bits", "% of the values cast",
                               &LoggedStep::fp8_saturated, 100};
    constexpr Curve kFlushed{"fp8-flushed", "Became 0 in 8 bits", "% of the values cast", &LoggedStep::fp8_flushed,
                             100};
    const CurveAxis axis = axis_of(view, {&run, 1});
    std::vector<Card> cards = {{"loss", loss_card(run, axis)},
                               {"mtp-loss", mtp_card(run, axis)},
                               {"grad-norm", curve_card(run, kGradientNorm, "gradient norm", axis)},
                               {"lr", curve_card(run, kLearningRate, "learning rate", axis)},
                               {"loss-scale", curve_card(run, kLossScale, "loss scale", axis)},
                               {"fp8-saturated", curve_card(run, kSaturated, "saturated", axis)},
                               {"fp8-flushed", curve_card(run, kFlushed, "became 0", axis)},
                               {"speed", curve_card(run, kThroughput, "tokens/s", axis)},
                               {"step-time", step_time_card(run, axis)},
                               {"mfu", mfu_card(run, axis)},
                               {"memory", memory_card(run)},
                               {"ranks", ranks_card(run)},
                               {"stages", stages_card(run)},
                               {"groups", groups_card(run)},
                               {"spent", spent_card(run)},
                               {"skipped", skipped_card(run)},
                               {"experts", experts_card(run, axis)},
                               {"precision", run.precision ? precision_card(*run.precision) : ""},
                               {"trace", trace_card(run)},
                               {"prediction", prediction_card(run)},
                               {"pipeline", pipeline_card(run)},
                               {"texts", texts(run)}};
    std::erase_if(cards, [](const Card& card) { return card.html.empty(); });
    return cards;
}

std::string render_report(const RunHistory& run) {
    std::string body = concat("<header><p>Tutti run report</p><h1>", escape_html(run.name), "</h1>");
    if (!run.totals.machine.empty()) body += "<p>" + escape_html(run.totals.machine) + "</p>";
    if (run.totals.peak_flops)
        body += concat("<p>MFU and HFU are shares of ", format_flop_rate(*run.totals.peak_flops), ": ",
                       escape_html(run.totals.peak_origin), "</p>");
    body += "</header>\n" + facts_box(run) + notes_box(run.notes);
    body += "<div class=\"grid\">\n" + joined(cards_of(run, {}), "", &Card::html) + "</div>\n";
    body +=
        "<footer><p>Bold lines are exponential moving averages where a faint line, the logged values, runs behind "
        "them. Drawn from metrics.jsonl, run.json, config.toml and trace.json of this run by <code>tutti "
        "report</code>.</p></footer>\n";
    return page(run.name + " – Tutti run report", body);
}

std::vector<std::string> names_of(const std::vector<RunHistory>& runs) {
    std::map<std::string, int> count, used;
    for (const RunHistory& run : runs) ++count[run.name];
    std::vector<std::string> names;
    for (const RunHistory& run : runs)
        names.push_back(count[run.name] == 1 ? run.name : concat(run.name, " (", ++used[run.name], ")"));
    return names;
}

std::string render_csv(const std::vector<RunHistory>& runs) {
    std::string csv = "run,step";
    for (const auto& [name, field, tag] : kLoggedNumbers) csv += std::string(",") + name;
    csv += ",skipped\r\n";
    const std::vector<std::string> names = names_of(runs);
    for (size_t i = 0; i < runs.size(); ++i)
        for (const LoggedStep& step : runs[i].steps) {
            csv += quoted(names[i]) + "," + std::to_string(step.step);
            for (const auto& [name, field, tag] : kLoggedNumbers) csv += "," + cell(step.*field);
            csv += "," + std::to_string(step.skipped_before) + "\r\n";
        }
    return csv;
}

}  // namespace tutti::report
