#include "tutti/nn/latent_attention.h"

#include "tutti/nn/collectives.h"
#include "tutti/nn/context_attention.h"

namespace tutti::nn {

namespace {

using Tensors = std::vector<Tensor>;

// The own channels of keys, and values, of each head.
Tensor own_keys(const Tensor& keys_and_values, int64_t own) { return keys_and_values.narrow(3, 0, own); }
Tensor values_behind(const Tensor& keys_and_values, int64_t own) {
    return keys_and_values.narrow(3, own, keys_and_values.dim(3) - own);
}

Tensor whole_keys(ops::Context& ctx, const Tensor& keys_and_values, const Tensor& shared_key, int64_t D) {
    const int64_t own = D - shared_key.dim(3);
    Shape shape = keys_and_values.shape();
    shape[3] = D;
    const Tensor k = ops::empty(ctx, shape, keys_and_values.dtype());
    ops::copy(ctx, own_keys(keys_and_values, own), k.narrow(3, 0, own));
    ops::copy_to_heads(ctx, shared_key, k.narrow(3, own, D - own));
    return k;
}

// Keys are made again in the backward: they are wider than what they are made of.
Var attention_of_latents(Tape& tape, const Var& q, const Var& keys_and_values, const Var& shared_key,
                         const Batch& batch, const AttentionOptions& options) {
    ops::Context& ctx = tape.context();
    const bool whole = latents_are_gathered(batch);
    const int64_t D = q.value.dim(3), own = D - shared_key.value.dim(3);
    const ops::Attention r =
        (whole ? attention_to_whole : attend)(ctx, q.value, whole_keys(ctx, keys_and_values.value, shared_key.value, D),
                                              values_behind(keys_and_values.value, own), batch, options);
    return tape.record("latent_attention", {q, keys_and_values, shared_key}, r.y,
                       [&ctx, whole, D, own, q = q.value, kv = keys_and_values.value, shared = shared_key.value, r,
                        batch, options](const Tensor& dy, Tensors&) {
                           const Tensor k = whole_keys(ctx, kv, shared, D);
                           const Tensor dq = ops::empty(ctx, q.shape(), q.dtype());
                           const Tensor dk = ops::empty(ctx, k.shape(), k.dtype());
                           const Tensor dkv = ops::empty(ctx, kv.shape(), kv.dtype());
                           (whole ? attention_to_whole_backward : attend_backward)(
                               ctx, dy, q, k, values_behind(kv, own), r, batch, options, dq, dk,
                               values_behind(dkv, own));
                           ops::copy(ctx, dk.narrow(3, 0, own), own_keys(dkv, own));
                           return Tensors{dq, dkv, ops::sum_heads(ctx, dk.narrow(3, own, D - own))};
                       });
}

}  // namespace

bool latents_are_gathered(const Batch& batch) {
    return batch.context.ring != nullptr && batch.context.gather && batch.context.ulysses == nullptr;
}

Var latent_attention(Tape& tape, const Var& q, const Var& keys_and_values, const Var& shared_key, const Batch& batch,
                     int64_t layer, const AttentionOptions& options) {
    if (!batch.caches.empty()) {
        const int64_t D = q.value.dim(3), own = D - shared_key.value.dim(3);
        const Var k{whole_keys(tape.context(), keys_and_values.value, shared_key.value, D), -1};
        return attention(tape, q, k, {values_behind(keys_and_values.value, own), -1}, batch, layer, options);
    }
    comm::Communicator* ranks = batch.context.ulysses;
    if (ranks == nullptr) return attention_of_latents(tape, q, keys_and_values, shared_key, batch, options);
    const auto heads = [&](const Var& x) { return all_to_all_sp2hp(tape, x, *ranks, {x.value.dim(2)}); };
    return all_to_all_hp2sp(
        tape, attention_of_latents(tape, heads(q), heads(keys_and_values), heads(shared_key), batch, options), *ranks);
}

}  // namespace tutti::nn
