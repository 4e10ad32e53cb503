// cli/chat.cpp: `tutti chat`: a conversation with a model through its chat template, on a terminal or through pipes.
#include <poll.h>
#include <pthread.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <optional>

#include "tutti/base/timing.h"
#include "tutti/base/to_size.h"
#include "tutti/cli/text_model.h"
#include "tutti/comm/run.h"
#include "tutti/infer/chat_template.h"

namespace tutti::cli {

namespace {

struct ChatArguments : TextModelArguments {
    ChatArguments() { max_tokens = 1024; }  // of an answer
    std::string system;
    std::string template_file;              // "": the one of the model's files
    std::vector<std::string> set_template;  // "key=value"
    int64_t context = 4096;                 // tokens of the longest conversation
};

// The lines of standard input. On a terminal, Ctrl-C does not end the program while this object lives.
class Lines {
  public:
    // Construct before other threads start, which inherit the blocked signal.
    explicit Lines(bool terminal) {
        if (!terminal) return;
        sigset_t interrupt;
        sigemptyset(&interrupt);
        sigaddset(&interrupt, SIGINT);
        pthread_sigmask(SIG_BLOCK, &interrupt, &before_);
        signals_ = signalfd(-1, &interrupt, SFD_CLOEXEC | SFD_NONBLOCK);
        check(signals_ >= 0, "Ctrl-C cannot be received: signalfd failed with error ", errno);
    }
    ~Lines() {
        if (signals_ < 0) return;
        interrupted();
        close(signals_);
        pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }
    Lines(const Lines&) = delete;
    Lines& operator=(const Lines&) = delete;

    bool terminal() const { return signals_ >= 0; }
    // Whether Ctrl-C came since the last call.
    bool interrupted() const {
        signalfd_siginfo received;
        return terminal() && read(signals_, &received, sizeof received) > 0;
    }
    // The next line without its end; "" after Ctrl-C; nothing at the end of the input.
    std::optional<std::string> next() {
        for (;;) {
            if (const size_t end = waiting_.find('\n'); end != std::string::npos) {
                std::string line = waiting_.substr(0, end);
                waiting_.erase(0, end + 1);
                if (line.ends_with('\r')) line.pop_back();
                return line;
            }
            pollfd sources[] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = signals_, .events = POLLIN}};
            if (poll(sources, terminal() ? 2 : 1, -1) < 0 && errno == EINTR) continue;
            if (interrupted()) return "";
            char buffer[4096];
            const ssize_t size = read(STDIN_FILENO, buffer, sizeof buffer);
            if (size < 0 && errno == EINTR) continue;
            check<DataError>(size >= 0, "standard input cannot be read: error ", errno);
            if (size > 0) {
                waiting_.append(buffer, to_size(size));
            } else if (waiting_.empty()) {
                return std::nullopt;
            } else {
                waiting_ += '\n';  // the last line has no end
            }
        }
    }

  private:
    std::string waiting_;
    sigset_t before_{};
    int signals_ = -1;  // -1: no terminal
};

// key=value of --set-template; a value that is not JSON is a text.
Json variables_of(const std::vector<std::string>& given) {
    Json variables = Json::object();
    for (const std::string& one : given) {
        const size_t equals = one.find('=');
        check<UsageError>(equals != std::string::npos && equals > 0, "--set-template ", one,
                          ": required key=value, such as enable_thinking=false");
        const std::string value = one.substr(equals + 1);
        variables[one.substr(0, equals)] = Json::try_parse(value).value_or(Json(value));
    }
    return variables;
}

// A conversation on one rank. All ranks compute the same answers; the first rank reads and writes.
class Chat {
  public:
    Chat(const ChatArguments& arguments, const Io& io, Lines& lines, comm::World& world, const LocalRank& local)
        : arguments_(arguments),
          io_(io),
          lines_(lines),
          first_(world.rank() == 0),
          ranks_(world.size() > 1 ? world.everyone("chat") : nullptr),
          model_(load_text_model(arguments, arguments.context, true, "", world, local,
                                 [this](const std::string& message) { warn(message); })),
          template_(model_.loaded.stored, arguments.template_file),
          variables_(variables_of(arguments.set_template)) {
        reset();
    }

    // Returns the exit code of the first message that failed.
    int run() {
        if (interactive())
            io_.out << "A conversation with " << model_.loaded.stored.path
                    << ". /reset begins a new one; /exit or Ctrl-D "
                    << "ends it; Ctrl-C stops an answer." << std::endl;
        for (;;) {
            if (interactive()) io_.out << "> " << std::flush;
            const std::optional<std::string> line = next_line();
            if (!line || *line == "/exit") break;
            if (*line == "/reset") reset();
            if (line->empty() || *line == "/reset") continue;
            answer(message_of(*line));
        }
        if (interactive()) io_.out << std::endl;
        return exit_code_;
    }

  private:
    bool interactive() const { return first_ && lines_.terminal() && !io_.json; }
    void warn(const std::string& message) const {
        if (first_) io_.err << "warning: " << message << std::endl;
    }

    // With --json a line may be a JSON string, for messages of several lines.
    std::string message_of(const std::string& line) const {
        if (!io_.json || !line.starts_with('"')) return line;
        const std::optional<Json> text = Json::try_parse(line);
        return text && text->is_string() ? text->text() : line;
    }

    void reset() {
        messages_ = Json::array();
        if (!arguments_.system.empty()) messages_.push_back({{"role", "system"}, {"content", arguments_.system}});
    }

    // The first rank's next line, on all ranks.
    std::optional<std::string> next_line() {
        std::optional<std::string> line;
        if (first_) {
            line = lines_.next();
            if (interactive() && line && line->empty()) io_.out << std::endl;
        }
        if (!ranks_) return line;
        const std::string shared = comm::gather_texts(*ranks_, line ? ' ' + *line : "")[0];
        return shared.empty() ? std::nullopt : std::optional(shared.substr(1));
    }

    bool interrupted() {
        const bool here = first_ && lines_.interrupted();
        return ranks_ ? ranks_->max(here ? 1 : 0) > 0 : here;
    }

    void answer(const std::string& question) {
        const Json before = messages_;
        messages_.push_back({{"role", "user"}, {"content", question}});
        try {
            generate_answer();
        } catch (const Error& error) {
            // On a terminal, and with --json, the conversation continues without the question. All ranks have the same
            // error.
            const bool of_template = dynamic_cast<const DataError*>(&error) || dynamic_cast<const UsageError*>(&error);
            if (!(lines_.terminal() || io_.json) || !of_template) throw;
            if (exit_code_ == 0 && !lines_.terminal()) exit_code_ = error.exit_code();
            messages_ = before;
            if (!first_) return;
            io_.err << "tutti: " << error.what() << std::endl;
            io_.print({{"question", question}, {"error", error.what()}, {"exit_code", error.exit_code()}});
        }
    }

    void generate_answer() {
        try {
            messages_.dump();
        } catch (const DataError& error) {
            throw DataError(concat("the message ", error.what(), "; `iconv -t UTF-8` converts a text of a file"));
        }
        const Ids prompt = model_.tokenizer->encode(template_.render(messages_, variables_).text);
        infer::SamplingOptions sampling = model_.sampling;
        check<DataError>(!prompt.empty(), template_.path(),
                         ": required: a text of at least one token, but this conversation renders as an empty one");
        const auto used = static_cast<int64_t>(prompt.size());
        check<UsageError>(used < sampling.max_positions, "the conversation has ", used,
                          " tokens and leaves no room for an ", "answer within ", sampling.max_positions,
                          "; begin a new one (/reset), or give a larger ",
                          "--context, which the positions of the model bound");
        sampling.max_tokens = std::min(sampling.max_tokens, sampling.max_positions - used);
        sampling.seed += static_cast<uint64_t>(answers_++);

        std::string text;
        Ids tokens;
        StopText stop(arguments_.stop);
        Utf8Stream stream;
        const auto show = [&](const std::string& piece) {
            text += piece;
            if (first_ && !io_.json) io_.out << piece << std::flush;
        };
        bool stopped = false;
        const double begin = seconds_now();
        const auto ended = infer::generate(
            *model_.loaded.ctx, *model_.loaded.model, {prompt}, sampling,
            [&](size_t, int32_t token) {
                if (stopped = interrupted(); stopped) return false;
                tokens.push_back(token);
                show(stream.feed(stop.feed(model_.tokenizer->piece(token, text::ShowSpecial::no))));
                return !stop.stopped();
            },
            {}, &kept_)[0];
        show(stream.feed(stop.finish()) + stream.finish());
        const double seconds = seconds_now() - begin;
        messages_.push_back({{"role", "assistant"}, {"content", text}});
        if (!first_) return;
        if (!io_.json) io_.out << std::endl;
        if (ended == infer::Ended::length) warn(concat("the answer ends at its ", sampling.max_tokens, " tokens"));
        io_.print({{"message", messages_.back()},
                   {"prompt_tokens", used},
                   {"cached_tokens", kept_.reused},
                   {"tokens", tokens},
                   {"ended_by", stopped ? "interrupt" : name_of(ended)},
                   {"seconds", seconds},
                   {"tokens_per_s", seconds > 0 ? static_cast<double>(tokens.size()) / seconds : 0}});
    }

    const ChatArguments& arguments_;
    const Io& io_;
    Lines& lines_;
    bool first_;
    std::unique_ptr<comm::Communicator> ranks_;  // null: one rank
    TextModel model_;
    infer::ChatTemplate template_;
    Json variables_, messages_;
    infer::KeptText kept_;
    int64_t answers_ = 0;
    int exit_code_ = 0;
};

int chat(const ChatArguments& arguments, const Io& io) {
    const comm::Launch launch = comm::this_launch();
    int ranks = 0;
    comm::before_ranks_meet(launch, {}, [&] { ranks = ranks_of(arguments, launch); });
    warn_of_threads(io, launch, arguments.threads, ranks);
    Lines lines(isatty(STDIN_FILENO) != 0 && !comm::is_launched(comm::process_environment()));
    int exit_code = 0;  // the same on all ranks
    // No time-out: the other ranks wait for the user's input.
    comm::run(launch, ranks, {.timeout_s = 1e9}, [&](comm::World& world) {
        const int of_rank = Chat(arguments, io, lines, world, comm::local_rank(launch, world)).run();
        if (world.rank() == 0 || launch.size > 1) exit_code = of_rank;
    });
    return exit_code;
}

}  // namespace

Command chat_command(Arguments& all, const Io& io) {
    auto& a = all.add<ChatArguments>();
    const Options options = {
        {"--system", "TEXT", "", "the system message of each conversation", &a.system},
        {"--template", "FILE", "", "a chat template in place of the model's", &a.template_file, kPath},
        {"--set-template", "KEY=VALUE", "", "a variable of the template, as JSON or text; repeatable", &a.set_template},
        {"--context", "N", "4096", "tokens of the longest conversation, which the cache has room for", &a.context,
         Between{2, 0x1p40}}};
    return command_of(
        "chat", "talk to a trained model", a, io, chat, model_options(a, options),
        "The chat template is chat_template.jinja of the model's files, or chat_template of its\n"
        "tokenizer_config.json. An answer ends where a text of `tutti generate` ends.\n"
        "On a terminal, tokens appear as they come; /reset begins a new conversation, /exit or Ctrl-D ends\n"
        "it, Ctrl-C stops an answer. From a pipe, each line is a message, and each answer is printed; with\n"
        "--json as a document, and a message may be a JSON text (\"two\\nlines\"). A message that has no\n"
        "answer, as in a conversation that is too long, ends the program; with --json the document is\n"
        "its error, and the conversation goes on without it.\n"
        "Keys and values stay in memory between the answers.\n\n"
        "Examples:\n"
        "  tutti chat models/Qwen3-0.6B\n"
        "  tutti chat models/Qwen3-0.6B --set-template enable_thinking=false --system \"Be brief.\"\n"
        "  echo \"What is a pipeline bubble?\" | tutti chat runs/tuned --greedy --json\n"
        "  tutti chat models/Llama-3.1-70B --ranks 4");
}

}  // namespace tutti::cli
