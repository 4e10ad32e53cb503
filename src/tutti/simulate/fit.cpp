// simulate/fit.cpp: damped Gauss-Newton over the logarithms of the constants, with weights that make it robust.
#include "tutti/simulate/fit.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "tutti/simulate/step_time.h"

namespace tutti::simulate {

std::vector<FamilyError> errors_of(const std::vector<PublishedRun>& runs, const std::vector<double>& predicted) {
    std::map<std::string, FamilyError> families;
    for (size_t i = 0; i < runs.size(); ++i) {
        if (!runs[i].problem.empty() || runs[i].seconds <= 0 || predicted[i] <= 0) continue;
        FamilyError& family = families[runs[i].family];
        const double error = predicted[i] / runs[i].seconds - 1;
        ++family.rows;
        family.mean += std::abs(error);
        family.bias += error;
        if (std::abs(error) > std::abs(family.largest)) family.largest = error;
    }
    std::vector<FamilyError> result;
    for (auto& [name, family] : families) {
        family.family = name;
        family.mean /= family.rows;
        family.bias /= family.rows;
        result.push_back(family);
    }
    return result;
}

Constants fit(const std::vector<PublishedRun>& runs, const Constants& start) {
    std::vector<const PublishedRun*> rows;
    std::map<std::string, int> counts;
    for (const PublishedRun& run : runs) {
        if (!run.problem.empty() || run.seconds <= 0) continue;
        rows.push_back(&run);
        ++counts[run.family];
    }
    const auto& fields = constant_fields();
    const size_t n = fields.size();
    constexpr double kNoise = 0.05;  // of a row, as a logarithm
    // Six rows and fewer determine few constants: half of the spread predicts the other rows of a site better
    // (bench/results/published_left_out.txt); with a third of it, the rows count too little.
    const double spread_share = rows.size() <= 6 ? 0.5 : 1;
    const auto spread_of = [&](size_t f) { return spread_share * fields[f].spread; };
    const auto residuals = [&](const Constants& constants) {
        std::vector<double> r(rows.size());
        for (size_t i = 0; i < rows.size(); ++i)
            r[i] = std::log(step_time(rows[i]->job, rows[i]->cluster, constants).total() / rows[i]->seconds);
        return r;
    };
    const auto weight_of = [&](size_t i, double r) {
        // A family of many rows counts as about six; far rows count less than their square.
        const double rows_of_family = counts[rows[i]->family];
        const double base = std::min(1.0, 6 / rows_of_family) / (kNoise * kNoise);
        return base / std::sqrt(1 + (r / (2 * kNoise)) * (r / (2 * kNoise)));
    };
    const auto prior = [&](const Constants& constants, size_t f) {
        return std::log(constants.*fields[f].member / (start.*fields[f].member)) / spread_of(f);
    };
    const auto objective = [&](const Constants& constants) {
        double sum = 0;
        const std::vector<double> r = residuals(constants);
        for (size_t i = 0; i < r.size(); ++i) {
            const double scale = 2 * kNoise;
            const double base = std::min(1.0, 6.0 / counts[rows[i]->family]) / (kNoise * kNoise);
            sum += base * 2 * scale * scale * (std::sqrt(1 + r[i] / scale * r[i] / scale) - 1);
        }
        for (size_t f = 0; f < n; ++f) sum += prior(constants, f) * prior(constants, f);
        return sum;
    };
    Constants best = start;
    double value = objective(best), damping = 1;
    for (int round = 0; round < 60 && damping < 1e8; ++round) {
        const std::vector<double> r = residuals(best);
        std::vector<std::vector<double>> slope(n);
        constexpr double kStep = 1e-3;
        for (size_t f = 0; f < n; ++f) {
            Constants moved = best;
            moved.*fields[f].member *= std::exp(kStep);
            slope[f] = residuals(moved);
            for (size_t i = 0; i < r.size(); ++i) slope[f][i] = (slope[f][i] - r[i]) / kStep;
        }
        std::vector<std::vector<double>> a(n, std::vector<double>(n + 1, 0));
        for (size_t i = 0; i < r.size(); ++i) {
            const double w = weight_of(i, r[i]);
            for (size_t f = 0; f < n; ++f) {
                if (slope[f][i] == 0) continue;
                a[f][n] -= w * slope[f][i] * r[i];
                for (size_t g = 0; g < n; ++g) a[f][g] += w * slope[f][i] * slope[g][i];
            }
        }
        for (size_t f = 0; f < n; ++f) {
            a[f][f] += 1 / (spread_of(f) * spread_of(f));
            a[f][n] -= prior(best, f) / spread_of(f);
            a[f][f] *= 1 + damping;
        }
        for (size_t f = 0; f < n; ++f) {  // Gauss-Jordan; the matrix is positive definite
            const double pivot = a[f][f];
            for (double& v : a[f]) v /= pivot;
            for (size_t g = 0; g < n; ++g) {
                if (g == f || a[g][f] == 0) continue;
                const double factor = a[g][f];
                for (size_t h = f; h <= n; ++h) a[g][h] -= factor * a[f][h];
            }
        }
        Constants next = best;
        for (size_t f = 0; f < n; ++f) {
            double& of = next.*fields[f].member;
            of = std::clamp(of * std::exp(std::clamp(a[f][n], -0.3, 0.3)), fields[f].low, fields[f].high);
        }
        const double there = objective(next);
        if (there < value) {
            const bool done = value - there < 1e-4;
            best = next;
            value = there;
            damping = std::max(1e-6, damping / 4);
            if (done) break;
        } else {
            damping *= 4;
        }
    }
    return best;
}

}  // namespace tutti::simulate
