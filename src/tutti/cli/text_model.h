// cli/text_model.h: a stored model that generates text, its tokenizer and its sampling options.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/cli/command.h"
#include "tutti/comm/run.h"
#include "tutti/infer/generate.h"
#include "tutti/infer/stored_model.h"
#include "tutti/text/tokenizer.h"

namespace tutti::cli {

// CKPT, then the command's own options, then those of the model and of sampling.
Options model_options(TextModelArguments& arguments, const Options& own);

using Ids = std::vector<int32_t>;
// "1,2,3"; UsageError names the option.
Ids parse_ids(const std::string& option, const std::string& text);
// Ranks of tensor parallelism: --ranks, parallel.tp, or the processes that a launcher started.
int ranks_of(const TextModelArguments& arguments, const comm::Launch& launch);

struct TextModel {
    infer::LoadedModel loaded;
    std::unique_ptr<const text::Tokenizer> tokenizer;  // null: not needed
    infer::SamplingOptions sampling;
};
// Collective over the ranks of the world. `longest`: tokens of the longest text. UsageError when a tokenizer is needed
// and the model has none; `without_tokenizer` is appended to its message.
TextModel load_text_model(const TextModelArguments& arguments, int64_t longest, bool needs_tokenizer,
                          const std::string& without_tokenizer, comm::World& world, const LocalRank& local,
                          const checkpoint::Warn& warn);

const char* name_of(infer::Ended ended);

}  // namespace tutti::cli
