#include "tutti/kernels/work.h"

#include <algorithm>
#include <initializer_list>

#include "tutti/base/error.h"

namespace tutti::kernels {

namespace {

double bytes_of(const View& x) { return x.defined() ? static_cast<double>(x.numel() * size_of(x.dtype)) : 0; }

Work work_of_all(std::initializer_list<View> operands) {
    Work work;
    for (const View& x : operands) work.bytes += bytes_of(x);
    return work;
}

// Pairs of a query and a key that it sees, of one head.
double visible_pairs(int64_t queries, int64_t keys, bool causal, int64_t query_offset, int64_t window) {
    double pairs = 0;
    for (int64_t i = 0; i < queries; ++i) {
        const int64_t end = causal ? std::min(keys, i + query_offset + 1) : keys;
        const int64_t begin = window > 0 ? std::max<int64_t>(0, i + query_offset + 1 - window) : 0;
        pairs += static_cast<double>(std::max<int64_t>(0, end - begin));
    }
    return pairs;
}

// `products` of (Tq, D) and (D, Tk) for each head.
template <class Attention>
Work attention_work(const Attention& a, int products) {
    const int64_t B = a.q.shape[0], Tq = a.q.shape[1], H = a.q.shape[2], D = a.q.shape[3];
    const double pairs = visible_pairs(Tq, a.k.shape[1], a.causal, a.query_offset, a.window);
    return {.flops = 2.0 * products * pairs * static_cast<double>(B * H * D),
            .shape = concat(B, " x ", Tq, ", ", H, " heads of ", D)};
}

Work work_of_update(std::span<const OptimizerPiece> pieces) {
    Work work;
    for (const OptimizerPiece& p : pieces)
        work.bytes +=
            2 * (bytes_of(p.master) + bytes_of(p.m) + bytes_of(p.v)) + bytes_of(p.gradient) + bytes_of(p.value);
    return work;
}

}  // namespace

Work& Work::operator+=(const Work& other) {
    flops += other.flops;
    bytes += other.bytes;
    if (shape.empty()) shape = other.shape;
    return *this;
}

double Work::floor_s(double flops_per_s, double bytes_per_s) const {
    return std::max(flops / flops_per_s, bytes / bytes_per_s);
}

Work work_of(const View& operand) { return {.bytes = bytes_of(operand)}; }

Work work_of(const Gemm& g) {
    constexpr const char* kEpilogue[] = {"", ", gelu", ", gelu backward", ", swiglu", ", swiglu backward"};
    const int64_t M = g.c.shape[0], N = g.c.shape[1], K = g.transpose_a ? g.a.shape[0] : g.a.shape[1];
    return {.flops = 2.0 * static_cast<double>(M) * static_cast<double>(N) * static_cast<double>(K),
            .bytes = bytes_of(g.a) + bytes_of(g.b) + (g.accumulate ? 2 : 1) * bytes_of(g.c) + bytes_of(g.bias) +
                     bytes_of(g.x) + bytes_of(g.gate) + bytes_of(g.dup),
            .shape = concat(M, " x ", K, " x ", N, g.transpose_a ? ", a transposed" : "",
                            g.transpose_b ? ", b transposed" : "", g.accumulate ? ", added" : "",
                            kEpilogue[static_cast<size_t>(g.epilogue)])};
}

Work work_of(const AttentionForward& a) {
    Work work = attention_work(a, 2);
    for (const View* x : {&a.q, &a.k, &a.v, &a.o, &a.lse}) work.bytes += bytes_of(*x);
    return work;
}

Work work_of(const AttentionBackward& a) {
    Work work = attention_work(a, 5);
    for (const View* x : {&a.q, &a.k, &a.v, &a.o, &a.lse, &a.dy, &a.dq, &a.dk, &a.dv}) work.bytes += bytes_of(*x);
    return work;
}

Work work_of(const LayerNormForward& f) { return work_of_all({f.x, f.w, f.b, f.y, f.mean, f.rstd, f.residual, f.sum}); }
Work work_of(const LayerNormBackward& b) { return work_of_all({b.dy, b.x, b.w, b.mean, b.rstd, b.dx, b.add}); }
Work work_of(const RmsNormForward& f) { return work_of_all({f.x, f.w, f.y, f.rstd, f.residual, f.sum}); }
Work work_of(const RmsNormBackward& b) { return work_of_all({b.dy, b.x, b.w, b.rstd, b.dx, b.add}); }

Work work_of(const Dropout& mask) { return work_of(mask.row_index); }
Work work_of(const Normal& normal) { return work_of(normal.y); }

Work work_of(const CrossEntropy& loss) {
    return {.bytes = (loss.gradient ? 2 : 1) * bytes_of(loss.logits) + bytes_of(loss.targets) + bytes_of(loss.losses)};
}

Work work_of(const Sample& s) { return work_of_all({s.logits, s.draws, s.tokens}); }

Work work_of(const AdamW& update) { return work_of_update(update.pieces); }
Work work_of(const Sgd& update) { return work_of_update(update.pieces); }

Work work_of_embedding(const View& tokens, const View& rows_or_matrix, const View& matrix_or_rows) {
    return {.bytes = bytes_of(tokens) + 2 * std::min(bytes_of(rows_or_matrix), bytes_of(matrix_or_rows))};
}

}  // namespace tutti::kernels
