#include "tutti/nn/quantized.h"

#include <utility>

#include "tutti/base/to_size.h"
#include "tutti/comm/communicator.h"
#include "tutti/ops/quantize.h"

namespace tutti::nn {

namespace {

using ops::GemmRole;
using ops::Operand;
using spec::Quantity;

// The form of x for the weight gradient, and the layer for which x was quantized: layers that share an input share the
// operand, and whoever quantizes x again must take the scale of the same layer.
struct ForWeightGradient : Operand {
    const Parameter* layer = nullptr;
};

// The groups of a matrix that is summed over its rows, or over its columns.
kernels::GroupShape group_of(const Quantity& q, bool over_rows) {
    if (q.along == 0) return {};
    return over_rows ? kernels::GroupShape{q.along, q.across} : kernels::GroupShape{q.across, q.along};
}

}  // namespace

// The scale of a whole tensor is that of its parts on all ranks; of delayed scaling, that of earlier steps, and where
// no step has seen the tensor, its own. Kernels that multiply codes read them with the summed dim innermost.
Operand QuantizedProducts::quantize(ops::Context& ctx, const Tensor& x, DelayedScales::Factor factor,
                                    ops::Coding coding, const Use& use, bool over_rows, Purpose purpose) const {
    const Quantity& q = factor == DelayedScales::kX ? recipe_.x : factor == DelayedScales::kW ? recipe_.w : recipe_.dy;
    comm::Communicator* const ranks = factor == DelayedScales::kX   ? ranks_.x
                                      : factor == DelayedScales::kW ? ranks_.w
                                                                    : ranks_.dy;
    coding.group = group_of(q, over_rows);
    coding.transposed = coding.direct && over_rows;
    Tensor amax, given;
    if (scales_ != nullptr) {
        const DelayedScales::Place place = scales_->place(*use.layer, factor);
        if (scales_->recording()) ops::add_magnitudes(ctx, x, place.amax);
        if (place.known) {
            given = place.factor;
            amax = scales_->recording() ? place.amax : ops::largest_magnitudes(ctx, x, {});
        }
    }
    if (q.along == 0 && !given.defined() && ranks != nullptr) {
        amax = ops::largest_magnitudes(ctx, x, coding.segments);
        ranks->all_reduce(amax, comm::Reduce::max).wait();
    }
    return ops::quantized(ctx, x, q.format, q.divisors, std::move(coding), purpose, amax, given);
}

// Rows of experts sum over the rows of each by itself; with one scale for a tensor they share it.
Operand QuantizedProducts::input(ops::Context& ctx, const Tensor& x, const Use& use) const {
    const bool over_rows = use.role == GemmRole::weight_gradient;
    ops::Coding coding{.powers_of_two = recipe_.powers_of_two, .direct = direct(ctx) && use.rows.empty()};
    if (over_rows && recipe_.x.along > 0) coding.segments.assign(use.rows.begin(), use.rows.end());
    Operand made = quantize(ctx, x, DelayedScales::kX, std::move(coding), use, over_rows, Purpose::activations);
    if (over_rows) return made;
    const auto beside = std::make_shared<ForWeightGradient>();
    beside->layer = use.layer;
    made.beside = beside;
    return made;
}

Operand QuantizedProducts::gradient(ops::Context& ctx, const Tensor& dy, const Use& use) const {
    const bool over_rows = use.role == GemmRole::weight_gradient;
    ops::Coding coding{.powers_of_two = recipe_.powers_of_two, .direct = direct(ctx) && use.rows.empty()};
    if (over_rows && recipe_.dy.along > 0) coding.segments.assign(use.rows.begin(), use.rows.end());
    return quantize(ctx, dy, DelayedScales::kDy, std::move(coding), use, over_rows, Purpose::workspace);
}

// One form serves both products where its groups are the same in both.
Operand QuantizedProducts::weight(ops::Context& ctx, Parameter& w, const Use& use) const {
    const bool over_rows = use.role == GemmRole::input_gradient, stack = w.value.rank() == 3;
    ops::Coding coding{.powers_of_two = recipe_.powers_of_two, .direct = direct(ctx) && !stack};
    const bool one_form = !coding.direct && group_of(recipe_.w, true) == group_of(recipe_.w, false);
    if (stack) coding.segments.assign(to_size(w.value.dim(0)), w.value.dim(1));
    return w.forms.kept(ctx, one_form ? GemmRole::forward : use.role, [&] {
        return quantize(ctx, w.value, DelayedScales::kW, coding, use, over_rows, Purpose::workspace);
    });
}

std::function<Operand()> QuantizedProducts::save(Tape& tape, const Var& x, const Operand& forward,
                                                 const Use& use) const {
    auto& made = static_cast<ForWeightGradient&>(*forward.beside);
    const Use of_first{use.role, use.rows, made.layer};
    if (x.recomputable.defined() || (input_is_saved_ && x.id >= 0))
        return ProductRule::save(tape, x, forward, of_first);
    if (!made.values.defined()) {
        if (recipe_.x.along == 0 && !forward.coding.direct) {  // the same codes
            made.values = forward.values;
            made.scales = forward.scales;
            made.coding = forward.coding;
        } else {
            static_cast<Operand&>(made) = input(tape.context(), x.value, of_first);
        }
        tape.saves(made.values);
        tape.saves(made.scales);
    }
    return [made = Operand(made)] { return made; };
}

}  // namespace tutti::nn
