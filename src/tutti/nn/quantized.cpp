#include "tutti/nn/quantized.h"

#include <utility>

#include "tutti/comm/communicator.h"
#include "tutti/ops/quantize.h"

namespace tutti::nn {

namespace {

using ops::GemmRole;
using ops::Operand;
using spec::Quantity;

// The groups of a matrix that is summed over its rows, or over its columns.
kernels::GroupShape group_of(const Quantity& q, bool over_rows) {
    if (q.along == 0) return {};
    return over_rows ? kernels::GroupShape{q.along, q.across} : kernels::GroupShape{q.across, q.along};
}

// x as the factor of a product that sums over its rows or columns. A scale of a whole tensor is that of its parts on
// `ranks`. Kernels that multiply codes read them with the summed dim innermost.
Operand quantize(ops::Context& ctx, const Tensor& x, const Quantity& q, ops::Coding coding, bool over_rows,
                 comm::Communicator* ranks, Purpose purpose) {
    coding.group = group_of(q, over_rows);
    coding.transposed = coding.direct && over_rows;
    Tensor amax;
    if (q.along == 0 && ranks != nullptr) {
        amax = ops::largest_magnitudes(ctx, x, coding.segments);
        ranks->all_reduce(amax, comm::Reduce::max).wait();
    }
    return ops::quantized(ctx, x, q.format, q.divisors, std::move(coding), purpose, amax);
}

}  // namespace

// Rows of experts sum over the rows of each by itself; with one scale for a tensor they share it.
Operand QuantizedProducts::input(ops::Context& ctx, const Tensor& x, const Use& use) const {
    const bool over_rows = use.role == GemmRole::weight_gradient;
    ops::Coding coding{.powers_of_two = recipe_.powers_of_two, .direct = direct(ctx) && use.rows.empty()};
    if (over_rows && recipe_.x.along > 0) coding.segments.assign(use.rows.begin(), use.rows.end());
    Operand made = quantize(ctx, x, recipe_.x, std::move(coding), over_rows, ranks_.x, Purpose::activations);
    if (!over_rows) made.beside = std::make_shared<Operand>();
    return made;
}

Operand QuantizedProducts::gradient(ops::Context& ctx, const Tensor& dy, const Use& use) const {
    const bool over_rows = use.role == GemmRole::weight_gradient;
    ops::Coding coding{.powers_of_two = recipe_.powers_of_two, .direct = direct(ctx) && use.rows.empty()};
    if (over_rows && recipe_.dy.along > 0) coding.segments.assign(use.rows.begin(), use.rows.end());
    return quantize(ctx, dy, recipe_.dy, std::move(coding), over_rows, ranks_.dy, Purpose::workspace);
}

// One form serves both products where its groups are the same in both.
Operand QuantizedProducts::weight(ops::Context& ctx, Parameter& w, const Use& use) const {
    const bool over_rows = use.role == GemmRole::input_gradient, stack = w.value.rank() == 3;
    ops::Coding coding{.powers_of_two = recipe_.powers_of_two, .direct = direct(ctx) && !stack};
    const bool one_form = !coding.direct && group_of(recipe_.w, true) == group_of(recipe_.w, false);
    if (stack) coding.segments.assign(static_cast<size_t>(w.value.dim(0)), w.value.dim(1));
    return w.forms.kept(ctx, one_form ? GemmRole::forward : use.role, [&] {
        return quantize(ctx, w.value, recipe_.w, coding, over_rows, ranks_.w, Purpose::workspace);
    });
}

std::function<Operand()> QuantizedProducts::save(Tape& tape, const Var& x, const Operand& forward,
                                                 const Use& use) const {
    if (x.recomputable.defined() || (input_is_saved_ && x.id >= 0)) return ProductRule::save(tape, x, forward, use);
    Operand& made = *forward.beside;
    if (!made.values.defined()) {
        if (recipe_.x.along == 0 && !forward.coding.direct) {  // the same codes
            made.values = forward.values;
            made.scales = forward.scales;
            made.coding = forward.coding;
        } else {
            made = input(tape.context(), x.value, use);
        }
        tape.saves(made.values);
        tape.saves(made.scales);
    }
    return [made] { return made; };
}

}  // namespace tutti::nn
