// cli/program.cpp: the commands of the program, with the options of those that have few; command.h says where the
// others are.
#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/cli/command.h"
#include "tutti/cli/forecast.h"
#include "tutti/hardware/cluster.h"
#include "tutti/spec/devices.h"
#include "tutti/spec/fields.h"
#include "tutti/spec/model_spec.h"
#include "tutti/spec/nearest.h"

namespace tutti::cli {

Options joined_options(const std::vector<Options>& lists) {
    Options all;
    for (const Options& list : lists) all.insert(all.end(), list.begin(), list.end());
    return all;
}

Option required(Option option) {
    option.required = true;
    return option;
}

Options beside(const std::vector<std::string>& others, Options options) {
    for (Option& option : options) option.beside.insert(option.beside.end(), others.begin(), others.end());
    return options;
}

Options without(const std::vector<std::string>& others, Options options) {
    for (Option& option : options) option.without.insert(option.without.end(), others.begin(), others.end());
    return options;
}

Option threads_option(int& threads) {
    return {"--threads", "N", "0", "CPU threads; 0: all cores", &threads, Between{0, 4096}};
}

Option device_option(std::string& device) {
    return {"--device", "D",
            "",         concat(joined(spec::device_choices()), " [auto: a GPU if there is one]"),
            &device,    spec::device_choices()};
}

Option seconds_option(double& seconds) {
    return {"--seconds", "S", "20", "time for all measurements together", &seconds, Between{1e-3, 1e6}};
}

Options measuring_options(MeasuringArguments& a, const char* default_ranks) {
    return {{"--ranks", "N", default_ranks, "ranks, as threads of this process", &a.ranks, Between{1, 4096}},
            {"--launcher", "NAME", "", "launcher of this process [detected from its environment]", &a.launcher},
            seconds_option(a.seconds)};
}

namespace {

constexpr double kMany = int64_t{1} << 40;

Option force_option(bool& force) { return {"--force", "", "", "start even if memory is short", &force}; }

// The rank that a rehearsal shows, and its host.
Options shown_rank_options(RehearseArguments& a) {
    return {
        {"--rank", "R", "", "rank that a rehearsal shows [the one with the most memory]", &a.rank,
         Between{0, kManyRanks}},
        {"--per-host", "N", "", "ranks per host, to warn of tp across hosts, and to draw --layout [those of --cluster]",
         &a.ranks_per_host, Between{1, kManyRanks}}};
}

Command train_command(TrainArguments& a, const Io& io) {
    const Options options = {
        {"--out", "DIR", "", "run directory [runs/<name of CONFIG>]", &a.out, kPath},
        {"--resume", "HOW", "", "[auto], never, strict or the path of a checkpoint", &a.resume,
         Suggestions{{"auto", "never", "strict"}, true}},
        {"--dry-run", "", "", "rehearse a step and print the plan card; needs no data or machine", &a.dry_run},
        force_option(a.force)};
    Command command = command_of(
        "train", "train a model", a, io, train,
        joined_options(
            {run_options(a, "TOML file; `tutti config` explains its keys"), options, rank_options(a),
             beside({"--dry-run"}, joined_options({shown_rank_options(a), machine_options(a, "this one")}))}),
        "Examples:\n"
        "  tutti train config.toml\n"
        "  tutti train config.toml --set train.steps=1000 --set optimizer.lr=1e-3 --out runs/longer\n"
        "  tutti train config.toml --dry-run           # does it fit?\n"
        "  tutti train config.toml --dry-run --ranks 64 --cluster h100 --set parallel.zero=3\n\n"
        "The same command continues a stopped run. Ctrl-C finishes the step and saves a checkpoint (exit\n"
        "code 75), as do SIGTERM, SIGUSR1, SIGHUP and a closed output pipe. A second Ctrl-C stops at "
        "once.\n\n"
        "Keys of CONFIG: `tutti config` lists them, `tutti config SECTION` or SECTION.KEY explains them;\n"
        "`tutti init` writes a first CONFIG.");
    command.prints_log = [&a] { return !a.dry_run; };
    return command;
}

Command init_command(InitArguments& a, const Io& io) {
    const Options options = {
        {"DIR", "", "first-run", "directory for the files; created if it is missing", &a.directory, kPath},
        {"--demo", "", "", "also train, at most a minute on two cores, and print a sample", &a.demo}};
    return command_of("init", "write a first config, a text and its tokenizer", a, io, init, options,
                      "Existing files are kept; one with other content is an error.\n"
                      "A second `tutti init --demo` continues the run, or prints a sample of the finished one.\n\n"
                      "Examples:\n"
                      "  tutti init --demo\n"
                      "  tutti init mine && tutti train mine/run.toml");
}

Command config_command(ConfigArguments& a, const Io& io) {
    std::vector<std::string> names;
    const spec::RunSpec defaults{};
    spec::for_each_field(defaults, [&](const spec::Field& field, const auto&) {
        if (names.empty() || names.back().substr(0, names.back().find('.')) != field.section)
            names.emplace_back(field.section);
        if (!field.key.empty()) names.push_back(field.path());
    });
    const Options options = {
        {"NAME", "", "", "a section, a key or a group of keys [all sections]; with --from a file", &a.name,
         Suggestions{names, true}},
        {"--from", "TRAINER", "",
         concat("show the options of ", joined(peers::names()), " beside our keys; with a file, its run as a config"),
         &a.from, peers::names()}};
    return command_of("config", "explain the keys of a config", a, io, config, options,
                      "Examples:\n"
                      "  tutti config train\n"
                      "  tutti config optimizer.lr\n"
                      "  tutti config model.rope_scaling\n"
                      "  tutti config --from megatron\n"
                      "  tutti config --from megatron pretrain.sh > run.toml");
}

Command rehearse_command(RehearseArguments& a, const Io& io) {
    return command_of(
        "rehearse", "show what a training step holds, sends and computes, without running it", a, io, rehearse,
        joined_options(
            {run_options(a, "TOML file, as for train"),
             {stage_option(a)},
             machine_options(a, "this one"),
             without({"--vary"}, shown_rank_options(a)),
             rank_options(a),
             without({"--vary"}, {{"--kernels", "", "",
                                   "list kernels and operations of a step in order, once for all blocks", &a.kernels}}),
             without(
                 {"--kernels", "--vary"},
                 {{"--layout", "", "", "show each rank's part of the weights, optimizer state and tokens", &a.layout}}),
             {{"--svg", "FILE", "", "draw the memory over the step; with --layout the layout, with --vary each value",
               &a.svg, kOutput}},
             without({"--layout", "--vary"},
                     {{"--html", "FILE", "",
                       "write the step as a page with a slider: what each rank does, holds and sends at a time; needs "
                       "--cluster",
                       &a.html, kOutput}})}),
        "Examples:\n"
        "  tutti rehearse config.toml --kernels\n"
        "  tutti rehearse config.toml --ranks 8 --set parallel.tp=2 --layout --rank 5\n"
        "  tutti rehearse config.toml --ranks 8 --vary parallel.zero=0,1,2,3 --svg zero.svg\n"
        "  tutti rehearse config.toml --ranks 1024 --cluster h100 --set parallel.zero=3 --json");
}

Command verify_command(VerifyArguments& a, const Io& io) {
    const Options options = {
        {"--steps", "N", "3", "steps of both runs", &a.steps, Between{1, kMany}},
        {"--blame", "", "", "find, on one rank, the first tensor whose rounding moves the loss", &a.blame},
        force_option(a.force)};
    return command_of("verify", "check that a layout gives the same run as one rank: loss, gradients, weights", a, io,
                      verify, joined_options({run_options(a, "TOML file, as for train"), {stage_option(a)}, options}),
                      "Exit code 0: the same within rounding; 1: different.\n\n"
                      "Examples:\n"
                      "  tutti verify run.toml --ranks 4 --set parallel.zero=3\n"
                      "  mpirun -n 4 tutti verify run.toml --set precision.compute=f32 --json\n"
                      "  tutti verify run.toml --blame --set precision.recipe=tensor");
}

Command convert_command(ConvertArguments& a, const Io& io) {
    const Options options = {
        required(
            {"--from", "DIR", "", "directory of a run, of a checkpoint or of a Hugging Face model", &a.from, kPath}),
        required({"--to", "DIR", "", "new directory; appears complete or not at all", &a.to, kPath}),
        {"--format", "F", "", "hf or tutti [the one that --from is not]", &a.format, Choices{"hf", "tutti"}},
        {"--dtype", "TYPE", "", "f32, bf16 or f16 [each tensor's own]", &a.dtype, Choices{"f32", "bf16", "f16"}},
        {"--allow-loss", "", "", "allow values that become infinite in TYPE", &a.allow_loss, {}, {"--dtype"}},
        {"--max-shard-size", "SIZE", "5GB", "hf: largest file, in bytes or as 500MB", &a.max_shard_size, ByteCount{}}};
    return command_of("convert", "convert weights to or from a Hugging Face directory", a, io, convert, options,
                      "Examples:\n"
                      "  tutti convert --from runs/mine --to exported            # transformers loads it\n"
                      "  tutti convert --from runs/mine --to exported --dtype bf16 --max-shard-size 2GB\n"
                      "  tutti convert --from models/Qwen3-0.6B --to runs/qwen3");
}

Command watch_command(WatchArguments& a, const Io& io) {
    const Options options = {
        required({"RUN_DIR", "...", "", "directory of a run, going on or ended; several are shown below each other",
                  &a.run_dirs, kPath}),
        {"--once", "", "", "show the runs as they are, and end", &a.once, {}, {}, {"--http", "--listen"}},
        {"--http", "", "", "serve a live page and /metrics to this machine, at a free port", &a.http},
        {"--listen", "[ADDRESS:]PORT", "", "the same at this port, and for other machines at their ADDRESS",
         &a.listen}};
    return command_of(
        "watch", "show runs while they go on: state, time left, checkpoint, loss", a, io, watch, options,
        "Reads the files of the runs and writes nothing. A terminal is redrawn each second; a pipe gets a\n"
        "line for each step. Ends with the last run, or by Ctrl-C.\n\n"
        "--http prints the URL of a page with the cards of `tutti report`, which is updated during the runs\n"
        "and stays available after them; chosen runs share their charts. From another machine: ssh -L\n"
        "6007:127.0.0.1:6007 HOST and --listen 6007. Other users of this machine can read the page, too.\n"
        "--listen 0.0.0.0:6007 opens it to the network, unencrypted: losses, config, host names. It then\n"
        "requires a token, in the URL or in the Authorization header of Prometheus.\n\n"
        "Examples:\n  tutti watch runs/bible\n  tutti watch runs/*\n  tutti watch runs/* --http\n"
        "  tutti watch runs/bible --once --json");
}

Command report_command(ReportArguments& a, const Io& io) {
    const Options options = joined_options(
        {{{"RUN_DIR", "...", "", "directory of a run, finished or not; several are compared", &a.run_dirs, kPath},
          {"--out", "FILE", "", "the page [RUN_DIR/report.html; for several runs comparison.html]", &a.out, kOutput},
          {"--csv", "FILE", "", "also write the logged numbers, one line per step of each run", &a.csv, kOutput},
          {"--step", "FILE", "", "also write a traced step as a page with a slider: what each rank does at a time",
           &a.step, kOutput}},
         without({"RUN_DIR", "--out", "--csv", "--step"},
                 {{"--flight", "DIR", "", "read the flight records of a failed run: which rank diverged first",
                   &a.flight, kPath}})});
    return command_of("report", "write an HTML page about runs: curves, memory, sample", a, io, report, options,
                      "Examples:\n  tutti report runs/bible\n  tutti report runs/lr-1e-3 runs/lr-3e-4 --csv runs.csv\n"
                      "  tutti report --flight runs/failed");
}

// Puts --json before the other options of every command that runs.
void add_json_option(Command& command, bool& json) {
    if (command.run)
        command.options.insert(command.options.begin(),
                               {"--json", "", "", "print one JSON document, and nothing else, on stdout", &json});
    for (Command& below : command.commands) add_json_option(below, json);
}

Command completion_command(CompletionArguments& a, const Io& io) {
    const Options options = {
        required({"SHELL", "", "", "bash, zsh or fish", &a.shell, Choices{"bash", "zsh", "fish"}})};
    return command_of("completion", "print a script that completes command lines in a shell", a, io, completion,
                      options,
                      "The packages install these scripts. Examples elsewhere:\n"
                      "  source <(tutti completion bash)     # in ~/.bashrc\n"
                      "  source <(tutti completion zsh)      # in ~/.zshrc, after compinit\n"
                      "  tutti completion fish | source      # in ~/.config/fish/config.fish");
}

Command hardware_command(HardwareArguments& a, const Io& io) {
    const Options options = {
        {"NAME", "", "", "a device of the catalog, or a TOML file [a table of all]", &a.name,
         Suggestions{hardware::cluster_names(), true}},
        {"--devices,--gpus,--ranks", "N", "1", "show the totals of N devices", &a.devices, Between{1, kManyRanks}},
        set_cluster_option(a.set_cluster),
        {"--html", "FILE", "", "write a page with the peaks of all devices over the years", &a.html, kOutput}};
    return command_of("hardware", "show devices and clusters: peaks, memory, bandwidths, totals, sources", a, io,
                      show_hardware, options,
                      "Examples:\n"
                      "  tutti hardware\n"
                      "  tutti hardware --html devices.html\n"
                      "  tutti hardware h100\n"
                      "  tutti hardware h100 --devices 24576 --set-cluster network.pod=3072 \\\n"
                      "      --set-cluster network.oversubscription=7");
}

}  // namespace

Command program(Arguments& all, const Io& io) {
    const auto alone = [&io](const char* name, const char* description, int (*function)(const Io&),
                             const char* footer) {
        return Command{name, description, {}, footer, [&io, function] { return function(io); }};
    };
    Command program = {
        .name = "tutti",
        .description = "Tutti trains large neural networks on all your devices at once.",
        .footer =
            "`tutti COMMAND --help` explains a command and shows examples.\n"
            "Learning: five public lectures on large-scale training, item by item with its command, and exercises\n"
            "that check themselves: docs/lectures/README.md and examples/course of the sources.\n"
            "Exit codes: 0 done, 2 usage or config, 3 data or checkpoint, 4 failed, 5 ended because of another\n"
            "rank, 70 a bug or no progress: do not start it again, 75 stopped by a signal with nothing lost:\n"
            "start it again.",
        .commands = {
            init_command(all.init, io),
            config_command(all.config, io),
            train_command(all.train, io),
            launch_command(all.launch, io),
            alone("agent", "serve `tutti launch` on a host, which starts this command itself", agent,
                  "Reads and writes frames on standard input and output; stops its ranks when these close."),
            rehearse_command(all.rehearse, io),
            verify_command(all.verify, io),
            generate_command(all.generate, io),
            chat_command(all.chat, io),
            convert_command(all.convert, io),
            inspect_command(all.inspect, io),
            watch_command(all.watch, io),
            report_command(all.report, io),
            bench_command(all, io),
            health_command(all.health, io),
            schedule_command(all.schedule, io),
            simulate_command(all.simulate, io),
            plan_command(all.plan, io),
            data_command(all.data, io),
            alone("doctor", "show what this build and this machine have, and what is missing", doctor,
                  "Exit code 0: no problem; 4: problems, printed last."),
            hardware_command(all.hardware, io),
            alone("models", "list presets with sizes and support, and the model_types that are read", models,
                  "Examples:\n  tutti models\n  tutti models --json | jq '.presets[] | select(.parameters < 2e9)'"),
            alone("version", "print version and build", version, ""),
            completion_command(all.completion, io),
            alone("man", "print the manual page, as source for man", manual, "Example:\n  tutti man | man -l -")}};
    add_json_option(program, all.json);
    return program;
}

}  // namespace tutti::cli
