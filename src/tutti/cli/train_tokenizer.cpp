// cli/train_tokenizer.cpp: `tutti data train-tokenizer`.
#include <chrono>
#include <filesystem>
#include <fstream>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/base/timing.h"
#include "tutti/base/units.h"
#include "tutti/cli/commands.h"
#include "tutti/data/tokenizers/bpe_trainer.h"
#include "tutti/data/tokenizers/tokenizer_json.h"

namespace tutti::cli {

namespace {

// Whole or not at all: a tokenizer.json that ends in the middle would be found by the next command only.
void write_file(const std::string& path, const std::string& text) {
    const std::string temporary = path + ".part";
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    out << text;
    out.close();
    std::error_code error;
    if (out) std::filesystem::rename(temporary, path, error);
    if (!out || error) {
        std::error_code ignored;
        std::filesystem::remove(temporary, ignored);
        throw UsageError(concat("--out ", path, ": cannot be written; is the folder there, and room on the disk?"));
    }
}

}  // namespace

int train_tokenizer(const TrainTokenizerArguments& a, const Io& io) {
    warn_of_threads(io, a.threads);
    std::vector<MappedFile> files;
    std::vector<std::string_view> texts;
    for (const std::string& path : a.files) {
        const auto bytes = files.emplace_back(path).bytes();
        texts.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    data::BpeTraining training{.vocab = a.vocab,
                               .split = data::split_kind_named(a.pretokenizer).value(),
                               .special = a.special,
                               .min_frequency = a.min_frequency,
                               .threads = a.threads};
    std::ostream& text = io.text(a.json);
    const bool terminal = io.text_terminal(a.json);
    training.status = [&](const std::string& line) {
        if (terminal) text << "\r\033[K" << line << std::flush;
    };
    const double begin = seconds_now();
    const data::ByteLevelModel model = data::train_bpe(texts, training);
    const double seconds = seconds_now() - begin;
    training.status("");
    write_file(a.out, data::tokenizer_json(model));

    int64_t bytes = 0, tokens = 0;
    const data::ByteLevelTokenizer tokenizer(model, a.out);
    for (const std::string_view t : texts) {
        bytes += static_cast<int64_t>(t.size());
        tokens += static_cast<int64_t>(data::encode_text(tokenizer, t, a.threads).size());
    }
    const double bytes_per_token = tokens > 0 ? static_cast<double>(bytes) / static_cast<double>(tokens) : 0;
    if (a.json) {
        const Json document = {{"out", a.out},      {"vocab", tokenizer.vocab()}, {"merges", model.merges.size()},
                               {"bytes", bytes},    {"tokens", tokens},           {"bytes_per_token", bytes_per_token},
                               {"seconds", seconds}};
        io.out << document.dump(2, Json::InvalidUtf8::replace) << '\n';
        return 0;
    }
    io.out << a.out << ": " << tokenizer.vocab() << " tokens learnt from " << bytes << " bytes in "
           << format_time(seconds) << ", which become " << tokens << " tokens (" << format_fixed(bytes_per_token, 2)
           << " bytes each)\n";
    if (tokenizer.vocab() < a.vocab)
        io.out << "asked for " << a.vocab << ": no further pair is in the text " << a.min_frequency
               << " times or more\n";
    return 0;
}

}  // namespace tutti::cli
