#include "tutti/published/calibration.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "tutti/published/step.h"
#include "tutti/simulate/prediction.h"

namespace tutti::published {

using simulate::Physics;
using simulate::PhysicsField;

namespace {

constexpr double kSoft = 0.08;   // errors beyond count less than their square
constexpr double kPrior = 0.03;  // weight of a deviation of one spread, in units of a family's error

std::vector<const PhysicsField*> fitted_fields() {
    std::vector<const PhysicsField*> fields;
    for (const PhysicsField& field : simulate::physics_fields())
        if (field.spread > 0) fields.push_back(&field);
    return fields;
}

// x with (a) x = b for a symmetric positive definite matrix; a and b are overwritten.
std::vector<double> solve(std::vector<std::vector<double>>& a, std::vector<double>& b) {
    const size_t n = b.size();
    for (size_t f = 0; f < n; ++f) {
        for (size_t g = f + 1; g < n; ++g) {
            const double factor = a[g][f] / a[f][f];
            for (size_t h = f; h < n; ++h) a[g][h] -= factor * a[f][h];
            b[g] -= factor * b[f];
        }
    }
    for (size_t f = n; f-- > 0;) {
        for (size_t g = f + 1; g < n; ++g) b[f] -= a[f][g] * b[g];
        b[f] /= a[f][f];
    }
    return b;
}

}  // namespace

// Damped Gauss-Newton over the logarithms of the numbers.
Physics fit(const std::vector<const PublishedRun*>& runs, const Physics& start) {
    std::map<std::string, int> counts;
    std::vector<const PublishedRun*> rows;
    for (const PublishedRun* run : runs) {
        if (!run->counts()) continue;
        rows.push_back(run);
        ++counts[run->family];
    }
    const std::vector<const PhysicsField*> fields = fitted_fields();
    const size_t n = fields.size();
    const auto errors = [&](const Physics& physics) {
        std::vector<double> e(rows.size());
        for (size_t i = 0; i < rows.size(); ++i)
            e[i] = std::log(step_time(*rows[i], physics).total() / rows[i]->seconds);
        return e;
    };
    const auto prior = [&](const Physics& physics, size_t f) {
        return kPrior * std::log(physics.*fields[f]->member / (start.*fields[f]->member)) / fields[f]->spread;
    };
    const auto objective = [&](const Physics& physics, const std::vector<double>& e) {
        double sum = 0;
        for (size_t i = 0; i < e.size(); ++i)
            sum += 2 * kSoft * kSoft * (std::sqrt(1 + std::pow(e[i] / kSoft, 2)) - 1) / counts[rows[i]->family];
        for (size_t f = 0; f < n; ++f) sum += std::pow(prior(physics, f), 2);
        return sum;
    };
    Physics best = start;
    std::vector<double> e = errors(best);
    double value = objective(best, e), damping = 0.01;
    constexpr int kRounds = 20;
    for (int round = 0; round < kRounds && damping < 1e4; ++round) {
        constexpr double kStep = 1e-3;
        std::vector<std::vector<double>> slope(n), a(n, std::vector<double>(n, 0));
        std::vector<double> b(n, 0);
        for (size_t f = 0; f < n; ++f) {
            Physics moved = best;
            moved.*fields[f]->member *= std::exp(kStep);
            slope[f] = errors(moved);
            for (size_t i = 0; i < e.size(); ++i) slope[f][i] = (slope[f][i] - e[i]) / kStep;
        }
        for (size_t i = 0; i < e.size(); ++i) {
            const double weight = 1 / std::sqrt(1 + std::pow(e[i] / kSoft, 2)) / counts[rows[i]->family];
            for (size_t f = 0; f < n; ++f) {
                b[f] -= weight * slope[f][i] * e[i];
                for (size_t g = 0; g < n; ++g) a[f][g] += weight * slope[f][i] * slope[g][i];
            }
        }
        for (size_t f = 0; f < n; ++f) {
            const double inverse = kPrior / fields[f]->spread;
            a[f][f] = (a[f][f] + inverse * inverse) * (1 + damping);
            b[f] -= prior(best, f) * inverse;
        }
        const std::vector<double> move = solve(a, b);
        Physics next = best;
        for (size_t f = 0; f < n; ++f) {
            double& of = next.*fields[f]->member;
            of = std::clamp(of * std::exp(std::clamp(move[f], -0.3, 0.3)), fields[f]->low, fields[f]->high);
        }
        const std::vector<double> there = errors(next);
        const double reached = objective(next, there);
        if (reached >= value) {
            damping *= 10;
            continue;
        }
        const bool done = value - reached < 1e-7 * value;
        best = next;
        value = reached;
        e = there;
        damping = std::max(1e-4, damping / 10);
        if (done) break;
    }
    return best;
}

std::vector<double> leave_out(const std::vector<PublishedRun>& runs,
                              const std::function<std::string(const PublishedRun&)>& group_of, const Physics& start) {
    std::vector<double> seconds(runs.size(), 0);
    std::set<std::string> groups;
    for (const PublishedRun& run : runs)
        if (run.measured()) groups.insert(group_of(run));
    for (const std::string& group : groups) {
        std::vector<const PublishedRun*> others;
        for (const PublishedRun& run : runs)
            if (group_of(run) != group) others.push_back(&run);
        const Physics physics = fit(others, start);
        for (size_t i = 0; i < runs.size(); ++i)
            if (runs[i].measured() && group_of(runs[i]) == group) seconds[i] = step_time(runs[i], physics).total();
    }
    return seconds;
}

std::vector<double> naive(const std::vector<PublishedRun>& runs) {
    const auto ideal = [](const PublishedRun& run) {
        const double flops = (run.model.product_flops() + run.model.attention_flops(run.seq)) * run.tokens();
        const double bubble = (run.pp - 1.0) / run.virtual_stages / run.microbatches();
        return flops * (run.recompute == Recompute::full ? 4.0 / 3 : 1) / run.ranks * (1 + bubble);
    };
    const auto kind = [](const PublishedRun& run) { return run.cluster.name + "/" + run.precision; };
    // Each family weighs alike.
    std::map<std::string, int> counts;
    std::map<std::string, std::vector<std::pair<double, double>>> rates;  // with the weight
    for (const PublishedRun& run : runs)
        if (run.counts()) ++counts[kind(run) + run.family];
    for (const PublishedRun& run : runs)
        if (run.counts()) rates[kind(run)].emplace_back(ideal(run) / run.seconds, 1.0 / counts[kind(run) + run.family]);
    std::map<std::string, double> constants;
    for (auto& [name, all] : rates) {
        std::sort(all.begin(), all.end());
        double sum = 0, so_far = 0;
        for (const auto& [rate, weight] : all) sum += weight;
        for (const auto& [rate, weight] : all)
            if ((so_far += weight) >= sum / 2) {
                constants[name] = rate;
                break;
            }
    }
    std::vector<double> seconds(runs.size(), 0);
    for (size_t i = 0; i < runs.size(); ++i)
        if (runs[i].counts()) seconds[i] = ideal(runs[i]) / constants[kind(runs[i])];
    return seconds;
}

std::vector<GroupError> errors_of(const std::vector<PublishedRun>& runs, const std::vector<double>& predicted,
                                  const std::function<std::vector<std::string>(const PublishedRun&)>& names_of,
                                  Source source) {
    std::map<std::string, GroupError> groups;
    for (size_t i = 0; i < runs.size(); ++i) {
        if (!runs[i].counts() || predicted[i] <= 0) continue;
        const double error = std::log(predicted[i] / runs[i].seconds);
        for (const std::string& name : names_of(runs[i])) {
            GroupError& group = groups[name];
            group.name = name;
            ++group.rows;
            group.inside += std::abs(error) <= half_width(runs[i], source) ? 1 : 0;
            group.mean += std::abs(error);
            group.bias += error;
            if (std::abs(error) > std::abs(group.largest)) group.largest = error;
        }
    }
    std::vector<GroupError> result;
    for (auto& [name, group] : groups) {
        group.mean /= group.rows;
        group.bias /= group.rows;
        result.push_back(group);
    }
    return result;
}

Means means_of(const std::vector<PublishedRun>& runs, const std::vector<double>& predicted) {
    std::map<std::string, std::string> houses;
    for (const PublishedRun& run : runs) houses[run.family] = run.house;
    Means means;
    std::map<std::string, std::vector<double>> by_house;
    const auto families =
        errors_of(runs, predicted, [](const PublishedRun& run) { return std::vector<std::string>{run.family}; });
    for (const GroupError& family : families) {
        means.families += family.mean / static_cast<double>(families.size());
        by_house[houses[family.name]].push_back(family.mean);
    }
    for (const auto& [house, errors] : by_house)
        for (const double error : errors)
            means.houses += error / static_cast<double>(errors.size()) / static_cast<double>(by_house.size());
    return means;
}

constexpr const char* kKnownHouses[] = {"mosaic",     "megatron-bridge", "nemo and dgxc", "korthikanti",
                                        "torchtitan", "simumax-b200",    "kempnerforge"};

// The least half-width of an unseen source: 1.6 times the mean error of three tables of 56 such sources when first
// predicted, 18.0, 18.3 and 18.0 % over families (docs/decisions/0079-forecasts-of-strangers.md). Kinds with a larger
// error keep their own width.
constexpr double kStranger = 1.6 * 0.18;

double half_width(const PublishedRun& run, Source source) {
    static const std::set<std::string> fitted = [] {
        std::set<std::string> families;
        for (const PublishedRun& each : calibration_runs())
            if (std::ranges::find(kKnownHouses, each.house) != std::end(kKnownHouses)) families.insert(each.family);
        return families;
    }();
    const bool known = fitted.contains(run.family) && source == Source::as_fitted;
    const bool stalls = run.software.tp_stall > 0;  // noise of its own
    const double of_kinds = simulate::half_width(kinds_of(run), known);
    return known || stalls ? of_kinds : std::max(kStranger, of_kinds);
}

}  // namespace tutti::published
