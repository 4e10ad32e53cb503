// nn/quantized.h: the product rule of layers that multiply codes of 8 bits (spec/recipe.h). x, w and dy are quantized
// for each of the products in which they are read, in groups along the dim that the product sums over.
#pragma once

#include "tutti/nn/delayed.h"
#include "tutti/nn/lost_values.h"
#include "tutti/nn/product_rule.h"
#include "tutti/spec/recipe.h"

namespace tutti::nn {

// The ranks that hold parts of x, of dy and of w, over which the largest magnitude of the whole tensor is taken; null:
// that of this rank's part, which is the whole tensor or all that counts.
struct ScaleRanks {
    comm::Communicator *x = nullptr, *dy = nullptr, *w = nullptr;
    // Where parts of x and dy are gathered as codes: the ranks that have parts of them before.
    bool gathers_codes = false;
    comm::Communicator *part_of_x = nullptr, *part_of_dy = nullptr;
};

class QuantizedProducts final : public ProductRule {
  public:
    // `emulate`: codes are decoded even where a kernel multiplies them. `input_is_saved`: the input of these layers
    // is saved by the function that computed it, unless no node did. `scales`: of delayed scaling; else null. `lost`:
    // counts what casts lose; null: not counted.
    QuantizedProducts(const spec::Recipe& recipe, ScaleRanks ranks, bool emulate, bool input_is_saved,
                      std::shared_ptr<DelayedScales> scales = nullptr, std::shared_ptr<LostValues> lost = nullptr)
        : recipe_(recipe),
          ranks_(ranks),
          emulate_(emulate),
          input_is_saved_(input_is_saved),
          scales_(std::move(scales)),
          lost_(std::move(lost)) {}

    ops::Operand input(ops::Context& ctx, const Tensor& x, const Use& use) const override;
    ops::Operand weight(ops::Context& ctx, Parameter& w, const Use& use) const override;
    ops::Operand gradient(ops::Context& ctx, const Tensor& dy, const Use& use) const override;
    // Saves codes of x for the weight gradient, once for all layers of an input; or x, where other nodes save x too.
    std::function<ops::Operand()> save(Tape& tape, const Var& x, const ops::Operand& forward,
                                       const Use& use) const override;
    bool gathers_codes() const override { return ranks_.gathers_codes; }
    ops::Operand part(ops::Context& ctx, const Tensor& x, const Use& use) const override;
    ops::Operand whole(ops::Context& ctx, const ops::Operand& codes, const Use& use) const override;
    // Kernels multiply codes of whole groups; decoded ones have any number of rows.
    int64_t multiple_of_rows(const ops::Context& ctx) const override { return direct(ctx) ? recipe_.multiple : 1; }
    bool converts() const override { return true; }
    std::shared_ptr<DelayedScales> scales() const override { return scales_; }
    std::shared_ptr<LostValues> lost() const override { return lost_; }

  private:
    ops::Operand quantize(ops::Context& ctx, const Tensor& x, DelayedScales::Factor factor, comm::Communicator* ranks,
                          ops::Coding coding, const Use& use, bool over_rows, Purpose purpose) const;
    ops::Coding coding_of(const ops::Context& ctx, const spec::Quantity& q, const Use& use) const;
    bool direct(const ops::Context& ctx) const { return !emulate_ && ctx.kernels.gemm_of_codes != nullptr; }

    spec::Recipe recipe_;
    ScaleRanks ranks_;
    bool emulate_, input_is_saved_;
    std::shared_ptr<DelayedScales> scales_;
    std::shared_ptr<LostValues> lost_;
};

}  // namespace tutti::nn
