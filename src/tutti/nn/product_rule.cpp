#include "tutti/nn/product_rule.h"

#include <algorithm>

namespace tutti::nn {

using ops::Operand;

Operand ProductRule::input(ops::Context&, const Tensor& x, const Use&) const { return x; }
Operand ProductRule::weight(ops::Context&, Parameter& w, const Use&) const { return {w.value, &w.forms}; }
Operand ProductRule::gradient(ops::Context&, const Tensor& dy, const Use&) const { return dy; }

Operand ProductRule::part(ops::Context&, const Tensor& x, const Use&) const { return x; }
Operand ProductRule::whole(ops::Context&, const Operand& codes, const Use&) const { return codes; }

std::function<Operand()> ProductRule::save(Tape& tape, const Var& x, const Operand&, const Use& use) const {
    return [this, &ctx = tape.context(), saved = autograd::SavedTensor(x), role = use.role, layer = use.layer,
            rows = ops::GroupRows(use.rows.begin(), use.rows.end())] {
        return input(ctx, saved.take(), {role, rows, layer});
    };
}

Var ProductRule::after(Tape&, const Var&, Var y, const Affine&) const { return y; }

const ProductRule& rule_of(const Parameter& weight) {
    static const ProductRule plain;
    return weight.rule ? *weight.rule : plain;
}

bool fuses(const ops::Context& ctx, const std::vector<Affine>& layers) {
    const ProductRule& rule = rule_of(layers.front().weight);
    return ctx.kernels.fused_projections && !rule.adds() && !rule.converts() &&
           std::all_of(layers.begin(), layers.end(), [&](const Affine& l) { return &rule_of(l.weight) == &rule; });
}

}  // namespace tutti::nn
