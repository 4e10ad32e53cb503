// cli/generate.cpp: `tutti generate`: continues prompts with a model and prints the texts in their order while they are
// generated.
#include "tutti/infer/generate.h"

#include <charconv>
#include <optional>
#include <sstream>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/base/timing.h"
#include "tutti/cli/commands.h"
#include "tutti/cli/io.h"
#include "tutti/comm/run.h"
#include "tutti/data/data_set.h"
#include "tutti/data/tokenizer.h"
#include "tutti/infer/stored_model.h"
#include "tutti/spec/toml.h"

namespace tutti::cli {

namespace {

using Ids = std::vector<int32_t>;

// "1,2,3"
Ids parse_ids(const std::string& option, const std::string& text) {
    Ids ids;
    for (const char *at = text.data(), *end = at + text.size(); at <= end;) {
        int32_t id = 0;
        const auto [stop, error] = std::from_chars(at, end, id);
        check<UsageError>(error == std::errc() && id >= 0 && (stop == end || *stop == ','), option, " ", text,
                          ": required token ids with commas between them, such as 1,2,3");
        ids.push_back(id);
        at = stop + 1;
    }
    return ids;
}

std::vector<std::string> read_lines(const std::string& path) {
    std::istringstream file(read_file(path));
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
    for (const std::string& text : texts)
        check<UsageError>(!text.empty(), "--prompt \"\": required: a text of at least one token to continue");
    for (const std::string& text : a.stop) check<UsageError>(!text.empty(), "--stop \"\": required: a text");
    check<UsageError>(!texts.empty() || !a.prompt_ids.empty(),
                      "required: --prompt TEXT, --prompts FILE or --prompt-ids 1,2,3");
    return texts;
}

std::unique_ptr<const data::Tokenizer> tokenizer_of(const infer::LoadedModel& loaded) {
    try {
        const std::string& name = loaded.stored.tokenizer;
        check<UsageError>(!name.empty(), loaded.stored.path, " has no tokenizer");
        return data::make_tokenizer(name);
    } catch (const UsageError& error) {
        throw UsageError(concat(error.what(), "; without one, give --prompt-ids 1,2,3 and --ids"));
    }
}

// The ids that end a text: those in the model's files, those of the tokenizer, and the end-of-document token of
// training.
Ids stop_tokens(const GenerateArguments& arguments, const infer::StoredModel& stored,
                const data::Tokenizer* tokenizer) {
    Ids ids;
    if (!arguments.stop_ids.empty()) ids = parse_ids("--stop-ids", arguments.stop_ids);
    if (arguments.ignore_eos) return ids;
    const Ids stop = stored.special_ids(tokenizer).stop;
    ids.insert(ids.end(), stop.begin(), stop.end());
    return ids;
}

// A prompt and its continuation.
struct Text {
    std::string prompt;  // "" when it came as ids
    Ids prompt_ids, tokens;
    std::string text;  // generated so far, without the end that is held back
    StopText stop;
    Utf8Stream stream;
    bool ended = false;

    // Ends the text, to which the end that was held back is appended.
    void end(bool ids) {
        if (!std::exchange(ended, true) && !ids) text += stream.feed(stop.finish()) + stream.finish();
    }
};

// Writes texts in their order, each as soon as those before it have ended.
class Output {
  public:
    Output(std::vector<Text>& texts, std::ostream* out) : texts_(texts), out_(out) {}

    void show() {
        while (out_ && current_ < texts_.size()) {
            Text& text = texts_[current_];
            if (shown_ == 0 && !begun_) *out_ << (current_ > 0 ? "---\n" : "") << text.prompt;
            begun_ = true;
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
    std::vector<Text>& texts_;
    std::ostream* out_;
    size_t current_ = 0, shown_ = 0;
    bool begun_ = false;
};

const char* name_of(infer::Ended ended) {
    constexpr const char* kNames[] = {"length", "token", "text"};  // by Ended
    return kNames[static_cast<size_t>(ended)];
}

Json describe(const infer::LoadedModel& loaded, const infer::SamplingOptions& sampling, const std::vector<Text>& texts,
              const std::vector<infer::Ended>& ended, bool ids, double seconds) {
    Json document = {{"checkpoint", loaded.stored.path}, {"step", loaded.stored.step}};
    auto outputs = Json::array();
    size_t tokens = 0;
    for (size_t i = 0; i < texts.size(); ++i) {
        Json one;
        if (!texts[i].prompt.empty()) one["prompt"] = texts[i].prompt;
        one["prompt_ids"] = texts[i].prompt_ids;
        if (!ids) one["text"] = texts[i].text;
        one["tokens"] = texts[i].tokens;
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

// Ranks of tensor parallelism: --ranks, parallel.tp, or the processes that a launcher started.
int ranks_of(const GenerateArguments& a, const comm::Launch& launch) {
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

// The work of one rank. All ranks generate the same texts; the first prints them.
void generate_on(const GenerateArguments& arguments, const std::vector<std::string>& prompts, comm::World& world,
                 const LocalRank& local, const Io& io) {
    const bool writes = world.rank() == 0;
    std::vector<Text> texts;
    for (const std::string& option : arguments.prompt_ids)
        texts.push_back({.prompt_ids = parse_ids("--prompt-ids", option), .stop = StopText(arguments.stop)});
    infer::SamplingOptions sampling{.max_tokens = arguments.max_tokens,
                                    .temperature = arguments.greedy ? 0 : arguments.temperature,
                                    .top_k = arguments.top_k,
                                    .top_p = arguments.top_p,
                                    .seed = arguments.seed};
    // A token is at least one byte of text, except for the few tokens that a tokenizer puts around a text.
    size_t longest = 64;
    for (const std::string& prompt : prompts) longest = std::max(longest, 64 + prompt.size());
    for (const Text& text : texts) longest = std::max(longest, text.prompt_ids.size());
    const auto warn = [&](const std::string& message) {
        if (writes) io.err << "warning: " << message << std::endl;
    };
    const infer::LoadedModel loaded =
        infer::load_model(arguments.checkpoint, {.device = arguments.device,
                                                 .threads = arguments.threads,
                                                 .compute = arguments.compute,
                                                 .longest = static_cast<int64_t>(longest) + arguments.max_tokens,
                                                 .warn = warn,
                                                 .world = &world,
                                                 .local = local});
    sampling.max_positions = loaded.max_positions;

    const bool needs_tokenizer = !prompts.empty() || !arguments.ids || !arguments.stop.empty();
    const auto tokenizer = needs_tokenizer ? tokenizer_of(loaded) : nullptr;
    if (tokenizer && loaded.stored.tokenizer != "bytes") sampling.vocab = tokenizer->vocab();
    sampling.stop_tokens = stop_tokens(arguments, loaded.stored, tokenizer.get());
    for (const std::string& prompt : prompts) {
        Ids ids = tokenizer->prefix();
        for (const int32_t id : tokenizer->encode(prompt)) ids.push_back(id);
        texts.push_back({.prompt = prompt, .prompt_ids = std::move(ids), .stop = StopText(arguments.stop)});
    }
    // The prompt passes the stream too, since the first token may complete its last character.
    for (Text& text : texts)
        if (!arguments.ids) text.prompt = text.stream.feed(text.prompt);

    Output output(texts, writes && !io.json ? &io.out : nullptr);
    std::vector<Ids> ids;
    for (const Text& text : texts) ids.push_back(text.prompt_ids);
    const double begin = seconds_now();
    const auto ended = infer::generate(*loaded.ctx, *loaded.model, ids, sampling, [&](size_t prompt, int32_t token) {
        Text& text = texts[prompt];
        text.tokens.push_back(token);
        const std::string piece = tokenizer ? text.stop.feed(tokenizer->piece(token)) : "";
        text.text += arguments.ids ? concat(text.tokens.size() > 1 ? " " : "", token) : text.stream.feed(piece);
        if (text.stop.stopped() || static_cast<int64_t>(text.tokens.size()) == sampling.max_tokens)
            text.end(arguments.ids);
        output.show();
        return !text.stop.stopped();
    });
    const double seconds = seconds_now() - begin;
    for (Text& text : texts) text.end(arguments.ids);
    output.show();
    const auto is_too_long = [longest = static_cast<size_t>(loaded.max_positions)](const Text& text) {
        return text.prompt_ids.size() + text.tokens.size() > longest;
    };
    if (std::any_of(texts.begin(), texts.end(), is_too_long))
        warn(concat("a text is longer than the ", loaded.max_positions, " positions of the model: each later token ",
                    "depends on the newest ", loaded.max_positions / 2, " or more before it"));
    if (writes) io.print(describe(loaded, sampling, texts, ended, arguments.ids, seconds));
}

}  // namespace

int generate(const GenerateArguments& arguments, const Io& io) {
    const comm::Launch launch = comm::detect_launcher(comm::process_environment());
    const int ranks = ranks_of(arguments, launch);
    const std::vector<std::string> prompts = prompt_texts(arguments);
    warn_of_threads(io, launch, arguments.threads, ranks);
    comm::run(launch, ranks, {},
              [&](comm::World& world) { generate_on(arguments, prompts, world, comm::local_rank(launch, world), io); });
    return 0;
}

}  // namespace tutti::cli
