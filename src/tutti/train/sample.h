// train/sample.h: a text of the model in training.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "tutti/engine/engine.h"
#include "tutti/text/tokenizer.h"

namespace tutti::train {

// The model's continuation of a line feed by log.sample_tokens tokens; ends early when `stops` says so. Every rank
// calls it and gets the same text. Nothing where the ids of the token files are not those of the tokenizer.
std::optional<std::string> sample_of(engine::Engine& engine, const text::Tokenizer& tokenizer,
                                     const std::function<bool()>& stops);

}  // namespace tutti::train
