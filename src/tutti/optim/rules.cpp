#include "tutti/optim/rules.h"

#include <algorithm>
#include <numeric>

#include "tutti/base/ceil_div.h"
#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/spec/fields.h"
#include "tutti/spec/nearest.h"

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
    for (const spec::ParameterGroup& group : spec.groups) groups_.emplace_back(std::regex(group.match), group);
}

std::optional<size_t> Rules::named_group_of(const Parameter& p) const {
    if (p.training != autograd::Training::updated) return std::nullopt;
    for (size_t i = 0; i < groups_.size(); ++i)
        if (std::regex_search(p.name, groups_[i].first)) return i;
    return std::nullopt;
}

Rules::Group Rules::group_of(const Parameter& p) const {
    const auto rule = std::find_if(rules_.begin(), rules_.end(), [&](const auto& r) { return r->updates(p); });
    Group group{to_size(rule - rules_.begin()), p.decays() ? weight_decay_ : 0.0};
    if (const auto named = named_group_of(p)) {
        const spec::ParameterGroup& numbers = groups_[*named].second;
        group.weight_decay = numbers.weight_decay.value_or(group.weight_decay);
        group.lr_scale = numbers.lr_scale;
    }
    return group;
}

void Rules::check_groups(const std::vector<Parameter*>& parameters) const {
    for (size_t i = 0; i < groups_.size(); ++i) {
        const auto& [expression, group] = groups_[i];
        const auto is_here = [&](const Parameter* p) { return named_group_of(*p) == i; };
        if (std::any_of(parameters.begin(), parameters.end(), is_here)) continue;
        std::vector<std::string> names;
        bool taken = false;
        for (const Parameter* p : parameters) {
            if (p->training != autograd::Training::updated) continue;
            names.push_back(p->name);
            taken = taken || std::regex_search(p->name, expression);
        }
        const std::string given = concat("[optimizer] group with match = ", spec::toml_text(group.match), ": ");
        check<UsageError>(!taken, given, "earlier groups take all names that it is found in; put it before them");
        throw UsageError(concat(given, "is found in no name of a trained parameter; the nearest are ",
                                joined(spec::nearest_dotted(group.match, names))));
    }
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

MemoryByPurpose state_bytes(int64_t values, const spec::RunSpec& run) {
    Parameter matrix{.name = "matrix", .shape = {1, values}, .role = autograd::Role::column};
    return state_bytes({&matrix}, run);
}

MemoryByPurpose state_bytes(const std::vector<Parameter*>& parameters, const spec::RunSpec& run) {
    const auto compute_type = compute_type_from(run.precision.compute);
    check<UsageError>(compute_type.has_value(), "precision.compute must be f32, tf32, bf16 or f16, got \"",
                      run.precision.compute, "\"");
    const DType stored = storage_of(*compute_type);
    const bool masters = stored != DType::f32 && run.precision.master == "f32";  // f32 weights are the masters
    const bool gathered = run.parallel.zero == 3 && masters && !run.offload.optimizer && !run.offload.params;
    MemoryByPurpose bytes;
    const Rules rules(run.optimizer);
    for (const Parameter* p : parameters) {
        const int64_t values = p->shape.numel();
        const bool is_f32 = p->type(stored) == DType::f32;  // then it is its own master
        bytes[Purpose::weights] += gathered && !is_f32 ? 0 : values * size_of(p->type(stored));
        bytes[Purpose::gradients] += values * size_of(spec::gradient_dtype(run));
        if (masters && !is_f32) bytes[Purpose::optimizer] += values * size_of(DType::f32);
        for (const StateField& field : rules.of(*p).state(*p))
            bytes[Purpose::optimizer] += ceil_div(values, field.per) * size_of(field.dtype);
    }
    return bytes;
}

}  // namespace tutti::optim
