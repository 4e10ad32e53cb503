// engine/testing/tiny.h: a run that trains in milliseconds: a Llama of width 16, sequences of 8 tokens, f32, one
// thread.
#pragma once

#include "tutti/spec/run_spec.h"

namespace tutti::engine::testing {

inline spec::RunSpec tiny_llama(int64_t layers, int64_t microbatches) {
    spec::RunSpec run;
    run.model = spec::ModelSpec{.family = spec::Family::llama,
                                .vocab = 37,
                                .width = 16,
                                .layers = layers,
                                .heads = 2,
                                .kv_heads = 2,
                                .head_dim = 8,
                                .ffn = 24,
                                .max_positions = 8,
                                .tie_embeddings = false,
                                .init_std = 0.2};
    run.train.threads = 1;
    run.train.seq_len = 8;
    run.train.micro_batch = 1;
    run.train.global_batch = microbatches;
    run.precision.compute = "f32";
    return run;
}

}  // namespace tutti::engine::testing
