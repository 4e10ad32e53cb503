// cli/data.cpp: the command line of `tutti data ...`: one function per command, called at the end by add_data. The
// commands themselves are in files of their own, with their arguments in commands.h.
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
    add_threads_option(*c, a.threads);
    c->footer("Example:\n  tutti data train-tokenizer corpus.txt --vocab 4096 --out tokenizer.json");
}

void add_tokenize(CLI::App& data, std::function<int()>& chosen, TokenizeArguments& a, const Io& io) {
    CLI::App* c = add_command(data, chosen, "tokenize", "text or JSONL to a token file", a.json,
                              [&a, &io] { return tokenize(a, io); });
    c->add_option("FILE", a.files, "text, or JSONL records")->required()->option_text("...");
    c->add_option("--tokenizer", a.tokenizer, "[bytes], a tokenizer.json, a *.model, or a directory with one")
        ->option_text("T");
    c->add_option("--out", a.out, "writes PREFIX.bin, PREFIX.idx, PREFIX.mask")->required()->option_text("PREFIX");
    c->add_option("--format", a.format, "[megatron], nanogpt or llmc")
        ->check(CLI::IsMember({"nanogpt", "llmc", "megatron"}))
        ->option_text("F");
    c->add_option("--input", a.input, "[auto], text or jsonl; auto: by the name")
        ->check(CLI::IsMember({"auto", "text", "jsonl"}))
        ->option_text("KIND");
    c->add_option("--separator", a.separator, "between documents of a text, \\n is a newline; else a file is one")
        ->option_text("TEXT");
    c->add_option("--field", a.field, "of a record that is one text [text]; prompt and completion are known")
        ->option_text("NAME");
    c->add_flag("--append-eod", a.append_eod, "end each document with the end-of-document token");
    c->add_option("--eod", a.eod, "that token: its id or text [the tokenizer's]")->option_text("TOKEN");
    add_threads_option(*c, a.threads);
    c->footer(
        "Examples:\n"
        "  tutti data tokenize corpus.jsonl --tokenizer llama3/ --out corpus --append-eod\n"
        "  tutti data tokenize a.txt b.txt --tokenizer gpt2/tokenizer.json --eod '<|endoftext|>' \\\n"
        "      --append-eod --separator '\\n\\n' --out train --format nanogpt\n\n"
        "The same files for any number of threads. The prompts of records {\"prompt\", \"completion\"} are\n"
        "only read, no targets: PREFIX.mask says so.");
}

void add_inspect(CLI::App& data, std::function<int()>& chosen, TokenFileArguments& a, const Io& io) {
    CLI::App* c = add_command(data, chosen, "inspect", "what token files hold: tokens, documents, lengths", a.json,
                              [&a, &io] { return inspect_data(a, io); });
    c->add_option("FILE", a.files, "token files, Megatron prefixes, text or JSONL")->required()->option_text("...");
    c->add_option("--format", a.format, "[auto], text, jsonl, megatron, nanogpt, llmc or llmq")->option_text("F");
    c->add_option("--tokenizer", a.tokenizer, "also show the text of the first tokens")->option_text("T");
    c->add_option("--eod", a.eod, "id or text that ends documents, where the file does not know")->option_text("TOKEN");
    c->footer("Example:\n  tutti data inspect corpus.bin --tokenizer llama3/");
}

void add_verify(CLI::App& data, std::function<int()>& chosen, TokenFileArguments& a, const Io& io) {
    CLI::App* c = add_command(data, chosen, "verify", "read all of token files and check every id", a.json,
                              [&a, &io] { return verify_data(a, io); });
    c->add_option("FILE", a.files, "token files, Megatron prefixes, text or JSONL")->required()->option_text("...");
    c->add_option("--vocab", a.vocab, "ids must be below this")
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 31))
        ->option_text("N");
    c->add_option("--format", a.format, "[auto], text, jsonl, megatron, nanogpt, llmc or llmq")->option_text("F");
    c->add_option("--tokenizer", a.tokenizer, "of JSONL records [bytes]")->option_text("T");
    c->footer(
        "Example:\n  tutti data verify corpus.bin --vocab 128256\n\n"
        "Exit code 3 with file and offset of the first thing that is wrong.");
}

}  // namespace

void add_data(CLI::App& app, std::function<int()>& chosen, DataArguments& arguments, const Io& io) {
    CLI::App* data = app.add_subcommand("data", "tokenizers and token files");
    data->require_subcommand(1);
    add_tokenize(*data, chosen, arguments.tokenize, io);
    add_inspect(*data, chosen, arguments.inspect, io);
    add_verify(*data, chosen, arguments.verify, io);
    add_train_tokenizer(*data, chosen, arguments.train_tokenizer, io);
}

}  // namespace tutti::cli
