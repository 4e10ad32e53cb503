// nn/batch.h: what a forward reads besides its input: tokens, their global places, and the cache when text is
// generated. The same Batch goes to every unit of a model, on every pipeline stage.
#pragma once

#include <span>
#include <vector>

#include "tutti/tensor/tensor.h"

namespace tutti::comm {
class Communicator;
}

namespace tutti::nn {

// What the layers need of one sequence's tokens so far, of the heads and channels that this rank computes. Of attention
// keys and values, (1, capacity, Hkv, D), allocated by the layer's first forward; of a short convolution the state
// after the last token, (1, K - 1, C) f32. A sequence has a cache of its own, so that a batch may hold sequences of any
// lengths and lose those that are finished: there is no padding.
struct KvCache {
    KvCache(int64_t layers, int64_t capacity_)
        : keys(static_cast<size_t>(layers)),
          values(static_cast<size_t>(layers)),
          convolutions(static_cast<size_t>(layers)),
          capacity(capacity_) {}
    std::vector<Tensor> keys, values, convolutions;  // by layer
    int64_t capacity;                                // tokens
    int64_t length = 0;                              // tokens that all layers hold
};

// The ranks that share out each sequence, as SequencePart says. Null: this rank alone.
struct ContextParallel {
    comm::Communicator* ulysses = nullptr;  // exchange heads for tokens around attention
    comm::Communicator* ring = nullptr;     // exchange keys and values in attention
    comm::Communicator* all = nullptr;      // both: by place in SequencePart; convolutions send to the tokens around
    bool gather = false;                    // keys and values by an all_gather, in place of the ring
};

class RoutingRecord;

// What routers see beyond the tokens of this rank (nn/mixture.h). Null: no other ranks, no record.
struct RoutingContext {
    comm::Communicator* microbatch = nullptr;  // ranks that share out the tokens of a microbatch: of tp and cp
    comm::Communicator* step = nullptr;        // those, and the ranks with other microbatches
    RoutingRecord* record = nullptr;           // of the step
    int64_t index = 0;                         // the microbatch in the step of this rank
    // Of a rehearsal, whose routers have no values: choices of each expert relative to the others. Null or empty: even.
    const std::vector<double>* rehearsed_loads = nullptr;
};

struct Batch {
    Tensor tokens;     // (B, T) i32
    Tensor targets;    // (B, T) i32; negative: not counted. Undefined: the head returns logits of the last position
    Tensor positions;  // (B, T) i32: place in the sequence, or in its document
    // Where in the sequence the document of a token begins, i32. Undefined: a sequence is one document. (B, T); with
    // context.ulysses (B, T P), of all tokens whose attention this rank computes.
    Tensor first_key;
    Tensor row_index;                  // (B, T) i64: global index of the token in the step's batch; keys dropout
    Tensor features, feature_targets;  // (N, D): the mlp family instead of tokens
    float grad_scale = 1;              // 1 / valid tokens of the global batch: the loss is a mean over all of them
    float share = 1;  // of the samples of the global batch: what the mean of a microbatch counts in that of the step
    uint64_t seed = 0;
    uint64_t step = 0;
    std::vector<KvCache*> caches;  // one per sequence, or none
    ContextParallel context = {};
    RoutingContext routing = {};
};

// Tokens of the microbatch, on all ranks that share out its sequences.
int64_t tokens_of_microbatch(const Batch& batch);

// A batch on the host, (sequences, T) each, sequence after sequence.
struct BatchRows {
    std::span<const int32_t> tokens, targets;
    std::span<const int32_t> first_key;  // empty: each sequence is one document
};

// A sequence of 2 R equal chunks of `size` tokens, of which rank r of R has r and 2 R - 1 - r, in this order: under a
// causal mask the queries of all ranks see as many keys.
struct Chunks {
    int ranks = 1;
    int64_t size = 0;
    int64_t begin(int rank, int half) const { return size * (half == 0 ? rank : 2 * ranks - 1 - rank); }
    // Half 0 or 1 of x (B, 2 size, ...), what a rank has.
    Tensor half(const Tensor& x, int i) const { return x.narrow(1, i * size, size); }
};

// What a rank has of each sequence: rank `rank` % `ulysses` has that part of `ulysses` equal ones of the tokens that
// Chunks gives to rank / ulysses of ranks / ulysses.
struct SequencePart {
    int rank = 0, ranks = 1, ulysses = 1;
};

// Tokens [begin, begin + tokens) of a sequence.
struct TokenRun {
    int64_t begin = 0, tokens = 0;
};
// What a part has of a sequence of T tokens: one or two runs, in the order in which it has them, with tokens between
// them. Error when T does not divide.
std::vector<TokenRun> runs_of(const SequencePart& part, int64_t T);

// `first_sequence` is the global index in the step's batch of the first one. Positions restart with each document.
Batch make_batch(Device& device, const BatchRows& rows, int64_t sequences, int64_t first_sequence,
                 const SequencePart& part = {});

// From `sequences` windows of T + 1 tokens each, one after another: inputs are the first T, targets the last T of each.
Batch make_batch(Device& device, std::span<const int32_t> windows, int64_t sequences, int64_t first_sequence);

// Of x (B, T, ...): row B T r / P and the B T / P - 1 after it, as (B, T / P, ...); what rank r of P has of a sequence
// between tensor-parallel products. P divides T. Shares memory.
Tensor rows_of(const Tensor& x, int rank, int ranks);

// Tokens without targets, for generation: (B, T), which follow lengths[b] tokens of sequence b; empty: none. Error when
// the tokens do not divide into `sequences`.
Batch make_prompt(Device& device, std::span<const int32_t> tokens, int64_t sequences,
                  const std::vector<int64_t>& lengths = {});
// The same, for sequences that go on: the tokens of sequence b follow those that caches[b] holds, and the forward puts
// them in. advance() then counts them, when all layers have run.
Batch make_continuation(Device& device, std::span<const int32_t> tokens, std::vector<KvCache*> caches);
void advance(const Batch& batch);

}  // namespace tutti::nn
