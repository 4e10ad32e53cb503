// nn/product_rule.h: how a layer multiplies: what its three products y = x w^T, dx = dy w and dw += dy^T x read in
// place of x, w and dy, what is saved of x in between, and what is added to y. Linear layers, fused projections, both
// MLPs, experts and the head ask the rule of their weight, which alone reads Parameter::value for a product.
//
// engine::Factories::products chooses the rules of a model. A rule is shared by the layers that name it and must be
// constant; what it keeps of a weight until the update is in Parameter::forms (ops/weight_forms.h). So that every
// layout trains the same model, a rule may depend on values of the global tensors only, not on a rank's part of them.
#pragma once

#include <functional>
#include <span>

#include "tutti/nn/functions.h"

namespace tutti::nn {

class DelayedScales;
class LostValues;

// The product in which an operand is used.
struct Use {
    ops::GemmRole role;
    std::span<const int64_t> rows = {};  // of each expert, for a stack of experts (ops::GroupRows); else empty
    const Parameter* layer = nullptr;    // the weight of the product; of x, that of the first layer that reads x
    int64_t padding = 0;                 // zeros among `rows`, behind the rows of an expert (multiple_of_rows)
};

// The plain rule, which multiplies the tensors as they are. Others override.
class ProductRule {
  public:
    virtual ~ProductRule() = default;

    // x (..., K) in the forward and in the weight gradient, w (N, K) or (E, N, K) in the forward and in the input
    // gradient, dy (..., N) in both gradients. The operand stands for a tensor of the same shape and type.
    virtual ops::Operand input(ops::Context& ctx, const Tensor& x, const Use& use) const;
    virtual ops::Operand weight(ops::Context& ctx, Parameter& w, const Use& use) const;
    virtual ops::Operand gradient(ops::Context& ctx, const Tensor& dy, const Use& use) const;

    // Saves x for the weight gradient, and returns a function that makes the operand of `use`, called once. `forward`:
    // what input() returned for the forward. By default x is saved, or its recipe when x is recomputable, and input()
    // is called again. Whoever saves another tensor passes it to tape.saves(), so that it is offloaded.
    virtual std::function<ops::Operand()> save(Tape& tape, const Var& x, const ops::Operand& forward,
                                               const Use& use) const;

    // Sequence parallelism: whether the parts of x and dy that ranks have are gathered as codes. part(), of a forward
    // (x) or an input gradient (dy), makes those of this rank's part (B, T / P, .) with the scale of the whole; whole()
    // makes of the gathered ones, (B, T, .), what the product `use` multiplies, with the bits of input() or gradient().
    virtual bool gathers_codes() const { return false; }
    virtual ops::Operand part(ops::Context& ctx, const Tensor& x, const Use& use) const;
    virtual ops::Operand whole(ops::Context& ctx, const ops::Operand& codes, const Use& use) const;

    // What the rows of each expert must be a multiple of: zeros are added behind them.
    virtual int64_t multiple_of_rows(const ops::Context&) const { return 1; }

    // y plus terms of the rule, a function of x; before the outputs of a layer of row role are summed over ranks.
    virtual Var after(Tape& tape, const Var& x, Var y, const Affine& layer) const;

    // Whether input() or gradient() reads its tensor at once, which keeps layers apart. Whether after() adds a term,
    // which keeps activation functions out of the products' epilogues and layers apart. Either needs [parallel]
    // tp_overlap = 1.
    virtual bool converts() const { return false; }
    virtual bool adds() const { return false; }
    // What the rule keeps of earlier steps, which checkpoints hold; null: nothing.
    virtual std::shared_ptr<DelayedScales> scales() const { return nullptr; }
    // What the casts of all layers of the model lose; null: the rule does not count that.
    virtual std::shared_ptr<LostValues> lost() const { return nullptr; }
};

const ProductRule& rule_of(const Parameter& weight);

// Whether fused_projections() may compute these layers: the kernels gain, and one rule, which neither converts nor adds
// anything, has them.
bool fuses(const ops::Context& ctx, const std::vector<Affine>& layers);

}  // namespace tutti::nn
