// report/experts_card.cpp: how evenly the tokens of a mixture of experts went to its experts.
#include <algorithm>
#include <cmath>

#include "tutti/base/error.h"
#include "tutti/report/parts.h"
#include "tutti/report/svg.h"

namespace tutti::report {

namespace {

std::vector<const LoggedStep*> steps_with_loads(const RunHistory& run) {
    std::vector<const LoggedStep*> steps;
    for (const LoggedStep& step : run.steps)
        if (!step.expert_load.empty()) steps.push_back(&step);
    return steps;
}

// Over the last tenth of the steps, at least one.
std::vector<std::vector<double>> mean_load(const std::vector<const LoggedStep*>& steps) {
    const size_t last = std::max<size_t>(1, steps.size() / 10);
    std::vector<std::vector<double>> sums = steps.back()->expert_load;
    size_t count = 1;
    for (size_t i = steps.size() - last; i + 1 < steps.size(); ++i) {
        const auto& load = steps[i]->expert_load;
        if (load.size() != sums.size()) continue;  // of another model: the directory was used again
        ++count;
        for (size_t l = 0; l < sums.size(); ++l)
            for (size_t e = 0; e < std::min(sums[l].size(), load[l].size()); ++e) sums[l][e] += load[l][e];
    }
    for (auto& layer : sums)
        for (double& value : layer) value /= static_cast<double>(count);
    return sums;
}

}  // namespace

std::string experts_card(const RunHistory& run) {
    const std::vector<const LoggedStep*> steps = steps_with_loads(run);
    if (steps.empty()) return "";
    HeatMap map{.id = "expert-load",
                .title = "Load of the experts",
                .description = "",
                .x_label = "expert",
                .rows = {},
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

    Chart load{.id = "largest-load",
               .title = "Largest load of an expert",
               .description = "",
               .y_unit = "times the mean",
               .series = {}};
    std::vector<Point> largest_loads;
    for (const LoggedStep* step : steps) {
        double most = 0;
        for (const auto& layer : step->expert_load)
            for (const double value : layer) most = std::max(most, value);
        largest_loads.push_back({static_cast<double>(step->step), most});
    }
    add_series(load, "largest load", 1, largest_loads);
    Chart aux{
        .id = "aux-loss", .title = "Balancing loss", .description = "", .y_unit = "added to the loss", .series = {}};
    add_series(aux, "balancing loss", 1, values_of(run, &LoggedStep::aux_loss));
    Chart entropy{.id = "router-entropy",
                  .title = "Entropy of the routers",
                  .description = "",
                  .y_unit = "nats per token",
                  .series = {},
                  .from_zero = true};
    add_series(entropy, "entropy", 1, values_of(run, &LoggedStep::router_entropy));
    return chart_card(load) + chart_card(aux) + chart_card(entropy) +
           concat("<figure class=\"card full\"><figcaption><b>", map.title,
                  "</b><span class=\"unit\">multiples of the mean, last tenth of the run; above it one colour, below "
                  "it the other</span></figcaption>",
                  heat_map(map), "</figure>\n");
}

}  // namespace tutti::report
