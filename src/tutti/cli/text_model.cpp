#include "tutti/cli/text_model.h"

#include <algorithm>

#include "tutti/base/digits.h"
#include "tutti/base/to_size.h"
#include "tutti/cli/forecast.h"
#include "tutti/spec/toml.h"

namespace tutti::cli {

Options model_options(TextModelArguments& a, const Options& own) {
    constexpr double kMany = int64_t{1} << 40;
    const Option model = required(
        {"CKPT", "", "", "directory of a run, of a checkpoint or of a Hugging Face model", &a.checkpoint, kPath});
    const Options sampling = {
        {"--stop", "TEXT", "", "end a text before TEXT; repeatable", &a.stop},
        {"--stop-ids", "IDS", "", "further tokens that end a text, such as 1,2", &a.stop_ids},
        {"--ignore-eos", "", "", "continue after the model's end-of-text tokens", &a.ignore_eos},
        {"--compute", "TYPE", "", "f32, bf16, f16 or [auto], the type of the model's training", &a.compute,
         Choices{"auto", "f32", "bf16", "f16"}},
        {"--max-tokens", "N", std::to_string(a.max_tokens), "largest number of new tokens", &a.max_tokens,
         Between{1, kMany}},
        {"--temperature", "T", "0.8", "divisor of the logits; 0: always the most likely token", &a.temperature,
         Between{0, 1e6}},
        {"--top-k", "K", "0", "sample from the K most likely tokens; 0: from all", &a.top_k, Between{0, kMany}},
        {"--top-p", "P", "1", "of those, sample from the fewest whose probabilities sum to P", &a.top_p,
         Between{1e-9, 1}},
        {"--seed", "N", "1234", "seed of the sampling", &a.seed, Between{0, 0x1p62}}};
    const Options greedy = without({"--temperature", "--top-k", "--top-p", "--seed"},
                                   {{"--greedy", "", "", "the same as --temperature 0", &a.greedy}});
    const Options ranks = {
        {"--ranks", "N", "1", "tensor-parallel ranks that divide the model", &a.ranks, Between{1, kManyRanks}},
        set_option(a.set, "parallel.tp=N is the same as --ranks N"),
        device_option(a.device),
        threads_option(a.threads)};
    return joined_options({{model}, own, sampling, greedy, ranks});
}

Ids parse_ids(const std::string& option, const std::string& text) {
    const auto ids = parse_numbers<int32_t>(text);
    check<UsageError>(ids && std::ranges::all_of(*ids, [](int32_t id) { return id >= 0; }), option, " ", text,
                      ": required token ids with commas between them, such as 1,2,3");
    return *ids;
}

int ranks_of(const TextModelArguments& a, const comm::Launch& launch) {
    const spec::RunSpec set = spec::parse_text("", "--set", a.set);
    spec::RunSpec only_tp;
    only_tp.parallel.tp = set.parallel.tp;
    for (const std::string& one : a.set)
        check<UsageError>(set == only_tp || one.starts_with("parallel.tp="), "--set ", one,
                          ": generation is tensor-parallel only; required: parallel.tp=N");
    const int tp = static_cast<int>(set.parallel.tp);
    const int ranks = launch.ranks(tp > 1 && a.ranks == 1 ? tp : a.ranks);
    check<UsageError>(a.set.empty() || tp == ranks, "--set parallel.tp=", tp, ": ", ranks,
                      " ranks divide the model; leave --set out, or set parallel.tp=", ranks);
    return ranks;
}

TextModel load_text_model(const TextModelArguments& a, int64_t longest, bool needs_tokenizer,
                          const std::string& without_tokenizer, comm::World& world, const LocalRank& local,
                          const checkpoint::Warn& warn) {
    for (const std::string& text : a.stop) check<UsageError>(!text.empty(), "--stop \"\": required: a text");
    TextModel model{.loaded = infer::load_model(a.checkpoint, {.device = a.device,
                                                               .threads = a.threads,
                                                               .compute = a.compute,
                                                               .longest = longest,
                                                               .warn = warn,
                                                               .world = &world,
                                                               .local = local})};
    const infer::StoredModel& stored = model.loaded.stored;
    if (const std::string options = stored.unsupported_generation_options(); !options.empty())
        warn(concat(stored.side_files, "/generation_config.json: not applied: ", options));
    if (needs_tokenizer) try {
            check(!stored.tokenizer.empty(), stored.path, " has no tokenizer");
            model.tokenizer = text::make_tokenizer(stored.tokenizer);
        } catch (const Error& error) {
            throw DataError(concat(error.what(), without_tokenizer));
        }
    model.sampling = {.max_tokens = a.max_tokens,
                      .temperature = a.greedy ? 0 : a.temperature,
                      .top_k = a.top_k,
                      .top_p = a.top_p,
                      .seed = a.seed,
                      .max_positions = model.loaded.max_positions};
    Ids& stop_tokens = model.sampling.stop_tokens;
    if (!a.stop_ids.empty()) stop_tokens = parse_ids("--stop-ids", a.stop_ids);
    // End tokens of the files of the model and of its tokenizer, and the end-of-document token of training.
    const Ids ends = a.ignore_eos ? Ids() : stored.special_ids(model.tokenizer.get()).stop;
    stop_tokens.insert(stop_tokens.end(), ends.begin(), ends.end());
    if (model.tokenizer && stored.tokenizer != "bytes") {
        int64_t& vocab = model.sampling.vocab;
        vocab = model.tokenizer->vocab();
        // The end of a document may be an id behind those of the tokenizer, which only data.eod names.
        for (const int32_t id : ends)
            if (id < stored.run.model.vocab) vocab = std::max(vocab, id + int64_t{1});
        // Padding between the two is no text either.
        for (int64_t id = model.tokenizer->vocab(); id < vocab; ++id) stop_tokens.push_back(static_cast<int32_t>(id));
    }
    return model;
}

const char* name_of(infer::Ended ended) {
    constexpr const char* kNames[] = {"length", "token", "text"};  // by Ended
    return kNames[to_size(ended)];
}

}  // namespace tutti::cli
