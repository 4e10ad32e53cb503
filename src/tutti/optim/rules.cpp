#include "tutti/optim/rules.h"

#include <algorithm>
#include <numeric>

#include "tutti/base/error.h"

namespace tutti::optim {

namespace {

struct Named {
    std::string_view name;
    std::unique_ptr<UpdateRule> (*make)(const spec::OptimizerSpec&);
};
constexpr Named kRules[] = {{"adamw", adamw}, {"sgd", sgd}, {"lion", lion}, {"muon", muon}};

}  // namespace

std::unique_ptr<UpdateRule> make_rule(const spec::OptimizerSpec& spec) {
    std::string names;
    for (const Named& rule : kRules) {
        if (rule.name == spec.name) return rule.make(spec);
        names += concat(names.empty() ? "" : " or ", rule.name);
    }
    throw UsageError(concat("optimizer.name must be ", names, ", got \"", spec.name, "\""));
}

Rules::Rules(const spec::OptimizerSpec& spec, const MakeRule& make) : weight_decay_(spec.weight_decay) {
    rules_.push_back(balance(spec));
    rules_.push_back(make(spec));
    rules_.push_back(adamw(spec));
}

Rules::Group Rules::group_of(const Parameter& p) const {
    const auto rule = std::find_if(rules_.begin(), rules_.end(), [&](const auto& r) { return r->updates(p); });
    return {static_cast<size_t>(rule - rules_.begin()), p.decays() ? weight_decay_ : 0.0};
}

bool Rules::need_whole_matrices() const {
    return std::any_of(rules_.begin(), rules_.end(), [](const auto& rule) { return rule->whole_matrices(); });
}

int64_t Rules::grain(const std::vector<Parameter*>& parameters) const {
    int64_t grain = 1;
    for (const Parameter* p : parameters)
        for (const StateField& field : of(*p).state(*p)) grain = std::lcm(grain, field.per);
    return grain;
}

MemoryByPurpose state_bytes(int64_t values, const std::string& compute, const Rules& rules) {
    const auto compute_type = compute_type_from(compute);
    check<UsageError>(compute_type.has_value(), "precision.compute must be f32, tf32 or bf16, got \"", compute, "\"");
    const DType stored = storage_of(*compute_type);
    const Parameter matrix{.name = "matrix", .shape = {1, values}, .role = autograd::Role::column};
    const int64_t masters = stored == DType::f32 ? 0 : values * size_of(DType::f32);  // f32 weights are the masters
    MemoryByPurpose bytes;
    bytes[Purpose::weights] = values * size_of(stored);
    bytes[Purpose::gradients] = values * size_of(DType::f32);
    bytes[Purpose::optimizer] = masters;
    for (const StateField& field : rules.of(matrix).state(matrix))
        bytes[Purpose::optimizer] += (values + field.per - 1) / field.per * size_of(field.dtype);
    return bytes;
}

}  // namespace tutti::optim
