#include "tutti/simulate/profile.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "tutti/base/error.h"
#include "tutti/base/read_file.h"

namespace tutti::simulate {

namespace {

double squared_error(const CallCost& cost, const std::vector<Sample>& samples) {
    double sum = 0;
    for (const Sample& s : samples) {
        const double e = cost.seconds(s.flops, s.bytes) / s.seconds - 1;
        sum += s.weight * e * e;
    }
    return sum;
}

// Least squares over the terms whose bit is set; a negative coefficient invalidates the fit.
CallCost solve(const std::vector<Sample>& samples, unsigned terms) {
    double a[3][4] = {};
    for (const Sample& s : samples) {
        const double x[3] = {terms & 1 ? 1 / s.seconds : 0, terms & 2 ? s.flops / s.seconds : 0,
                             terms & 4 ? s.bytes / s.seconds : 0};
        for (int i = 0; i < 3; ++i) {
            for (int j = 0; j < 3; ++j) a[i][j] += s.weight * x[i] * x[j];
            a[i][3] += s.weight * x[i];
        }
    }
    double scale[3];
    for (int i = 0; i < 3; ++i) {
        scale[i] = a[i][i] > 0 ? std::sqrt(a[i][i]) : 1;
        if (a[i][i] == 0) a[i][i] = 1;
    }
    for (int i = 0; i < 3; ++i) {
        for (int j = 0; j < 3; ++j) a[i][j] /= scale[i] * scale[j];
        a[i][3] /= scale[i];
        a[i][i] += 1e-12;
    }
    for (int i = 0; i < 3; ++i) {
        for (int j = 0; j < 3; ++j) {
            if (j == i) continue;
            const double factor = a[j][i] / a[i][i];
            for (int k = i; k < 4; ++k) a[j][k] -= factor * a[i][k];
        }
    }
    return {a[0][3] / a[0][0] / scale[0], a[1][3] / a[1][1] / scale[1], a[2][3] / a[2][2] / scale[2]};
}

Json to_json(const CallCost& cost) { return Json::array({cost.per_call, cost.per_flop, cost.per_byte}); }
CallCost cost_from(const Json& json) {
    return {json.at(size_t{0}).get<double>(), json.at(size_t{1}).get<double>(), json.at(size_t{2}).get<double>()};
}

}  // namespace

CallCost fit_cost(const std::vector<Sample>& samples) {
    CallCost best;
    double least = std::numeric_limits<double>::infinity();
    for (unsigned terms = 1; terms < 8; ++terms) {
        const CallCost cost = solve(samples, terms);
        if (cost.per_call < 0 || cost.per_flop < 0 || cost.per_byte < 0) continue;
        const double error = squared_error(cost, samples);
        if (error < least) {
            least = error;
            best = cost;
        }
    }
    return best;
}

double KernelProfile::seconds(const std::string& kernel, const kernels::Work& work) const {
    const auto found = costs.find(kernel);
    if (found == costs.end()) {
        std::vector<double> others;
        for (const auto& [name, cost] : costs) others.push_back(cost.seconds(0, work.bytes));
        std::nth_element(others.begin(), others.begin() + static_cast<std::ptrdiff_t>(others.size() / 2), others.end());
        return others.empty() ? 0 : others[others.size() / 2];
    }
    // Samples near the problem correct the fitted cost: the nearer, the more.
    const double fitted = found->second.seconds(work.flops, work.bytes);
    double weights = 0.5, logarithm = 0;  // the fit itself counts as a sample at some distance
    const auto apart = [](double a, double b) { return a > 0 && b > 0 ? std::log(a / b) : 0; };
    for (const Sample& s : samples.at(kernel)) {
        const double f = apart(work.flops, s.flops), b = apart(work.bytes, s.bytes);
        const double weight = 1 / (f * f + b * b + 0.01);
        if (weight < 0.5) continue;
        weights += weight;
        logarithm += weight * std::log(s.seconds / found->second.seconds(s.flops, s.bytes));
    }
    return fitted * std::exp(logarithm / weights);
}

const KernelProfile& MachineProfile::kernels_of(const std::string& compute, int threads) const {
    const KernelProfile* nearest = nullptr;
    for (const KernelProfile& each : kernels) {
        if (each.compute != compute) continue;
        if (nearest == nullptr || std::abs(each.threads - threads) < std::abs(nearest->threads - threads))
            nearest = &each;
    }
    check<UsageError>(nearest != nullptr, "the profile of ", machine, " has no kernels in ", compute,
                      "; `tutti bench calibrate` on that machine measures them");
    return *nearest;
}

double MachineProfile::operation_seconds(comm::Kind kind, int ranks, double bytes) const {
    const OperationCost* nearest = nullptr;
    for (const OperationCost& each : operations) {
        if (each.kind != kind) continue;
        if (nearest == nullptr || std::abs(each.ranks - ranks) < std::abs(nearest->ranks - ranks)) nearest = &each;
    }
    return nearest == nullptr ? 0 : nearest->cost.seconds(0, bytes);
}

Json to_json(const MachineProfile& p) {
    Json kernels = Json::array(), operations = Json::array();
    for (const KernelProfile& each : p.kernels) {
        Json costs = Json::object(), samples = Json::object();
        for (const auto& [name, cost] : each.costs) costs[name] = to_json(cost);
        for (const auto& [name, all] : each.samples) {
            Json list = Json::array();
            for (const Sample& s : all) list.push_back(Json::array({s.flops, s.bytes, s.seconds}));
            samples[name] = std::move(list);
        }
        kernels.push_back({{"compute", each.compute},
                           {"threads", each.threads},
                           {"between_kernels_s", each.between_kernels},
                           {"of_step_s", each.of_step},
                           {"alone", each.alone},
                           {"costs", std::move(costs)},
                           {"samples", std::move(samples)}});
    }
    for (const OperationCost& each : p.operations)
        operations.push_back({{"kind", name_of(each.kind)}, {"ranks", each.ranks}, {"cost", to_json(each.cost)}});
    return {{"about", "costs: [seconds per call, per FLOP, per byte]; samples: [FLOPs, bytes, seconds] of a call"},
            {"machine", p.machine},
            {"cores", p.cores},
            {"kernels", std::move(kernels)},
            {"operations", std::move(operations)}};
}

MachineProfile read_profile(const std::string& path) {
    try {
        const Json document = Json::parse(read_file(path));
        MachineProfile p;
        p.machine = document["machine"].get<std::string>();
        p.cores = document["cores"].get<int>();
        for (const Json& json : document["kernels"]) {
            KernelProfile each;
            each.compute = json["compute"].get<std::string>();
            each.threads = json["threads"].get<int>();
            each.between_kernels = json["between_kernels_s"].get<double>();
            each.of_step = json["of_step_s"].get<double>();
            each.alone = json["alone"].get<double>();
            for (const Json::Member& m : json["costs"].items()) each.costs[m.key] = cost_from(m.value);
            for (const Json::Member& m : json["samples"].items()) {
                std::vector<Sample>& samples = each.samples[m.key];
                for (const Json& s : m.value)
                    samples.push_back({s[0].get<double>(), s[1].get<double>(), s[2].get<double>()});
            }
            p.kernels.push_back(std::move(each));
        }
        for (const Json& json : document["operations"]) {
            OperationCost each;
            for (int k = 0; k < comm::kKinds; ++k)
                if (name_of(static_cast<comm::Kind>(k)) == json["kind"].text()) each.kind = static_cast<comm::Kind>(k);
            each.ranks = json["ranks"].get<int>();
            each.cost = cost_from(json["cost"]);
            p.operations.push_back(each);
        }
        return p;
    } catch (const DataError& error) {
        throw DataError(concat(path, " is not a profile of a machine: ", error.what()));
    }
}

}  // namespace tutti::simulate
