// cli/verify.cpp: `tutti verify`. Reads the config as `tutti train` does and prints what differs from one rank.
#include "tutti/train/verify.h"

#include <iomanip>
#include <sstream>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/units.h"
#include "tutti/cli/forecast.h"
#include "tutti/spec/validate.h"

namespace tutti::cli {

namespace {

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
            {"reason_beyond_bound", outcome.within() ? "" : train::reason_beyond_bound(options.run)},
            {"steps", steps}};
}

std::string verdict(const spec::RunSpec& run, const train::VerifyOutcome& outcome) {
    if (outcome.equal) return "the same as one rank, to the bit";
    const train::VerifiedStep worst = outcome.worst();
    std::ostringstream text;
    text << std::setprecision(2)
         << (outcome.within() ? "the same as one rank within rounding" : "NOT the same as one rank")
         << "\n  loss      differs by " << worst.loss_difference << "\n  gradient  by " << worst.gradient_difference
         << " in " << worst.gradient << "; rounding may make " << worst.bound << "\n  weight    by "
         << worst.weight_difference << " in " << worst.weight << "; rounding may make " << worst.weight_bound;
    const std::string reason = outcome.within() ? "" : train::reason_beyond_bound(run);
    if (!reason.empty()) text << '\n' << wrapped(reason);
    return text.str();
}

}  // namespace

int verify(const VerifyArguments& arguments, const Io& io) {
    train::VerifyOptions options;
    options.launch = comm::detect_launcher(comm::process_environment());
    options.ranks = options.launch.ranks(arguments.ranks);
    options.steps = arguments.steps;
    options.force = arguments.force;
    options.console = &io.text();
    options.terminal = io.text_terminal();
    options.run = read_run(arguments, options.ranks, true);
    warn_of_threads(io, options.launch, options.run.train.threads, options.ranks);
    spec::validate(train::one_rank_of(options.run), 1);

    const train::VerifyOutcome outcome = train::verify(options);
    if (options.launch.rank == 0) {
        io.print(describe(options, outcome));
        io.text() << verdict(options.run, outcome) << std::endl;
        if (!outcome.differs) io.next({"tutti train" + words_of(arguments)});
    }
    return outcome.differs ? kDiffers : 0;
}

}  // namespace tutti::cli
