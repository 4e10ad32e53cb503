// cli/generate.cpp: `tutti generate`: continues prompts with a model, and prints the texts in order as they are
// generated.
#include "tutti/infer/generate.h"

#include <sstream>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/base/timing.h"
#include "tutti/base/to_size.h"
#include "tutti/cli/commands.h"
#include "tutti/cli/text_model.h"
#include "tutti/comm/run.h"
#include "tutti/data/text_stream.h"

namespace tutti::cli {

namespace {

std::vector<std::string> read_lines(const std::string& path) {
    const std::string text = read_file(path);
    std::istringstream file{std::string(data::without_byte_order_mark(text))};
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) {
        if (line.ends_with('\r')) line.pop_back();
        if (!line.empty()) lines.push_back(line);
    }
    check<DataError>(!lines.empty(), "--prompts ", path, ": holds no prompt; required: one per line");
    return lines;
}

std::vector<std::string> prompt_texts(const GenerateArguments& a) {
    std::vector<std::string> texts = a.prompts;
    if (!a.prompts_file.empty())
        for (std::string& line : read_lines(a.prompts_file)) texts.push_back(std::move(line));
    check<UsageError>(!texts.empty() || !a.prompt_ids.empty(),
                      "required: --prompt TEXT, --prompts FILE or --prompt-ids 1,2,3");
    return texts;
}

// A prompt and its continuation.
struct Continuation {
    std::string prompt;  // "" when it came as ids
    Ids prompt_ids, tokens;
    std::string text;                      // generated so far, without the tail that is held back
    std::vector<float> log_probabilities;  // of the ids and tokens but the first; none: too long, or not asked for
    StopText stop;
    Utf8Stream stream;
    bool ended = false;

    // Ends the text with the tail that was held back.
    void end(bool ids) {
        if (!std::exchange(ended, true) && !ids) text += stream.feed(stop.finish()) + stream.finish();
    }
};

// Writes texts in order: each as it is generated, once those before it have ended.
class ContinuationWriter {
  public:
    ContinuationWriter(std::vector<Continuation>& texts, std::ostream* out) : texts_(texts), out_(out) {}

    void show() {
        while (out_ && current_ < texts_.size()) {
            Continuation& text = texts_[current_];
            if (!std::exchange(begun_, true)) *out_ << (current_ > 0 ? "---\n" : "") << text.prompt;
            *out_ << text.text.substr(shown_) << std::flush;
            shown_ = text.text.size();
            if (!text.ended) return;
            *out_ << '\n';
            ++current_;
            shown_ = 0;
            begun_ = false;
        }
    }

  private:
    std::vector<Continuation>& texts_;
    std::ostream* out_;
    size_t current_ = 0, shown_ = 0;
    bool begun_ = false;
};

Json describe(const infer::LoadedModel& loaded, const infer::SamplingOptions& sampling,
              const std::vector<Continuation>& texts, const std::vector<infer::Ended>& ended, bool ids,
              bool prompts_too, double seconds) {
    Json document = {{"checkpoint", loaded.stored.path}, {"step", loaded.stored.step}};
    auto outputs = Json::array();
    size_t tokens = 0;
    for (size_t i = 0; i < texts.size(); ++i) {
        Json one;
        if (!texts[i].prompt.empty()) one["prompt"] = texts[i].prompt;
        one["prompt_ids"] = texts[i].prompt_ids;
        if (!ids) one["text"] = texts[i].text;
        one["tokens"] = texts[i].tokens;
        if (std::vector<float> all = texts[i].log_probabilities; !all.empty()) {
            const auto begin = all.end() - static_cast<std::ptrdiff_t>(texts[i].tokens.size());
            one["logprobs"] = std::vector<float>(begin, all.end());
            if (prompts_too) {
                one["prompt_logprobs"] = Json::array({nullptr});  // of the first token
                for (auto value = all.begin(); value != begin; ++value) one["prompt_logprobs"].push_back(*value);
            }
        }
        one["ended_by"] = name_of(ended[i]);
        tokens += texts[i].tokens.size();
        outputs.push_back(one);
    }
    if (texts.size() == 1) document.update(outputs[0]);
    document["outputs"] = outputs;
    document["temperature"] = sampling.temperature;
    document["top_k"] = sampling.top_k;
    document["top_p"] = sampling.top_p;
    document["seed"] = sampling.seed;
    document["seconds"] = seconds;
    document["tokens_per_s"] = seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
    return document;
}

// The work of one rank. All ranks generate the same texts; the first prints them.
void generate_on(const GenerateArguments& arguments, const std::vector<std::string>& prompts, comm::World& world,
                 const LocalRank& local, const Io& io) {
    const bool writes = world.rank() == 0;
    std::vector<Continuation> texts;
    for (const std::string& option : arguments.prompt_ids)
        texts.push_back({.prompt_ids = parse_ids("--prompt-ids", option), .stop = StopText(arguments.stop)});
    // A token is at least one byte of text, except for the few tokens that a tokenizer puts around a text.
    size_t longest = 64;
    for (const std::string& prompt : prompts) longest = std::max(longest, 64 + prompt.size());
    for (const Continuation& text : texts) longest = std::max(longest, text.prompt_ids.size());
    const auto warn = [&](const std::string& message) {
        if (writes) io.err << "warning: " << message << std::endl;
    };
    const bool needs_tokenizer = !prompts.empty() || !arguments.ids || !arguments.stop.empty();
    const TextModel model =
        load_text_model(arguments, static_cast<int64_t>(longest) + arguments.max_tokens, needs_tokenizer,
                        "; without one, give --prompt-ids 1,2,3 and --ids", world, local, warn);
    const infer::LoadedModel& loaded = model.loaded;
    const auto& tokenizer = model.tokenizer;
    const infer::SamplingOptions& sampling = model.sampling;
    for (const std::string& prompt : prompts) {
        Ids ids = tokenizer->prefix();
        for (const int32_t id : tokenizer->encode(prompt)) ids.push_back(id);
        texts.push_back({.prompt = prompt, .prompt_ids = std::move(ids), .stop = StopText(arguments.stop)});
    }
    // The prompt is fed to the stream, too: the first token may complete its last character.
    for (Continuation& text : texts)
        if (!arguments.ids) text.prompt = text.stream.feed(text.prompt);

    ContinuationWriter output(texts, writes && !io.json ? &io.out : nullptr);
    std::vector<Ids> ids;
    for (const Continuation& text : texts) ids.push_back(text.prompt_ids);
    const double begin = seconds_now();
    const auto ended = infer::generate(*loaded.ctx, *loaded.model, ids, sampling, [&](size_t prompt, int32_t token) {
        Continuation& text = texts[prompt];
        text.tokens.push_back(token);
        const std::string piece = tokenizer ? text.stop.feed(tokenizer->piece(token)) : "";
        text.text += arguments.ids ? concat(text.tokens.size() > 1 ? " " : "", token) : text.stream.feed(piece);
        if (text.stop.stopped() || static_cast<int64_t>(text.tokens.size()) == sampling.max_tokens)
            text.end(arguments.ids);
        output.show();
        return !text.stop.stopped();
    });
    const double seconds = seconds_now() - begin;
    for (Continuation& text : texts) text.end(arguments.ids);
    output.show();
    const auto is_too_long = [longest = to_size(loaded.max_positions)](const Continuation& text) {
        return text.prompt_ids.size() + text.tokens.size() > longest;
    };
    if (std::any_of(texts.begin(), texts.end(), is_too_long))
        warn(concat("a text is longer than the ", loaded.max_positions, " positions of the model: each later token ",
                    "depends on the newest ", loaded.max_positions / 2, " or more before it"));
    for (Continuation& text : texts) {
        if (!io.json || is_too_long(text)) continue;
        Ids all = text.prompt_ids;
        all.insert(all.end(), text.tokens.begin(), text.tokens.end());
        if (all.size() > 1) text.log_probabilities = infer::log_probabilities(*loaded.ctx, *loaded.model, all);
    }
    if (writes)
        io.print(describe(loaded, sampling, texts, ended, arguments.ids, arguments.prompt_log_probabilities, seconds));
}

}  // namespace

int generate(const GenerateArguments& arguments, const Io& io) {
    const comm::Launch launch = comm::this_launch();
    int ranks = 0;
    std::vector<std::string> prompts;
    comm::before_ranks_meet(launch, {}, [&] {
        ranks = ranks_of(arguments, launch);
        prompts = prompt_texts(arguments);
    });
    warn_of_threads(io, launch, arguments.threads, ranks);
    comm::run(launch, ranks, {},
              [&](comm::World& world) { generate_on(arguments, prompts, world, comm::local_rank(launch, world), io); });
    return 0;
}

Command generate_command(Arguments& all, const Io& io) {
    auto& a = all.add<GenerateArguments>();
    const Options options = joined_options(
        {{{"--prompt", "TEXT", "", "text to continue; repeatable", &a.prompts},
          {"--prompts", "FILE", "", "texts to continue, one per line of FILE", &a.prompts_file, kPath},
          {"--prompt-ids", "IDS", "", "token ids to continue, such as 1,2,3; repeatable", &a.prompt_ids},
          {"--ids", "", "", "write token ids, not text", &a.ids}},
         beside({"--json"}, {{"--prompt-logprobs", "", "", "also the log-probabilities of the prompts' tokens",
                              &a.prompt_log_probabilities}})});
    return command_of(
        "generate", "continue texts with a trained model", a, io, generate, model_options(a, options),
        "The tokenizer's files decide which tokens precede a prompt: the post-processor of tokenizer.json,\n"
        "or add_bos_token of tokenizer_config.json for a tokenizer.model. A text ends at each eos id of\n"
        "generation_config.json (without one: of config.json, and the tokenizer's eos), and at the run's\n"
        "data.eod.\n\n"
        "With --json each output has `logprobs`: ln P(token | the text before) of each new token, over the\n"
        "whole vocabulary, as the training forward has it, whatever the sampling.\n\n"
        "Examples:\n"
        "  tutti generate runs/bible --prompt \"In the beginning\"\n"
        "  tutti generate runs/bible --prompt \"And God said\" --top-k 20 --temperature 0.7 --seed 7\n"
        "  tutti generate models/Qwen3-0.6B --prompts questions.txt --greedy --stop \"\\n\" --json\n"
        "  tutti generate models/Llama-3.1-70B --ranks 4 --prompt \"In the beginning\"\n"
        "  mpirun -n 4 tutti generate models/Llama-3.1-70B --prompt \"In the beginning\"");
}

}  // namespace tutti::cli
