#include "tutti/lectures/budget.h"

#include <cmath>

#include "tutti/base/error.h"
#include "tutti/base/units.h"
#include "tutti/report/parts.h"

namespace tutti::lectures {

namespace {

ScalingLaw parametric(const std::string& name, const std::string& source, double E, double A, double B, double alpha,
                      double beta) {
    const double power = beta / (alpha + beta);  // dL/dN = 0 under C = 6 N D
    return {.name = name,
            .formula = concat("L = E + A / N^a + B / D^b, E ", E, ", A ", A, ", B ", B, ", a ", alpha, ", b ", beta),
            .source = source,
            .E = E,
            .A = A,
            .B = B,
            .alpha = alpha,
            .beta = beta,
            .factor = std::pow(alpha * A / (beta * B), 1 / (alpha + beta)) / std::pow(6, power),
            .power = power};
}

constexpr size_t kFitted = 2;  // the law of the page and of the critical batch

std::string ratio(const Spent& spent) {
    return format_fixed(spent.tokens / spent.parameters, spent.tokens < spent.parameters ? 3 : 1);
}

std::string in_words(const Spent& spent) {
    return concat(format_count(spent.parameters), " parameters on ", format_count(spent.tokens), " tokens");
}

}  // namespace

const std::vector<ScalingLaw>& scaling_laws() {
    static const std::vector<ScalingLaw> laws = {
        {.name = "Chinchilla, 20 tokens a parameter",
         .formula = "N = sqrt(C / 120), D = 20 N",
         .source = "Hoffmann et al. 2022, tables 2 and 3",
         .factor = std::sqrt(1.0 / 120),
         .power = 0.5},
        parametric("Chinchilla, approach 3", "Hoffmann et al. 2022, eq. 4 and 10", 1.69, 406.4, 410.7, 0.34, 0.28),
        parametric("Chinchilla, fitted again", "Besiroglu et al. 2024", 1.8172, 482.01, 2085.43, 0.3478, 0.3658),
        // N without embeddings, at the batch size that wastes least compute.
        {.name = "Kaplan",
         .formula = "N = 1.3e9 C^0.73, C in PF-days; D = C / 6 N",
         .source = "Kaplan et al. 2020, table 6",
         .factor = 1.3e9 / std::pow(1e15 * 86400, 0.73),
         .power = 0.73}};
    return laws;
}

double ScalingLaw::loss(const Spent& s) const {
    return E + A / std::pow(s.parameters, alpha) + B / std::pow(s.tokens, beta);
}

Spent ScalingLaw::best(double C) const {
    const double N = factor * std::pow(C, power);
    return {N, C / (6 * N)};
}

std::optional<double> ScalingLaw::flops_for(double wanted) const {
    if (!has_loss() || wanted <= E) return std::nullopt;
    double low = 0, high = 60;  // log10 of the FLOPs: the loss falls with them
    for (int i = 0; i < 100; ++i) {
        const double middle = (low + high) / 2;
        (loss(best(std::pow(10, middle))) > wanted ? low : high) = middle;
    }
    return std::pow(10, high);
}

double critical_batch(double loss) { return 2e8 / std::pow(loss, 1 / 0.21); }

namespace {

// Of the run, or of the best one.
double fitted_loss(const BudgetPlan& plan) {
    const ScalingLaw& fitted = scaling_laws()[kFitted];
    return fitted.loss(plan.run.value_or(fitted.best(plan.flops)));
}

}  // namespace

std::string render(const BudgetPlan& plan) {
    std::string text;
    if (plan.run)
        text += concat(plan.of.empty() ? "run" : plan.of, ": ", in_words(*plan.run), " (", ratio(*plan.run),
                       " a parameter)\n");
    // A blank stands before a number that fills its column, too.
    const auto cell = [](const std::string& number, size_t width) { return concat(' ', right(number, width - 1)); };
    text += concat(plan.run ? "compute " : "budget ", format_flops(plan.flops), " = 6 N D\n\n",
                   left("best spent by", 36), cell("parameters", 12), cell("tokens", 10), cell("tokens/N", 10),
                   cell("loss", 8), plan.run ? cell("the run's", 11) + cell("needed", 9) : "", '\n');
    for (const ScalingLaw& law : scaling_laws()) {
        const Spent best = law.best(plan.flops);
        text += concat(left(law.name, 36), cell(format_count(best.parameters), 12), cell(format_count(best.tokens), 10),
                       cell(ratio(best), 10), cell(law.has_loss() ? format_fixed(law.loss(best), 3) : "-", 8));
        if (plan.run) {
            const double loss = law.loss(*plan.run);
            const auto needed = law.flops_for(loss);
            text += concat(cell(law.has_loss() ? format_fixed(loss, 3) : "-", 11),
                           cell(needed ? format_percent(*needed / plan.flops) : "-", 9));
        }
        text += '\n';
    }
    text += '\n';
    for (const ScalingLaw& law : scaling_laws())
        text += concat(left(law.name, 36), law.formula, " [", law.source, "]\n");
    text += "losses: nats a token of each law's own text and tokenizer; they rank runs by one law, not two laws\n";
    if (plan.run) text += "needed: the share of this compute with which the best run reaches the run's loss\n";
    const double loss = fitted_loss(plan);
    text += concat("critical batch at a loss of ", format_fixed(loss, 2), ": ", format_count(critical_batch(loss)),
                   " tokens, 2e8 / L^4.76 [Kaplan et al. 2020, eq. 1.4]: a larger one saves few steps\n",
                   "another batch: AdamW's rate times the root of the ratio [Malladi et al. 2022], SGD's times the "
                   "ratio [Goyal et al. 2017]\n");
    if (plan.seconds > 0) {
        text +=
            concat("\n", plan.machines, " at ", format_percent(plan.mfu), " MFU: ", format_flop_rate(plan.rate), ", ",
                   format_fixed(plan.seconds / 86400, 1), " days",
                   plan.dollars > 0 ? concat(", $", format_count(plan.dollars)) : ", no price known (--price)", '\n');
    }
    return text;
}

namespace {

Json to_json(const Spent& spent) { return {{"parameters", spent.parameters}, {"tokens", spent.tokens}}; }
Json number_or_null(bool is_known, double value) { return is_known ? Json(value) : Json(nullptr); }

}  // namespace

Json to_json(const BudgetPlan& plan) {
    Json rows = Json::array();
    for (const ScalingLaw& law : scaling_laws()) {
        const Spent best = law.best(plan.flops);
        Json row = {{"law", law.name},       {"formula", law.formula},
                    {"source", law.source},  {"parameters", best.parameters},
                    {"tokens", best.tokens}, {"loss", number_or_null(law.has_loss(), law.loss(best))}};
        if (plan.run) {
            const double loss = law.loss(*plan.run);
            row["loss_of_run"] = number_or_null(law.has_loss(), loss);
            row["flops_needed"] = number_or_null(law.has_loss(), law.flops_for(loss).value_or(0));
        }
        rows.push_back(row);
    }
    return {{"flops", plan.flops},
            {"run", plan.run ? to_json(*plan.run) : Json(nullptr)},
            {"laws", rows},
            {"critical_batch_tokens", critical_batch(fitted_loss(plan))},
            {"mfu", plan.mfu},
            {"seconds", number_or_null(plan.seconds > 0, plan.seconds)},
            {"dollars", number_or_null(plan.dollars > 0, plan.dollars)}};
}

// Curves of equal compute: the loss over the parameters, with the best run of each.
std::string to_html(const BudgetPlan& plan) {
    const ScalingLaw& law = scaling_laws()[kFitted];
    report::Chart chart{.id = "loss",
                        .title = concat("Loss over parameters, by ", law.name),
                        .description = "",
                        .x_label = "parameters, as the power of ten",
                        .y_unit = "nats a token"};
    report::Series best{.label = "best", .colour = 8, .mark = report::Mark::dots, .points = {}};
    int colour = 0;
    for (const double times : {0.01, 0.1, 1.0, 10.0}) {
        const double C = plan.flops * times;
        const Spent middle = law.best(C);
        report::Series curve{.label = format_flops(C), .colour = ++colour, .points = {}};
        for (int i = -30; i <= 30; ++i) {
            const double N = middle.parameters * std::pow(10, i / 30.0);
            curve.points.push_back({std::log10(N), law.loss({N, C / (6 * N)})});
        }
        best.points.push_back({std::log10(middle.parameters), law.loss(middle)});
        best.titles.push_back(
            concat(format_flops(C), ": ", in_words(middle), ", loss ", format_fixed(law.loss(middle), 3)));
        chart.description += concat(best.titles.back(), ". ");
        chart.series.push_back(std::move(curve));
    }
    chart.series.push_back(std::move(best));
    if (plan.run) {
        const std::string title = concat(plan.of.empty() ? "the run" : plan.of, ": ", in_words(*plan.run), ", loss ",
                                         format_fixed(law.loss(*plan.run), 3));
        chart.series.push_back({plan.of.empty() ? "the run" : plan.of,
                                5,
                                report::Mark::points,
                                {{std::log10(plan.run->parameters), law.loss(*plan.run)}},
                                {title}});
        chart.description += title;
    }
    std::string rows;
    for (const ScalingLaw& each : scaling_laws()) {
        const Spent spent = each.best(plan.flops);
        rows += report::row_of({each.name, format_count(spent.parameters), format_count(spent.tokens), ratio(spent),
                                each.has_loss() ? format_fixed(each.loss(spent), 3) : "-"});
    }
    const std::string title = concat(plan.run ? "Compute of " : "Budget of ", format_flops(plan.flops));
    return report::page(
        title, concat("<header><h1>", title, "</h1><p>", plan.run ? concat(in_words(*plan.run), "; ") : "",
                      "curves of equal compute, C = 6 N D [", escape_html(law.source), "]</p></header>\n",
                      "<div class=\"grid\">", report::wide_card(chart), "<div class=\"card full\"><h2>Best spent</h2>",
                      report::table({"law", "parameters", "tokens", "tokens/N", "loss"}, rows), "</div></div>\n"));
}

}  // namespace tutti::lectures
