// nn/batch.h: what a forward reads besides its input: tokens, their global places, and the cache when text is
// generated. The same Batch goes to every unit of a model, on every pipeline stage.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "tutti/base/to_size.h"
#include "tutti/tensor/tensor.h"

namespace tutti::comm {
class Communicator;
}

namespace tutti::nn {

// The state of one sequence that its later tokens need, for the heads and channels that this rank computes: keys and
// values of attention, (1, capacity, Hkv, D), allocated by the layer's first forward; the states of its short
// convolutions after the last token, (1, K - 1, C) f32 each; that of its delta rule, (1, Hv, Dk, Dv) f32. Each sequence
// has its own cache, so a batch needs no padding: sequences may have any lengths, and finished ones leave the batch.
struct KvCache {
    KvCache(int64_t layers, int64_t capacity_)
        : keys(to_size(layers)),
          values(to_size(layers)),
          convolutions(to_size(layers)),
          deltas(to_size(layers)),
          capacity(capacity_) {}
    std::vector<Tensor> keys, values;               // by layer
    std::vector<std::vector<Tensor>> convolutions;  // by layer and convolution
    std::vector<Tensor> deltas;                     // by layer
    int64_t capacity;                               // tokens
    int64_t length = 0;                             // tokens that all layers hold
};

// The ranks that divide each sequence among them (SequencePart). Null: this rank has whole sequences.
struct ContextParallel {
    comm::Communicator* ulysses = nullptr;  // exchange heads for tokens around attention
    comm::Communicator* ring = nullptr;     // exchange keys and values in attention
    comm::Communicator* all = nullptr;      // both: by place in SequencePart; convolutions exchange states here
    bool gather = false;                    // keys and values by an all_gather, in place of the ring
};

class RoutingRecord;

// The inputs of a mixture's routers (nn/mixture.h) besides the tokens of this rank. Null: no other ranks, no record.
struct RoutingContext {
    comm::Communicator* microbatch = nullptr;  // the tp and cp ranks that divide the tokens of a microbatch
    comm::Communicator* step = nullptr;        // these, and the ranks with other microbatches
    RoutingRecord* record = nullptr;           // of the step
    int64_t index = 0;                         // the microbatch in the step of this rank
};

// What one depth of multi-token prediction reads: the tokens so many places ahead, and what follows them. (B, T) i32.
struct TokensAhead {
    Tensor tokens, targets;
};

// Tokens [begin, begin + tokens) of a sequence, or rows of a batch.
struct TokenRun {
    int64_t begin = 0, tokens = 0;
};

struct Batch {
    Tensor tokens;   // (B, T) i32
    Tensor targets;  // (B, T) i32; negative: not counted. Undefined: the head returns logits of the last position
    std::vector<TokensAhead> ahead;  // by depth, from 1 on
    Tensor positions;                // (B, T) i32: place in the sequence, or in its document
    // i32: position in the sequence at which the token's document begins. Undefined: a sequence is one document.
    // (B, T); with context.ulysses (B, T P), for all tokens whose attention this rank computes.
    Tensor first_key;
    // Rows of `tokens` (B T) that are padding at the end of a window; on all ranks that divide the sequences, so many.
    std::vector<TokenRun> padding;
    int64_t padded = 0;
    Tensor row_index;                  // (B, T) i64: global index of the token in the step's batch; keys dropout
    Tensor features, feature_targets;  // (N, D): the mlp family instead of tokens
    // 1 / valid tokens of the global batch, since the loss is a mean over all of them, times loss_scale.
    float grad_scale = 1;
    float loss_scale = 1;  // factor of all gradients of the step; losses are reported without it
    float share = 1;       // weight of the microbatch in means over the step: its share of the global batch's samples
    uint64_t seed = 0;
    uint64_t step = 0;
    std::vector<KvCache*> caches;  // one per sequence, or none
    ContextParallel context = {};
    RoutingContext routing = {};
    // Takes the losses (B, T) f32 of depth k + 1 of multi-token prediction, in a forward that trains. Empty: no metric.
    std::function<void(int64_t k, const Tensor& losses)> later_losses;
};

// Tokens of the microbatch without its padding, counted over all ranks that divide its sequences.
int64_t tokens_of_microbatch(const Batch& batch);

// A batch on the host, (sequences, T) each, sequence after sequence.
struct BatchRows {
    std::span<const int32_t> tokens, targets;
    std::span<const int32_t> first_key;  // empty: each sequence is one document
    std::span<const int64_t> lengths;    // (sequences): tokens before the padding; empty: T
    int64_t depths = 0;                  // of multi-token prediction: Batch::ahead
};

// A sequence as 2 R equal chunks of `size` tokens. Rank r of R has chunks r and 2 R - 1 - r, in this order, so that
// under a causal mask the queries of every rank see the same number of keys.
struct Chunks {
    int ranks = 1;
    int64_t size = 0;
    int64_t begin(int rank, int half) const { return size * (half == 0 ? rank : 2 * ranks - 1 - rank); }
    // Half 0 or 1 of a rank's tokens x (B, 2 size, ...).
    Tensor half(const Tensor& x, int i) const { return x.narrow(1, i * size, size); }
};

// The part of each sequence that a rank has. Chunks divides the sequence over the ranks / ulysses places of the ring;
// the tokens of place rank / ulysses are cut into `ulysses` equal parts, of which the rank has part rank % ulysses.
struct SequencePart {
    int rank = 0, ranks = 1, ulysses = 1;
};

// The tokens of a part, for sequences of T tokens: one run, or two that are not adjacent, in the order of the rank's
// memory. Error when T does not divide evenly.
std::vector<TokenRun> runs_of(const SequencePart& part, int64_t T);

// `first_sequence` is the global index in the step's batch of the first one. Positions restart with each document. A
// token so many places ahead that it is of another document, or beyond the sequence, is no target.
Batch make_batch(Device& device, const BatchRows& rows, int64_t sequences, int64_t first_sequence,
                 const SequencePart& part = {});

// From `sequences` windows of T + 1 tokens each, one after another: inputs are the first T, targets the last T of each.
Batch make_batch(Device& device, std::span<const int32_t> windows, int64_t sequences, int64_t first_sequence);

// Rows [B T r / P, B T (r + 1) / P) of x (B, T, ...), as (B, T / P, ...): with sequence parallelism the part of rank r
// of P between tensor-parallel products. Shares memory. Error when P does not divide T.
Tensor rows_of(const Tensor& x, int rank, int ranks);

// Tokens without targets, for generation: (B, T), which follow lengths[b] tokens of sequence b; empty: none. Error when
// the tokens do not divide into `sequences`.
Batch make_prompt(Device& device, std::span<const int32_t> tokens, int64_t sequences,
                  const std::vector<int64_t>& lengths = {});
// The next tokens of running sequences: those of sequence b follow the tokens in caches[b]. The forward appends them to
// the caches; call advance() when all layers have run.
Batch make_continuation(Device& device, std::span<const int32_t> tokens, std::vector<KvCache*> caches);
void advance(const Batch& batch);

}  // namespace tutti::nn
