// train/evaluation.h: what a model in training makes of texts: the loss over held-out text, and a text of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "tutti/data/data_set.h"
#include "tutti/engine/engine.h"
#include "tutti/text/tokenizer.h"

namespace tutti::train {

struct Evaluation {
    double loss = 0;      // the mean over all targets; not finite where there is none
    int64_t windows = 0;  // of train.seq_len tokens
};

// Over the first train.eval_batches batches of `valid`: the same windows whatever the memory and the ranks, so that
// neither micro_batch nor the layout changes the loss. nullopt when `stops` ended the evaluation. Collective.
std::optional<Evaluation> evaluation_of(engine::Engine& engine, const data::TokenSet& valid,
                                        const std::function<bool()>& stops);

// The model's continuation of a line feed by log.sample_tokens tokens; ends early when `stops` says so. Every rank
// calls it and gets the same text. Nothing where the ids of the token files are not those of the tokenizer.
std::optional<std::string> sample_of(engine::Engine& engine, const text::Tokenizer& tokenizer,
                                     const std::function<bool()>& stops);

}  // namespace tutti::train
