// cli/generate.cpp: `tutti generate`. Loads a checkpoint and writes text as it is made.
#include "tutti/train/generate.h"

#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/cli/commands.h"
#include "tutti/cli/timing.h"
#include "tutti/cli/utf8_stream.h"
#include "tutti/data/tokenizer.h"

namespace tutti::cli {

int generate(const GenerateArguments& arguments, const Io& io) {
    check<UsageError>(!arguments.prompt.empty(), "--prompt \"\": required: a text of at least one token to continue");
    train::SamplingOptions sampling{.max_tokens = arguments.max_tokens,
                                    .temperature = arguments.greedy ? 0 : arguments.temperature,
                                    .top_k = arguments.top_k,
                                    .top_p = arguments.top_p,
                                    .seed = arguments.seed};
    const train::LoadedModel loaded = train::load_model(arguments.checkpoint, arguments.threads);
    const auto tokenizer = data::make_tokenizer(loaded.tokenizer);
    const std::vector<int32_t> prompt = tokenizer->encode(arguments.prompt);
    if (loaded.tokenizer != "bytes") sampling.vocab = tokenizer->vocab();  // bytes may stand in for an unknown one

    // The prompt goes through the stream too: its last character may be completed by the first token.
    Utf8Stream stream;
    std::string text;
    std::vector<int32_t> tokens;
    const auto show = [&](const std::string& piece, bool of_model) {
        if (of_model) text += piece;
        if (!arguments.json) io.out << piece << std::flush;
    };
    show(stream.feed(arguments.prompt), false);
    const double begin = seconds_now();
    train::generate(*loaded.ctx, *loaded.model, loaded.compute, loaded.max_positions, prompt, sampling,
                    [&](int32_t token) {
                        tokens.push_back(token);
                        show(stream.feed(tokenizer->piece(token)), true);
                    });
    const double seconds = seconds_now() - begin;
    show(stream.finish(), true);

    if (!arguments.json) {
        io.out << '\n';
        return 0;
    }
    const nlohmann::ordered_json document = {
        {"checkpoint", loaded.path},
        {"step", loaded.step},
        {"prompt", arguments.prompt},
        {"text", text},
        {"tokens", tokens},
        {"temperature", sampling.temperature},
        {"top_k", sampling.top_k},
        {"top_p", sampling.top_p},
        {"seed", sampling.seed},
        {"seconds", seconds},
        {"tokens_per_s", seconds > 0 ? static_cast<double>(tokens.size()) / seconds : 0}};
    io.out << document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
    return 0;
}

}  // namespace tutti::cli
