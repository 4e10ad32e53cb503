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

// The operand of a forward, beside which that of the weight gradient has its place.
Operand with_beside(Operand made, const Parameter* layer) {
    const auto beside = std::make_shared<ForWeightGradient>();
    beside->layer = layer;
    made.beside = beside;
    return made;
}

bool is_code(DType t) { return t == DType::e4m3 || t == DType::e5m2; }

// Codes that a gather brought, for a product. Kernels that multiply codes may need them transposed, or their divisors
// in another order: the numbers that codes stand for are cast again, to the same numbers, since the largest of them is
// within the range of its group.
Operand as_gathered(ops::Context& ctx, const Operand& codes, bool direct, bool transposed) {
    Operand made = codes;
    made.coding.direct = direct;
    const kernels::ScaleForm as_made{codes.scales.dtype(), kernels::ScaleLayout::rows};
    const bool fits = ctx.kernels.scale_form == nullptr ||
                      ctx.kernels.scale_form(ctx.device.stream(), as_made.divisors, codes.coding.group) == as_made;
    if (!direct || (!transposed && fits)) return made;
    ops::Coding coding{
        .group = codes.coding.group, .segments = codes.coding.segments, .transposed = transposed, .direct = true};
    return ops::quantized(ctx, ops::decoded(ctx, made), codes.values.dtype(), codes.scales.dtype(), std::move(coding),
                          Purpose::workspace);
}

}  // namespace

// The scale of a whole tensor is that of its parts on all ranks; of delayed scaling, that of earlier steps, and where
// no step has seen the tensor, its own. Kernels that multiply codes read them with the summed dim innermost.
Operand QuantizedProducts::quantize(ops::Context& ctx, const Tensor& x, DelayedScales::Factor factor,
                                    comm::Communicator* ranks, ops::Coding coding, const Use& use, bool over_rows,
                                    Purpose purpose) const {
    const Quantity& q = factor == DelayedScales::kX ? recipe_.x : factor == DelayedScales::kW ? recipe_.w : recipe_.dy;
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
    const bool shared = !use.rows.empty() && factor != DelayedScales::kW && !coding.segments.empty();
    if (q.along == 0 && !given.defined() && (ranks != nullptr || shared)) {
        amax = ops::largest_magnitudes(ctx, x, shared ? std::vector<int64_t>() : coding.segments);
        if (ranks != nullptr) ranks->all_reduce(amax, comm::Reduce::max).wait();
    }
    const bool counts = lost_ != nullptr && factor != DelayedScales::kW && use.role != GemmRole::weight_gradient;
    return ops::quantized(ctx, x, q.format, q.divisors, std::move(coding), purpose, amax, given,
                          counts ? lost_->of_cast(x.numel() - use.padding * x.shape()[-1]) : Tensor());
}

// Rows of experts sum over the rows of each by itself, and kernels multiply the codes of each by themselves; with one
// scale for a tensor they share it.
ops::Coding QuantizedProducts::coding_of(const ops::Context& ctx, const Quantity& q, const Use& use) const {
    ops::Coding coding{.powers_of_two = recipe_.powers_of_two, .direct = direct(ctx)};
    if (coding.direct || (use.role == GemmRole::weight_gradient && q.along > 0))
        coding.segments.assign(use.rows.begin(), use.rows.end());
    return coding;
}

Operand QuantizedProducts::input(ops::Context& ctx, const Tensor& x, const Use& use) const {
    const bool over_rows = use.role == GemmRole::weight_gradient;
    Operand made = quantize(ctx, x, DelayedScales::kX, ranks_.x, coding_of(ctx, recipe_.x, use), use, over_rows,
                            Purpose::activations);
    return over_rows ? made : with_beside(std::move(made), use.layer);
}

Operand QuantizedProducts::gradient(ops::Context& ctx, const Tensor& dy, const Use& use) const {
    const bool over_rows = use.role == GemmRole::weight_gradient;
    return quantize(ctx, dy, DelayedScales::kDy, ranks_.dy, coding_of(ctx, recipe_.dy, use), use, over_rows,
                    Purpose::workspace);
}

Operand QuantizedProducts::part(ops::Context& ctx, const Tensor& x, const Use& use) const {
    const bool of_x = use.role == GemmRole::forward;
    return quantize(ctx, x, of_x ? DelayedScales::kX : DelayedScales::kDy, of_x ? ranks_.part_of_x : ranks_.part_of_dy,
                    {.powers_of_two = recipe_.powers_of_two}, use, false, Purpose::communication);
}

Operand QuantizedProducts::whole(ops::Context& ctx, const Operand& codes, const Use& use) const {
    const bool over_rows = use.role == GemmRole::weight_gradient;
    Operand made = as_gathered(ctx, codes, direct(ctx), direct(ctx) && over_rows);
    return use.role == GemmRole::forward ? with_beside(std::move(made), use.layer) : made;
}

// One form serves both products where its groups are the same in both.
Operand QuantizedProducts::weight(ops::Context& ctx, Parameter& w, const Use& use) const {
    const bool over_rows = use.role == GemmRole::input_gradient, stack = w.value.rank() == 3;
    ops::Coding coding{.powers_of_two = recipe_.powers_of_two, .direct = direct(ctx)};
    const bool one_form = !coding.direct && group_of(recipe_.w, true) == group_of(recipe_.w, false);
    if (stack) coding.segments.assign(to_size(w.value.dim(0)), w.value.dim(1));
    return w.forms.kept(ctx, one_form ? GemmRole::forward : use.role, [&] {
        if (w.codes.coded()) return as_gathered(ctx, w.codes, coding.direct, coding.direct && over_rows);
        return quantize(ctx, w.value, DelayedScales::kW, ranks_.w, coding, use, over_rows, Purpose::workspace);
    });
}

std::function<Operand()> QuantizedProducts::save(Tape& tape, const Var& x, const Operand& forward,
                                                 const Use& use) const {
    auto& made = static_cast<ForWeightGradient&>(*forward.beside);
    const Use of_first{use.role, use.rows, made.layer};
    const bool gathered = is_code(x.value.dtype());
    if (x.recomputable.defined() || (input_is_saved_ && x.id >= 0))
        return ProductRule::save(tape, x, forward, of_first);
    if (!made.values.defined()) {
        if (recipe_.x.along == 0 && !forward.coding.direct) {  // the same codes
            made.values = forward.values;
            made.scales = forward.scales;
            made.coding = forward.coding;
        } else if (gathered) {
            static_cast<Operand&>(made) = whole(tape.context(), forward, of_first);
        } else {
            static_cast<Operand&>(made) = input(tape.context(), x.value, of_first);
        }
        tape.saves(made.values);
        tape.saves(made.scales);
    }
    return [made = Operand(made)] { return made; };
}

}  // namespace tutti::nn
