#include "tutti/comm/launcher.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

#include "tutti/base/error.h"

namespace tutti::comm {

namespace {

// The variables of a launcher, which is recognised by rank and size together; "": no such variable.
struct Variables {
    Launcher launcher;
    std::string_view name;
    const char *rank, *size, *local_rank, *local_size, *node;
};
constexpr std::array<Variables, 5> kLaunchers = {{
    {Launcher::torchrun, "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"},
    {Launcher::slurm, "slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "", "SLURM_NODEID"},
    {Launcher::open_mpi, "open_mpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", ""},
    {Launcher::mpich, "mpich", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ""},
    // A pod of a PyTorchJob: one rank per pod, so no local rank.
    {Launcher::kubernetes, "kubernetes", "RANK", "WORLD_SIZE", "", "", ""},
}};

const Variables& variables_of(Launcher launcher) {
    for (const Variables& v : kLaunchers)
        if (v.launcher == launcher) return v;
    throw Error("a launcher without variables");
}

int number(const Environment& environment, const Variables& v, const char* name) {
    const auto text = environment(name);
    check<UsageError>(text.has_value(), "launcher ", v.name, ": the variable ", name, " is not set; is this process ",
                      "started by it?");
    int value = 0;
    const char* end = text->data() + text->size();
    const auto [stop, error] = std::from_chars(text->data(), end, value);
    check<UsageError>(error == std::errc() && stop == end && value >= 0, "launcher ", v.name, ": ", name,
                      " must be a whole number, got '", *text, "'");
    return value;
}

Launch read(const Environment& environment, const Variables& v) {
    const auto optional_number = [&](const char* name) {
        return *name != '\0' && environment(name) ? number(environment, v, name) : -1;
    };
    Launch launch{.launcher = v.launcher,
                  .rank = number(environment, v, v.rank),
                  .size = number(environment, v, v.size),
                  .local_rank = optional_number(v.local_rank),
                  .local_size = optional_number(v.local_size),
                  .node = optional_number(v.node),
                  .evidence = concat(v.rank, '=', *environment(v.rank), ", ", v.size, '=', *environment(v.size))};
    check<UsageError>(launch.rank < launch.size, "launcher ", v.name, ": ", launch.evidence,
                      ": a rank must be below the number of ranks");
    return launch;
}

// A shell inside an allocation has the variables of a step with one task, but no ranks were started.
bool interactive_shell(const Environment& environment) {
    const auto job = environment("SLURM_JOB_NAME"), tasks = environment("SLURM_NTASKS");
    return (job == "bash" || job == "interactive") && tasks.value_or("1") == "1";
}

bool is_there(const Environment& environment, const Variables& v) {
    const auto set = [&](const char* name) { return environment(name).has_value(); };
    switch (v.launcher) {
        case Launcher::torchrun: return set(v.rank) && set(v.size) && set(v.local_rank);
        case Launcher::slurm:
            return set(v.rank) && set(v.size) && !interactive_shell(environment) && !set("OMPI_COMM_WORLD_RANK") &&
                   !set("MPI_LOCALRANKID");
        case Launcher::kubernetes: return set("KUBERNETES_SERVICE_HOST") && set(v.rank) && set(v.size);
        default: return set(v.rank) || set(v.size);
    }
}

}  // namespace

std::string_view name_of(Launcher launcher) {
    return launcher == Launcher::none ? "none" : variables_of(launcher).name;
}

Launcher launcher_of(std::string_view name) {
    std::string known = "none";
    for (const Variables& v : kLaunchers) {
        if (v.name == name) return v.launcher;
        known += concat(", ", v.name);
    }
    check<UsageError>(name == "none", "unknown launcher '", name, "'; there are ", known);
    return Launcher::none;
}

Environment process_environment() {
    return [](const std::string& name) -> std::optional<std::string> {
        const char* value = std::getenv(name.c_str());
        if (value == nullptr) return std::nullopt;
        return value;
    };
}

Launch detect_launcher(const Environment& environment, std::optional<Launcher> forced) {
    if (forced == Launcher::none) return {};
    if (forced) return read(environment, variables_of(*forced));
    for (const Variables& v : kLaunchers)
        if (is_there(environment, v)) return read(environment, v);
    return {};
}

bool is_launched(const Environment& environment) {
    return std::any_of(kLaunchers.begin(), kLaunchers.end(),
                       [&](const Variables& v) { return is_there(environment, v); });
}

Launch this_launch(std::string_view name) {
    return detect_launcher(process_environment(), name.empty() ? std::nullopt : std::optional(launcher_of(name)));
}

LocalRank local_rank(const Launch& launch, int rank, int ranks) {
    if (launch.size > 1)
        return {launch.local_rank >= 0 ? launch.local_rank : launch.rank, std::max(1, launch.local_size)};
    return {rank, ranks};
}

}  // namespace tutti::comm
