// cli/data.cpp: the command line of `tutti data ...`. The commands themselves are in files of their own.
#include "tutti/cli/command.h"

namespace tutti::cli {

namespace {

Command train_tokenizer_command(TrainTokenizerArguments& a, const Io& io) {
    const Options options = {
        required({"FILE", "...", "", "text to learn from", &a.files, kPath}),
        {"--vocab", "N", "4096", "tokens, with the special ones and the 256 bytes", &a.vocab, Between{256, 1 << 24}},
        required({"--out", "FILE", "", "where to, such as tokenizer.json", &a.out, kPath}),
        {"--pretokenizer", "KIND", "", "how text is cut into words: [gpt2], llama3 or qwen", &a.pretokenizer,
         Choices{"gpt2", "llama3", "qwen"}},
        {"--special", "TOKEN", "", "a token that text is cut at, such as <|endoftext|>; repeatable", &a.special},
        {"--min-frequency", "N", "2", "a pair is merged when it is there so often", &a.min_frequency,
         Between{1, int64_t{1} << 40}},
        threads_option(a.threads)};
    return command_of("train-tokenizer", "learn a byte-level BPE from text", a, io, train_tokenizer, options,
                      "Example:\n  tutti data train-tokenizer corpus.txt --vocab 4096 --out tokenizer.json");
}

Command tokenize_command(TokenizeArguments& a, const Io& io) {
    const Options options = {
        required({"FILE", "...", "", "text, or JSONL records", &a.files, kPath}),
        {"--tokenizer", "T", "", "[bytes], a tokenizer.json, a *.model, or a directory with one", &a.tokenizer,
         Suggestions{{"bytes"}, true}},
        required({"--out", "PREFIX", "", "writes PREFIX.bin, PREFIX.idx, PREFIX.mask", &a.out, kPath}),
        {"--format", "F", "", "[megatron], nanogpt or llmc", &a.format, Choices{"nanogpt", "llmc", "megatron"}},
        {"--input", "KIND", "", "[auto], text or jsonl; auto: by the name", &a.input, Choices{"auto", "text", "jsonl"}},
        {"--separator", "TEXT", "", "between documents of a text, \\n is a newline; else a file is one", &a.separator},
        {"--field", "NAME", "", "of a record that is one text [text]; prompt and completion are known", &a.field},
        {"--append-eod", "", "", "end each document with the end-of-document token", &a.append_eod},
        {"--eod", "TOKEN", "", "that token: its id or text [the tokenizer's]", &a.eod},
        threads_option(a.threads)};
    return command_of(
        "tokenize", "text or JSONL to a token file", a, io, tokenize, options,
        "Examples:\n"
        "  tutti data tokenize corpus.jsonl --tokenizer llama3/ --out corpus --append-eod\n"
        "  tutti data tokenize a.txt b.txt --tokenizer gpt2/tokenizer.json --eod '<|endoftext|>' \\\n"
        "      --append-eod --separator '\\n\\n' --out train --format nanogpt\n\n"
        "The same files for any number of threads. The prompts of records {\"prompt\", \"completion\"} are\n"
        "only read, no targets: PREFIX.mask says so.");
}

Option token_files_option(TokenFileArguments& a) {
    return required({"FILE", "...", "", "token files, Megatron prefixes, text or JSONL", &a.files, kPath});
}

Option format_option(TokenFileArguments& a) {
    return {"--format", "F",
            "",         "[auto], text, jsonl, megatron, nanogpt, llmc or llmq",
            &a.format,  Suggestions{{"auto", "text", "jsonl", "megatron", "nanogpt", "llmc", "llmq"}}};
}

Command inspect_command(TokenFileArguments& a, const Io& io) {
    const Options options = {
        token_files_option(a),
        format_option(a),
        {"--tokenizer", "T", "", "also show the text of the first tokens", &a.tokenizer, kPath},
        {"--eod", "TOKEN", "", "id or text that ends documents, where the file does not know", &a.eod}};
    return command_of("inspect", "what token files hold: tokens, documents, lengths", a, io, inspect_data, options,
                      "Example:\n  tutti data inspect corpus.bin --tokenizer llama3/");
}

Command verify_command(TokenFileArguments& a, const Io& io) {
    const Options options = {token_files_option(a),
                             {"--vocab", "N", "", "ids must be below this", &a.vocab, Between{1, int64_t{1} << 31}},
                             format_option(a),
                             {"--tokenizer", "T", "", "of JSONL records [bytes]", &a.tokenizer, kPath}};
    return command_of("verify", "read all of token files and check every id", a, io, verify_data, options,
                      "Example:\n  tutti data verify corpus.bin --vocab 128256\n\n"
                      "Exit code 3 with file and offset of the first thing that is wrong.");
}

}  // namespace

Command data_command(DataArguments& a, const Io& io) {
    return {.name = "data",
            .description = "tokenizers and token files",
            .commands = {tokenize_command(a.tokenize, io), inspect_command(a.inspect, io), verify_command(a.verify, io),
                         train_tokenizer_command(a.train_tokenizer, io)}};
}

}  // namespace tutti::cli
