#include "tutti/kernels/work.h"

#include <algorithm>
#include <initializer_list>
#include <span>

#include "tutti/base/error.h"
#include "tutti/base/units.h"

namespace tutti::kernels {

namespace {

double bytes_of(const View& x) { return x.defined() ? static_cast<double>(x.numel() * size_of(x.dtype)) : 0; }

ProblemShape shape_of(const View& operand) {
    ProblemShape shape{.kind = ProblemShape::Kind::operand, .rank = static_cast<uint8_t>(operand.shape.rank())};
    std::copy(operand.shape.begin(), operand.shape.end(), shape.sizes.begin());
    return shape;
}

// The problem has the shape of the first operand.
Work work_of_all(std::initializer_list<View> operands) {
    Work work{.shape = shape_of(*operands.begin())};
    for (const View& x : operands) work.bytes += bytes_of(x);
    return work;
}

// Sum over x <= last of min(max(x, 0), limit).
double sum_of_clamped(int64_t last, int64_t limit) {
    const auto x = static_cast<double>(std::clamp<int64_t>(last, 0, limit));
    return x * (x + 1) / 2 + static_cast<double>(std::max<int64_t>(0, last - limit)) * static_cast<double>(limit);
}

// Pairs of a query and a key that it sees, of one head. Query i has min(max(i + offset + 1, 0), keys) keys up to its
// own place, and the same of i + offset + 1 - window before its window.
double visible_pairs(int64_t queries, int64_t keys, const AttentionMask& mask) {
    const int64_t offset = mask.query_offset - mask.key_offset;
    const auto keys_before = [&](int64_t shift) {
        return sum_of_clamped(queries - 1 + shift, keys) - sum_of_clamped(shift - 1, keys);
    };
    const double all = mask.causal ? keys_before(offset + 1) : static_cast<double>(queries) * static_cast<double>(keys);
    return mask.window > 0 ? all - keys_before(offset + 1 - mask.window) : all;
}

// FLOPs and shape of (M, K) times (K, N).
Work work_of_product(const Gemm& g, int64_t M, int64_t K, int64_t N) {
    return {.flops = 2.0 * static_cast<double>(M) * static_cast<double>(N) * static_cast<double>(K),
            .shape = {.kind = ProblemShape::Kind::product,
                      .rank = 3,
                      .transpose_a = g.transpose_a,
                      .transpose_b = g.transpose_b,
                      .accumulate = g.accumulate,
                      .epilogue = g.epilogue,
                      .sizes = {M, K, N}}};
}

// Products of (Tq, D) and (D, Tk) for each head: `of_keys` with the width of queries and keys, `of_values` with that of
// values.
template <class Attention>
Work attention_work(const Attention& a, int64_t of_keys, int64_t of_values) {
    const int64_t B = a.q.shape[0], Tq = a.q.shape[1], H = a.q.shape[2], D = a.q.shape[3];
    const double pairs = visible_pairs(Tq, a.k.shape[1], a.mask);
    const int64_t widths = of_keys * D + of_values * a.v.shape[3];
    return {.flops = 2.0 * pairs * static_cast<double>(B * H * widths),
            .shape = {.kind = ProblemShape::Kind::attention, .rank = 4, .sizes = {B, Tq, H, D}}};
}

Work work_of_update(std::span<const OptimizerPiece> pieces) {
    Work work{.shape = {.kind = ProblemShape::Kind::operand, .rank = 1}};
    for (const OptimizerPiece& p : pieces) {
        work.shape.sizes[0] += (p.master.defined() ? p.master : p.update).numel();
        const double state =
            bytes_of(p.m.values) + bytes_of(p.m.largest) + bytes_of(p.v.values) + bytes_of(p.v.largest);
        work.bytes += 2 * (bytes_of(p.master) + state) + bytes_of(p.gradient) + bytes_of(p.value) + bytes_of(p.update);
    }
    return work;
}

}  // namespace

Work& Work::operator+=(const Work& other) {
    flops += other.flops;
    bytes += other.bytes;
    if (shape.kind == ProblemShape::Kind::none) shape = other.shape;
    return *this;
}

double Work::floor_s(double flops_per_s, double bytes_per_s) const {
    return std::max(flops / flops_per_s, bytes / bytes_per_s);
}

std::string ProblemShape::text() const {
    constexpr const char* kEpilogue[] = {"", ", gelu", ", gelu backward", ", swiglu", ", swiglu backward"};
    if (kind == Kind::attention)
        return concat(sizes[0], " x ", sizes[1], ", ", counted(sizes[2], "head"), " of ", sizes[3]);
    return concat(joined(std::span(sizes).first(rank), " x "), transpose_a ? ", a transposed" : "",
                  transpose_b ? ", b transposed" : "", accumulate ? ", added" : "",
                  kEpilogue[static_cast<size_t>(epilogue)], groups > 0 ? concat(", ", groups, " groups") : "");
}

Work work_of(const View& operand) {
    if (!operand.defined()) return {};
    return {.bytes = bytes_of(operand), .shape = shape_of(operand)};
}

Work work_of(const Gemm& g) {
    const int64_t M = g.c.shape[0], N = g.c.shape[1], K = g.transpose_a ? g.a.shape[0] : g.a.shape[1];
    Work work = work_of_product(g, M, K, N);
    work.bytes = bytes_of(g.a) + bytes_of(g.a_scales.values) + bytes_of(g.b) + bytes_of(g.b_scales.values) +
                 (g.accumulate ? 2 : 1) * bytes_of(g.c) + bytes_of(g.bias) + bytes_of(g.x) + bytes_of(g.gate) +
                 bytes_of(g.dup);
    return work;
}

Work work_of(const AttentionForward& a) {
    Work work = attention_work(a, 1, 1);
    for (const View* x : {&a.q, &a.k, &a.v, &a.o, &a.lse}) work.bytes += bytes_of(*x);
    return work;
}

Work work_of(const AttentionBackward& a) {
    Work work = attention_work(a, 3, 2);
    for (const View* x : {&a.q, &a.k, &a.v, &a.o, &a.lse, &a.dy}) work.bytes += bytes_of(*x);
    for (const View* x : {&a.dq, &a.dk, &a.dv}) work.bytes += (a.accumulate ? 2 : 1) * bytes_of(*x);
    return work;
}

Work work_of(const NormForward& f) { return work_of_all({f.x, f.w, f.b, f.y, f.mean, f.rstd, f.residual, f.sum}); }
Work work_of(const NormBackward& b) { return work_of_all({b.dy, b.x, b.w, b.mean, b.rstd, b.dx, b.add, b.dw, b.db}); }

Work work_of(const ShortConvolution& f) { return work_of_all({f.b, f.c, f.x, f.w, f.bias, f.positions, f.before}); }
Work work_of(const ShortConvolutionBackward& g) { return work_of_all({g.dz, g.db, g.dc, g.dx, g.after}); }

Work work_of(const Decay& f) { return work_of_all({f.x, f.a_log, f.dt_bias}); }

namespace {
// 3 products of a state and a vector for each token, and 2 of the scan, whose backward has 4 and makes the states
// again.
double delta_rule_flops(const View& key, const View& value, bool corrects = true) {
    return (corrects ? 6.0 : 4.0) * static_cast<double>(value.numel()) * static_cast<double>(key.shape[3]);
}
}  // namespace
Work work_of(const DeltaRule& f) {
    Work work = work_of_all({f.value, f.query, f.key, f.g, f.b, f.skip, f.positions, f.before});
    work.flops = delta_rule_flops(f.key, f.value, f.corrects);
    return work;
}
// Beside the work of the rule: a second time as much.
Work work_of(const DeltaRuleBackward& b) {
    Work work = work_of_all({b.dout, b.dquery, b.dkey, b.dvalue, b.dg, b.db, b.after, b.dbefore});
    work.flops = delta_rule_flops(b.dkey, b.dvalue);
    return work;
}
Work work_of(const Quantize& q) { return work_of_all({q.x, q.codes, q.scales.values}); }
Work work_of(const QuantizeRun& q) { return work_of_all({q.x, q.codes}); }
Work work_of(const Dequantize& d) { return work_of_all({d.codes, d.scales.values, d.y}); }

Work work_of(const Dropout& mask) { return work_of(mask.row_index); }
Work work_of(const Normal& normal) { return work_of(normal.y); }

// The gradient is written over the logits that were read. Losses made of partials need no logits.
Work work_of(const CrossEntropy& loss) {
    const bool finishes = loss.losses.defined() && loss.partials.defined();
    return {.bytes = (loss.gradient ? 2
                      : finishes    ? 0
                                    : 1) *
                         bytes_of(loss.logits) +
                     bytes_of(loss.targets) + bytes_of(loss.losses) + bytes_of(loss.partials),
            .shape = shape_of(loss.logits)};
}

Work work_of(const Sample& s) { return work_of_all({s.logits, s.draws, s.tokens}); }

Work work_of(const Routing& r) {
    return work_of_all({r.logits, r.bias, r.experts, r.weights, r.shares, r.entropy, r.log_sum});
}
Work work_of(const RoutingBackward& b) {
    const Routing& f = b.forward;
    return work_of_all({b.dlogits, f.logits, f.experts, f.weights, f.log_sum, b.dweights, b.dshares, b.segments});
}

Work work_of(const SortChoices& s) { return work_of_all({s.choices, s.counts, s.sent, s.slots}); }
Work work_of(const AcceptChoices& a) {
    return work_of_all({a.choices, a.rows, a.weights, a.order, a.counts, a.accepted});
}

// The matrices of empty groups are neither read nor written.
Work work_of(const GroupedGemm& grouped) {
    const Gemm& g = grouped.all;
    const int64_t E = static_cast<int64_t>(grouped.rows.size());
    const View& matrices = g.transpose_a ? g.c : g.b;
    const int64_t M = g.a.shape[g.transpose_a ? 1 : 0], K = g.a.shape[g.transpose_a ? 0 : 1], N = g.c.shape[-1];
    const double used = static_cast<double>(std::count_if(grouped.rows.begin(), grouped.rows.end(),
                                                          [](int64_t rows) { return rows > 0; })) /
                        static_cast<double>(std::max<int64_t>(1, E));
    Work work = work_of_product(g, M, K, N);
    work.shape.groups = E;
    for (const View* x : {&g.a, &g.b, &g.c, &g.x, &g.gate, &g.dup, &g.bias})
        work.bytes += (x == &g.c && g.accumulate ? 2 : 1) * (x == &matrices ? used : 1) * bytes_of(*x);
    return work;
}

Work work_of(const AdamW& update) { return work_of_update(update.pieces); }
Work work_of(const Sgd& update) { return work_of_update(update.pieces); }
Work work_of(const Lion& update) { return work_of_update(update.pieces); }
Work work_of(const MuonMomentum& update) { return work_of_update(update.pieces); }
Work work_of(const MuonDescent& update) { return work_of_update(update.pieces); }

Work work_of_embedding(const View& tokens, const View& rows_or_matrix, int64_t /*first_row*/,
                       const View& matrix_or_rows, bool backward) {
    const View &matrix = backward ? matrix_or_rows : rows_or_matrix, &rows = backward ? rows_or_matrix : matrix_or_rows;
    const double named = static_cast<double>(std::min(matrix.numel(), rows.numel()) * size_of(matrix.dtype));
    return {.bytes = bytes_of(tokens) + bytes_of(rows) + (backward ? 2 : 1) * named, .shape = shape_of(tokens)};
}

Work work_of_rope(const View& x, const View& positions, const View& cosines, const View& sines, bool /*inverse*/,
                  bool /*adjacent*/) {
    const double used = std::min(1.0, static_cast<double>(positions.numel()) / static_cast<double>(cosines.shape[0]));
    const double turning = 2.0 * static_cast<double>(cosines.shape[-1]) / static_cast<double>(x.shape[-1]);
    return {.bytes = 2 * turning * bytes_of(x) + bytes_of(positions) + used * (bytes_of(cosines) + bytes_of(sines)),
            .shape = shape_of(x)};
}

}  // namespace tutti::kernels
