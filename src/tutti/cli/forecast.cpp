#include "tutti/cli/forecast.h"

#include <algorithm>
#include <filesystem>

#include "tutti/base/error.h"
#include "tutti/base/strings.h"
#include "tutti/base/to_size.h"
#include "tutti/device/device.h"
#include "tutti/simulate/rehearsed.h"
#include "tutti/spec/devices.h"
#include "tutti/spec/families.h"
#include "tutti/spec/model_spec.h"
#include "tutti/spec/nearest.h"
#include "tutti/spec/stages.h"
#include "tutti/spec/toml.h"
#include "tutti/spec/validate.h"

namespace tutti::cli {

Option set_option(std::vector<std::string>& set, const std::string& help) {
    Suggestions keys;
    for (const std::string& path : spec::known_names().paths) keys.words.push_back(path + "=");
    return {"--set", "section.key=value", "", help, &set, keys};
}

Options run_options(RunArguments& a, const std::string& config) {
    return {{"CONFIG", "", "", config, &a.config, kPath},
            {"--model", "NAME|DIR", "", "in place of CONFIG's [model]: a preset, or a Hugging Face directory", &a.model,
             Suggestions{spec::preset_names(), true}},
            {"--ranks,--gpus", "N", "1", "ranks of the run, one a device", &a.ranks, Between{1, kManyRanks}},
            set_option(a.set, "override a key of CONFIG; repeatable")};
}

Options rank_options(RunArguments& a) {
    return {{"--threads", "N", "", "CPU threads of a rank; sets train.threads", &a.threads, Between{0, 4096}},
            {"--device", "D", "", concat(joined(spec::device_choices()), "; sets train.device"), &a.device,
             Suggestions{spec::device_choices()}}};
}

Options shown_rank_options(RehearseArguments& a) {
    return {
        {"--rank", "R", "", "rank that a rehearsal shows [the one with the most memory]", &a.rank,
         Between{0, kManyRanks}},
        {"--per-host", "N", "", "ranks per host, to warn of tp across hosts, and to draw --layout [those of --cluster]",
         &a.ranks_per_host, Between{1, kManyRanks}}};
}

Option stage_option(RunArguments& a) {
    return {"--stage", "N", "", "of a CONFIG with [[stage]]: this stage alone", &a.stage, Between{1, 1000}};
}

Option set_cluster_option(std::vector<std::string>& set_cluster) {
    Suggestions keys;
    for (const std::string& key : hardware::cluster_keys()) keys.words.push_back(key + "=");
    return {"--set-cluster", "key=value", "", "change a key of the cluster, such as network.gbs=35; repeatable",
            &set_cluster,    keys};
}

Options machine_options(ForecastArguments& a, const std::string& default_machine) {
    return joined_options(
        {{{"--cluster,--for", "NAME|FILE", default_machine,
           "machine to predict for: h100, cpu-avx2, ..., or a TOML file", &a.cluster,
           Suggestions{rehearsal::target_names(), true}}},
         beside({"--cluster"}, {set_cluster_option(a.set_cluster)}),
         {{"--vary", "key=A,B", "", "one line for each value of a key, also of the cluster; repeatable", &a.vary},
          {"--expert-loads", "LOADS", "", "load of each expert, 3,1,1,1; or of the first, in means: 1.5 [even]",
           &a.expert_loads}}});
}

std::vector<std::string> word_list(const RunArguments& a) {
    std::vector<std::string> words;
    const auto add = [&](const char* option, const std::string& value) { words.insert(words.end(), {option, value}); };
    if (!a.config.empty()) words.push_back(a.config);
    if (!a.model.empty()) add("--model", a.model);
    if (a.ranks != 1) add("--ranks", std::to_string(a.ranks));
    for (const std::string& set : a.set) add("--set", set);
    if (a.threads) add("--threads", std::to_string(*a.threads));
    if (a.device) add("--device", *a.device);
    return words;
}

std::string words_of(const RunArguments& a) {
    std::string text;
    for (const std::string& word : word_list(a)) text += " " + quoted_for_shell(word);
    return text;
}

std::string run_directory_of(const RunArguments& a) {
    return "runs/" + std::filesystem::path(a.config.empty() ? a.model : a.config).stem().string();
}

spec::RunSpec parse_run(const RunArguments& a, bool reads_data) {
    const bool described = !a.set.empty() && a.set.front() == "model.preset=";  // all keys are in `set`
    check<UsageError>(
        !a.config.empty() || !a.model.empty() || described,
        "CONFIG is missing: a TOML file of a run; or --model NAME|DIR, a preset or a Hugging Face directory");
    std::vector<std::string> overrides;
    const bool directory = std::filesystem::is_directory(a.model);
    if (!a.model.empty()) {
        const std::vector<std::string> presets = spec::preset_names();
        check<UsageError>(directory || std::find(presets.begin(), presets.end(), a.model) != presets.end(), "--model ",
                          a.model, " is neither a directory nor a preset; the nearest is \"",
                          spec::nearest(a.model, presets), "\" of ", joined(presets));
        overrides.push_back((directory ? "model.hf=" : "model.preset=") + a.model);
    }
    overrides.insert(overrides.end(), a.set.begin(), a.set.end());
    if (a.threads) overrides.push_back(concat("train.threads=", *a.threads));
    if (a.device) overrides.push_back("train.device=" + *a.device);
    spec::RunSpec run =
        a.config.empty() ? spec::parse_text("", "options", overrides) : spec::parse_file(a.config, overrides);
    // Token files, because a text would ask for a tokenizer.
    if (!reads_data && run.data.train.empty() && spec::traits_of(run.model).tokens) run.data.train = {"none.bin"};
    if (a.stage == 0) return run;
    const std::vector<spec::RunSpec> stages = spec::stages_of(run);
    check<UsageError>(
        !run.stages.empty() && a.stage <= std::ssize(stages), "--stage ", a.stage, ": ",
        run.stages.empty() ? "the run has no [[stage]]" : concat("the run has ", stages.size(), " stages"));
    return stages[to_size(a.stage - 1)];
}

void require_one_stage(const spec::RunSpec& run, const std::string& command) {
    check<UsageError>(run.stages.empty(), "the run has ", run.stages.size(), " stages, and ", command,
                      " is about a step of one of them; give --stage 1 to ", run.stages.size());
}

spec::RunSpec read_run(const RunArguments& a, int ranks, bool reads_data) {
    spec::RunSpec run = parse_run(a, reads_data);
    spec::validate(run, ranks);
    return run;
}

hardware::Cluster cluster_of(const ForecastArguments& a) { return cluster_of(a.cluster, a.set_cluster); }

hardware::Cluster cluster_of(const std::string& cluster, const std::vector<std::string>& set_cluster) {
    check<UsageError>(!cluster.empty(), "--cluster is missing: a name such as h100 (", hardware::cluster_names().size(),
                      " names: `tutti simulate --help`), or a TOML file");
    check<UsageError>(
        !rehearsal::is_cpu_model(cluster), "--cluster ", cluster,
        ": times of CPUs are measured, not taken from data sheets: `tutti bench calibrate here.json`, then "
        "`tutti simulate CONFIG --profile here.json`; `tutti rehearse` counts memory for this machine");
    return hardware::cluster_named(cluster, set_cluster);
}

rehearsal::Target target_of(const ForecastArguments& a, const spec::RunSpec& run) {
    const int threads = run.train.threads > 0 ? static_cast<int>(run.train.threads) : available_cores();
    rehearsal::Target target = rehearsal::target_named(a.cluster, spec::compute_type_of(run), threads, a.set_cluster);
    if (!rehearsal::is_cpu_model(a.cluster)) simulate::check_machine(run, cluster_of(a));
    target.expert_loads = rehearsal::parse_expert_loads("--expert-loads", a.expert_loads, run);
    return target;
}

std::vector<std::string> settings_of(const std::string& vary) {
    const size_t equals = vary.find('=');
    check<UsageError>(equals != std::string::npos && equals + 1 < vary.size(), "--vary ", vary,
                      ": required section.key=A,B, such as parallel.zero=0,1,2,3");
    std::vector<std::string> settings;
    for (const std::string_view value : different_elements("--vary", std::string_view(vary).substr(equals + 1)))
        settings.push_back(concat(vary.substr(0, equals + 1), value));
    return settings;
}

bool changes_cluster(const std::string& setting) {
    const std::vector<std::string> keys = hardware::cluster_keys();
    return std::find(keys.begin(), keys.end(), setting.substr(0, setting.find('='))) != keys.end();
}

}  // namespace tutti::cli
