// cli/data.cpp: the command line of `tutti data ...`: one function per command, called at the end by add_data. The
// commands themselves are in files of their own, with their arguments in data_commands.h.
#include <CLI/CLI.hpp>

#include "tutti/cli/command_line.h"

namespace tutti::cli {

namespace {

void add_train_tokenizer(CLI::App& data, std::function<int()>& chosen, TrainTokenizerArguments& a, const Io& io) {
    CLI::App* c = add_command(data, chosen, "train-tokenizer", "learn a byte-level BPE from text", a.json,
                              [&a, &io] { return train_tokenizer(a, io); });
    c->add_option("FILE", a.files, "text to learn from")->required()->option_text("...");
    c->add_option("--vocab", a.vocab, "tokens, with the special ones and the 256 bytes")
        ->check(CLI::Range(int64_t{256}, int64_t{1} << 24))
        ->option_text("N [4096]");
    c->add_option("--out", a.out, "where to, such as tokenizer.json")->required()->option_text("FILE");
    c->add_option("--pretokenizer", a.pretokenizer, "how text is cut into words: [gpt2], llama3 or qwen")
        ->check(CLI::IsMember({"gpt2", "llama3", "qwen"}))
        ->option_text("KIND");
    c->add_option("--special", a.special, "a token that text is cut at, such as <|endoftext|>; repeatable")
        ->allow_extra_args(false)
        ->option_text("TOKEN");
    c->add_option("--min-frequency", a.min_frequency, "a pair is merged when it is there so often")
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
        ->option_text("N [2]");
    c->add_option("--threads", a.threads, "CPU threads; 0: all cores")
        ->check(CLI::Range(0, 4096))
        ->option_text("N [0]");
    c->footer("Example:\n  tutti data train-tokenizer corpus.txt --vocab 4096 --out tokenizer.json");
}

}  // namespace

void add_data(CLI::App& app, std::function<int()>& chosen, DataArguments& arguments, const Io& io) {
    CLI::App* data = app.add_subcommand("data", "tokenizers and token files");
    data->require_subcommand(1);
    add_train_tokenizer(*data, chosen, arguments.train_tokenizer, io);
}

}  // namespace tutti::cli
