// optim/rules.h: which rule updates a parameter, with which numbers; and what the rules keep for it, in bytes.
#pragma once

#include <regex>

#include "tutti/base/purpose.h"
#include "tutti/optim/rule.h"

namespace tutti::optim {

using MakeRule = std::function<std::unique_ptr<UpdateRule>(const spec::OptimizerSpec&)>;
// The rule that optimizer.name names; UsageError for a name without a rule.
std::unique_ptr<UpdateRule> make_rule(const spec::OptimizerSpec& spec);

// The rules of a run, in groups of parameters: biases of experts are balanced, the rule of `make` updates what it
// updates, AdamW the rest.
class Rules {
  public:
    Rules(const spec::OptimizerSpec& spec = {}, const MakeRule& make = make_rule);

    struct Group {
        size_t rule = 0;  // in all()
        double weight_decay = 0;
        double lr_scale = 1;
    };
    Group group_of(const Parameter& parameter) const;  // by role, shape and name
    // The first of OptimizerSpec::groups that names the parameter; nothing: none, or a parameter without a gradient.
    std::optional<size_t> named_group_of(const Parameter& parameter) const;
    // UsageError, with the nearest names, when a group names none of these parameters, all of a model.
    void check_groups(const std::vector<Parameter*>& parameters) const;
    const UpdateRule& of(const Parameter& parameter) const { return *rules_[group_of(parameter).rule]; }
    const std::vector<std::shared_ptr<const UpdateRule>>& all() const { return rules_; }
    bool need_whole_matrices() const;
    // The elements of which a layout may cut only multiples, for all fields of these parameters to be cut between
    // blocks; 1: it may cut anywhere.
    int64_t grain(const std::vector<Parameter*>& parameters) const;

  private:
    std::vector<std::shared_ptr<const UpdateRule>> rules_;
    double weight_decay_;
    std::vector<std::pair<std::regex, spec::ParameterGroup>> groups_;
};

// The state of trainable parameters on a rank that holds them, as [precision], [optimizer] and [offload] store it:
// weights, gradients (from a step's first backward to the next step), and under optimizer the state of the rules and
// the masters of 16-bit weights. ZeRO-3 keeps no weights beside masters. A sharding axis divides the values of each.
// UsageError for an unknown compute type.
MemoryByPurpose state_bytes(const std::vector<Parameter*>& parameters, const spec::RunSpec& run);
MemoryByPurpose state_bytes(int64_t values, const spec::RunSpec& run);  // of a matrix of a layer

}  // namespace tutti::optim
