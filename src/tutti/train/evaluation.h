// train/evaluation.h: the loss over held-out text.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "tutti/data/data_set.h"
#include "tutti/engine/engine.h"

namespace tutti::train {

struct Evaluation {
    double loss = 0;      // the mean over all targets; not finite where there is none
    int64_t windows = 0;  // of train.seq_len tokens
};

// Over the first train.eval_batches batches of `valid`: the same windows whatever the memory and the ranks, so that
// neither micro_batch nor the layout changes the loss. nullopt when `stops` ended the evaluation. Collective.
std::optional<Evaluation> evaluation_of(engine::Engine& engine, const data::TokenSet& valid,
                                        const std::function<bool()>& stops);

}  // namespace tutti::train
