// cli/rehearse.cpp: `tutti rehearse` and `tutti train --dry-run`: one step of a run without memory, data, other ranks
// or the machine that it is for.
#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/cli/commands.h"
#include "tutti/plan/flops.h"
#include "tutti/plan/placement.h"
#include "tutti/rehearsal/present.h"
#include "tutti/spec/toml.h"
#include "tutti/spec/validate.h"
#include "tutti/train/trainer.h"

namespace tutti::cli {

namespace {

rehearsal::Target target_of(const RehearseArguments& a, const spec::RunSpec& run, const comm::Launch& launch) {
    if (a.target.empty())
        return rehearsal::target_of(engine::machine_of(run, comm::local_rank(launch, launch.rank, a.ranks), ""));
    const int threads = run.train.threads > 0 ? static_cast<int>(run.train.threads) : available_cores();
    return rehearsal::target_named(a.target, spec::arithmetic_of(run), threads);
}

// "3 ranks were rehearsed (0, 1, 3): all call the same operations."
std::string agreement(const rehearsal::LayoutRehearsal& layout) {
    std::string ranks;
    for (const int rank : layout.rehearsed) ranks += concat(ranks.empty() ? "" : ", ", rank);
    return concat(layout.rehearsed.size(), " of ", layout.shown.ranks, " ranks were rehearsed (", ranks, "): ",
                  layout.difference.empty() ? "all call the same operations in the same order" : layout.difference);
}

// Ranks of hosts are numbered one host after another.
std::string crossing_warning(const RehearseArguments& a, const spec::RunSpec& run, const rehearsal::Rehearsal& shown) {
    if (a.ranks_per_host == 0) return "";
    std::vector<std::string> hosts;
    for (int rank = 0; rank < shown.ranks; ++rank) hosts.push_back(std::to_string(rank / a.ranks_per_host));
    return plan::placement_warning(parallel::make_mesh(run, shown.ranks), hosts, rehearsal::sent_in(shown, mesh::kTp));
}

nlohmann::ordered_json describe(const RehearseArguments& a, const spec::RunSpec& run,
                                const rehearsal::LayoutRehearsal& layout) {
    using Json = nlohmann::ordered_json;
    const plan::TokenFlops flops = plan::model_flops(run.model, run.train.seq_len);
    Json document = {{"dry_run", true},
                     {"model", name_of(run.model)},
                     {"parameters", spec::parameter_count(run.model)},
                     {"flops_per_token", {{"causal", flops.causal()}, {"full", flops.full()}}}};
    document.update(Json::parse(rehearsal::to_json(layout.shown)));
    document["rehearsed_ranks"] = layout.rehearsed;
    document["difference"] = layout.difference.empty() ? Json(nullptr) : Json(layout.difference);
    if (a.kernels) document["kernels"] = Json::parse(rehearsal::kernels_to_json(layout.shown));
    return document;
}

}  // namespace

spec::RunSpec read_config(const RehearseArguments& arguments, int ranks) {
    std::vector<std::string> overrides = arguments.set;
    if (arguments.threads) overrides.push_back(concat("train.threads=", *arguments.threads));
    if (arguments.device) overrides.push_back("train.device=" + *arguments.device);
    spec::RunSpec run = spec::parse_file(arguments.config, overrides);
    spec::validate(run, ranks);
    return run;
}

int rehearse(const RehearseArguments& a, const Io& io) {
    const comm::Launch launch = comm::detect_launcher(comm::process_environment());
    if (launch.rank != 0) return 0;  // one rank says what there is to say
    const int ranks = launch.ranks(a.ranks);
    const spec::RunSpec run = read_config(a, ranks);
    train::check_stored_weights(run);

    const auto layout = rehearsal::rehearse_layout(run, target_of(a, run, launch), ranks, a.rank);
    std::ostream& text = io.text(a.json);
    if (a.kernels) text << rehearsal::render_program(layout.shown) << '\n';
    text << plan::render_card(rehearsal::card_of(run, layout.shown));
    if (ranks > 1) text << agreement(layout) << '\n';
    const std::string crossing = crossing_warning(a, run, layout.shown);
    if (!crossing.empty()) io.err << "warning: " << crossing << std::endl;
    text << std::flush;
    if (a.json) io.out << describe(a, run, layout).dump(2) << '\n';
    check(layout.difference.empty(), "this layout would not run: ", layout.difference);
    return 0;
}

}  // namespace tutti::cli
