// cli/forecast.h: the options of a run and of a machine, which mean the same in `train --dry-run`, `rehearse`,
// `simulate` and `plan`.
#pragma once

#include <string>
#include <vector>

#include "tutti/cli/command.h"
#include "tutti/hardware/cluster.h"
#include "tutti/rehearsal/target.h"
#include "tutti/spec/run_spec.h"

namespace tutti::cli {

inline constexpr double kManyRanks = 1 << 20;

// CONFIG, --model, --ranks (--gpus), --set.
Options run_options(RunArguments& a, const std::string& config);
// --threads and --device of a run's ranks on this machine.
Options rank_options(RunArguments& a);
// --rank and --per-host: the rank that a rehearsal shows, and its host.
Options shown_rank_options(RehearseArguments& a);
// --stage, of commands about one step.
Option stage_option(RunArguments& a);
// --cluster (--for), --set-cluster, --vary, --expert-loads.
Options machine_options(ForecastArguments& a, const std::string& default_machine);
Option set_cluster_option(std::vector<std::string>& set_cluster);

// The run that the arguments name, validated for `ranks` ranks. UsageError with the broken rules, or where neither
// CONFIG nor --model is given. `reads_data` false: [data] train may be missing.
spec::RunSpec read_run(const RunArguments& a, int ranks, bool reads_data);
// The same before validation. With --stage the run of that stage alone.
spec::RunSpec parse_run(const RunArguments& a, bool reads_data);
// UsageError for a run with stages: `command` is about one step, so that --stage has to choose.
void require_one_stage(const spec::RunSpec& run, const std::string& command);
// The arguments as words of a command line; and as a shell reads them, with a space before each.
std::vector<std::string> word_list(const RunArguments& a);
std::string words_of(const RunArguments& a);
// The run directory without --out: runs/<stem of CONFIG>.
std::string run_directory_of(const RunArguments& a);

// The cluster of --cluster and --set-cluster. UsageError without --cluster, and for a CPU, which the catalog lacks.
hardware::Cluster cluster_of(const std::string& cluster, const std::vector<std::string>& set_cluster);
hardware::Cluster cluster_of(const ForecastArguments& a);

// The machine to rehearse for, with --expert-loads. Requires --cluster.
rehearsal::Target target_of(const ForecastArguments& a, const spec::RunSpec& run);

// The arguments once for each value of each --vary: "parallel.zero=0,1" or a key of a cluster file,
// "network.gbs=25,50".
template <class Arguments>
struct Variation {
    std::string setting;  // "parallel.zero=0"
    Arguments with;
};
std::vector<std::string> settings_of(const std::string& vary);
bool changes_cluster(const std::string& setting);

template <class Arguments>
std::vector<Variation<Arguments>> variations(const Arguments& a) {
    std::vector<Variation<Arguments>> all;
    for (const std::string& vary : a.vary)
        for (const std::string& setting : settings_of(vary)) {
            all.push_back({setting, a});
            Arguments& with = all.back().with;
            with.vary.clear();
            (changes_cluster(setting) ? with.set_cluster : with.set).push_back(setting);
        }
    return all;
}

}  // namespace tutti::cli
