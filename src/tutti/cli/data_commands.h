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

struct TokenizeArguments {
    std::vector<std::string> files;  // text or JSONL
    std::string tokenizer = "bytes";
    std::string out;  // prefix of what is written
    std::string format = "megatron";
    std::string input = "auto";  // text, jsonl; auto: by name
    std::string separator;       // between the documents of a text; with \n, \t and \\; "": a file is one document
    std::string field = "text";  // of a record
    bool append_eod = false;
    std::string eod;  // id or text; "": the tokenizer's
    int threads = 0;  // 0: all cores
    bool json = false;
};
int tokenize(const TokenizeArguments& arguments, const Io& io);

// Of both commands that read what others wrote.
struct TokenFileArguments {
    std::vector<std::string> files;
    std::string format = "auto";
    std::string tokenizer;  // inspect: shows the text of the first tokens; of JSONL: makes the tokens
    std::string eod;        // inspect: id that ends documents where the file does not know
    int64_t vocab = 0;      // verify: ids must be below; 0: any id
    bool json = false;
};
int inspect_data(const TokenFileArguments& arguments, const Io& io);
int verify_data(const TokenFileArguments& arguments, const Io& io);

// All of them, for the table of contents in cli.cpp.
struct DataArguments {
    TrainTokenizerArguments train_tokenizer;
    TokenizeArguments tokenize;
    TokenFileArguments inspect, verify;
};

}  // namespace tutti::cli
