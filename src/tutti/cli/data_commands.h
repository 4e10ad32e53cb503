// cli/data_commands.h: the arguments of each `tutti data ...` command as plain data, and the function that runs it.
// data.cpp fills them and calls the functions; what they do is in a file of its own each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/cli/io.h"

namespace tutti::cli {

struct TrainTokenizerArguments {
    std::vector<std::string> files;     // UTF-8 text
    std::string out;                    // tokenizer.json
    int64_t vocab = 4096;               // special tokens and the 256 bytes included
    std::string pretokenizer = "gpt2";  // gpt2, llama3 or qwen
    std::vector<std::string> special;   // get the first ids
    int64_t min_frequency = 2;
    int threads = 0;  // 0: all cores
    bool json = false;
};
int train_tokenizer(const TrainTokenizerArguments& arguments, const Io& io);

// All of them, for the table of contents in cli.cpp.
struct DataArguments {
    TrainTokenizerArguments train_tokenizer;
};

}  // namespace tutti::cli
