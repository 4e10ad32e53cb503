// cli/program.cpp: the commands of the program and their options. `tutti data`, `tutti schedule` and `tutti simulate`
// are in data.cpp, schedule.cpp and simulate.cpp.
#include <algorithm>
#include <sstream>

#include "tutti/cli/command.h"
#include "tutti/rehearsal/target.h"
#include "tutti/spec/model_spec.h"
#include "tutti/spec/nearest.h"
#include "tutti/spec/toml.h"

namespace tutti::cli {

Option required(Option option) {
    option.required = true;
    return option;
}

Option threads_option(int& threads) {
    return {"--threads", "N", "0", "CPU threads; 0: all cores", &threads, Between{0, 4096}};
}

Option set_option(std::vector<std::string>& set, const std::string& help) {
    Suggestions keys;
    for (const std::string& path : spec::known_names().paths) keys.words.push_back(path + "=");
    return {"--set", "section.key=value", "", help, &set, keys};
}

Option expert_loads_option(std::string& loads) {
    return {
        "--expert-loads", "LOADS", "",
        "of a mixture of experts: 1.5: the first expert has 1.5 times the mean; 3,1,1,1: of each expert; without: even",
        &loads};
}

Option json_option(bool& json) { return {"--json", "", "", "one JSON document on stdout, nothing else there", &json}; }

namespace {

constexpr double kManyRanks = 1 << 20, kMany = int64_t{1} << 40;

Options operator+(Options options, const Options& more) {
    options.insert(options.end(), more.begin(), more.end());
    return options;
}

Option excluding(std::string other, Option option) {
    option.excludes = std::move(other);
    return option;
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

Option device_option(std::string& device) {
    return {
        "--device", "D", "", "cpu, cuda, or [auto]: a GPU if there is one", &device, Choices{"auto", "cpu", "cuda"}};
}

Option force_option(bool& force) { return {"--force", "", "", "start although memory does not suffice", &force}; }

Option seconds_option(double& seconds) {
    return {"--seconds", "S", "20", "patience for all measurements together", &seconds, Between{1e-3, 1e6}};
}

// What says which run: of `train` and `verify`.
template <class A>
Options run_options(A& a, const char* config) {
    return {required({"CONFIG", "", "", config, &a.config, kPath}),
            {"--ranks", "N", "1", "ranks of the run", &a.ranks, Between{1, kManyRanks}},
            set_option(a.set, "a value in place of the file's; repeatable")};
}

// What a run, or its rehearsal, is for and on.
Options machine_options(RehearseArguments& a) {
    return {
        {"--rank", "R", "", "the rank that is shown [the one with the most memory]", &a.rank, Between{0, kManyRanks}},
        {"--for", "MACHINE", "", "machine: cpu-avx2, cpu-amx, h100, ... [this one]", &a.target,
         Suggestions{rehearsal::target_names()}},
        {"--per-host", "N", "", "ranks of a host: warns where tensor parallelism crosses hosts [all]",
         &a.ranks_per_host, Between{1, kManyRanks}},
        {"--threads", "N", "", "CPU threads of a rank: train.threads", &a.threads, Between{0, 4096}},
        {"--device", "D", "", "auto, cpu or cuda: train.device", &a.device, Suggestions{{"auto", "cpu", "cuda"}}}};
}

// What says who measures and how long: of `bench comm` and `health`.
template <class A>
Options measuring_options(A& a, const char* default_ranks) {
    return {{"--ranks", "N", default_ranks, "ranks, as threads", &a.ranks, Between{1, 4096}},
            {"--launcher", "NAME", "", "who started this process, if not what its environment says", &a.launcher},
            seconds_option(a.seconds)};
}

Command train_command(TrainArguments& a, const Io& io) {
    const Options options = {
        {"--out", "DIR", "", "run directory [runs/<name of CONFIG>]", &a.out, kPath},
        {"--resume", "HOW", "", "[auto], never, strict or the path of a checkpoint", &a.resume,
         Suggestions{{"auto", "never", "strict"}, true}},
        {"--dry-run", "", "", "rehearse a step, print the plan card; needs no data or machine", &a.dry_run},
        force_option(a.force)};
    return command_of("train", "train a model as a config file says", a, io, train,
                      run_options(a, "TOML file; its keys are listed below") + options + machine_options(a),
                      "Examples:\n"
                      "  tutti train config.toml\n"
                      "  tutti train config.toml --set train.steps=1000 --set optimizer.lr=1e-3 --out runs/longer\n"
                      "  tutti train config.toml --dry-run           # does it fit?\n"
                      "  tutti train config.toml --dry-run --ranks 64 --for h100 --set parallel.zero=3\n\n"
                      "The same command continues a run that was stopped. Ctrl-C finishes the step and saves a "
                      "checkpoint\n"
                      "(exit code 75); twice stops at once. SIGTERM, SIGUSR1, SIGHUP and a pipe\n"
                      "that loses its reader stop it likewise.\n\n"
                      "Keys of CONFIG, with their defaults:\n" +
                          wrapped_reference(spec::reference_text()));
}

Command rehearse_command(RehearseArguments& a, const Io& io) {
    const Options options = {
        excluding("--vary", {"--kernels", "", "", "the kernels and operations of a step, in order; one block for all",
                             &a.kernels}),
        excluding("--kernels", {"--layout", "", "",
                                "which part of the weights, their state and the tokens each rank has", &a.layout}),
        excluding("--layout", {"--vary", "section.key=A,B", "",
                               "memory, traffic and FLOPs with each of these values; repeatable", &a.vary}),
        expert_loads_option(a.expert_loads),
        {"--svg", "FILE", "", "writes a picture of --layout or of the memory of --vary", &a.svg, kPath}};
    return command_of("rehearse",
                      "a training step without its memory, data, ranks and machine: what it holds, sends, runs", a, io,
                      rehearse, run_options(a, "TOML file, as for train") + machine_options(a) + options,
                      "Examples:\n"
                      "  tutti rehearse config.toml --kernels\n"
                      "  tutti rehearse config.toml --ranks 8 --set parallel.tp=2 --layout --rank 5\n"
                      "  tutti rehearse config.toml --ranks 8 --vary parallel.zero=0,1,2,3 --svg zero.svg\n"
                      "  tutti rehearse config.toml --ranks 1024 --for h100 --set parallel.zero=3 --json");
}

Command verify_command(VerifyArguments& a, const Io& io) {
    const Options options = {{"--steps", "N", "3", "steps that both take", &a.steps, Between{1, kMany}},
                             force_option(a.force)};
    return command_of("verify", "is a layout the same run as one rank? loss, gradients, weights", a, io, verify,
                      run_options(a, "TOML file, as for train") + options,
                      "Exit code 0: the same within rounding; 1: not.\n\n"
                      "Examples:\n"
                      "  tutti verify run.toml --ranks 4 --set parallel.zero=3\n"
                      "  mpirun -n 4 tutti verify run.toml --set precision.compute=f32 --json");
}

Command generate_command(GenerateArguments& a, const Io& io) {
    const Options options = {
        required(
            {"CKPT", "", "", "directory of a run, of a checkpoint or of a Hugging Face model", &a.checkpoint, kPath}),
        {"--prompt", "TEXT", "", "text to continue; repeatable", &a.prompts},
        {"--prompts", "FILE", "", "a text in each line of a file", &a.prompts_file, kPath},
        {"--prompt-ids", "IDS", "", "or token ids, such as 1,2,3; repeatable", &a.prompt_ids},
        {"--stop", "TEXT", "", "end a text before this; repeatable", &a.stop},
        {"--stop-ids", "IDS", "", "tokens that end a text, beside the model's own", &a.stop_ids},
        {"--ignore-eos", "", "", "do not end at the model's end-of-text tokens", &a.ignore_eos},
        {"--ids", "", "", "write token ids, not text", &a.ids},
        {"--compute", "TYPE", "", "f32, bf16, or [auto]: as the model was made", &a.compute,
         Choices{"auto", "f32", "bf16"}},
        {"--max-tokens", "N", "256", "new tokens", &a.max_tokens, Between{1, kMany}},
        {"--temperature", "T", "0.8", "0: always the most likely token", &a.temperature, Between{0, 1e6}},
        {"--top-k", "K", "0", "keep the k most likely tokens; 0: all", &a.top_k, Between{0, kMany}},
        {"--top-p", "P", "1", "then the fewest that together have probability P", &a.top_p, Between{1e-9, 1}},
        {"--seed", "N", "1234", "same seed, same text", &a.seed},
        excluding("--temperature", {"--greedy", "", "", "temperature 0", &a.greedy}),
        {"--ranks", "N", "1", "ranks that share out the model by tensor parallelism", &a.ranks, Between{1, kManyRanks}},
        set_option(a.set, "parallel.tp=N: the same as --ranks N, as a config has it"),
        device_option(a.device),
        threads_option(a.threads)};
    return command_of(
        "generate", "continue texts with a trained model", a, io, generate, options,
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

Command convert_command(ConvertArguments& a, const Io& io) {
    const Options options = {
        required(
            {"--from", "DIR", "", "directory of a run, of a checkpoint or of a Hugging Face model", &a.from, kPath}),
        required({"--to", "DIR", "", "new directory; appears complete or not at all", &a.to, kPath}),
        {"--format", "F", "", "hf or tutti [the other one than --from has]", &a.format, Choices{"hf", "tutti"}},
        {"--dtype", "TYPE", "", "f32, bf16 or f16 [each tensor as it is stored]", &a.dtype,
         Choices{"f32", "bf16", "f16"}},
        {"--allow-loss", "", "", "write values beyond the largest of TYPE as infinity", &a.allow_loss},
        {"--max-shard-size", "SIZE", "5GB", "hf: bytes of a file; 500MB and 5GB are understood", &a.max_shard_size,
         ByteCount{}}};
    return command_of("convert", "weights to or from a Hugging Face directory", a, io, convert, options,
                      "Examples:\n"
                      "  tutti convert --from runs/mine --to exported            # transformers loads it\n"
                      "  tutti convert --from runs/mine --to exported --dtype bf16 --max-shard-size 2GB\n"
                      "  tutti convert --from models/Qwen3-0.6B --to runs/qwen3");
}

Command report_command(ReportArguments& a, const Io& io) {
    const Options options = {
        {"RUN_DIR", "...", "", "directory of a run, which may still go on; several are compared", &a.run_dirs, kPath},
        {"--out", "FILE", "", "where to [RUN_DIR/report.html; of several runs comparison.html]", &a.out, kPath},
        {"--csv", "FILE", "", "also the logged numbers, a line for each step of each run", &a.csv, kPath},
        excluding("RUN_DIR", {"--flight", "DIR", "", "instead: of a run that failed, which rank went another way",
                              &a.flight, kPath})};
    return command_of("report", "runs as one HTML page: curves, memory, sample", a, io, report, options,
                      "Examples:\n  tutti report runs/bible\n  tutti report runs/lr-1e-3 runs/lr-3e-4 --csv runs.csv\n"
                      "  tutti report --flight runs/failed");
}

Command health_command(HealthArguments& a, const Io& io) {
    const Options options = {
        device_option(a.device),
        threads_option(a.threads),
        {"--margin", "M", "0.2", "slow is what lacks more than this of the median of its peers", &a.margin,
         Between{1e-3, 0.999}},
        {"--one-by-one", "", "", "one link at a time, not all pairs of a round at once", &a.one_by_one}};
    return command_of(
        "health", "is a rank or a link slow or wrong? products, memory, links", a, io, health,
        measuring_options(a, "one per GPU, or 2") + options,
        "All ranks measure at the same time: matrix products, memory, copies to and from a GPU, every link\n"
        "between two ranks. A product of known values is checked, and repeated: its bits must stay the same,\n"
        "and be those of equal devices. Exit code 0: healthy; 1: something is slow or wrong, named last.\n\n"
        "Examples:\n"
        "  tutti health --ranks 4\n"
        "  mpirun -n 16 tutti health --device cuda\n"
        "  srun tutti health --margin 0.05 --seconds 60 --json");
}

Option progress_thread_option(bool& progress_thread) {
    return {"--progress-thread", "", "", "one more thread per rank, which communicates", &progress_thread};
}

Command bench_comm_command(BenchCommArguments& a, const Io& io) {
    return command_of("comm", "collectives, 1 KiB ... 64 MiB, as shares of a copy", a, io, bench_comm,
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
        {"--stages", "P", "4", "ranks", &a.stages, Between{1, 4096}},
        {"--virtual", "V", "2", "stages per rank, where a schedule leaves them free", &a.chunks, Between{1, 4096}},
        {"--microbatches", "M", "16", "of a step", &a.microbatches, Between{1, 1 << 20}},
        time("--f", a.forward, "forward of what a rank has of the model"),
        time("--i", a.backward_input, "its input gradients"),
        time("--w", a.backward_weight, "its weight gradients"),
        {"--repeats", "N", "3", "runs; the median counts", &a.repeats, Between{1, 1000}},
        progress_thread_option(a.progress_thread)};
    return command_of(
        "pipeline", "schedules by the executor of training, beside their timelines", a, io, bench_pipeline, options,
        "Compute is replaced by waiting; messages and their order are those of training. Without kernels in its\n"
        "way the measured time is what the timeline says and what messages add.\n\n"
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
        Choices types = {"bf16", "f32"};
        if (makes_products) types.emplace_back("tf32");
        const Option dtype = {"--dtype", "TYPE", "", makes_products ? "[bf16], f32, or tf32 on a GPU" : "[bf16] or f32",
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
    return {
        .name = "bench",
        .description = "the machine's ceilings and what Tutti reaches of them",
        .footer =
            "Examples:\n"
            "  tutti bench memory\n"
            "  tutti bench gemm --dtype f32 --seconds 60\n"
            "  tutti bench step --model llama-20m",
        .commands = {
            of_kind("gemm", "matrix products from N = 512 on, as shares of the peak", Kind::gemm,
                    {{"--model", "PRESET", "", "also the products of this preset, such as gpt2-124m", &a.model,
                      Suggestions{spec::preset_names()}}},
                    "Example:\n  tutti bench gemm --model llama-110m"),
            of_kind("attention", "causal attention, T = 1024 ... 16384", Kind::attention,
                    {{"--window", "N", "0", "a sliding window of so many keys; 0: none", &a.window,
                      Between{0, int64_t{1} << 31}}},
                    "Examples:\n  tutti bench attention --seconds 60\n  tutti bench attention --window 1024"),
            of_kind("memory", "bandwidth, and what kernels without matrix products reach of it", Kind::memory, {},
                    "Example:\n  tutti bench memory --threads 1"),
            of_kind(
                "step", "a training step and its MFU, in the five steps of the definition", Kind::step,
                {{"--model", "PRESET", "", "[llama-tiny]", &a.model, Suggestions{spec::preset_names()}},
                 set_option(a.set, "a value of the config; repeatable"),
                 {"--kernels", "", "", "also the time of each kernel, beside the least that it can cost", &a.kernels},
                 {"--tune", "FILE", "", "gets the fastest cuBLASLt algorithms, for train.gemm_tuning", &a.tune, kPath}},
                "Examples:\n"
                "  tutti bench step --model llama-5m --kernels\n"
                "  tutti bench step --model gpt2-124m --set train.seq_len=1024 --set train.micro_batch=4\n"
                "  tutti bench step --model mlp-8192 --set model.width=2048 --dtype f32\n"
                "  tutti bench step --model gpt2-124m --set train.seq_len=1024 --tune products.json"),
            bench_comm_command(all.bench_comm, io), bench_pipeline_command(all.bench_pipeline, io),
            calibrate_command(all.calibrate, io)}};
}

Command completion_command(CompletionArguments& a, const Io& io) {
    const Options options = {
        required({"SHELL", "", "", "bash, zsh or fish", &a.shell, Choices{"bash", "zsh", "fish"}})};
    return command_of("completion", "a script that completes command lines in a shell", a, io, completion, options,
                      "The packages install these scripts. Elsewhere:\n"
                      "  source <(tutti completion bash)     # in ~/.bashrc\n"
                      "  source <(tutti completion zsh)      # in ~/.zshrc, after compinit\n"
                      "  tutti completion fish | source      # in ~/.config/fish/config.fish");
}

}  // namespace

Command program(Arguments& all, const Io& io) {
    return {.name = "tutti",
            .description = "Tutti trains large neural networks on all your devices at once.",
            .footer =
                "Each command has its own --help, with examples, and --json.\n"
                "Exit codes: 0 done, 2 usage or config, 3 data or "
                "checkpoint, 4 failed, 75 stopped after a checkpoint.",
            .commands = {train_command(all.train, io), rehearse_command(all.rehearse, io),
                         verify_command(all.verify, io), generate_command(all.generate, io),
                         convert_command(all.convert, io), report_command(all.report, io), bench_command(all, io),
                         health_command(all.health, io), schedule_command(all.schedule, io),
                         simulate_command(all.simulate, io), plan_command(all.plan, io), data_command(all.data, io),
                         command_of("doctor", "what this build and this machine have", all.doctor, io, doctor, {}, ""),
                         command_of("version", "version and build", all.version, io, version, {}, ""),
                         completion_command(all.completion, io),
                         command_of("man", "the manual page of all commands, as source for man", all.manual, io, manual,
                                    {}, "Example:\n  tutti man | man -l -")}};
}

}  // namespace tutti::cli
