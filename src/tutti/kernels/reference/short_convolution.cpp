// kernels/reference/short_convolution.cpp: the gated short convolution of LFM2, forward and backward.

#include "tutti/kernels/reference/element.h"
#include "tutti/kernels/reference/fill.h"

namespace tutti::kernels::reference {

namespace {

double load_at(const View& x, int64_t i, int64_t j, int64_t k) { return load(x, offset(x, i, j, k)); }

// A gate, b or c; 1 without gates.
double gate_at(const View& gate, int64_t n, int64_t t, int64_t c) {
    return gate.defined() ? load_at(gate, n, t, c) : 1;
}

// u of token t; t may lie before the first token.
double gated(const ShortConvolution& f, int64_t n, int64_t t, int64_t c) {
    if (t >= 0) return gate_at(f.b, n, t, c) * load_at(f.x, n, t, c);
    return f.before.defined() ? load_at(f.before, n, f.before.shape[1] + t, c) : 0;
}

// Whether token t sees the one `lag` tokens before it.
bool reaches(const ShortConvolution& f, int64_t n, int64_t t, int64_t lag) {
    return lag <= load_index(f.positions, offset(f.positions, n, t));
}

double convolved(const ShortConvolution& f, int64_t n, int64_t t, int64_t c) {
    const int64_t K = f.w.shape[1];
    double v = 0;
    for (int64_t j = 0; j < K; ++j)
        if (reaches(f, n, t, K - 1 - j)) v += load(f.w, c * K + j) * gated(f, n, t - (K - 1) + j, c);
    return f.bias.defined() ? v + load(f.bias, c) : v;
}

// du plus the contribution of the tokens of this call to token s; s may lie before the first token.
double gradient_of_gated(const ShortConvolution& f, const View& dz, int64_t n, int64_t s, int64_t c, double du) {
    const int64_t K = f.w.shape[1], T = dz.shape[1];
    for (int64_t j = 0; j < K; ++j) {
        const int64_t lag = K - 1 - j, t = s + lag;
        if (t < 0 || t >= T || !reaches(f, n, t, lag)) continue;
        du += load(f.w, c * K + j) * load_at(dz, n, t, c) * gate_at(f.c, n, t, c);
    }
    return du;
}

template <class Visit>
void for_each(const View& x, const Visit& visit) {
    for (int64_t n = 0; n < x.shape[0]; ++n)
        for (int64_t t = 0; t < x.shape[1]; ++t)
            for (int64_t c = 0; c < x.shape[2]; ++c) visit(n, t, c);
}

void short_convolution_forward(const Stream&, const ShortConvolution& f, View z) {
    for_each(f.x, [&](int64_t n, int64_t t, int64_t c) {
        store(z, offset(z, n, t, c), gate_at(f.c, n, t, c) * convolved(f, n, t, c));
    });
}

void short_convolution_backward_input(const Stream&, const ShortConvolution& f, const ShortConvolutionBackward& g) {
    const int64_t T = f.x.shape[1], K = f.w.shape[1];
    for_each(f.x, [&](int64_t n, int64_t s, int64_t c) {
        const int64_t row = s - T + K - 1;  // of `after`
        const double later = g.after.defined() && row >= 0 ? load_at(g.after, n, row, c) : 0;
        const double du = gradient_of_gated(f, g.dz, n, s, c, later);
        store(g.dx, offset(g.dx, n, s, c), du * gate_at(f.b, n, s, c));
        if (!f.b.defined()) return;
        store(g.db, offset(g.db, n, s, c), du * load_at(f.x, n, s, c));
        store(g.dc, offset(g.dc, n, s, c), load_at(g.dz, n, s, c) * convolved(f, n, s, c));
    });
}

void short_convolution_backward_before(const Stream&, const ShortConvolution& f, View dz, View dbefore) {
    for_each(dbefore, [&](int64_t n, int64_t row, int64_t c) {
        store(dbefore, offset(dbefore, n, row, c), gradient_of_gated(f, dz, n, row - dbefore.shape[1], c, 0));
    });
}

void short_convolution_backward_weight(const Stream&, const ShortConvolution& f, View dz, View dw, View dbias) {
    const int64_t K = f.w.shape[1];
    const auto add = [&](const View& sum, int64_t at, int64_t c, const auto& factor) {
        double total = load(sum, at);
        for (int64_t n = 0; n < dz.shape[0]; ++n)
            for (int64_t t = 0; t < dz.shape[1]; ++t)
                total += load_at(dz, n, t, c) * gate_at(f.c, n, t, c) * factor(n, t);
        store(sum, at, total);
    };
    for (int64_t c = 0; c < dz.shape[2]; ++c) {
        for (int64_t j = 0; j < K; ++j)
            add(dw, c * K + j, c, [&](int64_t n, int64_t t) {
                return reaches(f, n, t, K - 1 - j) ? gated(f, n, t - (K - 1) + j, c) : 0;
            });
        if (dbias.defined()) add(dbias, c, c, [](int64_t, int64_t) { return 1; });
    }
}

void short_convolution_state(const Stream&, View b, View x, View before, View state) {
    const int64_t S = x.shape[1], rows = state.shape[1];
    for_each(state, [&](int64_t n, int64_t row, int64_t c) {
        const int64_t t = row - rows + S;  // of b and x
        double u = 0;
        if (t >= 0)
            u = gate_at(b, n, t, c) * load_at(x, n, t, c);
        else if (before.defined())
            u = load_at(before, n, rows + t, c);
        store(state, offset(state, n, row, c), u);
    });
}

}  // namespace

void fill_short_convolution(KernelTable& table) {
    table.short_convolution_forward = short_convolution_forward;
    table.short_convolution_backward_input = short_convolution_backward_input;
    table.short_convolution_backward_before = short_convolution_backward_before;
    table.short_convolution_backward_weight = short_convolution_backward_weight;
    table.short_convolution_state = short_convolution_state;
}

}  // namespace tutti::kernels::reference
