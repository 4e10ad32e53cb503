// nn/context_attention.h: causal attention over sequences that are divided over ranks. A rank has two chunks of each
// sequence (nn::Chunks), so that all ranks compute equally many pairs of queries and keys.
//
// Ring attention (Liu et al. 2023): in hop h rank r attends to the keys of rank r - h, received while it computed hop
// h - 1; results of hops are merged in f32. Keys that no query of a rank sees, because of their position or a window,
// are neither sent to the rank nor used. In the backward the keys are sent again, and their gradients are returned in
// f32 and added in the order of hops.
//
// Attention to gathered keys (Grattafiori et al. 2024, The Llama 3 Herd of Models, 3.3.2): one all_gather of keys and
// values in the forward, another in the backward, so that they are not saved, and a reduce_scatter of their gradients
// in f32. Takes any mask; cheap with few key and value heads.
#pragma once

#include "tutti/comm/communicator.h"
#include "tutti/nn/functions.h"
#include "tutti/ops/ops.h"

namespace tutti::nn {

// Which keys a rank attends to in which hop, and which pairs of chunks are computed.
struct RingOrder {
    Chunks chunks;
    int64_t window = 0;  // newest keys that a query sees; 0: all

    int source(int rank, int hop) const { return (rank - hop + chunks.ranks) % chunks.ranks; }
    int destination(int rank, int hop) const { return (rank + hop) % chunks.ranks; }
    // Chunks by their first tokens: the first query sees the oldest keys, the last key is the newest.
    bool sees(int64_t query, int64_t key) const {
        return key <= query && (window == 0 || key + chunks.size - 1 > query - window);
    }
    // Calls visit(query half, key half) for each pair of which a query of `rank` may see a key of `source`.
    template <class Visit>
    void for_each_pair(int rank, int source, const Visit& visit) const {
        for (int i = 0; i < 2; ++i)
            for (int j = 0; j < 2; ++j)
                if (sees(chunks.begin(rank, i), chunks.begin(source, j))) visit(i, j);
    }
    // Whether there is such a pair: keys of `source` are sent to `rank`.
    bool needs(int rank, int source) const {
        bool some = false;
        for_each_pair(rank, source, [&](int, int) { some = true; });
        return some;
    }
};

// q (B, T / P, H, D), k (B, T / P, Hkv, D), v (B, T / P, Hkv, Dv), of this rank; batch.context.ring are the P. Error
// for an odd T / P.
ops::Attention ring_attention(ops::Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, const Batch& batch,
                              const AttentionOptions& options);
// Writes dq, dk, dv, which may be parts of a packed tensor. `forward` is what ring_attention returned.
void ring_attention_backward(ops::Context& ctx, const Tensor& dy, const Tensor& q, const Tensor& k, const Tensor& v,
                             const ops::Attention& forward, const Batch& batch, const AttentionOptions& options,
                             const Tensor& dq, const Tensor& dk, const Tensor& dv);

// Attention of this rank's queries to the keys of whole sequences, k (B, T, Hkv, D) and v (B, T, Hkv, Dv), in their
// order. The gradients dk and dv are this rank's terms of sums over the ranks.
ops::Attention attention_to_whole(ops::Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                                  const Batch& batch, const AttentionOptions& options);
void attention_to_whole_backward(ops::Context& ctx, const Tensor& dy, const Tensor& q, const Tensor& k, const Tensor& v,
                                 const ops::Attention& forward, const Batch& batch, const AttentionOptions& options,
                                 const Tensor& dq, const Tensor& dk, const Tensor& dv);
// x (B, T / P, H, D) of this rank to that of whole sequences, (B, T, H, D); backward, the sum of the ranks' gradients.
Var gather_from_context(Tape& tape, const Var& x, const Batch& batch);

ops::Attention gathered_attention(ops::Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                                  const Batch& batch, const AttentionOptions& options);
void gathered_attention_backward(ops::Context& ctx, const Tensor& dy, const Tensor& q, const Tensor& k, const Tensor& v,
                                 const ops::Attention& forward, const Batch& batch, const AttentionOptions& options,
                                 const Tensor& dq, const Tensor& dk, const Tensor& dv);

// Of `all` (H), a number for each head before an exchange of heads for tokens, those of the `heads` that this rank has.
Tensor sinks_of(const Tensor& all, const Batch& batch, int64_t heads);

// Attention of whole sequences, or, with context parallelism, of this rank's queries to all keys. Sinks are one more
// term of each query's softmax, added when the results of all keys are merged. attend_backward() makes no gradient of
// the sinks (ops::attention_sinks_backward does).
ops::Attention attend(ops::Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, const Batch& batch,
                      const AttentionOptions& options);
void attend_backward(ops::Context& ctx, const Tensor& dy, const Tensor& q, const Tensor& k, const Tensor& v,
                     const ops::Attention& forward, const Batch& batch, const AttentionOptions& options,
                     const Tensor& dq, const Tensor& dk, const Tensor& dv);

}  // namespace tutti::nn
