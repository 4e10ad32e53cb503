// kernels/kernel_table.h: the index of all kernels, one typed function pointer each. A back end fills a table; an entry
// that it lacks stays null, and the op that needs the entry throws. The reference table (plain loops in double
// precision) defines the correct result.
//
// Rules: kernels take views, sizes and a stream; they allocate nothing and log nothing; ops/ has checked the shapes.
// Data is aligned to its element. Activations are f32, bf16 or f16 ("A" below: one type per call); sums are taken in
// f32 or wider and rounded once. Gradients of parameters are f32 and accumulated: db += ..., dw += .... Every result
// repeats bit for bit for a given table, shape and thread count.
//
// Letters: B batch, T sequence, N = B T rows, C width, H heads, D head dim, F ffn, V vocabulary, E experts.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/philox.h"
#include "tutti/device/stream.h"
#include "tutti/tensor/view.h"

namespace tutti {
class Device;
}

namespace tutti::kernels {

// A group of the elements of a matrix that share a scale: so many rows and columns, counted from the first element of
// the matrix. The last groups of its rows or columns may be smaller. 0: as many as the matrix has.
struct GroupShape {
    int64_t rows = 0, columns = 0;
    bool operator==(const GroupShape&) const = default;
};

// How divisors lie in memory (kernels/scale_layout.h).
enum class ScaleLayout : uint8_t {
    rows,         // a row after the other
    columns,      // a column after the other, each padded to a multiple of 4
    padded_rows,  // rows, likewise
    tiles,        // tiles of 128 rows of 4
    row_tiles,    // the same tiles, each divisor 4 times: of groups 4 times as wide
    block_tiles,  // a whole tile of each divisor: of groups of 128 rows, 4 times as wide
};
struct ScaleForm {
    DType divisors = DType::f32;
    ScaleLayout layout = ScaleLayout::rows;
    bool operator==(const ScaleForm&) const = default;
};

// Divisors of codes: element (r, c) is the value of its code (base/float8.h) times values[r / group.rows, c /
// group.columns]. A divisor of NaN marks a group with an infinity or NaN in it.
struct Scales {
    View values = {};  // f32 or e8m0, contiguous: a row of divisors for each row of groups
    GroupShape group = {};
    ScaleLayout layout = ScaleLayout::rows;
};

// Codes of x: with the largest magnitude of a group, the factor of float8_factor(), and for e8m0 divisors that of
// e8m0_above(); codes = x times the factor, saturating; divisors = 1 / factor.
struct Quantize {
    View x;                   // (R, C) A, unit inner stride
    View codes;               // (R, C) e4m3 or e5m2, contiguous
    Scales scales;            // values written
    bool transposed = false;  // codes are (C, R), contiguous, and the rows of divisors are columns
    bool powers_of_two = true;
    // Of a group that is the whole matrix: its largest magnitude, as amax() writes it. Of every group: f32 (1), in
    // place of the factor that follows, a power of two with powers_of_two; then magnitudes only mark infinities and
    // NaN.
    View amax = {}, factor = {};
    // i64 (2) += the number of values that saturate, and of those other than 0 that become 0; undefined: not counted.
    View lost = {};
};

// Codes of a run of the elements of a matrix, whose groups may have elements outside of the run: x are the elements
// `first` and following of a contiguous matrix of shape `matrix`, row by row. The divisors of its groups are those that
// quantize() writes for their largest magnitudes.
struct QuantizeRun {
    View x;             // (n) A
    int64_t first = 0;  // in the matrix
    Shape matrix = {};  // (R, C)
    GroupShape group = {};
    View amaxes;       // i32, a row for each row of groups: as amax() writes them, of each group of the matrix
    View factor = {};  // as in Quantize
    bool powers_of_two = true;
    View codes = {};  // (n) e4m3 or e5m2
};

// y (R, C) A = codes times divisors, rounded once.
struct Dequantize {
    View codes;
    Scales scales;
    bool transposed = false;  // as in Quantize
    View y;
};

// A gated unit of x, its gate, and u: silu(x) u with silu(x) = x sigmoid(x) (Shazeer 2020: SwiGLU); gelu(x) u, by tanh
// as in gelu_forward (GEGLU); or clamped with a limit l > 0, x sigmoid(kClampedSlope x) (u + 1) of min(x, l) and of u
// between -l and l, whose gradients are 0 where x or u is cut or equals its bound (gpt-oss); or sigmoid(x) u (GLU,
// Dauphin et al. 2017); or max(x, 0) u, which with u = x is the square of ReLU (So et al. 2021, Primer).
struct Gate {
    enum Kind : uint8_t { silu, gelu, clamped, sigmoid, relu };
    Kind kind = silu;
    float limit = 0;  // of clamped
    constexpr Gate(Kind of_kind = silu, float at = 0) : kind(of_kind), limit(at) {}
    bool operator==(const Gate&) const = default;
};
inline constexpr float kClampedSlope = 1.702f;

// A function applied to z = op(a) x op(b) [+ bias], rounded to its type, before c is stored. The result has the bits of
// the table entry of that name applied to z in memory, except that gelu_backward may take z before rounding.
enum class Epilogue : uint8_t {
    none,             // c = z [+ c]
    gelu,             // x = z, c = gelu(x)
    gelu_backward,    // c = z gelu'(x)
    swiglu,           // x = z, c = the unit Gemm::activation of gate and x
    swiglu_backward,  // c, dup = the gradients of gate and of up, which is x, from z, that of the unit
};

// c (M, N) = op(a) (M, K) x op(b) (K, N) [+ bias] [+ c]. Views are 2-d with unit inner stride; a and b have one type
// (f32, bf16 or f16), c is f32 or that type, bias is of that type or f32. Or a and b are codes with scales, of which
// gemm_of_codes() says whether a table multiplies them; then c is f32 or bf16, like bias. transpose_a: a is stored (K,
// M); transpose_b: b is stored (N, K). With an epilogue c and its views have the type of a, and equal strides.
struct Gemm {
    View a, b, c;
    bool transpose_a = false;
    bool transpose_b = false;
    bool accumulate = false;              // c += product; the usual case of weight gradients, c f32
    bool gradient = false;                // part of a backward: ProductChoices::spared_by_gradients applies
    View bias = {};                       // (N) added to every row; undefined: none
    Scales a_scales = {}, b_scales = {};  // of codes, of a and b as they are stored
    bool rows_vary = false;               // of codes: M or K differs from call to call, as the rows of an expert
    View workspace = {};                  // f32, of gemm_workspace values
    // For several products with one b: f32, of gemm_packed_b values; written by the first product, read where
    // b_is_packed is set. Undefined: b is packed in the workspace for this product alone.
    View packed_b = {};
    bool b_is_packed = false;
    Epilogue epilogue = Epilogue::none;
    Gate activation = Gate::silu;  // of swiglu and its backward
    // c is a block of rows of a product with this many rows in all, and has the same bits as in that product; 0: c is
    // the whole product. Needs KernelTable::gemm_by_rows.
    int64_t whole_rows = 0;
    View x = {};     // (M, N): written by gelu and swiglu (undefined: z is not stored), read by their backward
    View gate = {};  // (M, N), read by swiglu and its backward
    View dup = {};   // (M, N), written by swiglu_backward
};

// Which keys a query attends to. Query i has position i + query_offset in a sequence, key j has position p = j +
// key_offset, and query i attends to the keys that meet all conditions below. The Tq queries and Tk keys may be any
// parts of the sequence, as in ring attention.
struct AttentionMask {
    bool causal = true;  // p <= i + query_offset
    int64_t query_offset = 0;
    int64_t key_offset = 0;
    int64_t window = 0;   // p > i + query_offset - window; 0: no window
    View first_key = {};  // (B, Tq) i32, non-decreasing along Tq: p >= first_key[b, i]; undefined: one document
};

// A query that sees no key gets o = 0, lse = -inf. Grouped queries: Hkv divides H, head h reads h / (H / Hkv). Values
// may be narrower than queries and keys, Dv < D, where the table says so (KernelTable::own_value_width).
struct AttentionForward {
    View q;    // (B, Tq, H, D) A; any strides with unit inner stride
    View k;    // (B, Tk, Hkv, D) A; likewise
    View v;    // (B, Tk, Hkv, Dv) A; likewise
    View o;    // (B, Tq, H, Dv) A or f32
    View lse;  // (B, H, Tq) f32: ln sum_j exp(S_j)
    float scale = 1;
    float cap = 0;  // S_j = scale q.k_j, or with a cap c > 0: c tanh(scale q.k_j / c) (Gemma 2)
    AttentionMask mask = {};
    View workspace = {};  // f32, of attention_workspace values
};

// lse and o are inputs: in ring attention they belong to all keys, k and v to one block of the keys.
struct AttentionBackward {
    View q, k, v;     // as above
    View o, lse;      // o A or f32
    View dy;          // (B, Tq, H, Dv) A: gradient of o
    View dq, dk, dv;  // like q, k, v; all three A or all three f32
    float scale = 1;
    float cap = 0;
    AttentionMask mask = {};
    bool accumulate = false;  // dq += ..., dk += ..., dv += ...; f32
    View workspace = {};
};

// Layer norm; without b and mean, RMS norm, which does not centre rows. s = x [+ residual], rounded once to its type.
// With mean:    y = (s - mean) rstd w + b, rstd = (mean_c (s - mean)^2 + eps)^(-1/2).
// Without mean: y = s rstd w,              rstd = (mean_c s^2 + eps)^(-1/2).
// `offset` is added to w in f32: 1 in models that store the weights of norms less 1 (Gemma). RMS norm also has weights
// of G groups, w (G C): row n has those of group n % G, so that each token's channels are normalised in G groups.
struct NormForward {
    View x;       // (N, C) A
    View w;       // (C) A, of RMS norm also (G C)
    View b = {};  // (C) A
    float eps = 0;
    View y;          // (N, C) A
    View mean = {};  // (N) f32, like rstd, for the backward
    View rstd;
    View residual = {}, sum = {};  // (N, C) A: both or none; sum is s
    float offset = 0;
};

// dx = [add +] the gradient of the norm at s = x, rounded once. With dw also the gradients of norm_backward_weight.
struct NormBackward {
    View dy, x;      // (N, C) A
    View w;          // like that of the forward
    View mean = {};  // (N) f32, like rstd; undefined: of RMS norm
    View rstd;
    View dx;        // (N, C) A
    View add = {};  // (N, C) A, may be dx
    float offset = 0;
    View dw = {}, db = {};  // as there; undefined: not computed
};

// The gated short convolution of LFM2 (Liquid AI 2025), causal and separate for each channel. With u = b x and j rising
// from 0, so that the oldest token is added first:
//   v[t, c] = sum_j w[c, j] u[t - (K - 1) + j, c] [+ bias[c]];  z = c v.
// Without gates b and c are undefined, u = x and z = v.
// A token reaches back over at most positions[t] tokens, so that documents stay separate. u of tokens before the first
// one is in `before`, or 0 without it. Bits do not depend on how a sequence is cut into calls.
struct ShortConvolution {
    View b, c;         // (B, T, C) A, of the strides of x: parts of one projection; or both undefined
    View x;            // (B, T, C) A, any strides with unit inner stride
    View w;            // (C, K) A, 1 <= K <= kMaxTaps
    View bias = {};    // (C) A
    View positions;    // (B, T) i32, unit inner stride
    View before = {};  // (B, K - 1, C) f32, contiguous: u of the last tokens before the first one
};
inline constexpr int64_t kMaxTaps = 16;

// With dv = dz c:  dc = dz v;  du[s, c] = sum_j w[c, j] dv[s + (K - 1) - j, c];  db = du x;  dx = du b.
struct ShortConvolutionBackward {
    View dz;          // (B, T, C) A, any strides with unit inner stride
    View db, dc, dx;  // like b, c, x; without gates db and dc are undefined
    View after =
        {};  // (B, K - 1, C) f32, T >= K - 1: what later tokens add to du of the last K - 1 tokens; added first
    View dbefore = {};  // (B, K - 1, C) f32: du of `before`, written
};

// The gated delta rule (Yang, Kautz and Hatamizadeh 2024, "Gated Delta Networks", equation 10), a linear attention
// whose value heads have a state S (Dk, Dv) each. Of a token, in this order:
//   S = alpha S;  d = sigmoid(b) (v - S^T k);  S = S + k d^T;  o = S^T q,
// with alpha = e^g, or 0 where a document begins (positions = 0), k = unit(silu(key)), q = Dk^(-1/2) unit(silu(query)),
// v = silu(value) and unit(x) = x (sum_d x^2 + kUnitEpsilon)^(-1/2). Hk divides Hv: value head h reads query and key
// head h / (Hv / Hk). All sums and the state are f32 or wider, whatever A is.
//
// Without `corrects` it is the scan of Mamba-2 (Dao and Gu 2024, "Transformers are SSMs", equation 6), whose B, C and x
// are key, query and value, and whose steps are b:
//   S = alpha S;  d = b v;  S = S + k d^T;  o = S^T q + skip v,  k = silu(key), q = silu(query).
inline constexpr float kUnitEpsilon = 1e-6f;
struct DeltaRule {
    bool corrects = true;
    View query, key;      // (B, T, Hk, Dk) A, like the next any strides with unit inner stride
    View value;           // (B, T, Hv, Dv) A
    View g;               // (B, T, Hv) f32, contiguous, like b: at most 0
    View b;               // (B, T, Hv) A; of the scan f32
    View skip = {};       // (Hv) A, of the scan
    View positions;       // (B, T) i32, unit inner stride
    View before = {};     // (B, Hv, Dk, Dv) f32, contiguous: S before the first token; undefined: 0
    View workspace = {};  // f32, of delta_rule_workspace values
};
struct DeltaRuleBackward {
    View dout;                  // (B, T, Hv, Dv) A, contiguous: the gradient of o
    View after = {};            // like before: that of S after the last token; undefined: 0
    View dquery, dkey, dvalue;  // contiguous, written, like the next
    View dg, db;                // dg f32; 0 where a document begins; db like b
    View dbefore = {};          // like before; undefined: not computed
};

// The steps of a state, dt = softplus(x + dt_bias) in `range`, and the ln of its decays, g = -e^a_log dt
// (Gu and Dao 2023, Mamba). No gradient passes a step that is cut.
struct StepRange {
    float least = 0, most = std::numeric_limits<float>::infinity();
};
struct Decay {
    View x;               // (N, H) A, contiguous like all others
    View a_log, dt_bias;  // (H) A
    StepRange range = {};
};

// Kept values are multiplied by 1 / (1 - probability).
// Element (n, c) is kept when uniform(key, row_index[n] * columns_total + column_offset + c) >= probability: the mask
// depends on global indices only, not on the distribution of rows and columns over ranks.
struct Dropout {
    RandomKey key = 0;
    float probability = 0;
    View row_index;  // (N) i64: global index of each row
    int64_t column_offset = 0;
    int64_t columns_total = 0;
};

// y[r, c] = std * normal(key, first + r * row_step + c), of base/philox.h: the same bits from every table. To draw a
// block of a tensor, pass the global index of the block's first value as first and the row length of the whole tensor
// as row_step.
struct Normal {
    View y;  // (R, C) f32, unit inner stride
    RandomKey key = 0;
    float std = 1;
    int64_t first = 0;
    int64_t row_step = 0;
};

// losses[n] = lse(logits[n, :vocab]) - logits[n, targets[n]], 0 where the target is negative, NaN where it is vocab or
// more. With `gradient`, logits are replaced by grad_scale * (softmax - onehot), 0 in rows without a target and in the
// padding columns [vocab, V).
//
// When each of P ranks has some of the columns: cross_entropy_partial writes three numbers per row about the rank's own
// words: their maximum (-infinity without words), the sum of exp(x - maximum), and the target's logit (0 if another
// rank has the target); -infinity, 0, 0 in rows without a target. cross_entropy_finish combines the partials of all
// ranks in order: every rank gets the same losses, to the bit, and the gradient of its own columns.
struct CrossEntropy {
    View logits;       // (N, W) A: words [first_word, first_word + W); from vocab on padding
    View targets;      // (N) i32
    View losses = {};  // (N) f32
    int64_t vocab = 0;
    float grad_scale = 1;
    bool gradient = false;
    int64_t first_word = 0;  // 0 in cross_entropy, whose logits are (N, V)
    View partials = {};      // f32, contiguous: (3, N) written by cross_entropy_partial, (P, 3, N) read by _finish
    // With a cap c > 0 the logits are values of soft_cap(z, c), and the gradient is that of z: times 1 - (logit / c)^2.
    float cap = 0;
};

// tokens[n] is drawn from softmax(logits[n, :vocab] / temperature) among the candidates. With top_k, candidates are the
// tokens at least as likely as the k-th most likely one; of these, with top_p < 1, the tokens at least as likely as the
// last of the fewest that have the share top_p together. Equally likely tokens are kept or dropped together, so the
// result does not depend on an order of sorting. Temperature 0: the most likely token, of several the lowest. A row
// with a NaN, or without a finite largest logit: -1. The weights exp((x - largest) / temperature) are multiples of
// 2^-40, laid end to end in the order of tokens; the draw is the token at uniform_below(key, draws[n], their sum).
// Integers make the result independent of the order of addition.
struct Sample {
    View logits = {};  // (N, V) A, unit inner stride
    View draws = {};   // (N) i64: index of the draw among those of the key
    View tokens = {};  // (N) i32
    RandomKey key = 0;
    int64_t vocab = 0;
    float temperature = 1;
    int64_t top_k = 0;  // 0: all
    double top_p = 1;
};

// Routing of a mixture of experts: the experts of each row and their weights, all in f32. p = softmax(logits), or
// sigmoid(logits). The k experts with the largest p + bias are chosen; of equal ones, the first. With `groups` > 1,
// equal runs of experts, only experts of `chosen_groups` groups are: those whose `group_best` largest p + bias have the
// largest sum; of equal ones, the first. NaN counts as larger than any number: its expert is chosen, with weight NaN.
// All views are contiguous; E is at most kMostExperts.
inline constexpr int64_t kMostExperts = 4096;
struct Routing {
    View logits;     // (N, E) f32
    View bias = {};  // (E) f32; undefined: 0
    bool sigmoid = false;
    int64_t groups = 1, chosen_groups = 1, group_best = 1;
    bool normalise = false;  // weights = scale p / (epsilon + the sum of the chosen p); else scale p
    float epsilon = 0;
    float scale = 1;
    View experts = {};  // (N, k) i32, by descending p + bias
    View weights = {};  // (N, k) f32
    View shares = {};   // (N, E) f32: p / the sum of p, for softmax p itself; undefined: not computed
    View entropy = {};  // (N) f32: -sum of share ln(share)
    View log_sum = {};  // (N) f32: ln sum exp(logits)
};

// Gradient of the logits from three terms: dweights, of the weights of the chosen experts; dshares, of all shares of a
// row, one row of dshares per segment; and z_scale times the sum over rows of log_sum^2. `forward` is as in the
// forward; its bias, shares and entropy are not read.
struct RoutingBackward {
    Routing forward;
    View dweights;       // (N, k) f32
    View dshares = {};   // (S, E) f32; undefined: 0
    View segments = {};  // (N) i32: the row of dshares; undefined: 0
    float z_scale = 0;
    View dlogits;  // (N, E) f32
};

// Choices in the order of experts, by a stable counting sort. The experts are `owners` equal runs, each of an owner;
// the rows of an owner follow in `copies`, one whole copy after another, for the ranks that divide its experts. A
// choice outside [0, E), as -1, is dropped. There are at most kMostChoices N k, so that counts in f32 are exact. All
// views are contiguous.
inline constexpr int64_t kMostChoices = 1 << 24;
struct SortChoices {
    View choices;  // (N, k) i32
    int64_t owners = 1, copies = 1;
    View counts;     // (E) f32, written: choices of each expert
    View sent = {};  // (N k copies) i32, written: the row at each place; -1 behind the last. Undefined: not computed
    View slots =
        {};  // (N, copies k) i32, written: the place of choice j of row n in copy c is [n, c k + j]; -1: dropped
};

// What experts accept (Lepikhin et al. 2020): of the choices of all ranks, each expert takes the first `capacity`, by
// descending weight, then by row and by j. A NaN counts as larger than any number. All views are contiguous.
struct AcceptChoices {
    View choices;       // (A, k) i32 of all ranks; -1: none
    View rows;          // (A) i64: global index of each row
    View weights = {};  // (A, k) f32; undefined: all are equal
    View order;         // (A k) i32: the choices by expert, as sort_choices() sorts (A k, 1)
    View counts;        // (E) f32: likewise
    int64_t capacity = 0;
    int64_t first = 0;  // of this rank's rows
    View accepted;      // (N, k) i32, written: choices of rows [first, first + N), -1 where the expert takes no more
};

// Products of E groups of consecutive rows, rows[e] of them in group e (possibly 0), each with a separate matrix: `all`
// is as in Gemm, but b (E, K, N), or (E, N, K) with transpose_b, is contiguous. With transpose_a a group is summed
// over: a (M, K'), b (M, N'), c (E, K', N'); c of an empty group is zero, or with `accumulate` unchanged. A bias
// is (E, N), contiguous, a row for each group. There is no packed_b.
struct GroupedGemm {
    Gemm all;
    std::span<const int64_t> rows;  // (E), of the host; their sum is the number of rows M
};

inline constexpr int64_t kStateBlock = 256;

// A value of each element that an update rule keeps, as f32; as bf16; or as u8, a code of a DynamicMap (base/) times
// the largest magnitude among the element's kStateBlock consecutive elements. A rule computes in f32 and uses the new
// value before it is rounded.
struct Moment {
    View values = {};   // (n) f32, bf16 or u8, updated
    View largest = {};  // u8: (ceil(n / kStateBlock)) f32, updated
    RandomKey key = 0;  // bf16: rounds stochastically (base/stochastic.h); 0: to nearest even
};

// The elements of a piece in the global tensor: a block of rows of `width`, `stride` apart, from element `first` on.
struct GlobalElements {
    int64_t first = 0, width = 1, stride = 1;
    int64_t at(int64_t i) const { return first + i / width * stride + i % width; }
};

// A parameter, or this rank's shard of one, as an optimizer updates it.
struct OptimizerPiece {
    View master;            // (n) f32, updated; or bf16, rounded stochastically with master_key: there is no other copy
    View gradient;          // (n) f32 or bf16
    View value = {};        // (n) bf16 or f16: rounded copy of master; undefined: master is what the model reads
    Moment m = {}, v = {};  // AdamW's moments, v without a sign; SGD, Lion and Muon have m alone, their momentum
    float weight_decay = 0;
    RandomKey master_key = 0;
    GlobalElements elements = {};  // read where something is rounded stochastically
    View update = {};              // (n) f32 or bf16: what Muon orthogonalises
    float update_scale = 1;
};

// m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  p -= lr (m / c1 / (sqrt(v / c2) + eps) + decay p), with
// g = grad_scale * gradient and c_i = 1 - b_i^step (Loshchilov and Hutter 2019; the order of PyTorch's AdamW).
// All pieces in one call: a GPU updates hundreds in one launch. A v > 0 in u8 never gets the code of 0, by which m
// would be divided in the next step.
struct AdamW {
    std::span<const OptimizerPiece> pieces;
    float lr = 0, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
    float correction1 = 1, correction2 = 1;  // c1, c2
    float grad_scale = 1;
};

// m = momentum m + (g + decay p);  p -= lr m.
struct Sgd {
    std::span<const OptimizerPiece> pieces;
    float lr = 0, momentum = 0, grad_scale = 1;
};

// u = sign(b1 m + (1 - b1) g);  p -= lr (u + decay p);  m = b2 m + (1 - b2) g (Chen et al. 2023, algorithm 2).
struct Lion {
    std::span<const OptimizerPiece> pieces;
    float lr = 0, beta1 = 0.9f, beta2 = 0.99f, grad_scale = 1;
};

// The two halves of Muon's step, with the orthogonalisation of whole matrices between them (optim/muon.cpp).
// m = momentum m + g;  update = g + momentum m. Masters and values are undefined.
struct MuonMomentum {
    std::span<const OptimizerPiece> pieces;
    float momentum = 0.95f, grad_scale = 1;
};
// p -= lr (update_scale update + decay p). Gradients and moments are undefined.
struct MuonDescent {
    std::span<const OptimizerPiece> pieces;
    float lr = 0;
};

inline constexpr int64_t kSumBlock = 256;

struct KernelTable {
    const char* name = "";
    // The implementations of its matrix products: "own, oneDNN 2.6.3", "own". Opens their library, and throws
    // UsageError if it is missing; nothing else needs the library before the first product.
    const char* (*gemm_implementations)() = nullptr;

    // Elementwise. Contiguous views of equal size unless said otherwise.
    void (*fill)(const Stream&, View y, float value) = nullptr;
    void (*normal)(const Stream&, const Normal&) = nullptr;
    void (*cast)(const Stream&, View x, View y) = nullptr;  // any two of f32, bf16, f16; equal types copy
    void (*copy)(const Stream&, View x, View y) = nullptr;  // of one type and shape; any strides, unit inner stride
    void (*add)(const Stream&, View a, View b, View y) = nullptr;  // y may be a or b
    void (*accumulate)(const Stream&, View x, View y) = nullptr;   // y += x; y f32 or x's type
    void (*scale)(const Stream&, View x, float factor) = nullptr;  // in place
    // largest (1) i32 = max(largest, the bits of max |x| as f32). Bits of magnitudes are ordered like magnitudes, with
    // infinity above all numbers and NaN above infinity. x (R, C) A, unit inner stride.
    void (*amax)(const Stream&, View x, View largest) = nullptr;
    void (*quantize)(const Stream&, const Quantize&) = nullptr;
    void (*amax_of_run)(const Stream&, const QuantizeRun&) = nullptr;   // amaxes = max(amaxes, those of x)
    void (*quantize_run)(const Stream&, const QuantizeRun&) = nullptr;  // codes = x times the factors of amaxes
    void (*dequantize)(const Stream&, const Dequantize&) = nullptr;
    void (*relu_forward)(const Stream&, View x, View y) = nullptr;
    void (*relu_backward)(const Stream&, View dy, View y, View dx) = nullptr;  // dx = dy where y > 0
    // gelu(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), GPT-2's
    void (*gelu_forward)(const Stream&, View x, View y) = nullptr;             // y may be x
    void (*gelu_backward)(const Stream&, View dy, View x, View dx) = nullptr;  // dx may be dy
    // y = the unit g of gate and up; y may be up, dgate may be dy; all may be some columns of wider matrices
    void (*swiglu_forward)(const Stream&, Gate g, View gate, View up, View y) = nullptr;
    void (*swiglu_backward)(const Stream&, Gate g, View dy, View gate, View up, View dgate, View dup) = nullptr;
    void (*soft_cap)(const Stream&, View x, float cap) = nullptr;  // x = cap tanh(x / cap), in place; cap > 0
    void (*dropout)(const Stream&, View x, const Dropout&, View y) = nullptr;  // forward and backward alike

    // sums[b] = sum of the squares of block b, kSumBlock values of x f32 (n); sums (ceil(n / kSumBlock)) f64. exact_sum
    // adds them, so that the total does not depend on the distribution of blocks over ranks.
    void (*sums_of_squares)(const Stream&, View x, View sums) = nullptr;
    // words (68) i64, those of an ExactSum (base/exact_sum.h), += the sum of values f32 or f64 (n), n at most 2^30.
    // Integers: every table and every order gives the same words.
    void (*exact_sum)(const Stream&, View values, View words) = nullptr;

    // The matrix product; the size of its `workspace` in f32 values; and the implementation that computes it ("own",
    // "oneDNN"), which depends on shape, layout, types and threads only.
    void (*gemm)(const Stream&, const Gemm&) = nullptr;
    int64_t (*gemm_workspace)(const Stream&, const Gemm&) = nullptr;
    int64_t (*gemm_packed_b)(const Stream&, const Gemm&) = nullptr;  // 0: this product has no packed b
    // Whether gemm() multiplies these codes. Null: it multiplies none, and codes are dequantized before a product.
    bool (*gemm_of_codes)(const Stream&, const Gemm&) = nullptr;
    // How these products read the divisors of a matrix that a recipe stores as `divisors`, in groups of the matrix as
    // it is stored. Null: as rows of that type.
    ScaleForm (*scale_form)(const Stream&, DType divisors, const GroupShape&) = nullptr;
    bool packing_counts = false;  // products in bf16 are fast enough that packing b is a large part of their time
    bool gemm_by_rows = false;    // Gemm::whole_rows is supported
    // q, k and v of one input are projected side by side, and so are gate and up: by one product where their weights
    // are adjacent in memory (ops/fused_linear.h). Decision 32 says where this is faster.
    bool fused_projections = false;
    bool norm_gradients_at_once = false;  // norm_backward_input computes dw and db while it reads x and dy for dx
    bool own_value_width = false;         // attention takes values that are narrower than queries and keys
    const char* (*gemm_implementation)(const Stream&, const Gemm&) = nullptr;
    // Products that far slower kernels than the library's have computed so far, since it has none for them, each a
    // sentence. Null: there is one kernel.
    std::vector<std::string> (*slow_work)() = nullptr;
    // A tuning without products, of the current GPU and this table's library. Null: this table cannot be tuned.
    GemmTuning (*gemm_tuning)() = nullptr;
    int64_t loss_chunk_bytes = 128 << 20;  // size of the chunk of logits that exists at a time: ops::loss_chunk_rows
    // db (C) f32 += sum over rows of dy (N, C) A.
    void (*bias_backward)(const Stream&, View dy, View db) = nullptr;

    // y (N, C) = weight[tokens[n] - first_row]; dweight (V, C) f32 += dy, rows added in the order of n. The matrix
    // holds rows [first_row, first_row + V) of the whole table. A token outside these rows gives zeros in y and adds
    // nothing to dweight.
    void (*embedding_forward)(const Stream&, View tokens, View weight, int64_t first_row, View y) = nullptr;
    void (*embedding_backward)(const Stream&, View tokens, View dy, int64_t first_row, View dweight) = nullptr;

    void (*norm_forward)(const Stream&, const NormForward&) = nullptr;
    void (*norm_backward_input)(const Stream&, const NormBackward&) = nullptr;
    // dw f32, as long as w, += sum over rows of dy (x - mean) rstd; db (C) f32 += sum over rows of dy. RMS norm: no
    // mean, no db.
    void (*norm_backward_weight)(const Stream&, View dy, View x, View mean, View rstd, View dw, View db) = nullptr;

    void (*short_convolution_forward)(const Stream&, const ShortConvolution&, View z) = nullptr;  // z: strided like dz
    void (*short_convolution_backward_input)(const Stream&, const ShortConvolution&,
                                             const ShortConvolutionBackward&) = nullptr;
    // dbefore (B, K - 1, C) f32, contiguous = what these tokens add to du of the ones in `before`.
    void (*short_convolution_backward_before)(const Stream&, const ShortConvolution&, View dz, View dbefore) = nullptr;
    // dw (C, K) f32 += sum over tokens of dv[t, c] u[t - (K - 1) + j, c]; dbias (C) f32 += sum over tokens of dv. Only
    // the shape of w is read.
    void (*short_convolution_backward_weight)(const Stream&, const ShortConvolution&, View dz, View dw,
                                              View dbias) = nullptr;
    // state (B, K - 1, C) f32 = u of the last K - 1 of all tokens so far: those of `before` (like state; undefined: 0),
    // then b x (B, S, C) A, of one set of strides, S <= K - 1; b undefined: x. `before` may not be state.
    void (*short_convolution_state)(const Stream&, View b, View x, View before, View state) = nullptr;

    // g and dt (N, H) f32; dt undefined: not written. In the backward: no gradient of its own.
    void (*decay_forward)(const Stream&, const Decay&, View g, View dt) = nullptr;
    // dx (N, H) A = (ddt - dg e^a_log) sigmoid(x + dt_bias), 0 where dt is cut.
    void (*decay_backward_input)(const Stream&, const Decay&, View dg, View ddt, View dx) = nullptr;
    // da_log (H) f32 += sum over rows of dg g;  ddt_bias (H) f32 += sum over rows of dx.
    void (*decay_backward_weight)(const Stream&, const Decay&, View dg, View ddt, View da_log, View ddt_bias) = nullptr;
    // o (B, T, Hv, Dv) A, contiguous; after: S after the last token, like before; undefined: not written.
    void (*delta_rule_forward)(const Stream&, const DeltaRule&, View o, View after) = nullptr;
    void (*delta_rule_backward)(const Stream&, const DeltaRule&, const DeltaRuleBackward&) = nullptr;
    // dskip (Hv) f32 += sum over tokens and channels of dout v. value: strided as there.
    void (*delta_rule_backward_skip)(const Stream&, View dout, View value, View dskip) = nullptr;
    // Size of the `workspace`, in f32 values, for keys and values of these shapes.
    int64_t (*delta_rule_workspace)(const Stream&, const Shape& key, const Shape& value, bool corrects,
                                    bool backward) = nullptr;

    // Rotates the first n <= D channels of each head by the angle of its position, in place; inverse for backward. The
    // pairs are (k, k + n/2) ("rotate half"), or, `adjacent`, (2k, 2k + 1). x (N, H, D) A; positions (N) i32; cosines,
    // sines (P, n/2) f32.
    void (*rope)(const Stream&, View x, View positions, View cosines, View sines, bool inverse,
                 bool adjacent) = nullptr;

    // y[n] = sum over h of x[n, h], in f32, rounded once. x (N, H, D) A or f32, any strides with unit inner stride; y
    // (N, D) of x's type, contiguous.
    void (*sum_heads)(const Stream&, View x, View y) = nullptr;

    // cosines[p, k] = amplitude cos(p f_k), sines likewise: angle, cosine and sine in f64, rounded once. frequencies
    // (D/2) f64; cosines, sines (P, D/2) f32, unit inner stride.
    void (*rope_table)(const Stream&, View frequencies, double amplitude, View cosines, View sines) = nullptr;

    // The kernels of attention on this machine, fastest first ("hopper, tensor, plain"), and the one that computes a
    // request, which depends on shape, strides and types only.
    const char* (*attention_implementations)() = nullptr;
    const char* (*attention_implementation)(const Stream&, const AttentionForward&) = nullptr;
    // Size of the `workspace` of attention forward or backward, in f32 values.
    int64_t (*attention_workspace)(const Stream&, const Shape& q, const Shape& k, bool backward) = nullptr;
    void (*attention_forward)(const Stream&, const AttentionForward&) = nullptr;
    void (*attention_backward)(const Stream&, const AttentionBackward&) = nullptr;
    // o (B, T, H, D) and lse (B, H, T), of some keys, become those of these keys together with the keys of the part,
    // all f32: L = ln(e^lse + e^lse_part);  o = e^(lse - L) o + e^(lse_part - L) o_part;  lse = L. Rows with lse_part =
    // -inf, which see no key of the part, stay as they are.
    void (*attention_merge)(const Stream&, View o, View lse, View o_part, View lse_part) = nullptr;
    // Attention sinks (Xiao et al. 2023; gpt-oss): the softmax of head h has one more term, exp(sinks[h]), without a
    // value. o (B, T, H, D) A and lse (B, H, T) f32, of all keys, become those with this term: L = ln(e^lse + e^sink);
    // o = e^(lse - L) o, rounded once more;  lse = L. sinks (H) A. A row that sees no key gets L = sink. The backward
    // of attention takes this o and lse.
    void (*attention_sinks)(const Stream&, View o, View lse, View sinks) = nullptr;
    // dsinks[h] (H) f32 -= sum over b, t of e^(sinks[h] - lse[b, h, t]) dy[b, t, h] . o[b, t, h], with o and lse as
    // attention_sinks() leaves them; dy like o.
    void (*attention_sinks_backward)(const Stream&, View dy, View o, View lse, View sinks, View dsinks) = nullptr;

    void (*cross_entropy)(const Stream&, const CrossEntropy&) = nullptr;
    void (*cross_entropy_partial)(const Stream&, const CrossEntropy&) = nullptr;  // neither losses nor gradient
    void (*cross_entropy_finish)(const Stream&, const CrossEntropy&) = nullptr;
    // losses[n] = sum_c (x[n, c] - target[n, c])^2; dx = grad_scale * 2 (x - target) when dx is defined.
    void (*squared_error)(const Stream&, View x, View target, float grad_scale, View losses, View dx) = nullptr;

    void (*sample)(const Stream&, const Sample&) = nullptr;

    // Mixture of experts.
    void (*route)(const Stream&, const Routing&) = nullptr;
    void (*route_backward)(const Stream&, const RoutingBackward&) = nullptr;
    // y (M, C) = x[rows[m]], zeros where rows[m] is negative; rows (M) i32.
    void (*gather_rows)(const Stream&, View x, View rows, View y) = nullptr;
    // y (N, C) = sum_j weights[n, j] x[rows[n, j]] in f32, in the order of j, rounded once; a negative row adds
    // nothing. rows (N, k) i32; weights (N, k) f32, undefined: 1.
    void (*combine_rows)(const Stream&, View x, View rows, View weights, View y) = nullptr;
    // dx[rows[n, j]] = weights[n, j] dy[n], rounded once; dweights[n, j] = dy[n] . x[rows[n, j]], 0 where the row is
    // negative. No row occurs twice in `rows`; rows of dx (M, C) that do not occur become zero. weights undefined: 1;
    // dweights undefined: not computed, and x is not read.
    void (*combine_rows_backward)(const Stream&, View dy, View x, View rows, View weights, View dx,
                                  View dweights) = nullptr;
    void (*sort_choices)(const Stream&, const SortChoices&) = nullptr;
    void (*accept_choices)(const Stream&, const AcceptChoices&) = nullptr;
    // Rows that arrive by rank, and of a rank by expert, in the order of experts, and of an expert by rank. counts (P,
    // L) f32: rows from each rank for each expert, R in all. The rows of each expert are padded to a multiple of
    // `multiple`, together S <= kMostChoices. order (S) i32: the index of arrival of each row, -1: padding; places (R)
    // i32: its inverse. All are contiguous.
    void (*order_arrivals)(const Stream&, View counts, int64_t multiple, View order, View places) = nullptr;
    void (*grouped_gemm)(const Stream&, const GroupedGemm&) = nullptr;
    int64_t (*grouped_gemm_workspace)(const Stream&, const GroupedGemm&) = nullptr;  // f32 values, as all.workspace
    // bias += rate sign(mean - counts); bias, counts (n) f32.
    void (*balance)(const Stream&, View bias, View counts, float mean, float rate) = nullptr;

    void (*adamw)(const Stream&, const AdamW&) = nullptr;
    void (*sgd)(const Stream&, const Sgd&) = nullptr;
    void (*lion)(const Stream&, const Lion&) = nullptr;
    void (*muon_momentum)(const Stream&, const MuonMomentum&) = nullptr;
    void (*muon_descent)(const Stream&, const MuonDescent&) = nullptr;
};

// Plain loops in double precision on the CPU; the tests compare every other table with it.
const KernelTable& reference_table();

// Instruction sets with a CPU table, best last: AVX2 with FMA; AVX-512 with BW, DQ and VL (Skylake to Ice
// Lake); the same with BF16 (Cooper Lake, Zen 4); the same with AMX tiles (Sapphire Rapids).
enum class Isa : uint8_t { avx2, avx512, avx512_bf16, amx };
const char* name_of(Isa isa);
Isa best_isa();  // of this machine; throws UsageError on a CPU without AVX2 and FMA
// The instruction set in use: the best, or the one that TUTTI_CPU_ISA names, so that different machines run the same
// kernels. oneDNN is restricted to this set too, but chooses its blocks by the caches. Throws UsageError if this
// machine lacks it.
Isa chosen_isa();
// The table of any instruction set. Its sizes (gemm_workspace, gemm_packed_b, gemm_implementation, attention_workspace)
// may be computed on every machine, its kernels called only where the machine has the instruction set.
const KernelTable& cpu_table(Isa isa);
const char* gemm_implementations();  // of the CPU tables
// The table for the memory of `device`: the best of its back end (backends.h). Throws UsageError for a type that the
// back end lacks, and if the library of the products is missing.
const KernelTable& table_for(const Device& device, ComputeType compute_type);

}  // namespace tutti::kernels
