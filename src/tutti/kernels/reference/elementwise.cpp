// kernels/reference/elementwise.cpp: one output element from the input elements at the same place.
#include <cmath>

#include "tutti/kernels/reference/element.h"
#include "tutti/kernels/reference/kernels.h"

namespace tutti::kernels::reference {

namespace {

constexpr double kSqrt2OverPi = 0.79788456080286535588;  // sqrt(2 / pi)
constexpr double kGeluCubic = 0.044715;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

void fill(const Stream&, View y, float value) {
    for (int64_t i = 0; i < y.numel(); ++i) store(y, i, value);
}

void normal(const Stream&, const Normal& d) {
    for (int64_t r = 0; r < d.y.shape[0]; ++r)
        for (int64_t c = 0; c < d.y.shape[1]; ++c)
            d.y.as<float>()[r * d.y.stride(0) + c] =
                d.std * tutti::normal(d.key, static_cast<uint64_t>(d.first + r * d.row_step + c));
}

void cast(const Stream&, View x, View y) {
    for (int64_t i = 0; i < y.numel(); ++i) store(y, i, load(x, i));
}

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

void add(const Stream&, View a, View b, View y) {
    for (int64_t i = 0; i < y.numel(); ++i) store(y, i, load(a, i) + load(b, i));
}

void accumulate(const Stream&, View x, View y) {
    for (int64_t i = 0; i < y.numel(); ++i) store(y, i, load(y, i) + load(x, i));
}

void scale(const Stream&, View x, float factor) {
    for (int64_t i = 0; i < x.numel(); ++i) store(x, i, load(x, i) * factor);
}

void relu_forward(const Stream&, View x, View y) {
    for (int64_t i = 0; i < y.numel(); ++i) store(y, i, load(x, i) < 0 ? 0 : load(x, i));  // NaN stays
}

void relu_backward(const Stream&, View dy, View y, View dx) {
    for (int64_t i = 0; i < dx.numel(); ++i) store(dx, i, load(y, i) > 0 ? load(dy, i) : 0);
}

// gelu(x) = x/2 (1 + tanh(a)), a = sqrt(2/pi) (x + 0.044715 x^3)
void gelu_forward(const Stream&, View x, View y) {
    for (int64_t i = 0; i < y.numel(); ++i) {
        const double v = load(x, i);
        const double a = kSqrt2OverPi * (v + kGeluCubic * v * v * v);
        store(y, i, v / 2 * (1 + std::tanh(a)));
    }
}

// gelu'(x) = (1 + tanh(a)) / 2 + x/2 (1 - tanh(a)^2) a', a' = sqrt(2/pi) (1 + 3 0.044715 x^2)
void gelu_backward(const Stream&, View dy, View x, View dx) {
    for (int64_t i = 0; i < dx.numel(); ++i) {
        const double v = load(x, i);
        const double t = std::tanh(kSqrt2OverPi * (v + kGeluCubic * v * v * v));
        const double slope = kSqrt2OverPi * (1 + 3 * kGeluCubic * v * v);
        store(dx, i, load(dy, i) * ((1 + t) / 2 + v / 2 * (1 - t * t) * slope));
    }
}

// y = silu(gate) up, silu(g) = g sigmoid(g)   (Shazeer 2020)
void swiglu_forward(const Stream&, View gate, View up, View y) {
    for (int64_t i = 0; i < y.numel(); ++i) {
        const double g = load(gate, i);
        store(y, i, g * sigmoid(g) * load(up, i));
    }
}

// silu'(g) = s (1 + g (1 - s)) with s = sigmoid(g); dgate = dy up silu'(g), dup = dy silu(g)
void swiglu_backward(const Stream&, View dy, View gate, View up, View dgate, View dup) {
    for (int64_t i = 0; i < dy.numel(); ++i) {
        const double g = load(gate, i), s = sigmoid(g), d = load(dy, i), u = load(up, i);
        store(dgate, i, d * u * s * (1 + g * (1 - s)));
        store(dup, i, d * g * s);
    }
}

// y = x / (1 - probability) where kept, else 0   (Srivastava et al. 2014, scaled at training time)
void dropout(const Stream&, View x, const Dropout& dropout, View y) {
    const int64_t rows = x.rows(), columns = x.columns();
    for (int64_t n = 0; n < rows; ++n)
        for (int64_t c = 0; c < columns; ++c) {
            const int64_t index = load_index(dropout.row_index, n) * dropout.columns_total + dropout.column_offset + c;
            const bool kept = uniform(dropout.key, static_cast<uint64_t>(index)) >= dropout.probability;
            const double factor = 1 / (1 - static_cast<double>(dropout.probability));
            store(y, n * columns + c, kept ? load(x, n * columns + c) * factor : 0);
        }
}

}  // namespace tutti::kernels::reference
