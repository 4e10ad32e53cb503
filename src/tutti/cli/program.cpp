// cli/program.cpp: the commands of the program and their options. data.cpp, plan.cpp, schedule.cpp and simulate.cpp
// have the options of their commands.
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

namespace {

constexpr double kMany = int64_t{1} << 40;

Options operator+(Options options, const Options& more) {
    options.insert(options.end(), more.begin(), more.end());
    return options;
}

Option force_option(bool& force) { return {"--force", "", "", "start even if memory is short", &force}; }

Option seconds_option(double& seconds) {
    return {"--seconds", "S", "20", "time for all measurements together", &seconds, Between{1e-3, 1e6}};
}

// The rank that a rehearsal shows, and its host.
Options shown_rank_options(RehearseArguments& a) {
    return {
        {"--rank", "R", "", "rank that a rehearsal shows [the one with the most memory]", &a.rank,
         Between{0, kManyRanks}},
        {"--per-host", "N", "", "ranks per host, to warn of tp across hosts, and to draw --layout [those of --cluster]",
         &a.ranks_per_host, Between{1, kManyRanks}}};
}

// Of a run's ranks on this machine.
Options rank_options(RehearseArguments& a) {
    return {{"--threads", "N", "", "CPU threads of a rank; sets train.threads", &a.threads, Between{0, 4096}},
            {"--device", "D", "", concat(joined(spec::device_choices()), "; sets train.device"), &a.device,
             Suggestions{spec::device_choices()}}};
}

// The options of a measurement with ranks.
template <class A>
Options measuring_options(A& a, const char* default_ranks) {
    return {{"--ranks", "N", default_ranks, "ranks, as threads of this process", &a.ranks, Between{1, 4096}},
            {"--launcher", "NAME", "", "launcher of this process [detected from its environment]", &a.launcher},
            seconds_option(a.seconds)};
}

Command train_command(TrainArguments& a, const Io& io) {
    const Options options = {
        {"--out", "DIR", "", "run directory [runs/<name of CONFIG>]", &a.out, kPath},
        {"--resume", "HOW", "", "[auto], never, strict or the path of a checkpoint", &a.resume,
         Suggestions{{"auto", "never", "strict"}, true}},
        {"--dry-run", "", "", "rehearse a step and print the plan card; needs no data or machine", &a.dry_run},
        force_option(a.force)};
    return command_of(
        "train", "train a model", a, io, train,
        run_options(a, "TOML file; `tutti config` explains its keys") + options + rank_options(a) +
            beside({"--dry-run"}, shown_rank_options(a) + machine_options(a, "this one")),
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
}

Command init_command(InitArguments& a, const Io& io) {
    const Options options = {
        {"DIR", "", "first-run", "directory to fill; made if it is missing", &a.directory, kPath},
        {"--demo", "", "", "also train, at most a minute on two cores, and print a sample", &a.demo}};
    return command_of("init", "write a first config, a text and its tokenizer", a, io, init, options,
                      "Files that are there already are kept; a file with other content is an error.\n"
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
    const Options options =
        without({"--vary"}, {{"--kernels", "", "",
                              "list kernels and operations of a step in order, once for all blocks", &a.kernels}}) +
        without({"--kernels", "--vary"},
                {{"--layout", "", "", "show each rank's part of the weights, optimizer state and tokens", &a.layout}}) +
        Options{{"--svg", "FILE", "", "draw the memory over the step; with --layout or --vary that", &a.svg, kPath}} +
        without({"--layout", "--vary"},
                {{"--html", "FILE", "",
                  "write the step as a page with a slider: what each rank does, holds and sends at a time; needs "
                  "--cluster",
                  &a.html, kPath}});
    return command_of(
        "rehearse", "show what a training step holds, sends and computes, without running it", a, io, rehearse,
        run_options(a, "TOML file, as for train") + Options{stage_option(a)} + machine_options(a, "this one") +
            without({"--vary"}, shown_rank_options(a)) + rank_options(a) + options,
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
                      verify, run_options(a, "TOML file, as for train") + Options{stage_option(a)} + options,
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
        "A process of its own, which reads the files of the runs and writes nothing. On a terminal the text\n"
        "is drawn anew each second; into a pipe each step is a line. Ends with the last run, or by Ctrl-C.\n\n"
        "--http prints the URL of a page with the cards of `tutti report`, which follows the runs, several\n"
        "over each other if chosen, and goes on after their end. From elsewhere: ssh -L 6007:127.0.0.1:6007\n"
        "HOST and --listen 6007. Other users of this machine can read the page too. --listen 0.0.0.0:6007\n"
        "opens it to the network, unencrypted: losses, config, host names. A token in the URL is required\n"
        "then, of Prometheus as its authorization.\n\n"
        "Examples:\n  tutti watch runs/bible\n  tutti watch runs/*\n  tutti watch runs/* --http\n"
        "  tutti watch runs/bible --once --json");
}

Command report_command(ReportArguments& a, const Io& io) {
    const Options options = {
        {"RUN_DIR", "...", "", "directory of a run, finished or not; several are compared", &a.run_dirs, kPath},
        {"--out", "FILE", "", "the page [RUN_DIR/report.html; for several runs comparison.html]", &a.out, kPath},
        {"--csv", "FILE", "", "also write the logged numbers, one line per step of each run", &a.csv, kPath},
        {"--step", "FILE", "", "also write a traced step as a page with a slider: what each rank does at a time",
         &a.step, kPath},
        {"--flight",
         "DIR",
         "",
         "read the flight records of a failed run: which rank diverged first",
         &a.flight,
         kPath,
         {},
         {"RUN_DIR", "--out", "--csv", "--step"}}};
    return command_of("report", "write an HTML page about runs: curves, memory, sample", a, io, report, options,
                      "Examples:\n  tutti report runs/bible\n  tutti report runs/lr-1e-3 runs/lr-3e-4 --csv runs.csv\n"
                      "  tutti report --flight runs/failed");
}

Command health_command(HealthArguments& a, const Io& io) {
    const Options options = {
        device_option(a.device),
        threads_option(a.threads),
        {"--margin", "M", "0.2", "slow: below 1 - M of the median of the peers", &a.margin, Between{1e-3, 0.999}},
        {"--one-by-one", "", "", "measure one link at a time, not all pairs of a round at once", &a.one_by_one}};
    return command_of(
        "health", "find slow or wrong ranks and links", a, io, health,
        measuring_options(a, "one per GPU, or 2") + options,
        "All ranks measure at the same time: matrix products, memory, copies to and from a GPU, every link\n"
        "between two ranks. A product of known values is checked and repeated: its bits must not change, and\n"
        "must equal those of the same devices. Exit code 0: healthy; 1: the findings are printed last.\n\n"
        "Examples:\n"
        "  tutti health --ranks 4\n"
        "  mpirun -n 16 tutti health --device cuda\n"
        "  srun tutti health --margin 0.05 --seconds 60 --json");
}

Option progress_thread_option(bool& progress_thread) {
    return {"--progress-thread", "", "", "communicate in a separate thread on each rank", &progress_thread};
}

Command bench_comm_command(BenchCommArguments& a, const Io& io) {
    return command_of("comm", "collectives of 1 KiB to 64 MiB, relative to the rate of a copy", a, io, bench_comm,
                      measuring_options(a, "2") + Options{progress_thread_option(a.progress_thread)},
                      "Examples:\n"
                      "  tutti bench comm --ranks 4\n"
                      "  mpirun -n 4 tutti bench comm");
}

Command bench_pipeline_command(BenchPipelineArguments& a, const Io& io) {
    const auto time = [](const char* name, double& ms, const char* what) {
        return Option{name, "MS", "10", what, &ms, Between{0, 1e6}};
    };
    const Options options = {
        {"--kind", "KIND", "all", "a schedule, or all", &a.kind},
        {"--stages", "P", "4", "pipeline ranks", &a.stages, Between{1, 4096}},
        {"--virtual", "V", "2", "stages per rank, where a schedule leaves them free", &a.chunks, Between{1, 4096}},
        {"--microbatches", "M", "16", "microbatches of a step", &a.microbatches, Between{1, 1 << 20}},
        time("--f", a.forward, "forward of a rank's part of the model, in ms"),
        time("--i", a.backward_input, "input gradients of that part, in ms"),
        time("--w", a.backward_weight, "weight gradients of that part, in ms"),
        {"--repeats", "N", "3", "runs, whose median is shown", &a.repeats, Between{1, 1000}},
        progress_thread_option(a.progress_thread)};
    return command_of("pipeline", "pipeline schedules, measured, beside their predicted timelines", a, io,
                      bench_pipeline, options,
                      "Waits replace compute; messages and their order are those of training. So the measured time is\n"
                      "the predicted time and the cost of the messages.\n\n"
                      "Examples:\n"
                      "  tutti bench pipeline --stages 8 --microbatches 32\n"
                      "  mpirun -n 8 tutti bench pipeline --kind zb-v");
}

Command bench_command(Arguments& all, const Io& io) {
    BenchArguments& a = all.bench;
    using Kind = BenchArguments::Kind;
    const auto of_kind = [&a, &io](const char* name, const char* description, Kind kind, const Options& more,
                                   const char* footer) {
        const bool makes_products = kind == Kind::gemm || kind == Kind::step;
        Choices types = {"bf16", "f16", "f32"};
        if (makes_products) types.emplace_back("tf32");
        const Option dtype = {"--dtype", "TYPE",
                              "",        makes_products ? "[bf16], f16, f32, or tf32 on a GPU" : "[bf16], f16 or f32",
                              &a.dtype,  types};
        Command command =
            command_of(name, description, a, io, bench,
                       {dtype, device_option(a.device), threads_option(a.threads), seconds_option(a.seconds)}, footer);
        command.options = command.options + more;
        command.run = [&a, &io, kind] {
            a.kind = kind;
            return bench(a, io);
        };
        return command;
    };
    return {.name = "bench",
            .description = "measure the machine's limits, and how near Tutti comes to them",
            .footer =
                "Examples:\n"
                "  tutti bench memory\n"
                "  tutti bench gemm --dtype f32 --seconds 60\n"
                "  tutti bench step --model llama-20m",
            .commands = {
                of_kind("gemm", "matrix products from N = 512 on, relative to the peak", Kind::gemm,
                        {{"--model", "PRESET", "", "also measure the products of a preset such as gpt2-124m", &a.model,
                          Suggestions{spec::preset_names()}},
                         {"--sizes", "MxKxN,...", "", "products (M, K) x (K, N) in place of the sweep", &a.sizes},
                         {"--cluster,--for",
                          "NAME|FILE",
                          "",
                          "predict for this machine; measure nothing",
                          &a.cluster,
                          Suggestions{hardware::cluster_names(), true},
                          {},
                          {"--model", "--device", "--threads", "--seconds"}},
                         {"--set-cluster",
                          "key=value",
                          "",
                          "change a key of it; repeatable",
                          &a.set_cluster,
                          {},
                          {"--cluster"}}},
                        "Examples:\n"
                        "  tutti bench gemm --model llama-110m\n"
                        "  tutti bench gemm --sizes 256x4096x4096\n"
                        "  tutti bench gemm --cluster h100"),
                of_kind("attention", "causal attention of 1024 to 16384 tokens", Kind::attention,
                        {{"--window", "N", "0", "keys of a sliding window; 0: no window", &a.window,
                          Between{0, int64_t{1} << 31}},
                         {"--by", "KERNELS", "", "kernels of a GPU to time, repeatable [own, and cudnn where it is]",
                          &a.by, Choices{"own", "cudnn", "tensor", "plain"}},
                         {"--tune", "FILE", "", "write times of the attention of a step, for train.attention_tuning",
                          &a.tune, kPath},
                         {"--model",
                          "PRESET",
                          "",
                          "with --tune: model [llama-tiny]",
                          &a.model,
                          Suggestions{spec::preset_names()},
                          {"--tune"}},
                         set_option(a.set, "with --tune: set a key of the config; repeatable")},
                        "Examples:\n"
                        "  tutti bench attention --seconds 60\n"
                        "  tutti bench attention --window 1024\n"
                        "  tutti bench attention --tune attention.json --model llama3.2-1b --set train.seq_len=4096"),
                of_kind("memory", "memory bandwidth, and the share that kernels reach", Kind::memory, {},
                        "Example:\n  tutti bench memory --threads 1"),
                of_kind("step", "a training step and its MFU", Kind::step,
                        {{"--model", "PRESET", "", "model [llama-tiny]", &a.model, Suggestions{spec::preset_names()}},
                         set_option(a.set, "set a key of the config; repeatable"),
                         {"--kernels", "", "", "also show the time of each kernel beside its lower bound", &a.kernels},
                         {"--tune", "FILE", "", "write the fastest cuBLASLt algorithms, for train.gemm_tuning", &a.tune,
                          kPath}},
                        "Examples:\n"
                        "  tutti bench step --model llama-5m --kernels\n"
                        "  tutti bench step --model gpt2-124m --set train.seq_len=1024 --set train.micro_batch=4\n"
                        "  tutti bench step --model mlp-8192 --set model.width=2048 --dtype f32\n"
                        "  tutti bench step --model gpt2-124m --set train.seq_len=1024 --tune products.json\n"
                        "  tutti bench step --model llama3.2-1b --set parallel.tp=2 --tune products.json"),
                bench_comm_command(all.bench_comm, io), bench_pipeline_command(all.bench_pipeline, io),
                calibrate_command(all.calibrate, io)}};
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
        {"--set-cluster", "key=value", "", "change a key of the cluster, such as network.gbs=35; repeatable",
         &a.set_cluster},
        {"--html", "FILE", "", "write a page with the peaks of all devices over the years", &a.html, kPath}};
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
                  "Speaks frames on standard input and output; ends its ranks when they close."),
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
