// data/tokenizers/bpe_trainer.h: learns a byte-level BPE from text: the most frequent pair of adjacent tokens becomes a
// token, again and again. Learns what BpeTrainer of the `tokenizers` package learns.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/tokenizers/byte_level.h"

namespace tutti::data {

struct BpeTraining {
    int64_t vocab = 4096;  // special tokens, 256 bytes, and the rest learnt
    SplitKind split = SplitKind::gpt2;
    std::vector<std::string> special;  // get the first ids; text is cut at them
    int64_t min_frequency = 2;         // of a pair
    int threads = 0;                   // 0: all cores
    std::function<void(const std::string&)> status = [](const std::string&) {};  // what it is at
};

// The same result for any number of threads. Of equally frequent pairs the one with the lower ids is merged. The model
// has fewer tokens than asked for when no pair is frequent enough. UsageError when `vocab` has no room for bytes and
// special tokens, or a special token is empty or there twice.
ByteLevelModel train_bpe(std::span<const std::string_view> texts, const BpeTraining& training);

}  // namespace tutti::data
