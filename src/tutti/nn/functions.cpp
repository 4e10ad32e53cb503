#include "tutti/nn/functions.h"

#include <algorithm>
#include <utility>

#include "tutti/base/ceil_div.h"
#include "tutti/base/to_size.h"
#include "tutti/nn/collectives.h"
#include "tutti/nn/context_attention.h"
#include "tutti/nn/overlapped.h"
#include "tutti/nn/product_rule.h"
#include "tutti/nn/recording.h"

namespace tutti::nn {

namespace {

using autograd::Role;
using Tensors = std::vector<Tensor>;

Var record_add(Tape& tape, const Var& a, const Var& b, const Tensor& sum) {
    return tape.record("add", {a, b}, sum, [](const Tensor& dy, Tensors&) { return Tensors{dy, dy}; });
}

}  // namespace

Var add(Tape& tape, const Var& a, const Var& b) {
    return record_add(tape, a, b, ops::add(tape.context(), a.value, b.value));
}

Var relu(Tape& tape, const Var& x) {
    ops::Context& ctx = tape.context();
    const Tensor y = ops::relu(ctx, x.value);
    return tape.record("relu", {x}, y,
                       [&ctx, y](const Tensor& dy, Tensors&) { return Tensors{ops::relu_backward(ctx, dy, y)}; });
}

Var gelu(Tape& tape, const Var& x) {
    ops::Context& ctx = tape.context();
    const Var y = tape.record("gelu", {x}, ops::gelu(ctx, x.value), [&ctx, x = x.value](const Tensor& dy, Tensors&) {
        return Tensors{ops::gelu_backward(ctx, dy, x)};
    });
    return recomputable(tape, y, [&ctx, x = x.value] { return ops::gelu(ctx, x); });
}

Var swiglu(Tape& tape, const Var& gate, const Var& up, ops::Gate f) {
    ops::Context& ctx = tape.context();
    const auto value = [&ctx, f, g = gate.value, u = up.value] { return ops::swiglu(ctx, f, g, u); };
    const Var y =
        tape.record("swiglu", {gate, up}, value(), [&ctx, f, g = gate.value, u = up.value](const Tensor& dy, Tensors&) {
            ops::GateAndUp d = ops::swiglu_backward(ctx, f, dy, g, u);
            return Tensors{std::move(d.gate), std::move(d.up)};
        });
    return recomputable(tape, y, value);
}

Var scale(Tape& tape, const Var& x, double factor) {
    if (factor == 1) return x;
    const auto scaled = [&ctx = tape.context(), f = static_cast<float>(factor)](const Tensor& from) {
        const Tensor to = ops::cast(ctx, from, from.dtype());
        ops::scale(ctx, to, f);
        return to;
    };
    return tape.record("scale", {x}, scaled(x.value),
                       [scaled](const Tensor& dy, Tensors&) { return Tensors{scaled(dy)}; });
}

Var reshape(Tape& tape, const Var& x, const Shape& shape) {
    return tape.record("reshape", {x}, x.value.reshape(shape),
                       [before = x.value.shape()](const Tensor& dy, Tensors&) { return Tensors{dy.reshape(before)}; });
}

Var channels(Tape& tape, const Var& x, int64_t first, int64_t count) {
    ops::Context& ctx = tape.context();
    return tape.record("channels", {x}, ops::contiguous(ctx, x.value.narrow(2, first, count)),
                       [&ctx, first, count, shape = x.value.shape()](const Tensor& dy, Tensors&) {
                           const Tensor dx = ops::zeros(ctx, shape, dy.dtype());
                           ops::copy(ctx, dy, dx.narrow(2, first, count));
                           return Tensors{dx};
                       });
}

Var join_channels(Tape& tape, const Var& a, const Var& b) {
    ops::Context& ctx = tape.context();
    const int64_t first = a.value.dim(2), second = b.value.dim(2);
    const Tensor y = ops::empty(ctx, {a.value.dim(0), a.value.dim(1), first + second}, a.value.dtype());
    ops::copy(ctx, a.value, y.narrow(2, 0, first));
    ops::copy(ctx, b.value, y.narrow(2, first, second));
    return tape.record("join_channels", {a, b}, y, [&ctx, first, second](const Tensor& dy, Tensors&) {
        return Tensors{ops::contiguous(ctx, dy.narrow(2, 0, first)), ops::contiguous(ctx, dy.narrow(2, first, second))};
    });
}

Var first_of(Tape& tape, const std::vector<Var>& results) {
    return tape.record("first_of", results, results.front().value,
                       [count = results.size()](const Tensor& dy, Tensors&) { return Tensors(count, dy); });
}

Var split_heads(Tape& tape, const Var& x, int64_t head_dim) {
    const Tensor& v = x.value;
    return reshape(tape, x, {v.dim(0), v.dim(1), v.dim(2) / head_dim, head_dim});
}

Var join_heads(Tape& tape, const Var& x) {
    const Tensor& v = x.value;
    return reshape(tape, x, {v.dim(0), v.dim(1), v.dim(2) * v.dim(3)});
}

Var dropout(Tape& tape, const Var& x, double probability, const Batch& batch, const std::string& place) {
    if (probability == 0 || !tape.training()) return x;
    ops::Context& ctx = tape.context();
    const int64_t columns = x.value.dim(-1);
    const kernels::Dropout mask{.key = random_key(batch.seed, "dropout." + place, batch.step),
                                .probability = static_cast<float>(probability),
                                .row_index = batch.row_index,
                                .column_offset = 0,
                                .columns_total = columns};
    return tape.record("dropout", {x}, ops::dropout(ctx, x.value, mask),
                       [&ctx, mask, rows = batch.row_index](const Tensor& dy, Tensors&) {
                           return Tensors{ops::dropout(ctx, dy, mask)};  // `rows` keeps the view in `mask` alive
                       });
}

namespace {

// The first word in this rank's part of the vocabulary; all parts have the same number of words.
int64_t first_word(const Parameter& weight) {
    const auto* ranks = weight.tensor_parallel.ranks;
    return ranks && weight.role == Role::vocabulary ? ranks->rank() * weight.value.dim(0) : 0;
}

}  // namespace

Var embedding(Tape& tape, const Tensor& all, Parameter& weight) {
    ops::Context& ctx = tape.context();
    const autograd::TensorParallel& layer = weight.tensor_parallel;
    const bool some_rows = layer.ranks && layer.sequence && weight.role == Role::position;
    const Tensor tokens = some_rows ? rows_of(all, layer.ranks->rank(), layer.ranks->size()) : all;
    const int64_t first_row = first_word(weight);
    Var y = tape.record("embedding", {}, ops::embedding(ctx, tokens, weight.value, first_row), {},
                        [&ctx, &weight, tokens, first_row](const Tensor& dy) {
                            ops::embedding_backward(ctx, tokens, dy, gradient_to_add_to(ctx, weight), first_row);
                        },
                        {&weight});
    return exit_tp_region(tape, std::move(y), weight);
}

namespace {

// Records the node of y = norm(x), where y is already computed.
Var record_norm(Tape& tape, const Var& x, const ops::Norm& r, Affine layer, double eps, float offset) {
    ops::Context& ctx = tape.context();
    const auto gradient_of = [&ctx](Parameter* p) { return p ? gradient_to_add_to(ctx, *p) : Tensor(); };
    const auto input_gradient = [&ctx, &weight = layer.weight, offset, x = x.value, mean = r.mean, rstd = r.rstd](
                                    const Tensor& dy, Tensors& sums, const Tensor& dw = {}, const Tensor& db = {}) {
        return Tensors{
            ops::norm_backward_input(ctx, dy, x, weight.value, mean, rstd, std::move(sums[0]), offset, dw, db)};
    };
    const auto both_gradients = [layer, gradient_of, input_gradient](const Tensor& dy, Tensors& sums) {
        return input_gradient(dy, sums, gradient_of(&layer.weight), gradient_of(layer.bias));
    };
    const Var y = tape.record(
        "norm", {x}, r.y, [input_gradient](const Tensor& dy, Tensors& sums) { return input_gradient(dy, sums); },
        [&ctx, layer, gradient_of, x = x.value, mean = r.mean, rstd = r.rstd](const Tensor& dy) {
            ops::norm_backward_weight(ctx, dy, x, mean, rstd, gradient_of(&layer.weight), gradient_of(layer.bias));
        },
        parameters_of(layer),
        ctx.kernels.norm_gradients_at_once ? autograd::InputGradient(both_gradients) : autograd::InputGradient());
    if (!tape.selective() || !tape.copies_weights())
        return recomputable(tape, y, [&ctx, layer, eps, offset, x = x.value] {
            return ops::norm(ctx, x, layer.weight.value, value_of(layer.bias), eps, {}, offset).y;
        });
    const auto copy = [&ctx](const Parameter* p) { return p ? ops::cast(ctx, p->value, p->value.dtype()) : Tensor(); };
    return recomputable(tape, y,
                        [&ctx, weight = copy(&layer.weight), bias = copy(layer.bias), eps, offset, x = x.value] {
                            return ops::norm(ctx, x, weight, bias.defined() ? &bias : nullptr, eps, {}, offset).y;
                        });
}

}  // namespace

Var norm(Tape& tape, const Var& x, Affine layer, double eps, float offset) {
    const auto r = ops::norm(tape.context(), x.value, layer.weight.value, value_of(layer.bias), eps, {}, offset);
    return record_norm(tape, x, r, layer, eps, offset);
}

SumAndNorm add_norm(Tape& tape, const Var& x, const Var& residual, Affine layer, double eps, float offset) {
    const auto r =
        ops::norm(tape.context(), x.value, layer.weight.value, value_of(layer.bias), eps, residual.value, offset);
    const Var sum = record_add(tape, x, residual, r.sum);
    return {sum, record_norm(tape, sum, r, layer, eps, offset)};
}

namespace {

// x (B, T, H, D) with rows of zeros after the last token, (B, tokens, H, D).
Tensor padded(ops::Context& ctx, const Tensor& x, int64_t tokens) {
    const Tensor y = ops::zeros(ctx, {x.dim(0), tokens, x.dim(2), x.dim(3)}, x.dtype());
    ops::copy(ctx, x, y.narrow(1, 0, x.dim(1)));
    return y;
}

// `normed` of x (B, T, H D) with the heads of all ranks, on a part of the tokens.
template <class Normed>
Var with_all_heads(Tape& tape, const Var& x, comm::Communicator& ranks, int64_t head_dim, const Normed& normed_of) {
    ops::Context& ctx = tape.context();
    const int64_t T = x.value.dim(1), P = ranks.size(), tokens = round_up(T, P);
    check<UsageError>(tokens == T || !tape.recording(), "a norm over all heads: ", T,
                      " tokens of a sequence on a rank must be a multiple of tp = ", P);
    Var heads = split_heads(tape, x, head_dim);
    if (tokens > T) heads = {padded(ctx, heads.value, tokens), -1};
    const Var some = all_to_all_hp2sp(tape, heads, ranks);
    const Var normed = split_heads(tape, normed_of(join_heads(tape, some)), head_dim);
    const Var y = all_to_all_sp2hp(tape, normed, ranks, {normed.value.dim(2)});
    if (tokens > T) return join_heads(tape, {ops::contiguous(ctx, y.value.narrow(1, 0, T)), -1});
    return join_heads(tape, y);
}

}  // namespace

Var norm_over_heads(Tape& tape, const Var& x, Affine layer, double eps, int64_t head_dim, float offset) {
    comm::Communicator* ranks = layer.weight.tensor_parallel.ranks;
    if (!ranks) return norm(tape, x, layer, eps, offset);
    return with_all_heads(tape, x, *ranks, head_dim,
                          [&](const Var& all) { return norm(tape, all, layer, eps, offset); });
}

Var norm_over_groups(Tape& tape, const Var& x, Affine layer, double eps, int64_t head_dim, int64_t width) {
    const auto of_groups = [&](const Var& all) {
        return join_heads(tape, norm(tape, split_heads(tape, all, width), layer, eps));
    };
    comm::Communicator* ranks = layer.weight.tensor_parallel.ranks;
    const bool local = ranks == nullptr || layer.weight.value.dim(0) == x.value.dim(2);
    return local ? of_groups(x) : with_all_heads(tape, x, *ranks, head_dim, of_groups);
}

Var rope(Tape& tape, const Var& x, const Tensor& positions, const ops::RopeTable& table, int64_t heads, int64_t first) {
    ops::Context& ctx = tape.context();
    const auto rotate = [&ctx, positions, table, heads, first](const Tensor& all, bool inverse) {
        const Tensor some = heads > 0 ? all.narrow(2, 0, heads) : all;
        ops::rope(ctx, some.narrow(3, first, all.dim(3) - first), positions, table, inverse);
    };
    rotate(x.value, false);
    return tape.record("rope", {x}, x.value, [&ctx, rotate](const Tensor& dy, Tensors&) {
        const Tensor dx = dy.unique() ? dy : ops::cast(ctx, dy, dy.dtype());
        rotate(dx, true);
        return Tensors{dx};
    });
}

namespace {

// Appends x (1, T, Hkv, D) to one tensor of a cache and returns the cache's whole contents.
Tensor append(ops::Context& ctx, const KvCache& cache, Tensor& all, const Tensor& x) {
    const int64_t T = x.dim(1);
    check(cache.length + T <= cache.capacity, "the cache holds ", cache.capacity, " tokens; ", cache.length, " + ", T,
          " do not fit");
    if (!all.defined()) all = ops::empty(ctx, {1, cache.capacity, x.dim(2), x.dim(3)}, x.dtype());
    ops::copy(ctx, x, all.narrow(1, cache.length, T));
    return all.narrow(1, 0, cache.length + T);
}

// One sequence at a time: caches have different lengths, and a sequence sees its own keys only.
Tensor cached_attention(ops::Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, const Batch& batch,
                        int64_t layer, const AttentionOptions& options) {
    const auto B = static_cast<int64_t>(batch.caches.size());
    check(B == q.dim(0), "attention: ", B, " caches for ", q.dim(0), " sequences");
    check(!batch.first_key.defined(), "attention: a sequence with a cache is one document");
    const auto l = to_size(layer);
    const Tensor y = ops::empty(ctx, {B, q.dim(1), q.dim(2), v.dim(3)}, q.dtype());
    for (int64_t b = 0; b < B; ++b) {
        KvCache& cache = *batch.caches[to_size(b)];
        const Tensor keys = append(ctx, cache, cache.keys.at(l), k.narrow(0, b, 1));
        const Tensor values = append(ctx, cache, cache.values.at(l), v.narrow(0, b, 1));
        const kernels::AttentionMask mask{.query_offset = cache.length, .window = options.window};
        const auto of_sequence = ops::attention(ctx, q.narrow(0, b, 1), keys, values, mask, options.scores);
        if (options.sinks) ops::attention_sinks(ctx, of_sequence, options.sinks->value);
        ops::cast_into(ctx, of_sequence.y, y.narrow(0, b, 1));
    }
    return y;
}

// The part of a node of attention that makes the gradient of the sinks; nothing without sinks. The values of the sinks
// are copied, since a sharded parameter may be released before the node's backward.
struct SinksBackward {
    autograd::WeightGradient gradient;
    std::vector<Parameter*> parameters;
};
SinksBackward sinks_backward(Tape& tape, const ops::Attention& r, const Batch& batch, const AttentionOptions& options) {
    if (options.sinks == nullptr || !tape.recording()) return {};
    ops::Context& ctx = tape.context();
    Parameter& sinks = *options.sinks;
    const Tensor values = ops::cast(ctx, sinks.value, sinks.value.dtype());
    return {[&ctx, &sinks, values, r, batch](const Tensor& dy) {
                const int64_t heads = r.y.dim(2);
                ops::attention_sinks_backward(ctx, ops::contiguous(ctx, dy), r, sinks_of(values, batch, heads),
                                              sinks_of(gradient_to_add_to(ctx, sinks), batch, heads));
            },
            {&sinks}};
}

Var attention_of_heads(Tape& tape, const Var& q, const Var& k, const Var& v, const Batch& batch,
                       const AttentionOptions& options) {
    ops::Context& ctx = tape.context();
    const ops::Attention r = attend(ctx, q.value, k.value, v.value, batch, options);
    const SinksBackward sinks = sinks_backward(tape, r, batch, options);
    return tape.record(
        "attention", {q, k, v}, r.y,
        [&ctx, q = q.value, k = k.value, v = v.value, r, batch, options](const Tensor& dy, Tensors&) {
            Tensors d;
            for (const Tensor* x : {&q, &k, &v}) d.push_back(ops::empty(ctx, x->shape(), x->dtype()));
            attend_backward(ctx, dy, q, k, v, r, batch, options, d[0], d[1], d[2]);
            return d;
        },
        sinks.gradient, sinks.parameters);
}

// q, k and v of qkv (B, T, H + 2 kv_heads, D)
struct Sections {
    Tensor q, k, v;
};
Sections sections_of(const Tensor& qkv, int64_t kv_heads) {
    const int64_t H = qkv.dim(2) - 2 * kv_heads;
    return {qkv.narrow(2, 0, H), qkv.narrow(2, H, kv_heads), qkv.narrow(2, H + kv_heads, kv_heads)};
}

Var attention_of_packed_heads(Tape& tape, const Var& qkv, int64_t kv_heads, const Batch& batch,
                              const AttentionOptions& options) {
    ops::Context& ctx = tape.context();
    const Sections x = sections_of(qkv.value, kv_heads);
    const ops::Attention r = attend(ctx, x.q, x.k, x.v, batch, options);
    const SinksBackward sinks = sinks_backward(tape, r, batch, options);
    return tape.record(
        "packed_attention", {qkv}, r.y,
        [&ctx, x, r, kv_heads, batch, options, shape = qkv.value.shape()](const Tensor& dy, Tensors&) {
            const Tensor dqkv = ops::empty(ctx, shape, x.q.dtype());
            const Sections d = sections_of(dqkv, kv_heads);
            attend_backward(ctx, dy, x.q, x.k, x.v, r, batch, options, d.q, d.k, d.v);
            return Tensors{dqkv};
        },
        sinks.gradient, sinks.parameters);
}

}  // namespace

Var attention(Tape& tape, const Var& q, const Var& k, const Var& v, const Batch& batch, int64_t layer,
              const AttentionOptions& options) {
    if (!batch.caches.empty())
        return {cached_attention(tape.context(), q.value, k.value, v.value, batch, layer, options), -1};
    if (!batch.context.ulysses) return attention_of_heads(tape, q, k, v, batch, options);
    const auto heads = [&](const Var& x) {
        return all_to_all_sp2hp(tape, x, *batch.context.ulysses, {x.value.dim(2)});
    };
    return all_to_all_hp2sp(tape, attention_of_heads(tape, heads(q), heads(k), heads(v), batch, options),
                            *batch.context.ulysses);
}

Var packed_heads_attention(Tape& tape, const Var& qkv, int64_t kv_heads, const Batch& batch, int64_t layer,
                           const AttentionOptions& options) {
    if (!batch.caches.empty()) {
        const Sections x = sections_of(qkv.value, kv_heads);
        return {cached_attention(tape.context(), x.q, x.k, x.v, batch, layer, options), -1};
    }
    comm::Communicator* ranks = batch.context.ulysses;
    if (!ranks) return attention_of_packed_heads(tape, qkv, kv_heads, batch, options);
    const Var heads = all_to_all_sp2hp(tape, qkv, *ranks, {qkv.value.dim(2) - 2 * kv_heads, kv_heads, kv_heads});
    const int64_t share = std::max<int64_t>(kv_heads / ranks->size(), 1);
    return all_to_all_hp2sp(tape, attention_of_packed_heads(tape, heads, share, batch, options), *ranks);
}

Var packed_attention(Tape& tape, const Var& packed, int64_t head_dim, const Batch& batch, int64_t layer) {
    const Var qkv = split_heads(tape, packed, head_dim);
    return join_heads(tape, packed_heads_attention(tape, qkv, qkv.value.dim(2) / 3, batch, layer));
}

namespace {

// Logits of the last position of each sequence: (B, V).
Tensor last_logits(ops::Context& ctx, const Tensor& x, const ops::Operand& weight, comm::Communicator* ranks) {
    const int64_t B = x.dim(0), T = x.dim(1), C = x.dim(2);
    const Tensor last = ops::empty(ctx, {B, C}, x.dtype());
    for (int64_t b = 0; b < B; ++b) ops::cast_into(ctx, x.narrow(0, b, 1).narrow(1, T - 1, 1), last.narrow(0, b, 1));
    const Tensor logits = ops::linear(ctx, last, weight, nullptr);
    if (!ranks) return logits;
    const int64_t P = ranks->size(), W = logits.dim(1);
    const Tensor parts = ops::empty(ctx, {P, B, W}, x.dtype()), all = ops::empty(ctx, {B, P * W}, x.dtype());
    ranks->all_gather(logits, parts).wait();
    for (int64_t b = 0; b < B; ++b)
        for (int64_t p = 0; p < P; ++p)
            ops::cast_into(ctx, parts.narrow(0, p, 1).narrow(1, b, 1).reshape({1, W}),
                           all.narrow(0, b, 1).narrow(1, p * W, W));
    return all;
}

}  // namespace

Var head_loss(Tape& tape, const Var& input, Parameter& weight, int64_t vocab, const Batch& batch, double cap,
              bool more) {
    ops::Context& ctx = tape.context();
    const Var x = enter_tp_region(tape, input, weight);
    comm::Communicator* ranks = weight.tensor_parallel.ranks;
    const ops::Operand w = rule_of(weight).weight(ctx, weight, {ops::GemmRole::forward});
    if (!batch.targets.defined()) {
        const Tensor logits = last_logits(ctx, x.value, w, ranks);
        ops::soft_cap(ctx, logits, cap);
        return {logits, -1};
    }
    const auto gather = [&](const Tensor& partial) {
        const Tensor all = ops::empty(ctx, {ranks->size(), 3, partial.dim(1)}, DType::f32);
        ranks->all_gather(partial, all).wait();
        return all;
    };
    const ops::VocabularyShard shard{first_word(weight), gather};
    const auto r = ops::linear_cross_entropy(
        ctx, x.value, w, batch.targets, vocab, batch.grad_scale, tape.recording() ? &weight.gradient : nullptr,
        tape.recording() && adds_to_gradient(weight), ranks ? &shard : nullptr, cap);
    if (tape.recording() && !more) tape.gradient_taken(weight);
    return tape.record("head_loss", {x}, r.losses, [dx = r.dx](const Tensor&, Tensors&) { return Tensors{dx}; });
}

Var squared_error(Tape& tape, const Var& x, const Batch& batch) {
    const auto r = ops::squared_error(tape.context(), x.value, batch.feature_targets, batch.grad_scale);
    return tape.record("squared_error", {x}, r.losses, [dx = r.dx](const Tensor&, Tensors&) { return Tensors{dx}; });
}

}  // namespace tutti::nn
