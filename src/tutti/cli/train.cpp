// cli/train.cpp: `tutti train`: reads the config, stops the run after a step when a signal arrives, and reports the
// result.
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/strings.h"
#include "tutti/checkpoint/store.h"
#include "tutti/cli/forecast.h"
#include "tutti/cli/stop_signals.h"
#include "tutti/comm/run.h"
#include "tutti/comm/tcp/file_service.h"
#include "tutti/infer/stored_model.h"
#include "tutti/models/flops.h"
#include "tutti/spec/nearest.h"
#include "tutti/spec/stages.h"
#include "tutti/train/checkpointing.h"
#include "tutti/train/trainer.h"

namespace tutti::cli {

namespace {

using exit_codes::kPreempted;

// A word without a slash is more likely a misspelt keyword than a path, whose absence the trainer reports.
void check_resume(const std::string& resume) {
    const std::vector<std::string> words = {"auto", "never", "strict"};
    if (std::find(words.begin(), words.end(), resume) != words.end()) return;
    check<UsageError>(resume.find('/') != std::string::npos || std::filesystem::exists(resume), "--resume ", resume,
                      ": required: auto, never, strict or the path of a checkpoint; the nearest is ",
                      spec::nearest(resume, words));
    if (!std::filesystem::is_directory(resume)) return;
    const infer::CheckpointPlace place = infer::find_checkpoint(resume);
    if (!place.step_path.empty()) return;
    const int64_t newest = train::newest_step(place.directory);
    check<UsageError>(newest == 0, "--resume ", resume, ": required: one checkpoint; the newest there is ",
                      checkpoint::join(place.directory, checkpoint::step_name(newest)));
}

std::string resume_command(const TrainArguments& a) {
    const std::string command = concat("tutti train", words_of(a), a.force ? " --force" : "");
    return a.out.empty() ? command : command + " --out " + quoted_for_shell(a.out);
}

Json describe(const train::TrainOptions& options, const train::TrainOutcome& outcome, int exit_code) {
    const spec::RunSpec run = spec::stages_of(options.run).back();
    const models::ModelCounts counts =
        models::counts_of(models::outline(run.model), run.train.seq_len, run.recompute.policy);
    Json document = {{"out", options.out},
                     {"dry_run", false},
                     {"model", name_of(run.model)},
                     {"parameters", counts.parameters},
                     {"flops_per_token", {{"causal", counts.model.causal()}, {"full", counts.model.full()}}}};
    document["step"] = outcome.step;
    document["steps"] = run.train.steps;
    document["loss"] = outcome.loss;
    document["eval_loss"] = outcome.eval_loss;
    document["tokens"] = outcome.tokens;
    document["skipped"] = outcome.skipped;
    document["preempted"] = outcome.preempted;
    document["checkpoint"] = outcome.checkpoint;
    document["seconds"] = outcome.seconds;
    document["exit_code"] = exit_code;
    return document;
}

std::string out_of(const TrainArguments& a) { return a.out.empty() ? run_directory_of(a) : a.out; }

comm::WorldOptions meeting_of(const TrainArguments& a) { return {.run_directory = out_of(a)}; }

// Ends the process before the first step, when there is nothing to save: waits and encoding end by comm/stop.h, but not
// a rank that computes or is inside MPI_Init.
void leave(comm::Stop& stop, const Io& io) {
    stop.tell();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // until the other ranks have received the reason
    io.err << concat("\ntutti: ", stop.reason(), "\n") << std::flush;
    _exit(kPreempted);
}

// Whether a launcher or scheduler restarts the process when it fails, so that failed starts must be counted.
bool is_in_a_job(const comm::Launch& launch) {
    if (launch.launcher == comm::Launcher::tutti) return false;  // `tutti launch` counts them
    const comm::Environment environment = comm::process_environment();
    bool in_a_job = launch.launcher != comm::Launcher::none;
    for (const char* name : {"SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST", "PBS_JOBID", "LSB_JOBID"})
        in_a_job = in_a_job || environment(name).has_value();
    return in_a_job;
}

}  // namespace

int train(const TrainArguments& arguments, const Io& io) {
    if (arguments.dry_run) return rehearse(arguments, io);
    train::TrainOptions options;
    options.launch = comm::this_launch();
    options.ranks = options.launch.ranks(arguments.ranks);
    options.out = out_of(arguments);
    comm::before_ranks_meet(options.launch, meeting_of(arguments), [&] {
        options.run = read_run(arguments, options.ranks, true);
        check_resume(arguments.resume);
    });
    options.resume = arguments.resume;
    options.force = arguments.force;
    options.console = &io.text();
    options.warnings = &io.err;
    options.terminal = io.text_terminal();

    warn_of_threads(io, options.launch, options.run.train.threads, options.ranks);

    options.counts_starts = is_in_a_job(options.launch);
    comm::Stop stop;
    options.stop = &stop;
    // A later generation may continue from a state that is in memory only, and is lost when the launcher ends.
    if (options.launch.generation > 1 && comm::tcp::copy_places(comm::process_environment())) stop.set_has_to_save();
    const auto announce_save = [&](int signal) {
        if (options.launch.launcher == comm::Launcher::tutti) return;  // `tutti launch` prints it once for all ranks
        // One write, so that the message does not mix with lines of the trainer.
        io.err << concat("\ntutti: ", name_of_signal(signal),
                         ": finishing this step and saving a checkpoint; Ctrl-C again stops at once\n")
               << std::flush;
    };
    bool announced = false;
    const StopSignals signals(
        [&](int signal) {
            stop.request(name_of_signal(signal));
            announced = stop.has_to_save();
            if (announced) announce_save(signal);
        },
        [&] {
            if (!stop.has_to_save()) leave(stop, io);
            if (!announced) announce_save(signals.signal());
        });
    options.stop_requested = [&signals] { return signals.requested(); };

    // All ranks stop together and exit with the same code: launchers take a job with a rank that exits with 0 for done.
    const auto exit_code = [](const train::TrainOutcome& outcome) { return outcome.preempted ? kPreempted : 0; };
    options.report = [&](const train::TrainOutcome& outcome) {
        if (outcome.preempted && options.launch.launcher == comm::Launcher::tutti)
            io.err << "tutti: stopped after step " << outcome.step << " of " << options.run.train.steps
                   << "; the checkpoint is " << outcome.checkpoint << std::endl;
        else if (outcome.preempted)
            io.err << "tutti: stopped by " << name_of_signal(signals.signal()) << " after step " << outcome.step
                   << " of " << options.run.train.steps << "; the checkpoint is " << outcome.checkpoint
                   << "\ncontinue with: " << resume_command(arguments) << std::endl;
        else
            io.next({concat("tutti generate ", quoted_for_shell(options.out), " --prompt TEXT"),
                     concat("tutti convert --from ", quoted_for_shell(options.out), " --to DIR   # for transformers")});
        io.print(describe(options, outcome, exit_code(outcome)));
    };
    return exit_code(train::train(options));
}

Command train_command(Arguments& all, const Io& io) {
    auto& a = all.add<TrainArguments>();
    const Options of_start = {{"--out", "DIR", "", "run directory [runs/<name of CONFIG>]", &a.out, kPath},
                              {"--resume", "HOW", "", "[auto], never, strict or the path of a checkpoint", &a.resume,
                               Suggestions{{"auto", "never", "strict"}, true}},
                              force_option(a.force)};
    const Option dry_run = {"--dry-run", "", "", "rehearse a step and print the plan card; needs no data or machine",
                            &a.dry_run};
    Command command = command_of(
        "train", "train a model", a, io, train,
        joined_options(
            {run_options(a, "TOML file; `tutti config` explains its keys"),
             without({"--dry-run"}, of_start),
             {dry_run},
             rank_options(a),
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
    command.meeting = [&a] { return meeting_of(a); };
    return command;
}

}  // namespace tutti::cli
