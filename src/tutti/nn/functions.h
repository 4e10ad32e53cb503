// nn/functions.h: differentiable functions: each computes a value with ops/ and records its gradient on the tape. The
// functions of tensor-parallel layers (Parameter::tensor_parallel) communicate; their results are those of one rank.
#pragma once

#include "tutti/autograd/tape.h"
#include "tutti/nn/batch.h"
#include "tutti/ops/ops.h"

namespace tutti::nn {

using autograd::Parameter;
using autograd::Tape;
using autograd::Var;

Var add(Tape& tape, const Var& a, const Var& b);
Var relu(Tape& tape, const Var& x);
Var gelu(Tape& tape, const Var& x);
Var swiglu(Tape& tape, const Var& gate, const Var& up, ops::Gate g = ops::Gate::silu);  // the unit g
Var scale(Tape& tape, const Var& x, double factor);                                     // factor x; x itself for 1
Var reshape(Tape& tape, const Var& x, const Shape& shape);
Var channels(Tape& tape, const Var& x, int64_t first, int64_t count);  // those of x (B, T, C)
Var join_channels(Tape& tape, const Var& a, const Var& b);             // of both side by side
// The first of several results, whose gradient all of them get: losses that have their gradients already.
Var first_of(Tape& tape, const std::vector<Var>& results);
Var split_heads(Tape& tape, const Var& x, int64_t head_dim);  // (B, T, H D) to (B, T, H, D)
Var join_heads(Tape& tape, const Var& x);                     // and back
// x (B, T, C). The mask is a function of batch.seed, batch.step, the global index of the element and `place`, a name of
// the place in the model ("h.3.mlp"). Returns x when the tape does not train.
Var dropout(Tape& tape, const Var& x, double probability, const Batch& batch, const std::string& place);

// The parameters of y = x w^T + b, weight (N, K), or of a norm, weight (C). Bias null: none.
struct Affine {
    Parameter& weight;
    Parameter* bias;
};
// The layers below multiply as the rules of their weights say (nn/product_rule.h). x (..., K)
Var linear(Tape& tape, const Var& x, Affine layer);
// Several layers of one input, which is gathered once; tensor-parallel ones must have column or key_value role.
std::vector<Var> projections(Tape& tape, const Var& x, std::initializer_list<Affine> layers);
// The same with outputs side by side, (..., sum of N): one product where the weights are adjacent in memory
// (ops/fused_linear.h). Error unless one rule has all layers (fuses()).
Var fused_projections(Tape& tape, const Var& x, const std::vector<Affine>& layers);
// out(gelu(in(x))) and down(unit g of gate(x) and up(x)), with the activation function and its gradient in the
// epilogues of the products before and after it where the table has these and no rule adds a term between; gate and up
// as fused_projections() where it fuses them.
Var gelu_mlp(Tape& tape, const Var& x, Affine in, Affine out);
Var swiglu_mlp(Tape& tape, const Var& x, Affine gate, Affine up, Affine down, ops::Gate g = ops::Gate::silu);
// linear() of an x that has entered the region of tensor parallelism already (nn/overlapped.h); not for Role::row.
Var linear_in_region(Tape& tape, const Var& x, Affine layer);
Var embedding(Tape& tape, const Tensor& tokens, Parameter& weight);
// Layer norm; without a bias RMS norm, whose x may be (..., G, C) and weight (G C): each group has weights of its own.
// `offset` is added to the weight (kernels::NormForward).
Var norm(Tape& tape, const Var& x, Affine layer, double eps, float offset = 0);
// RMS norm of all heads of a token together, x (B, T, H D), weight (H D). Where tensor parallelism divides the heads, T
// must be a multiple of its ranks, unless the tape does not record: each rank normalises some of the tokens with all of
// their heads (nn/collectives.h).
Var norm_over_heads(Tape& tape, const Var& x, Affine layer, double eps, int64_t head_dim, float offset = 0);
// RMS norm of groups of heads, each of `width` channels, x (B, T, H D) and weight (H D) of Role::head_group. Where a
// group has the heads of several ranks, as norm_over_heads().
Var norm_over_groups(Tape& tape, const Var& x, Affine layer, double eps, int64_t head_dim, int64_t width);
// sum = x + residual and norm(sum), in one pass over memory. Two nodes, since both results are used.
struct SumAndNorm {
    Var sum, norm;
};
SumAndNorm add_norm(Tape& tape, const Var& x, const Var& residual, Affine layer, double eps, float offset = 0);

// x (B, T, H, D), of which the first `heads` heads are rotated, in place; 0: all. The table's channels begin at channel
// `first` of a head.
Var rope(Tape& tape, const Var& x, const Tensor& positions, const ops::RopeTable& table, int64_t heads = 0,
         int64_t first = 0);
// Causal self-attention; q (B, T, H, D), k and v (B, T, Hkv, D); returns (B, T, H, D). With batch.caches, k and v are
// appended to layer `layer` of the caches and the queries see all keys in them. batch.first_key restricts a query to
// its document.
struct AttentionOptions {
    int64_t window = 0;  // a query sees the newest keys up to its own; 0: all
    ops::Scores scores = {};
    Parameter* sinks = nullptr;  // (H), a score of each head without a key; null: none
};
Var attention(Tape& tape, const Var& q, const Var& k, const Var& v, const Batch& batch, int64_t layer,
              const AttentionOptions& options = {});
// The same on qkv (B, T, H + 2 kv_heads, D), in which q, k, v lie side by side; returns (B, T, H, D).
Var packed_heads_attention(Tape& tape, const Var& qkv, int64_t kv_heads, const Batch& batch, int64_t layer,
                           const AttentionOptions& options = {});
// The same on qkv (B, T, 3 H D); returns (B, T, H D).
Var packed_attention(Tape& tape, const Var& qkv, int64_t head_dim, const Batch& batch, int64_t layer);

// The gated short convolution of LFM2. p (B, T, 3 C), b | c | x of each token side by side; taps: weight (C, 1, K),
// bias (C) or none; returns c conv(b x), (B, T, C). Without gates p (B, T, C), and returns conv(p). A token sees
// nothing of another document: batch.positions say where its document begins. With batch.context the ranks exchange the
// states between their runs of tokens (K - 1 tokens each, f32), in both directions; UsageError when a run has fewer
// than K - 1 tokens. With caches, the state in their place, a layer and one of its convolutions, is read, and replaced
// by the state after the tokens.
struct ConvolutionPlace {
    int64_t layer = 0;
    bool gates = true;
    size_t index = 0;
};
Var short_convolution(Tape& tape, const Var& p, Affine taps, const Batch& batch, const ConvolutionPlace& place);

// The cross-entropy of each row (N) f32, or the logits (B, V) of the last position when the batch has no targets. The
// forward also computes the gradients of batch.grad_scale * sum(losses), chunk by chunk, so the logits of all rows are
// never saved. A logit z is cap tanh(z / cap) where there is a cap. `more`: another loss of this pass uses the weight.
Var head_loss(Tape& tape, const Var& x, Parameter& weight, int64_t vocab, const Batch& batch, double cap = 0,
              bool more = false);
Var squared_error(Tape& tape, const Var& x, const Batch& batch);

}  // namespace tutti::nn
