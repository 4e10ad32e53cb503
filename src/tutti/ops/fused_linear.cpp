#include "tutti/ops/fused_linear.h"

#include <utility>

namespace tutti::ops {

namespace {

bool extend(Tensor& x, const Tensor& next) { return x.extend(next); }

bool extend(Operand& x, const Operand& next) { return !x.coded() && !next.coded() && x.values.extend(next.values); }

bool extend(FusedLayer& layer, const FusedLayer& next) {
    if (layer.b.defined() != next.b.defined()) return false;
    FusedLayer both = layer;
    if (!extend(both.w, next.w) || (both.b.defined() && !both.b.extend(next.b))) return false;
    layer = both;
    return true;
}

bool extend(FusedGradient& gradient, const FusedGradient& next) {
    return gradient.accumulate == next.accumulate && gradient.dw.extend(next.dw);
}

// Groups of tensors that are adjacent in memory.
template <class Part>
std::vector<Part> joined(const std::vector<Part>& parts) {
    std::vector<Part> all;
    for (const Part& part : parts)
        if (all.empty() || !extend(all.back(), part)) all.push_back(part);
    return all;
}

int64_t width_of(const Tensor& x) { return x.dim(0); }
int64_t width_of(const Operand& x) { return x.shape()[0]; }
int64_t width_of(const FusedLayer& layer) { return width_of(layer.w); }
int64_t width_of(const FusedGradient& gradient) { return gradient.dw.dim(0); }

template <class Part>
int64_t width_of(const std::vector<Part>& parts) {
    int64_t width = 0;
    for (const Part& part : parts) width += width_of(part);
    return width;
}

void check_width(const char* name, const Tensor& dy, int64_t width) {
    check(dy.dim(-1) == width, name, ": the layers have ", width, " outputs, dy ", dy.shape());
}

// visit(columns of y, part) from the first part to the last.
template <class Part, class Visit>
void for_each_part(const Tensor& y, const std::vector<Part>& parts, const Visit& visit) {
    int64_t first = 0;
    for (const Part& part : parts) {
        visit(y.narrow(-1, first, width_of(part)), part);
        first += width_of(part);
    }
}

}  // namespace

Tensor fused_linear(Context& ctx, const Operand& x, const std::vector<FusedLayer>& layers, Products* later) {
    Shape shape = x.shape();
    shape[-1] = width_of(layers);
    const Tensor y = empty(ctx, shape, x.type());
    for_each_part(y, joined(layers), [&](const Tensor& columns, const FusedLayer& layer) {
        linear_into(ctx, x, layer.w, layer.b.defined() ? &layer.b : nullptr, columns, later);
    });
    return y;
}

Tensor fused_linear_backward_input(Context& ctx, const Operand& of_dy, const std::vector<Operand>& weights, Tensor sum,
                                   Products* later) {
    const Tensor& dy = numbers("fused_linear_backward_input", of_dy);
    int64_t end = width_of(weights);
    check_width("fused_linear_backward_input", dy, end);
    const std::vector<Operand> parts = joined(weights);
    for (size_t i = parts.size(); i-- > 0;) {
        const int64_t width = width_of(parts[i]);
        end -= width;
        sum = linear_backward_input(ctx, dy.narrow(-1, end, width), parts[i], std::move(sum), i == 0 ? later : nullptr);
    }
    return sum;
}

void fused_linear_backward_weight(Context& ctx, const Operand& of_dy, const Operand& x,
                                  const std::vector<FusedGradient>& gradients) {
    const Tensor& dy = numbers("fused_linear_backward_weight", of_dy);
    check_width("fused_linear_backward_weight", dy, width_of(gradients));
    for_each_part(dy, joined(gradients), [&](const Tensor& columns, const FusedGradient& gradient) {
        linear_backward_weight(ctx, columns, x, gradient.dw, gradient.accumulate);
    });
}

void fused_bias_backward(Context& ctx, const Tensor& dy, const std::vector<Tensor>& db) {
    check_width("fused_bias_backward", dy, width_of(db));
    for_each_part(dy, joined(db), [&](const Tensor& columns, const Tensor& gradient) {
        bias_backward(ctx, contiguous(ctx, columns), gradient);
    });
}

}  // namespace tutti::ops
