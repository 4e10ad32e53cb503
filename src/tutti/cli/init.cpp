// cli/init.cpp: `tutti init`: writes a directory with all files of a first run; with --demo also trains it.
#include <filesystem>
#include <system_error>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/base/strings.h"
#include "tutti/cli/command.h"
#include "tutti/cli/gospels.h"
#include "tutti/cli/io.h"
#include "tutti/text/bpe_trainer.h"
#include "tutti/text/tokenizer_json.h"

namespace tutti::cli {

namespace {

struct InitArguments {
    std::string directory = "first-run";
    bool demo = false;  // also train and print a sample
};

namespace fs = std::filesystem;

constexpr int64_t kVocab = 1024;

// A run of about a minute on two cores; paths are those of `directory`.
std::string config_text(const fs::path& directory) {
    const auto quoted = [&](const char* name) { return Json((directory / name).string()).dump(); };
    return concat(
        "# A first run: `tutti train` with this file trains it.\n"
        "# Paths are relative to the directory in which tutti is started. `tutti config` explains every key.\n"
        "[model]\n"
        "preset = \"llama-5m\"   # `tutti config model.preset` lists the presets; the lines below make this one "
        "smaller\n"
        "layers = 4\n"
        "width = 128\n"
        "heads = 2\n"
        "kv_heads = 2\n"
        "ffn = 384\n"
        "vocab = ",
        kVocab,
        "\n"
        "\n"
        "[data]\n"
        "train = [",
        quoted("text.txt"),
        "]   # your own text, JSONL or token files: see `tutti data --help`\n"
        "tokenizer = ",
        quoted("tokenizer.json"),
        "   # tutti data train-tokenizer TEXT --out FILE\n"
        "valid_fraction = 0.02   # the end of the text, for eval_loss\n"
        "\n"
        "[train]\n"
        "steps = 800\n"
        "seq_len = 256\n"
        "global_batch = 4   # sequences of an update, over all ranks\n"
        "micro_batch = 4    # sequences that a rank computes at once\n"
        "eval_every = 200\n"
        "\n"
        "[optimizer]\n"
        "lr = 6e-3\n"
        "warmup_steps = 50\n"
        "schedule = \"cosine\"\n"
        "\n"
        "[checkpoint]\n"
        "every = 200   # the same command continues an interrupted run\n"
        "\n"
        "[log]\n"
        "every = 50\n");
}

// Creates a directory and its missing parents. The destructor removes those that are still empty, as after an error.
class CreatedDirectories {
  public:
    explicit CreatedDirectories(const fs::path& path) {
        for (fs::path p = path; !p.empty() && !fs::exists(p); p = p.parent_path()) created_.push_back(p);
        std::error_code problem;
        fs::create_directories(path, problem);
        check_written(!problem, problem.value(), "DIR ", path.string(), ": cannot be made: ", problem.message(),
                      "; give another");
    }
    ~CreatedDirectories() {
        std::error_code ignored;  // a directory with files stays
        for (const fs::path& path : created_) fs::remove(path, ignored);
    }
    CreatedDirectories(const CreatedDirectories&) = delete;
    CreatedDirectories& operator=(const CreatedDirectories&) = delete;

  private:
    std::vector<fs::path> created_;  // innermost first
};

// Writes `name`, unless the file exists with the same content. UsageError for a file with other content.
void put(const fs::path& directory, const char* name, std::string_view text) {
    const fs::path path = directory / name;
    if (!fs::exists(path)) return write_file("DIR", path.string(), std::string(text));
    check<UsageError>(read_file(path.string()) == text, "tutti init: ", path.string(),
                      " is there already and differs; give another directory, or remove the file");
}

int init(const InitArguments& arguments, const Io& io) {
    const fs::path directory = fs::path(arguments.directory).lexically_normal();
    const fs::path config = directory / "run.toml", text = directory / "text.txt", out = directory / "run",
                   tokenizer = directory / "tokenizer.json";
    check<UsageError>(!fs::exists(directory) || fs::is_directory(directory), "DIR ", directory.string(),
                      " exists and is not a directory; give another name");
    const CreatedDirectories created(directory);
    put(directory, "run.toml", config_text(directory));
    put(directory, "text.txt", gospels());
    const Io quiet{io.err, io.err, io.err_terminal, io.err_terminal, io.color};  // with --json, text goes to err
    Io inner = io.json ? quiet : io;
    inner.suggests = false;
    if (!fs::exists(tokenizer)) {
        const std::string_view texts[] = {gospels()};
        write_file("DIR", tokenizer.string(), text::tokenizer_json(text::train_bpe(texts, {.vocab = kVocab})));
    }
    io.text() << "wrote " << config.string() << ", " << text.string() << " (the four Gospels) and "
              << tokenizer.string() << std::endl;

    const std::string of_config = quoted_for_shell(config.string());
    const std::string train_command = concat("tutti train ", of_config, " --out ", quoted_for_shell(out.string()));
    Json document = {{"config", config.string()}, {"text", text.string()}, {"tokenizer", tokenizer.string()}};
    if (!arguments.demo) {
        io.next({concat(train_command, "   # about a minute"),
                 concat("tutti verify ", of_config,
                        " --ranks 2 --set parallel.zero=3 --set train.micro_batch=2   # the same on two ranks?"),
                 "tutti config train   # what the keys of [train] mean"});
        io.print(document);
        return 0;
    }

    TrainArguments run;
    run.config = config.string();
    run.out = out.string();
    if (const int code = train(run, inner); code != 0) return code;
    io.text() << "\na sample:\n\n";
    GenerateArguments sample;
    sample.checkpoint = out.string();
    sample.prompts = {"And Jesus said"};
    sample.max_tokens = 120;
    sample.temperature = 0.7;
    generate(sample, inner);
    io.text() << std::endl;
    document["run"] = out.string();
    document["report"] = (out / "report.html").string();
    io.next({concat("tutti verify ", of_config,
                    " --ranks 4 --set parallel.tp=2 --set parallel.zero=3 --set train.micro_batch=2   # the same run?"),
             concat(train_command, " --set train.steps=1600   # go on"),
             "tutti plan --model llama3-70b --cluster h100 --gpus 256 --global-batch 1024 --seq-len 8192"});
    io.print(document);
    return 0;
}

}  // namespace

Command init_command(Arguments& all, const Io& io) {
    auto& a = all.add<InitArguments>();
    const Options options = {
        {"DIR", "", "first-run", "directory for the files; created if it is missing", &a.directory, kPath},
        {"--demo", "", "", "also train, about a minute on two cores, and print a sample", &a.demo}};
    return command_of("init", "write a first config, a text and its tokenizer", a, io, init, options,
                      "Existing files are kept; one with other content is an error.\n"
                      "A second `tutti init --demo` continues the run, or prints a sample of the finished one.\n\n"
                      "Examples:\n"
                      "  tutti init --demo\n"
                      "  tutti init mine && tutti train mine/run.toml");
}

}  // namespace tutti::cli
