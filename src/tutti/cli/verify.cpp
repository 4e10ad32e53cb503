// cli/verify.cpp: `tutti verify`. Reads the config as `tutti train` does and prints what differs from one rank.
#include "tutti/train/verify.h"

#include <iomanip>
#include <sstream>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/to_size.h"
#include "tutti/base/units.h"
#include "tutti/cli/forecast.h"
#include "tutti/comm/run.h"
#include "tutti/spec/stages.h"
#include "tutti/spec/validate.h"
#include "tutti/train/precision_lab.h"

namespace tutti::cli {

namespace {

struct VerifyArguments : RunArguments {
    int64_t steps = 3;
    bool force = false;  // start even if memory does not suffice
    bool blame = false;  // find the tensor whose rounding moves the loss instead
};

constexpr int kDiffers = 1;

Json describe(const train::VerifyOptions& options, const train::VerifyOutcome& outcome) {
    const train::VerifiedStep worst = outcome.worst();
    Json steps = Json::array();
    for (const train::VerifiedStep& s : outcome.steps)
        steps.push_back({{"step", s.step},
                         {"bound", s.bound},
                         {"weight_bound", s.weight_bound},
                         {"loss", s.loss},
                         {"one_rank_loss", s.one_rank_loss},
                         {"loss_difference", s.loss_difference},
                         {"gradient_difference", s.gradient_difference},
                         {"gradient", s.gradient},
                         {"weight_difference", s.weight_difference},
                         {"weight", s.weight}});
    return {{"ranks", options.ranks},
            {"max_loss_difference", worst.loss_difference},
            {"max_gradient_difference", worst.gradient_difference},
            {"max_weight_difference", worst.weight_difference},
            {"equal", outcome.equal},
            {"within_bound", outcome.within()},
            {"undecided", outcome.undecided()},
            {"reason_beyond_bound", outcome.within() ? "" : train::reason_beyond_bound(options.run, outcome)},
            {"steps", steps}};
}

std::string verdict(const spec::RunSpec& run, const train::VerifyOutcome& outcome) {
    if (outcome.equal) return "the same as one rank, to the bit";
    const train::VerifiedStep worst = outcome.worst();
    std::ostringstream text;
    text << std::setprecision(2)
         << (outcome.within()      ? "the same as one rank within rounding"
             : outcome.undecided() ? "rounding hides whether this is the same as one rank"
                                   : "NOT the same as one rank")
         << "\n  loss      differs by " << worst.loss_difference << "\n  gradient  by " << worst.gradient_difference
         << " in " << worst.gradient << "; rounding may make " << worst.bound << "\n  weight    by "
         << worst.weight_difference << " in " << worst.weight << "; rounding may make " << worst.weight_bound;
    const std::string reason = outcome.within() ? "" : train::reason_beyond_bound(run, outcome);
    if (!reason.empty()) text << '\n' << wrapped(reason);
    return text.str();
}

int find_blame(const VerifyArguments& arguments, const Io& io) {
    train::LabOptions options{.run = train::one_rank_of(parse_run(arguments, true))};
    require_one_stage(options.run, "--blame");
    spec::validate(options.run, 1);
    options.steps = arguments.steps;
    options.force = arguments.force;
    options.console = &io.text();
    options.terminal = io.text_terminal();
    const train::Blame blame = train::blame(options);
    Json tried = Json::array();
    for (const train::RoundedPrefix& p : blame.tried)
        tried.push_back({{"tensors", p.tensors}, {"last", p.last}, {"loss", p.loss}, {"moved", p.moved}});
    const train::RoundedPrefix& all = blame.tried.back();
    const bool moved = blame.first >= 0;
    const train::RoundedPrefix& found = blame.tried[to_size(std::max<int64_t>(blame.first, 0))];
    io.print({{"steps", options.steps}, {"tensor", moved ? Json(found.last) : Json()}, {"tried", tried}});
    std::ostream& text = io.text();
    text << std::setprecision(2);
    if (!moved) {
        text << "Rounding the products' tensors does not move the loss of step " << options.steps << ".\n";
        return 0;
    }
    const train::RoundedPrefix& before = blame.tried[to_size(blame.first - 1)];
    text << found.last << "\n"
         << wrapped(concat("is tensor ", found.tensors, " of ", all.tensors, ", the first with which the loss of step ",
                           options.steps, " moves by half of what all move it (", all.moved, "): by ", found.moved,
                           ", and by ", before.moved, " without it."),
                    0)
         << '\n';
    io.next({"tutti inspect --precision" + words_of(arguments)});
    return 0;
}

int verify(const VerifyArguments& arguments, const Io& io) {
    if (arguments.blame) return find_blame(arguments, io);
    train::VerifyOptions options;
    options.launch = comm::this_launch();
    options.ranks = options.launch.ranks(arguments.ranks);
    options.steps = arguments.steps;
    options.force = arguments.force;
    options.console = &io.text();
    options.terminal = io.text_terminal();
    spec::RunSpec run;
    std::vector<spec::RunSpec> stages;
    comm::before_ranks_meet(options.launch, {}, [&] {
        run = read_run(arguments, options.ranks, true);
        stages = spec::stages_of(run);
        for (const spec::RunSpec& stage : stages) spec::validate(train::one_rank_of(stage), 1);
    });
    warn_of_threads(io, options.launch, run.train.threads, options.ranks);

    bool differs = false;
    Json documents = Json::array();
    for (const spec::RunSpec& stage : stages) {
        options.run = stage;
        if (stage.place.number > 0 && options.launch.rank == 0)
            io.text() << spec::stage_name(stage) << ", from step " << stage.place.first << std::endl;
        const train::VerifyOutcome outcome = train::verify(options);
        differs = differs || outcome.differs;
        if (options.launch.rank != 0) continue;
        documents.push_back(describe(options, outcome));
        io.text() << verdict(stage, outcome) << std::endl;
    }
    if (options.launch.rank == 0) {
        io.print(run.stages.empty() ? documents.front() : Json{{"differs", differs}, {"stages", documents}});
        if (!differs) io.next({"tutti train" + words_of(arguments)});
    }
    return differs ? kDiffers : 0;
}

}  // namespace

Command verify_command(Arguments& all, const Io& io) {
    auto& a = all.add<VerifyArguments>();
    const Options options = {{"--steps", "N", "3", "steps of both runs", &a.steps, Between{1, 0x1p40}},
                             {.name = "--blame",
                              .help = "find, on one rank, the first tensor whose rounding moves the loss",
                              .target = &a.blame,
                              .without = {"--ranks"}},
                             force_option(a.force)};
    return command_of("verify", "check that a layout gives the same run as one rank: loss, gradients, weights", a, io,
                      verify, joined_options({run_options(a, "TOML file, as for train"), {stage_option(a)}, options}),
                      "Exit code 0: the same within rounding; 1: different.\n\n"
                      "Examples:\n"
                      "  tutti verify run.toml --ranks 4 --set parallel.zero=3\n"
                      "  mpirun -n 4 tutti verify run.toml --set precision.compute=f32 --json\n"
                      "  tutti verify run.toml --blame --set precision.recipe=tensor");
}

}  // namespace tutti::cli
