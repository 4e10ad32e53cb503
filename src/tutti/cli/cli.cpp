// cli/cli.cpp: the table of contents of the program. Reads the arguments with CLI11 into the structs of commands.h
// (`tutti data` and `tutti schedule`: data.cpp, schedule.cpp), calls one function per command, turns exceptions into
// exit codes.
#include "tutti/cli/cli.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <sstream>

#include "tutti/base/build_info.h"
#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/cli/command_line.h"
#include "tutti/cli/commands.h"
#include "tutti/comm/launcher.h"
#include "tutti/device/device.h"
#include "tutti/spec/nearest.h"
#include "tutti/spec/print.h"

namespace tutti::cli {

namespace {

// The arguments of all commands, and what the chosen one will do with its own.
struct Arguments {
    TrainArguments train;
    RehearseArguments rehearse;
    VerifyArguments verify;
    GenerateArguments generate;
    ConvertArguments convert;
    ReportArguments report;
    DoctorArguments doctor;
    VersionArguments version;
    BenchArguments bench;
    DataArguments data;
    BenchCommArguments bench_comm;
    BenchPipelineArguments bench_pipeline;
    HealthArguments health;
    ScheduleArguments schedule;
    std::function<int()> command;
};

template <class T>
CLI::App* add_command(CLI::App& app, Arguments& all, const Io& io, const char* name, const char* description,
                      T& arguments, int (*function)(const T&, const Io&)) {
    return cli::add_command(app, all.command, name, description, arguments.json,
                            [&arguments, &io, function] { return function(arguments, io); });
}

// `text` with its lines wrapped at 100 columns; what is continued stands below the third column of its line.
std::string wrapped_reference(const std::string& text) {
    constexpr size_t kColumns = 100;
    std::istringstream lines(text);
    std::string result;
    for (std::string line; std::getline(lines, line);) {
        const auto next_column = [&](size_t from) { return line.find_first_not_of(' ', line.find("  ", from)); };
        const size_t help = std::min(next_column(next_column(0)), kColumns / 2 + 10);
        while (line.size() > kColumns) {
            const size_t space = line.rfind(' ', kColumns);
            if (space <= help || space == std::string::npos) break;
            result += line.substr(0, space) + '\n';
            line = std::string(help, ' ') + line.substr(space + 1);
        }
        result += line + '\n';
    }
    return result;
}

// A finite number from `low` to `high`: CLI::Range lets nan pass.
CLI::Validator number_in(double low, double high) {
    const auto problem = [low, high](const std::string& text) {
        double x = 0;
        const bool inside = CLI::detail::lexical_cast(text, x) && x >= low && x <= high;
        return inside ? "" : concat("required a number from ", low, " to ", high, ", got ", text);
    };
    return {problem, concat("FLOAT in [", low, " - ", high, "]"), "number_in"};
}

void add_device_option(CLI::App& command, std::string& device) {
    command.add_option("--device", device, "cpu, cuda, or [auto]: a GPU if there is one")
        ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
        ->option_text("D");
}

// What says which run: of `train` and `verify`.
template <class A>
void add_run_options(CLI::App* c, A& a, const std::string& config) {
    c->add_option("CONFIG", a.config, config)->required()->option_text(" ");
    c->add_option("--ranks", a.ranks, "ranks of the run")->check(CLI::Range(1, 1 << 20))->option_text("N [1]");
    c->add_option("--set", a.set, "a value in place of the file's; repeatable")
        ->allow_extra_args(false)
        ->option_text("section.key=value");
}

void add_force_option(CLI::App* c, bool& force) {
    c->add_flag("--force", force, "start although memory does not suffice")->option_text(" ");
}

// What a run, or its rehearsal, is for and on.
template <class A>
void add_machine_options(CLI::App* c, A& a) {
    c->add_option("--rank", a.rank, "the rank that is shown [the one with the most memory]")
        ->check(CLI::NonNegativeNumber)
        ->option_text("R");
    c->add_option("--for", a.target, "machine: cpu-avx2, cpu-amx, h100, ... [this one]")->option_text("MACHINE");
    c->add_option("--per-host", a.ranks_per_host, "ranks of a host: warns where tensor parallelism crosses hosts [all]")
        ->check(CLI::PositiveNumber)
        ->option_text("N");
    c->add_option("--threads", a.threads, "CPU threads of a rank: train.threads")
        ->check(CLI::Range(0, 4096))
        ->option_text("N");
    c->add_option("--device", a.device, "auto, cpu or cuda: train.device")->option_text("D");
}

void add_train(CLI::App& app, Arguments& all, const Io& io) {
    TrainArguments& a = all.train;
    CLI::App* c = add_command(app, all, io, "train", "train a model as a config file says", a, train);
    add_run_options(c, a, "TOML file; its keys are listed below");
    c->add_option("--out", a.out, "run directory [runs/<name of CONFIG>]")->option_text("DIR");
    c->add_option("--resume", a.resume, "[auto], never, strict or the path of a checkpoint")->option_text("HOW");
    c->add_flag("--dry-run", a.dry_run, "rehearse a step, print the plan card; needs no data or machine");
    add_force_option(c, a.force);
    add_machine_options(c, a);
    c->footer(
        "Examples:\n"
        "  tutti train config.toml\n"
        "  tutti train config.toml --set train.steps=1000 --set optimizer.lr=1e-3 --out runs/longer\n"
        "  tutti train config.toml --dry-run           # does it fit?\n"
        "  tutti train config.toml --dry-run --ranks 64 --for h100 --set parallel.zero=3\n\n"
        "The same command continues a run that was stopped. Ctrl-C finishes the step and saves a checkpoint\n"
        "(exit code 75); twice stops at once. SIGTERM, SIGUSR1, SIGHUP and a pipe\n"
        "that loses its reader stop it likewise.\n\n"
        "Keys of CONFIG, with their defaults:\n" +
        wrapped_reference(spec::reference_text()));
}

void add_rehearse(CLI::App& app, Arguments& all, const Io& io) {
    RehearseArguments& a = all.rehearse;
    CLI::App* c = add_command(app, all, io, "rehearse",
                              "a training step without its memory, data, ranks and machine: what it holds, sends, runs",
                              a, rehearse);
    add_run_options(c, a, "TOML file, as for train");
    add_machine_options(c, a);
    c->add_flag("--kernels", a.kernels, "the kernels and operations of a step, in order; one block for all");
    c->footer(
        "Examples:\n"
        "  tutti rehearse config.toml --kernels\n"
        "  tutti rehearse config.toml --ranks 1024 --for h100 --set parallel.zero=3 --json");
}

void add_verify(CLI::App& app, Arguments& all, const Io& io) {
    VerifyArguments& a = all.verify;
    CLI::App* c = add_command(app, all, io, "verify", "is a layout the same run as one rank? loss, gradients, weights",
                              a, verify);
    add_run_options(c, a, "TOML file, as for train");
    c->add_option("--steps", a.steps, "steps that both take")
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
        ->option_text("N [3]");
    add_force_option(c, a.force);
    c->footer(
        "Exit code 0: the same within rounding; 1: not.\n\n"
        "Examples:\n"
        "  tutti verify run.toml --ranks 4 --set parallel.zero=3\n"
        "  mpirun -n 4 tutti verify run.toml --set precision.compute=f32 --json");
}

void add_generate(CLI::App& app, Arguments& all, const Io& io) {
    GenerateArguments& a = all.generate;
    CLI::App* c = add_command(app, all, io, "generate", "continue texts with a trained model", a, generate);
    c->add_option("CKPT", a.checkpoint, "directory of a run, of a checkpoint or of a Hugging Face model")
        ->required()
        ->option_text(" ");
    c->add_option("--prompt", a.prompts, "text to continue; repeatable")->allow_extra_args(false)->option_text("TEXT");
    c->add_option("--prompts", a.prompts_file, "a text in each line of a file")->option_text("FILE");
    c->add_option("--prompt-ids", a.prompt_ids, "or token ids, such as 1,2,3; repeatable")
        ->allow_extra_args(false)
        ->option_text("IDS");
    c->add_option("--stop", a.stop, "end a text before this; repeatable")->allow_extra_args(false)->option_text("TEXT");
    c->add_option("--stop-ids", a.stop_ids, "tokens that end a text, beside the model's own")->option_text("IDS");
    c->add_flag("--ignore-eos", a.ignore_eos, "do not end at the model's end-of-text tokens")->option_text(" ");
    c->add_flag("--ids", a.ids, "write token ids, not text")->option_text(" ");
    c->add_option("--compute", a.compute, "f32, bf16, or [auto]: as the model was made")
        ->check(CLI::IsMember({"auto", "f32", "bf16"}))
        ->option_text("TYPE");
    c->add_option("--max-tokens", a.max_tokens, "new tokens")
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
        ->option_text("N [256]");
    CLI::Option* temperature = c->add_option("--temperature", a.temperature, "0: always the most likely token")
                                   ->check(number_in(0.0, 1e6))
                                   ->option_text("T [0.8]");
    c->add_option("--top-k", a.top_k, "keep the k most likely tokens; 0: all")
        ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
        ->option_text("K [0]");
    c->add_option("--top-p", a.top_p, "then the fewest that together have probability P")
        ->check(number_in(1e-9, 1.0))
        ->option_text("P [1]");
    c->add_option("--seed", a.seed, "same seed, same text")->option_text("N [1234]");
    c->add_flag("--greedy", a.greedy, "temperature 0")->excludes(temperature)->option_text(" ");
    c->add_option("--ranks", a.ranks, "ranks that share out the model by tensor parallelism")
        ->check(CLI::Range(1, 1 << 20))
        ->option_text("N [1]");
    c->add_option("--set", a.set, "parallel.tp=N: the same as --ranks N, as a config has it")
        ->allow_extra_args(false)
        ->option_text("section.key=value");
    add_device_option(*c, a.device);
    add_threads_option(*c, a.threads);
    c->footer(
        "A prompt gets in front of it what the tokenizer's files ask for: the post-processor of\n"
        "tokenizer.json, or add_bos_token of tokenizer_config.json where there is a tokenizer.model. A text\n"
        "ends at each eos id of generation_config.json (without one: of config.json, and the tokenizer's\n"
        "eos), and at the run's data.eod.\n\n"
        "Examples:\n"
        "  tutti generate runs/bible --prompt \"In the beginning\"\n"
        "  tutti generate runs/bible --prompt \"And God said\" --top-k 20 --temperature 0.7 --seed 7\n"
        "  tutti generate models/Qwen3-0.6B --prompts questions.txt --greedy --stop \"\\n\" --json\n"
        "  tutti generate models/Llama-3.1-70B --ranks 4 --prompt \"In the beginning\"\n"
        "  mpirun -n 4 tutti generate models/Llama-3.1-70B --prompt \"In the beginning\"");
}

void add_convert(CLI::App& app, Arguments& all, const Io& io) {
    ConvertArguments& a = all.convert;
    CLI::App* c = add_command(app, all, io, "convert", "weights to or from a Hugging Face directory", a, convert);
    c->add_option("--from", a.from, "directory of a run, of a checkpoint or of a Hugging Face model")
        ->required()
        ->option_text("DIR");
    c->add_option("--to", a.to, "new directory; appears complete or not at all")->required()->option_text("DIR");
    c->add_option("--format", a.format, "hf or tutti [the other one than --from has]")
        ->check(CLI::IsMember({"hf", "tutti"}))
        ->option_text("F");
    c->add_option("--dtype", a.dtype, "f32, bf16 or f16 [each tensor as it is stored]")
        ->check(CLI::IsMember({"f32", "bf16", "f16"}))
        ->option_text("TYPE");
    c->add_flag("--allow-loss", a.allow_loss, "write values beyond the largest of TYPE as infinity")->option_text(" ");
    c->add_option("--max-shard-size", a.max_shard_size, "hf: bytes of a file; 500MB and 5GB are understood")
        ->transform(CLI::AsSizeValue(true))
        ->option_text("SIZE [5GB]");
    c->footer(
        "Examples:\n"
        "  tutti convert --from runs/mine --to exported            # transformers loads it\n"
        "  tutti convert --from runs/mine --to exported --dtype bf16 --max-shard-size 2GB\n"
        "  tutti convert --from models/Qwen3-0.6B --to runs/qwen3");
}

void add_report(CLI::App& app, Arguments& all, const Io& io) {
    ReportArguments& a = all.report;
    CLI::App* c = add_command(app, all, io, "report", "runs as one HTML page: curves, memory, sample", a, report);
    CLI::Option* runs =
        c->add_option("RUN_DIR", a.run_dirs, "directory of a run, which may still go on; several are compared")
            ->option_text("...");
    c->add_option("--out", a.out, "where to [RUN_DIR/report.html; of several runs comparison.html]")
        ->option_text("FILE");
    c->add_option("--csv", a.csv, "also the logged numbers, a line for each step of each run")->option_text("FILE");
    c->add_option("--flight", a.flight, "instead: of a run that failed, which rank went another way")
        ->excludes(runs)
        ->option_text("DIR");
    c->footer(
        "Examples:\n  tutti report runs/bible\n  tutti report runs/lr-1e-3 runs/lr-3e-4 --csv runs.csv\n"
        "  tutti report --flight runs/failed");
}

// What says who measures and how long: of `bench comm` and `health`.
template <class A>
void add_measuring_options(CLI::App* c, A& a, const char* default_ranks) {
    c->add_option("--ranks", a.ranks, "ranks, as threads")->check(CLI::Range(1, 4096))->option_text(default_ranks);
    c->add_option("--launcher", a.launcher, "who started this process, if not what its environment says")
        ->option_text("NAME");
    c->add_option("--seconds", a.seconds, "patience for all measurements together")
        ->check(number_in(1e-3, 1e6))
        ->option_text("S [20]");
}

void add_health(CLI::App& app, Arguments& all, const Io& io) {
    HealthArguments& a = all.health;
    CLI::App* c =
        add_command(app, all, io, "health", "is a rank or a link slow or wrong? products, memory, links", a, health);
    add_measuring_options(c, a, "N [one per GPU, or 2]");
    add_device_option(*c, a.device);
    add_threads_option(*c, a.threads);
    c->add_option("--margin", a.margin, "slow is what lacks more than this of the median of its peers")
        ->check(number_in(1e-3, 0.999))
        ->option_text("M [0.2]");
    c->add_flag("--one-by-one", a.one_by_one, "one link at a time, not all pairs of a round at once");
    c->footer(
        "All ranks measure at the same time: matrix products, memory, copies to and from a GPU, every link\n"
        "between two ranks. A product of known values is checked, and repeated: its bits must stay the same,\n"
        "and be those of equal devices. Exit code 0: healthy; 1: something is slow or wrong, named last.\n\n"
        "Examples:\n"
        "  tutti health --ranks 4\n"
        "  mpirun -n 16 tutti health --device cuda\n"
        "  srun tutti health --margin 0.05 --seconds 60 --json");
}

void add_bench_comm(CLI::App& parent, Arguments& all, const Io& io) {
    BenchCommArguments& a = all.bench_comm;
    CLI::App* c =
        add_command(parent, all, io, "comm", "collectives, 1 KiB ... 64 MiB, as shares of a copy", a, bench_comm);
    add_measuring_options(c, a, "N [2]");
    c->add_flag("--progress-thread", a.progress_thread, "one more thread per rank, which communicates");
    c->footer(
        "Examples:\n"
        "  tutti bench comm --ranks 4\n"
        "  mpirun -n 4 tutti bench comm");
}

void add_bench_pipeline(CLI::App& parent, Arguments& all, const Io& io) {
    BenchPipelineArguments& a = all.bench_pipeline;
    CLI::App* c = add_command(parent, all, io, "pipeline",
                              "schedules by the executor of training, beside their timelines", a, bench_pipeline);
    c->add_option("--kind", a.kind, "a schedule, or all")->option_text("KIND [all]");
    c->add_option("--stages", a.stages, "ranks")->check(CLI::Range(1, 4096))->option_text("P [4]");
    c->add_option("--virtual", a.chunks, "stages per rank, where a schedule leaves them free")
        ->check(CLI::Range(1, 4096))
        ->option_text("V [2]");
    c->add_option("--microbatches", a.microbatches, "of a step")->check(CLI::Range(1, 1 << 20))->option_text("M [16]");
    const auto add_time = [&](const char* name, double& ms, const char* what) {
        c->add_option(name, ms, what)->check(number_in(0, 1e6))->option_text("MS [10]");
    };
    add_time("--f", a.forward, "forward of what a rank has of the model");
    add_time("--i", a.backward_input, "its input gradients");
    add_time("--w", a.backward_weight, "its weight gradients");
    c->add_option("--repeats", a.repeats, "runs; the median counts")->check(CLI::Range(1, 1000))->option_text("N [3]");
    c->add_flag("--progress-thread", a.progress_thread, "one more thread per rank, which communicates");
    c->footer(
        "Compute is replaced by waiting; messages and their order are those of training. Without kernels in its\n"
        "way the measured time is what the timeline says and what messages add.\n\n"
        "Examples:\n"
        "  tutti bench pipeline --stages 8 --microbatches 32\n"
        "  mpirun -n 8 tutti bench pipeline --kind zb-v");
}

void add_bench(CLI::App& app, Arguments& all, const Io& io) {
    CLI::App* parent = app.add_subcommand("bench", "the machine's ceilings and what Tutti reaches of them");
    parent->require_subcommand(1);
    parent->footer(
        "Examples:\n"
        "  tutti bench memory\n"
        "  tutti bench gemm --dtype f32 --seconds 60\n"
        "  tutti bench step --model llama-20m");
    BenchArguments& a = all.bench;
    const auto add = [&](const char* name, const char* description, BenchArguments::Kind kind) {
        CLI::App* c = add_command(*parent, all, io, name, description, a, bench);
        c->parse_complete_callback([&a, kind] { a.kind = kind; });
        std::vector<std::string> types = {"bf16", "f32"};
        const bool makes_products = kind == BenchArguments::Kind::gemm || kind == BenchArguments::Kind::step;
        if (makes_products) types.emplace_back("tf32");
        c->add_option("--dtype", a.dtype, makes_products ? "[bf16], f32, or tf32 on a GPU" : "[bf16] or f32")
            ->check(CLI::IsMember(types))
            ->option_text("TYPE");
        add_device_option(*c, a.device);
        add_threads_option(*c, a.threads);
        c->add_option("--seconds", a.seconds, "patience for all measurements together")
            ->check(number_in(1e-3, 1e6))
            ->option_text("S [20]");
        return c;
    };
    CLI::App* gemm = add("gemm", "matrix products from N = 512 on, as shares of the peak", BenchArguments::Kind::gemm);
    gemm->add_option("--model", a.model, "also the products of this preset, such as gpt2-124m")->option_text("PRESET");
    gemm->footer("Example:\n  tutti bench gemm --model llama-110m");
    CLI::App* attention = add("attention", "causal attention, T = 1024 ... 16384", BenchArguments::Kind::attention);
    attention->add_option("--window", a.window, "a sliding window of so many keys; 0: none")
        ->check(CLI::Range(int64_t{0}, int64_t{1} << 31))
        ->option_text("N [0]");
    attention->footer("Examples:\n  tutti bench attention --seconds 60\n  tutti bench attention --window 1024");
    add("memory", "bandwidth, and what kernels without matrix products reach of it", BenchArguments::Kind::memory)
        ->footer("Example:\n  tutti bench memory --threads 1");
    CLI::App* step =
        add("step", "a training step and its MFU, in the five steps of the definition", BenchArguments::Kind::step);
    step->add_option("--model", a.model, "[llama-tiny]")->option_text("PRESET");
    step->add_option("--set", a.set, "a value of the config; repeatable")
        ->allow_extra_args(false)
        ->option_text("section.key=value");
    step->add_flag("--kernels", a.kernels, "also the time of each kernel, beside the least that it can cost");
    step->footer(
        "Examples:\n"
        "  tutti bench step --model llama-5m --kernels\n"
        "  tutti bench step --model gpt2-124m --set train.seq_len=1024 --set train.micro_batch=4\n"
        "  tutti bench step --model mlp-8192 --set model.width=2048 --dtype f32");
    add_bench_comm(*parent, all, io);
    add_bench_pipeline(*parent, all, io);
}

// ---------------------------------------------------------------------------------------------------------------------

const CLI::App* chosen_command(const CLI::App* app) {
    while (!app->get_subcommands().empty()) app = app->get_subcommands().back();
    return app;
}

std::string words_of(const CLI::App* command) {
    std::string words = command->get_name();
    for (const CLI::App* p = command->get_parent(); p != nullptr; p = p->get_parent())
        words = concat(p->get_name(), ' ', words);
    return words;
}

std::vector<std::string> options_of(const CLI::App* command) {
    std::vector<std::string> names;
    for (const CLI::Option* option : command->get_options())
        for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    return names;
}

// What is wrong with the command line, in words that name the nearest right one.
std::string describe(const CLI::App& app, const CLI::ParseError& error) {
    const CLI::App* command = chosen_command(&app);
    const std::vector<std::string> strangers = app.remaining(true);
    const auto is_option = [](const std::string& word) { return word.size() > 1 && word[0] == '-'; };
    std::vector<std::string> names;
    std::string all;
    for (const CLI::App* c : command->get_subcommands([](const CLI::App*) { return true; })) {
        all += (names.empty() ? "" : ", ") + c->get_name();
        names.push_back(c->get_name());
    }
    const auto word = std::find_if_not(strangers.begin(), strangers.end(), is_option);
    if (!names.empty() && word != strangers.end())
        return concat("unknown command `", *word, "` of `", words_of(command), "`; the nearest is `",
                      spec::nearest(*word, names), "` of ", all);
    const auto option = std::find_if(strangers.begin(), strangers.end(), is_option);
    if (option != strangers.end()) {
        const std::string name = option->substr(0, option->find('='));
        return concat("unknown option ", name, " of `", words_of(command), "`; the nearest is ",
                      spec::nearest(name, options_of(command)));
    }
    if (!names.empty()) return concat("`", words_of(command), "` needs a command: ", all);
    return error.what();
}

int fail(const Io& io, bool json, const std::string& message, int exit_code) {
    io.err << (io.color ? "\033[1;31mtutti:\033[0m " : "tutti: ") << message << std::endl;
    if (json) {
        const Json document = {{"error", message}, {"exit_code", exit_code}};
        io.out << document.dump(2, Json::InvalidUtf8::replace) << std::endl;
    }
    return exit_code;
}

bool asks_for_json(int argc, const char* const* argv) {
    for (int i = 1; i < argc; ++i)
        if (std::string(argv[i]) == "--json") return true;
    return false;
}

}  // namespace

CLI::App* add_command(CLI::App& app, std::function<int()>& chosen, const char* name, const char* description,
                      bool& json, std::function<int()> call) {
    CLI::App* command = app.add_subcommand(name, description);
    command->add_flag("--json", json, "one JSON document on stdout, nothing else there");
    command->callback([&chosen, call = std::move(call)] { chosen = call; });
    return command;
}

void add_threads_option(CLI::App& command, int& threads) {
    command.add_option("--threads", threads, "CPU threads; 0: all cores")
        ->check(CLI::Range(0, 4096))
        ->option_text("N [0]");
}

void warn_of_threads(const Io& io, int64_t threads) {
    constexpr int64_t kFar = 4;
    const int64_t cores = available_cores();
    if (threads > kFar * cores)
        io.err << "warning: " << threads << " CPU threads on " << cores << " cores wait for each other most of the "
               << "time; fewer are faster (train.threads, --threads; 0: all cores)" << std::endl;
}

int run(int argc, const char* const* argv, const Io& io) {
    const bool json = asks_for_json(argc, argv);
    CLI::App app("Tutti trains large neural networks on all your devices at once.", "tutti");
    Arguments arguments;
    app.require_subcommand(1);
    app.set_version_flag("--version", "tutti " + build_info().version);
    app.footer(
        "Each command has its own --help, with examples, and --json.\nExit codes: 0 done, 2 usage or config, 3 data or "
        "checkpoint, 4 failed, 75 stopped after a checkpoint.");
    app.get_formatter()->column_width(32);
    add_train(app, arguments, io);
    add_rehearse(app, arguments, io);
    add_verify(app, arguments, io);
    add_generate(app, arguments, io);
    add_convert(app, arguments, io);
    add_report(app, arguments, io);
    add_bench(app, arguments, io);
    add_health(app, arguments, io);
    add_schedule(app, arguments.command, arguments.schedule, io);
    add_data(app, arguments.command, arguments.data, io);
    add_command(app, arguments, io, "doctor", "what this build and this machine have", arguments.doctor, doctor);
    add_command(app, arguments, io, "version", "version and build", arguments.version, version);

    try {
        app.parse(argc, argv);
        const int code = arguments.command();
        check(code != 0 || io.out.flush(), "standard output cannot be written: is its disk full?");
        return code;
    } catch (const CLI::Success& asked) {  // --help, --version
        app.exit(asked, io.out, io.err);
        return 0;
    } catch (const CLI::ParseError& error) {
        if (argc < 2) {
            io.err << app.help();
            return 2;
        }
        const std::string more = concat("\ntry: ", words_of(chosen_command(&app)), " --help");
        return fail(io, json, describe(app, error) + more, 2);
    } catch (const Error& error) {
        return fail(io, json, error.what(), error.exit_code());
    } catch (const std::filesystem::filesystem_error& error) {
        return fail(io, json, concat(error.path1().string(), ": ", error.code().message()), 3);
    } catch (const std::bad_alloc&) {
        return fail(io, json, "out of memory: a smaller model, micro_batch or seq_len needs less", 4);
    } catch (const std::exception& error) {
        return fail(io, json, error.what(), 4);
    }
}

int run(int argc, char** argv) {
    // mpirun gives its ranks terminals, whatever its own output is: a log of it must have no bars and colours.
    const bool alone = !comm::is_launched(comm::process_environment());
    const bool out_terminal = alone && isatty(STDOUT_FILENO) != 0, err_terminal = alone && isatty(STDERR_FILENO) != 0;
    const char* no_color = std::getenv("NO_COLOR");  // https://no-color.org: set and not empty
    const bool color = err_terminal && (no_color == nullptr || *no_color == '\0');
    return run(argc, argv, Io{std::cout, std::cerr, out_terminal, err_terminal, color});
}

}  // namespace tutti::cli
