// ops/ops.h: operations on tensors: they check shapes and types, allocate the result and call the kernel. Forward and
// backward are plain functions, which nn/ combines into differentiable ones. Letters as in kernel_table.h; N: the
// product of all leading dimensions. Error for tensors that do not fit, or when the kernel table has no such kernel.
#pragma once

#include <functional>
#include <optional>

#include "tutti/base/exact_sum.h"
#include "tutti/ops/context.h"
#include "tutti/ops/operand.h"

namespace tutti::ops {

// --- memory ---
Tensor empty(Context& ctx, const Shape& shape, DType dtype, Purpose purpose = Purpose::activations);
Tensor zeros(Context& ctx, const Shape& shape, DType dtype, Purpose purpose = Purpose::activations);
Tensor cast(Context& ctx, const Tensor& x, DType dtype, Purpose purpose = Purpose::activations);  // always a new tensor
// x, to be overwritten: x itself, or a copy where another handle shares its memory. Give the handle away (std::move).
// What is computed must not depend on which of the two it is.
Tensor unshared(Context& ctx, Tensor x);
void copy(Context& ctx, const Tensor& x, const Tensor& y);  // of one shape and type; parts of tensors too
// Copies x into y, which may have another type or be a part of a tensor; if both, through a new tensor.
void cast_into(Context& ctx, const Tensor& x, const Tensor& y);
Tensor contiguous(Context& ctx, const Tensor& x);  // x itself if it is contiguous
void fill(Context& ctx, const Tensor& y, float value);
void normal(Context& ctx, const kernels::Normal& numbers);  // into a part of a tensor

// --- elementwise ---
Tensor add(Context& ctx, const Tensor& a, const Tensor& b);
void accumulate(Context& ctx, const Tensor& x, const Tensor& y);  // y += x
void scale(Context& ctx, const Tensor& x, float factor);          // in place
Tensor relu(Context& ctx, const Tensor& x);
Tensor relu_backward(Context& ctx, const Tensor& dy, const Tensor& y);
Tensor gelu(Context& ctx, const Tensor& x);
Tensor gelu_backward(Context& ctx, const Tensor& dy, const Tensor& x);
using kernels::Gate;  // the gated unit g of gate and up
using kernels::StepRange;
Tensor swiglu(Context& ctx, Gate g, const Tensor& gate, const Tensor& up);
Tensor swiglu(Context& ctx, Gate g, const Tensor& gate_up);  // (..., 2 F), gate and up side by side, to (..., F)
void soft_cap(Context& ctx, const Tensor& x, double cap);    // x = cap tanh(x / cap), in place; cap 0: as it is
Tensor dropout(Context& ctx, const Tensor& x, const kernels::Dropout& mask);  // its own backward

// --- sums, added exactly ---
// A sum in the device's memory, as base/exact_sum.h keeps it; 0 at first. Only its words come to the host.
class Sum {
  public:
    explicit Sum(Context& ctx);
    void add(const Tensor& terms);      // contiguous; f32 or f64
    void add_squares(const Tensor& x);  // contiguous; f32, or bf16 (n)
    // Starts an asynchronous copy of the sum to the host and resets the sum to zero. Send several sums before taking
    // the first, and the host synchronises only once.
    void send();
    ExactSum take();  // waits for the sum that was sent; sends it first if none was

  private:
    Context& ctx_;
    Tensor words_;  // (68) i64
    std::unique_ptr<PendingHostCopy> sent_;
};

// --- matrix product: g.workspace is allocated here ---
void gemm(Context& ctx, kernels::Gemm g);
// `role` says which of the three views the product writes.
kernels::Gemm gemm_of(GemmRole role, const View& x, const View& w, const View& y);

// Products to be computed later, by blocks of rows. A function with an argument `later` appends its product to the list
// instead of computing it; compute_rows() then writes the function's result. A product holds its operands; what else it
// reads or writes must live until then.
struct Product {
    kernels::Gemm gemm;
    Operand a, w;
};
using Products = std::vector<Product>;
// Computes rows [first, first + rows) of a product, with the same bits as the whole product, into these rows of its
// result or into `to` (rows, N). UsageError when the table computes no blocks of rows (KernelTable::gemm_by_rows).
void compute_rows(Context& ctx, const Product& product, int64_t first, int64_t rows, const View& to = {});

// --- linear: x (..., K), w (N, K), b (N) ---
// x w^T + b
Tensor linear(Context& ctx, const Operand& x, const Operand& w, const Tensor* b, Products* later = nullptr);
// The same into y (..., N), which may be some columns of a wider tensor; so may dy in the functions below.
void linear_into(Context& ctx, const Operand& x, const Operand& w, const Tensor* b, const Tensor& y,
                 Products* later = nullptr);
// [sum +] dy w, rounded once. The result reuses the memory of `sum`, the gradient so far, where no other handle shares
// it.
Tensor linear_backward_input(Context& ctx, const Operand& dy, const Operand& w, Tensor sum = {},
                             Products* later = nullptr);
// With an activation function in the product's epilogue. z = x w^T + b is returned when `kept`, else undefined.
struct Activated {
    Tensor z;
    Tensor y;  // gelu(z); g(gate) z
};
Activated linear_gelu(Context& ctx, const Operand& x, const Operand& w, const Tensor* b, bool kept,
                      Products* later = nullptr);
Activated linear_swiglu(Context& ctx, Gate g, const Tensor& gate, const Operand& x, const Operand& w, const Tensor* b,
                        bool kept, Products* later = nullptr);
// The gradients of z and gate from dy, the gradient of y w^T, where w is the weight of the next linear layer.
Tensor linear_gelu_backward(Context& ctx, const Operand& dy, const Operand& w, const Tensor& z,
                            Products* later = nullptr);
struct GateAndUp {
    Tensor gate, up;
};
GateAndUp linear_swiglu_backward(Context& ctx, Gate g, const Operand& dy, const Operand& w, const Tensor& gate,
                                 const Tensor& up, Products* later = nullptr);
// The gradients side by side, as gate and up are: (..., 2 F).
Tensor linear_swiglu_backward(Context& ctx, Gate g, const Operand& dy, const Operand& w, const Tensor& gate_up,
                              Products* later = nullptr);
GateAndUp swiglu_backward(Context& ctx, Gate g, const Tensor& dy, const Tensor& gate, const Tensor& up);
// The parts of x (..., 2 F), as matrices (rows, F).
GateAndUp gate_and_up_of(const Tensor& x);
// dw = [dw +] dy^T x
void linear_backward_weight(Context& ctx, const Operand& dy, const Operand& x, const Tensor& dw,
                            bool accumulate = true);
void bias_backward(Context& ctx, const Tensor& dy, const Tensor& db);

// --- embedding: tokens (B, T) i32, w (V, C) -> (B, T, C) ---
// w and dw hold rows [first_row, first_row + V) of the whole table. A token outside them gives zeros and no gradient.
Tensor embedding(Context& ctx, const Tensor& tokens, const Tensor& w, int64_t first_row = 0);
void embedding_backward(Context& ctx, const Tensor& tokens, const Tensor& dy, const Tensor& dw, int64_t first_row = 0);

// --- norms over the last dim: of x, or with a residual of sum = x + residual; layer norm, or with b null RMS norm ---
struct Norm {
    Tensor y;
    Tensor mean, rstd;  // (rows) f32; RMS norm has no mean
    Tensor sum;         // undefined without a residual
};
// `offset` is added to w (NormForward).
Norm norm(Context& ctx, const Tensor& x, const Tensor& w, const Tensor* b, double eps, const Tensor& residual = {},
          float offset = 0);
// [sum +] dx, with `sum` as in linear_backward_input; with dw also the work of norm_backward_weight.
Tensor norm_backward_input(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& mean,
                           const Tensor& rstd, Tensor sum = {}, float offset = 0, const Tensor& dw = {},
                           const Tensor& db = {});
// RMS norm has neither mean nor db.
void norm_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                          const Tensor& dw, const Tensor& db);

// --- short convolution: p (B, T, 3 C) holds b | c | x of each token, or without gates p (B, T, C) is x; tensors may be
// parts of wider ones ---
struct ShortConvolution {
    Tensor p;
    bool gates = true;
    Tensor w;          // (C, 1, K)
    Tensor bias;       // (C); undefined: none
    Tensor positions;  // (B, T) i32
    Tensor before;     // (B, K - 1, C) f32, the state after the tokens before; undefined: there are none
    int64_t taps() const { return w.dim(2); }
};
void short_convolution(Context& ctx, const ShortConvolution& f, const Tensor& z);  // z (B, T, C), written
// Writes dp. `after`: the gradient that later tokens add to the last ones (short_convolution_backward_before); may be
// undefined.
void short_convolution_backward_input(Context& ctx, const ShortConvolution& f, const Tensor& dz, const Tensor& after,
                                      const Tensor& dp);
Tensor short_convolution_backward_before(Context& ctx, const ShortConvolution& f, const Tensor& dz);  // like before
// Adds to dw (C, 1, K) and dbias (C), f32; dbias is undefined without a bias. Reads neither w nor bias.
void short_convolution_backward_weight(Context& ctx, const ShortConvolution& f, const Tensor& dz, const Tensor& dw,
                                       const Tensor& dbias);
// The state after the tokens of p, (B, K - 1, C) f32; `before`: the state before them.
Tensor short_convolution_state(Context& ctx, const Tensor& p, int64_t taps, const Tensor& before, bool gates = true);

// --- gated delta rule and the scan of Mamba-2: formulas, shapes and strides as in kernels::DeltaRule ---
struct Decay {
    Tensor x, a_log, dt_bias;  // (B, T, H), (H), (H)
    StepRange range = {};
};
// g (B, T, H) f32; with steps g and dt one after another, (2, B, T, H). `d`: the gradient of that.
Tensor decay(Context& ctx, const Decay& f, bool with_steps);
Tensor decay_backward_input(Context& ctx, const Decay& f, const Tensor& d);
// Adds to da_log and ddt_bias (H) f32.
void decay_backward_weight(Context& ctx, const Decay& f, const Tensor& d, const Tensor& da_log, const Tensor& ddt_bias);
struct DeltaRule {
    bool corrects = true;
    Tensor query, key, value;  // (B, T, Hk, Dk), the same, (B, T, Hv, Dv)
    Tensor g, b;               // (B, T, Hv)
    Tensor skip;               // (Hv), of the scan
    Tensor positions;          // (B, T) i32
    Tensor before;             // (B, Hv, Dk, Dv) f32: the state after the tokens before; undefined: there are none
    Shape state_shape() const { return {key.dim(0), value.dim(2), key.dim(3), value.dim(3)}; }
};
// Writes o (B, T, Hv, Dv); returns the state after the tokens where it is `wanted`.
Tensor delta_rule(Context& ctx, const DeltaRule& f, const Tensor& o, bool wanted);
// Writes the gradients that have memory: of all inputs, of which that of `before` may be undefined. `after`: the
// gradient of the state after the tokens; undefined: none.
struct DeltaRuleGradients {
    Tensor query, key, value, g, b, before;
};
void delta_rule_backward(Context& ctx, const DeltaRule& f, const Tensor& dout, const Tensor& after,
                         const DeltaRuleGradients& gradients);
// Adds to dskip (Hv) f32.
void delta_rule_backward_skip(Context& ctx, const Tensor& dout, const Tensor& value, const Tensor& dskip);

// --- attention: q (B, Tq, H, D), k (B, Tk, Hkv, D), v (B, Tk, Hkv, Dv), Dv <= D ---
struct RopeTable {
    Tensor cosines, sines;  // (P, n/2) f32; the first n <= D channels of a head are rotated
    bool adjacent = false;  // pairs (2k, 2k + 1) in place of (k, k + n/2)
};
// amplitude times the cosines and sines of position x frequency for positions [0, positions); frequencies (n/2) f64.
RopeTable rope_table(Context& ctx, int64_t positions, const Tensor& frequencies, double amplitude);
// Rotates x in place; x may be some heads of a wider tensor, or some channels of its heads.
void rope(Context& ctx, const Tensor& x, const Tensor& positions, const RopeTable& table, bool inverse);

// y[b, t, h] = x[b, t, 0] for x (B, T, 1, D) and y (B, T, H, D), which may be some channels of wider heads; and the sum
// over the heads of such a y, (B, T, 1, D).
void copy_to_heads(Context& ctx, const Tensor& x, const Tensor& y);
Tensor sum_heads(Context& ctx, const Tensor& y);

struct Attention {
    Tensor y;    // (B, Tq, H, Dv), of q's type or f32
    Tensor lse;  // (B, H, Tq) f32
};
// The score of query q and key k: scale q.k, or with a cap c > 0 c tanh(scale q.k / c).
struct Scores {
    double scale = 0;  // 0: D^(-1/2)
    double cap = 0;
};
// `type`: of y; that of q unless given.
Attention attention(Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, const kernels::AttentionMask& mask,
                    const Scores& scores = {}, std::optional<DType> type = {});
// `sum` becomes the attention to its keys and those of `part` together; both in f32, over disjoint sets of keys.
void attention_merge(Context& ctx, const Attention& sum, const Attention& part);
// `all`, attention to all keys with y of q's type, becomes that with a sink for each head, sinks (H) of this type
// (kernels::KernelTable::attention_sinks); attention_backward() takes it as `forward`. And dsinks (H) f32 += the
// gradient of the sinks.
void attention_sinks(Context& ctx, const Attention& all, const Tensor& sinks);
void attention_sinks_backward(Context& ctx, const Tensor& dy, const Attention& forward, const Tensor& sinks,
                              const Tensor& dsinks);
// Writes dq, dk, dv (shapes of q, k, v; may be slices of one packed tensor), all of q's type or all f32; with
// `accumulate`, adds to them (f32). k and v may be a part of the keys that `forward` attended to.
void attention_backward(Context& ctx, const Tensor& dy, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Attention& forward, const kernels::AttentionMask& mask, const Tensor& dq,
                        const Tensor& dk, const Tensor& dv, bool accumulate = false, const Scores& scores = {});

// --- losses ---
// Rows of logits, of `row_bytes` each, that exist at a time: at most `chunk_bytes` (KernelTable::loss_chunk_bytes), in
// chunks of equal size, multiples of 64. Every chunk reads the head's weights (and packs them, where they do not stay
// packed: ops/weight_forms.h) and adds to their gradient, so fewer chunks are faster.
int64_t loss_chunk_rows(int64_t rows, int64_t row_bytes, int64_t chunk_bytes);
// The head and its loss in chunks of rows: the (N, V) logits never exist as a whole.
// x (N, C), w (V, C), targets (N) i32 (negative: ignored). With `dw`, also the gradients of grad_scale * sum(losses):
// returns dx and adds to dw (V, C) f32, or overwrites it when `accumulate` is false; an undefined dw: dx alone. With a
// cap c > 0 the logits are c tanh(x w^T / c).
struct LinearCrossEntropy {
    Tensor losses;  // (N) f32
    Tensor dx;      // (N, C), undefined without dw
};
// With `shard`, w is one rank's part of the vocabulary, and dx its term of a sum over ranks; logits are not gathered.
struct VocabularyShard {
    int64_t first_word = 0;  // of w
    // Gathers the partial results of the ranks: (3, n) f32 of this rank to (P, 3, n) (CrossEntropy in kernel_table.h).
    std::function<Tensor(const Tensor& partial)> gather;
};
LinearCrossEntropy linear_cross_entropy(Context& ctx, const Tensor& x, const Operand& w, const Tensor& targets,
                                        int64_t vocab, float grad_scale, const Tensor* dw, bool accumulate = true,
                                        const VocabularyShard* shard = nullptr, double cap = 0);

struct SquaredError {
    Tensor losses;  // (N) f32
    Tensor dx;      // like x
};
SquaredError squared_error(Context& ctx, const Tensor& x, const Tensor& target, float grad_scale);

// --- mixture of experts: N rows, k choices each of E experts, M rows in the order of experts ---
struct Routed {
    Tensor experts;           // (N, k) i32
    Tensor weights;           // (N, k) f32
    Tensor shares;            // (N, E) f32 if asked for
    Tensor entropy, log_sum;  // (N) f32
};
// Chooses k experts for each row. logits (N, E) f32; bias (E) f32, added for the choice only, or undefined; `how`: only
// the fields that are not views; `shares`: whether to return the shares.
Routed route(Context& ctx, const Tensor& logits, const Tensor& bias, int64_t k, const kernels::Routing& how,
             bool shares);
// Returns dlogits (N, E). dweights (N, k); dshares (S, E) f32, the gradient of the shares of the rows of each of S
// segments, and segments (N) i32 may be undefined.
Tensor route_backward(Context& ctx, const Tensor& logits, const Routed& routed, const kernels::Routing& how,
                      const Tensor& dweights, const Tensor& dshares, const Tensor& segments, float z_scale);

// Choices (N, k) i32 in the order of experts, for `copies` of the rows of each of `owners` (kernels::SortChoices);
// writes counts (E) f32. count_choices() writes these alone.
struct SortedChoices {
    Tensor sent;   // (N k copies) i32
    Tensor slots;  // (N, k copies) i32
};
SortedChoices sort_choices(Context& ctx, const Tensor& choices, const Tensor& counts, int64_t owners = 1,
                           int64_t copies = 1);
void count_choices(Context& ctx, const Tensor& choices, const Tensor& counts);
// Rows [first, first + N) of choices (A, k) i32, those of all ranks, without what exceeds the capacity of each of
// `experts` (kernels::AcceptChoices); rows (A) i64; weights (A, k) f32, undefined: all are equal. Returns (N, k) i32.
Tensor accept_choices(Context& ctx, const Tensor& choices, const Tensor& rows, const Tensor& weights, int64_t experts,
                      int64_t capacity, int64_t first, int64_t N);
// The order of R rows from P ranks for L experts, counts (P, L) f32, and its inverse, (R) i32 each
// (KernelTable::order_arrivals). R must be the sum of the counts, and `padded` that of the counts of experts, each
// rounded up to a multiple of `multiple`: the length of `order`.
struct Arrivals {
    Tensor order, places;
};
Arrivals order_arrivals(Context& ctx, const Tensor& counts, int64_t R, int64_t multiple, int64_t padded);

// y[i] = x[rows[i]]; x (N, C), rows (M) i32; returns (M, C).
Tensor gather_rows(Context& ctx, const Tensor& x, const Tensor& rows);
// y[i] = sum over j of weights[i, j] x[rows[i, j]], without the j for which rows[i, j] is -1; x (M, C), rows (N, k)
// i32, weights (N, k) f32, or undefined for 1; returns (N, C).
Tensor combine_rows(Context& ctx, const Tensor& x, const Tensor& rows, const Tensor& weights = {});
struct CombineGradients {
    Tensor dx, dweights;
};
CombineGradients combine_rows_backward(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& rows,
                                       const Tensor& weights);

// Grouped linear layers, one for each expert: x (M, K), of which the first rows[0] rows are those of expert 0, the next
// rows[1] those of expert 1, and so on; w (E, N, K), b (E, N), null: none. Otherwise like the functions of the same
// names above.
using GroupRows = std::vector<int64_t>;
Tensor grouped_linear(Context& ctx, const Operand& x, const Operand& w, const Tensor* b, const GroupRows& rows);
Activated grouped_linear_swiglu(Context& ctx, Gate g, const Tensor& gate, const Operand& x, const Operand& w,
                                const Tensor* b, const GroupRows& rows, bool kept);
Tensor grouped_backward_input(Context& ctx, const Operand& dy, const Operand& w, const GroupRows& rows,
                              Tensor sum = {});
GateAndUp grouped_swiglu_backward(Context& ctx, Gate unit, const Operand& dy, const Operand& w, const Tensor& gate,
                                  const Tensor& up, const GroupRows& rows);
void grouped_backward_weight(Context& ctx, const Operand& dy, const Operand& x, const Tensor& dw, const GroupRows& rows,
                             bool accumulate = true);
void grouped_bias_backward(Context& ctx, const Tensor& dy, const Tensor& db, const GroupRows& rows);

// bias (E) f32 += rate sign(mean - counts), the update of Wang et al. 2024; counts (E) f32.
void balance(Context& ctx, const Tensor& bias, const Tensor& counts, float mean, float rate);

// --- sampling ---
// Tokens (N) i32 drawn from the rows of logits (N, V) as `how` says; its views are not read; draws (N) i64. -1 for a
// row with a NaN, or without a finite largest logit.
Tensor sample(Context& ctx, const Tensor& logits, const Tensor& draws, kernels::Sample how);

}  // namespace tutti::ops
