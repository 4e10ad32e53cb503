// kernels/reference/elementwise.cpp: one output element from the input elements at the same place, and by global index.
#include <cmath>

#include "tutti/kernels/reference/element.h"
#include "tutti/kernels/reference/fill.h"

namespace tutti::kernels::reference {

namespace {

// Offset of element i of a view, whose rows may be apart. The rank is compared for gcc 12, which otherwise warns of a
// vector's stride(-2).
int64_t at(const View& x, int64_t i) {
    if (x.shape.rank() < 2 || x.contiguous()) return i;
    return i / x.columns() * x.stride(-2) + i % x.columns();
}

// y[i] = value(i)
template <class Value>
void set(const View& y, Value value) {
    for (int64_t i = 0; i < y.numel(); ++i) store(y, at(y, i), value(i));
}

constexpr double kSqrt2OverPi = 0.79788456080286535588;  // sqrt(2 / pi)
constexpr double kGeluCubic = 0.044715;

// tanh(sqrt(2/pi) (x + 0.044715 x^3))
double gelu_tanh(double x) { return std::tanh(kSqrt2OverPi * (x + kGeluCubic * x * x * x)); }
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

void copy(const Stream&, View x, View y) {
    for (int64_t i = 0; i < y.numel(); ++i) {
        int64_t rest = i, from = 0, to = 0;
        for (int d = y.shape.rank() - 1; d >= 0; rest /= y.shape[d], --d) {
            from += rest % y.shape[d] * x.stride(d);
            to += rest % y.shape[d] * y.stride(d);
        }
        store(y, to, load(x, from));
    }
}

// gelu(x) = x/2 (1 + tanh(a)), a = sqrt(2/pi) (x + 0.044715 x^3)
double gelu(double x) { return x / 2 * (1 + gelu_tanh(x)); }
// gelu'(x) = (1 + tanh(a)) / 2 + x/2 (1 - tanh(a)^2) a', a' = sqrt(2/pi) (1 + 3 0.044715 x^2)
double gelu_slope(double x) {
    const double t = gelu_tanh(x), slope = kSqrt2OverPi * (1 + 3 * kGeluCubic * x * x);
    return (1 + t) / 2 + x / 2 * (1 - t * t) * slope;
}
// silu(x) = x s, s = sigmoid(x);  silu'(x) = s (1 + x (1 - s))
double silu(double x) { return x * sigmoid(x); }
double silu_slope(double x) { return sigmoid(x) * (1 + x * (1 - sigmoid(x))); }

// A gated unit of x and u, and its derivatives to both. y = g(x) u   (Shazeer 2020), with g silu or gelu.
struct Unit {
    double y, to_gate, to_up;
};
Unit clamped_unit(double limit, double x, double u) {
    const double slope = kClampedSlope, gate = x > limit ? limit : x, up = u > limit ? limit : u < -limit ? -limit : u;
    const double s = sigmoid(slope * gate), value = gate * s;
    const bool gate_is_cut = x >= limit, up_is_cut = u >= limit || u <= -limit;
    return {value * (up + 1), gate_is_cut ? 0 : (up + 1) * s * (1 + slope * gate * (1 - s)), up_is_cut ? 0 : value};
}
Unit unit_of(Gate g, double x, double u) {
    switch (g.kind) {
        case Gate::silu: return {silu(x) * u, u * silu_slope(x), silu(x)};
        case Gate::gelu: return {gelu(x) * u, u * gelu_slope(x), gelu(x)};
        case Gate::clamped: return clamped_unit(g.limit, x, u);
        case Gate::sigmoid: return {sigmoid(x) * u, u * sigmoid(x) * (1 - sigmoid(x)), sigmoid(x)};
        case Gate::relu: return {std::max(x, 0.0) * u, x > 0 ? u : 0, std::max(x, 0.0)};
    }
    return {};
}

void swiglu_forward(const Stream&, Gate g, View gate, View up, View y) {
    set(y, [&](int64_t i) { return unit_of(g, load(gate, at(gate, i)), load(up, at(up, i))).y; });
}
void swiglu_backward(const Stream&, Gate g, View dy, View gate, View up, View dgate, View dup) {
    for (int64_t i = 0; i < dy.numel(); ++i) {
        const Unit unit = unit_of(g, load(gate, at(gate, i)), load(up, at(up, i)));
        const double d = load(dy, at(dy, i));
        store(dgate, at(dgate, i), d * unit.to_gate);
        store(dup, at(dup, i), d * unit.to_up);
    }
}

void normal(const Stream&, const Normal& d) {
    for (int64_t r = 0; r < d.y.shape[0]; ++r)
        for (int64_t c = 0; c < d.y.shape[1]; ++c)
            d.y.as<float>()[r * d.y.stride(0) + c] =
                d.std * tutti::normal(d.key, static_cast<uint64_t>(d.first + r * d.row_step + c));
}

// y = x / (1 - probability) where kept, else 0   (Srivastava et al. 2014, scaled at training time)
void dropout(const Stream&, View x, const Dropout& d, View y) {
    const double factor = 1 / (1 - static_cast<double>(d.probability));
    set(y, [&](int64_t i) {
        const int64_t n = i / x.columns(), c = i % x.columns();
        const int64_t index = load_index(d.row_index, n) * d.columns_total + d.column_offset + c;
        return uniform(d.key, static_cast<uint64_t>(index)) >= d.probability ? load(x, i) * factor : 0;
    });
}

}  // namespace

void fill_elementwise(KernelTable& table) {
    table.fill = [](const Stream&, View y, float value) { set(y, [&](int64_t) { return value; }); };
    table.cast = [](const Stream&, View x, View y) { set(y, [&](int64_t i) { return load(x, i); }); };
    table.copy = copy;
    table.add = [](const Stream&, View a, View b, View y) {
        set(y, [&](int64_t i) { return load(a, i) + load(b, i); });
    };
    table.accumulate = [](const Stream&, View x, View y) {
        set(y, [&](int64_t i) { return load(y, i) + load(x, i); });
    };
    table.scale = [](const Stream&, View x, float factor) { set(x, [&](int64_t i) { return load(x, i) * factor; }); };
    table.relu_forward = [](const Stream&, View x, View y) {
        set(y, [&](int64_t i) { return load(x, i) < 0 ? 0 : load(x, i); });  // NaN stays
    };
    table.relu_backward = [](const Stream&, View dy, View y, View dx) {
        set(dx, [&](int64_t i) { return load(y, i) > 0 ? load(dy, i) : 0; });
    };
    table.gelu_forward = [](const Stream&, View x, View y) { set(y, [&](int64_t i) { return gelu(load(x, i)); }); };
    table.gelu_backward = [](const Stream&, View dy, View x, View dx) {
        set(dx, [&](int64_t i) { return load(dy, i) * gelu_slope(load(x, i)); });
    };
    table.swiglu_forward = swiglu_forward;
    table.swiglu_backward = swiglu_backward;
    table.soft_cap = [](const Stream&, View x, float cap) {
        set(x, [&](int64_t i) { return cap * std::tanh(load(x, i) / cap); });
    };
    table.normal = normal;
    table.dropout = dropout;
}

}  // namespace tutti::kernels::reference
