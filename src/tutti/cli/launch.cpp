// cli/launch.cpp: `tutti launch` and `tutti agent`: describes a run to the launcher, and finds layouts for fewer ranks.
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/checkpoint/generation.h"
#include "tutti/cli/command.h"
#include "tutti/cli/forecast.h"
#include "tutti/comm/launcher.h"
#include "tutti/comm/tcp/secret.h"
#include "tutti/launch/agent.h"
#include "tutti/launch/launcher.h"
#include "tutti/planner/plan.h"
#include "tutti/planner/rules.h"
#include "tutti/report/run_events.h"
#include "tutti/spec/fields.h"
#include "tutti/spec/rules.h"
#include "tutti/spec/stages.h"
#include "tutti/spec/validate.h"
#include "tutti/train/checkpointing.h"
#include "tutti/train/run_directory.h"
#include "tutti/train/start_checks.h"

namespace tutti::cli {

namespace {

struct LaunchArguments : RunArguments {
    std::string out;    // "": runs/<stem of config>
    std::string hosts;  // a file; "": this host alone
    int min_ranks = 0;  // 0: all
    int max_restarts = 3;
    std::string cluster;  // of the devices, for the planner; "": only data parallelism changes with the ranks
    std::vector<std::string> set_cluster;
    double grace_s = 25, silence_s = 15, grow_after_s = 600;
    std::string ssh = "ssh -T -o BatchMode=yes -o ConnectTimeout=5 -o ServerAliveInterval=5 -o ServerAliveCountMax=3";
    bool force = false;
};

std::string this_program() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

// --set words that turn `from` into `to`, which differ in layouts alone.
std::vector<std::string> difference(const spec::RunSpec& from, const spec::RunSpec& to) {
    std::vector<std::string> words;
    const auto before = spec::layout_keys(from);
    for (const auto& [path, value] : spec::layout_keys(to))
        if (before.at(path) != value) words.insert(words.end(), {"--set", concat(path, '=', spec::toml_text(value))});
    if (from.stages != to.stages) words.insert(words.end(), {"--set", concat("stage=", spec::toml_text(to.stages))});
    return words;
}

bool is_valid(const spec::RunSpec& run, int ranks) {
    try {
        spec::RunSpec copy = run;
        spec::validate(copy, ranks);
        return true;
    } catch (const UsageError&) {
        return false;
    }
}

planner::Request request_of(const LaunchArguments& a, const spec::RunSpec& run, int ranks) {
    return {.run = run, .cluster = cluster_of(a.cluster, a.set_cluster), .gpus = ranks};
}

// The planner's fastest layout that fits the device.
std::optional<spec::RunSpec> planned(const LaunchArguments& a, const spec::RunSpec& run, int ranks) {
    try {
        return planner::make_plan(request_of(a, run, ranks), 1).finalists.chosen.front().run;
    } catch (const UsageError&) {  // no layout of so many ranks runs and fits
        return std::nullopt;
    }
}

// Without --cluster: the model parallelism of the config with fewer replicas, and the largest micro batch up to the
// config's with which they divide the global batch.
std::optional<spec::RunSpec> with_fewer_replicas(const spec::RunSpec& run, int ranks) {
    spec::RunSpec fewer = run;
    fewer.parallel.dp_shard = -1;
    for (const int64_t replicate : {run.parallel.dp_replicate, int64_t{1}}) {
        fewer.parallel.dp_replicate = replicate;
        for (int64_t micro = run.train.micro_batch; micro >= 1; --micro) {
            fewer.train.micro_batch = micro;
            if (run.train.micro_batch % micro == 0 && is_valid(fewer, ranks)) return fewer;
        }
    }
    return std::nullopt;
}

// The run on `ranks` ranks; each stage has its own layout.
std::optional<spec::RunSpec> on_fewer(const LaunchArguments& a, const spec::RunSpec& run, int ranks) {
    std::vector<spec::RunSpec> stages = spec::stages_of(run);
    for (spec::RunSpec& stage : stages) {
        const auto found = a.cluster.empty() ? with_fewer_replicas(stage, ranks) : planned(a, stage, ranks);
        if (!found) return std::nullopt;
        stage = *found;
    }
    const spec::RunSpec fewer = spec::with_layouts(run, stages);
    return is_valid(fewer, ranks) ? std::optional(fewer) : std::nullopt;
}

// "tp 2, dp 3, ...": dp_shard = -1 is resolved for the text alone. Where stages differ: "stage 1: ...; stage 2: ...".
std::string text_of(const spec::RunSpec& run, int ranks) {
    std::vector<std::string> names, texts;
    for (spec::RunSpec& stage : spec::stages_of(run)) {
        spec::ParallelSpec& p = stage.parallel;
        p.dp_shard = spec::data_parallel_shards(p, ranks);
        texts.push_back(planner::describe_layout(stage));
        names.push_back(spec::of_stage(stage, texts.back()));
    }
    const bool alike = std::all_of(texts.begin(), texts.end(), [&](const auto& text) { return text == texts.front(); });
    return alike ? texts.front() : joined(names, "; ");
}

// Below --min-ranks the run waits for hosts, and a layout serves to save what is in memory.
std::optional<launch::Layout> layout_of(const LaunchArguments& a, const spec::RunSpec& run, int most) {
    if (most == a.ranks) return launch::Layout{most, {}, text_of(run, most)};
    for (int ranks = most; ranks >= (most < a.min_ranks ? 1 : a.min_ranks); --ranks) {
        const auto found = on_fewer(a, run, ranks);
        if (found) return launch::Layout{ranks, difference(run, *found), text_of(*found, ranks)};
    }
    return std::nullopt;
}

// The hosts on which another launcher has started one process each, and -n ranks spread over them.
std::vector<launch::HostLine> placed_hosts(const comm::Launch& around, const LaunchArguments& a) {
    const std::string by =
        concat(name_of(around.launcher), " has started ", around.size, " of it (", around.evidence, ")");
    check<UsageError>(around.launcher != comm::Launcher::tutti, "tutti launch cannot be a rank of tutti launch: ", by);
    check<UsageError>(a.hosts.empty(), "--hosts names hosts to reach over ssh, but ", by,
                      ", one a host: leave --hosts out, or start tutti launch once");
    const int of_host = comm::ranks_of_host(comm::process_environment());
    const int slots = a.ranks > 0 ? (a.ranks + around.size - 1) / around.size : std::max(1, of_host);
    std::vector<launch::HostLine> hosts;
    for (int i = 0; i < around.size; ++i) hosts.push_back({.name = concat("agent ", i), .slots = slots});
    hosts.front().name = host_name();
    return hosts;
}

launch::AgentGroup agent_group_of(const comm::Launch& around, const spec::RunSpec& config, const std::string& out,
                                  double silence_s) {
    const comm::Environment environment = comm::of_hosts(comm::process_environment());
    launch::AgentGroup group{.rendezvous = comm::tcp::rendezvous_of(around, environment),
                             .label = launch::job_of(out),
                             .agents = around.size,
                             .number = around.rank,
                             .evidence = around.evidence,
                             .silence_s = silence_s};
    group.rendezvous.secret = comm::tcp::Secret(config.comm.secret, out, environment);
    return group;
}

// Refuses the options of a run that continues without some of its hosts, where this host alone runs it. A job of one
// host under another launcher may have them: its script is the same for more.
void check_hosts_can_be_lost(const LaunchArguments& a) {
    if (!a.hosts.empty() || comm::is_launched(comm::of_hosts(comm::process_environment()))) return;
    const auto refuse = [](const char* option, bool is_given) {
        check<UsageError>(!is_given, option, " is for a run that loses hosts, and this host alone runs it; name more ",
                          "with --hosts, or leave ", option, " out");
    };
    refuse("--min-ranks", a.min_ranks > 0);
    refuse("--cluster", !a.cluster.empty());
    refuse("--grow-after", a.grow_after_s != LaunchArguments().grow_after_s);
}

int launch(const LaunchArguments& given, const Io& io) {
    LaunchArguments a = given;
    launch::LaunchOptions options{.max_restarts = a.max_restarts,
                                  .grace_s = a.grace_s,
                                  .silence_s = a.silence_s,
                                  .grow_after_s = a.grow_after_s,
                                  .ssh = a.ssh,
                                  .program = this_program()};
    check_hosts_can_be_lost(a);
    const comm::Launch around = comm::detect_launcher(comm::of_hosts(comm::process_environment()));
    options.hosts = around.size > 1   ? placed_hosts(around, a)
                    : a.hosts.empty() ? std::vector{launch::HostLine{"localhost", std::max(1, a.ranks), "127.0.0.1"}}
                                      : launch::parse_hosts(read_file(a.hosts), a.hosts);
    int slots = 0;
    for (const launch::HostLine& host : options.hosts) slots += host.slots;
    if (a.ranks == 0) a.ranks = slots;
    check<UsageError>(a.ranks <= slots, "-n ", a.ranks, ", but ", a.hosts, " has ", slots, " slots");
    check<UsageError>(a.min_ranks <= a.ranks, "--min-ranks ", a.min_ranks, " is above the ", a.ranks, " ranks of -n");
    if (a.min_ranks == 0) a.min_ranks = a.ranks;
    options.ranks = a.ranks;
    options.min_ranks = a.min_ranks;

    RunArguments of_rank = a;
    of_rank.ranks = 1;
    const spec::RunSpec config = parse_run(a, true);
    {
        spec::RunSpec whole = config;
        spec::validate(whole, a.ranks);
    }
    if (!a.cluster.empty())  // reports what cannot be planned before anything starts
        for (const spec::RunSpec& stage : spec::stages_of(config))
            planner::check_request(request_of(a, stage, a.ranks));
    launch::LaunchedRun run{.out = a.out.empty() ? run_directory_of(a) : a.out};
    run.words = {options.program, "train"};
    const std::vector<std::string> words = word_list(of_rank);
    run.words.insert(run.words.end(), words.begin(), words.end());
    run.words.insert(run.words.end(), {"--out", run.out});
    if (a.force) run.words.emplace_back("--force");
    run.layout = [&](int ranks) { return layout_of(a, config, ranks); };
    const std::string checkpoints = train::checkpoint_directory(config, run.out);
    run.newest_step = [checkpoints] { return train::newest_step(checkpoints); };
    run.count_start = [&](int64_t step) { train::count_start(run.out, step, a.force, a.max_restarts + 1); };
    run.copies_in_memory = config.checkpoint.memory_every > 0;
    run.require_free = [&] { train::lock_run(run.out); };
    run.remove_traces = [&, made = !std::filesystem::exists(run.out)] {
        train::remove_unless_begun(run.out, made,
                                   {launch::kLaunchLock, comm::tcp::kSecretFile, checkpoint::kGenerations,
                                    report::kEventsFile, train::kStarts});
    };
    if (around.size > 1) {
        options.agents = agent_group_of(around, config, run.out, a.silence_s);
        if (around.rank > 0) return launch::serve_launcher(*options.agents, io.err);
    }
    const int code = launch::launch(run, options, io.text(), io.err);
    io.print(Json{{"out", run.out}, {"exit_code", code}, {"generation", checkpoint::newest_generation(run.out)}});
    return code;
}

}  // namespace

int agent(const Io&) {
    check<UsageError>(
        isatty(STDIN_FILENO) == 0,
        "`tutti agent` reads frames of `tutti launch` on standard input, which is a terminal; run `tutti launch`");
    // Frames have a descriptor of their own; other output goes to standard error.
    const int out = dup(STDOUT_FILENO);
    dup2(STDERR_FILENO, STDOUT_FILENO);
    const auto bye = launch::serve(launch::Link(launch::Descriptor(dup(STDIN_FILENO)), launch::Descriptor(out)));
    return bye ? bye->code : exit_codes::kBecauseOfOthers;
}

Command launch_command(Arguments& all, const Io& io) {
    auto& a = all.add<LaunchArguments>();
    Options options = run_options(a, "TOML file, as for train");
    for (Option& option : options) {
        if (option.name != "--ranks,--gpus") continue;
        option.name = "--ranks,-n";
        option.help = "processes, one a device [the slots of all hosts, or 1]";
        option.default_text = "";
    }
    const Options of_hosts = {
        {"--out", "DIR", "", "run directory, on a file system of all hosts [runs/<name of CONFIG>]", &a.out, kPath},
        {"--hosts", "FILE", "", "a host on each line: `n1 slots=8`, and addr=ADDRESS [this host alone]", &a.hosts,
         kPath},
        {"--min-ranks", "M", "", "fewest ranks to continue with when hosts are lost [all]", &a.min_ranks,
         Between{1, kManyRanks}},
        {"--max-restarts", "N", "3", "restarts in a row without a new checkpoint", &a.max_restarts, Between{0, 1000}},
        {"--cluster", "NAME|FILE", "", "the devices, for the planner [only data parallelism changes]", &a.cluster,
         kPath}};
    const Options of_waits = {
        {"--grace", "S", "25", "seconds from a request to stop until ranks are killed", &a.grace_s, Between{0, 1e6}},
        {"--silence", "S", "15", "seconds without a message after which a host is lost", &a.silence_s,
         Between{1, 3600}},
        {"--grow-after", "S", "600", "seconds after which a host that has come back is used again", &a.grow_after_s,
         Between{0, 1e6}},
        {"--ssh",
         "COMMAND",
         "",
         "command that reaches a host; its name is appended [ssh -T -o BatchMode=yes ...]",
         &a.ssh,
         {},
         {"--hosts"}}};
    const Options force = {{"--force", "", "", "start even if memory is short, or earlier starts died", &a.force}};
    a.ranks = 0;
    Command command = command_of(
        "launch", "train with processes on one or more hosts, and continue when some die", a, io, launch,
        joined_options({options, of_hosts, beside({"--cluster"}, {set_cluster_option(a.set_cluster)}), of_waits,
                        rank_options(a), force}),
        "Starts an agent on each host over ssh, and the agents start the ranks. When a rank dies, all ranks\n"
        "are stopped, and new processes continue on the remaining hosts (--min-ranks), with the same global\n"
        "batch, from the newest checkpoint, or from a newer copy in memory (checkpoint.memory_every). Hosts\n"
        "that come back are used again after a checkpoint. Output lines of ranks above 0 begin with [host\n"
        "rank]. Ctrl-C, SIGTERM and the other signals of `tutti train` stop all ranks (exit code 75).\n"
        "Started by srun or Kubernetes, with one process on each host, the first process is the launcher and\n"
        "the others are agents; ssh is not used.\n"
        "Exit codes 2, 3 and 70 of a rank end the run: a restart would fail in the same way.\n\n"
        "Examples:\n"
        "  tutti launch -n 8 config.toml\n"
        "  tutti launch --hosts hosts --min-ranks 8 config.toml --out /shared/runs/a\n"
        "  srun -N 4 --ntasks-per-node=1 tutti launch -n 32 config.toml --out /shared/runs/a\n"
        "  tutti launch --hosts hosts --min-ranks 8 --cluster h100 config.toml --out /shared/runs/a");
    command.prints_log = [] { return true; };
    return command;
}

}  // namespace tutti::cli
