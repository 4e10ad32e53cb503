// text/bpe_trainer.h: learns a byte-level BPE from text: the most frequent pair of adjacent tokens becomes a token,
// repeatedly. The result is that of BpeTrainer of the `tokenizers` package.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/text/byte_level.h"

namespace tutti::text {

struct BpeTraining {
    int64_t vocab = 4096;  // special tokens, 256 bytes, and the learnt tokens
    SplitKind split = SplitKind::gpt2;
    std::vector<std::string> special;  // have the first ids; text is split at them
    int64_t min_frequency = 2;         // of a pair
    int threads = 0;                   // 0: all cores
    std::function<void(const std::string&)> status = [](const std::string&) {};  // lines of progress
};

// The result is the same for any number of threads. Of equally frequent pairs the one with the lower ids is merged. The
// model has fewer tokens than asked for when no pair is frequent enough. UsageError when `vocab` has no room for bytes
// and special tokens, or a special token is empty or given twice.
ByteLevelModel train_bpe(std::span<const std::string_view> texts, const BpeTraining& training);

}  // namespace tutti::text
