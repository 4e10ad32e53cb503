#include "tutti/comm/launcher.h"

#include <algorithm>
#include <limits>
#include <map>
#include <vector>

#include "tutti/base/digits.h"
#include "tutti/base/environment.h"
#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/strings.h"
#include "tutti/comm/world.h"

namespace tutti::comm {

namespace {

// A launcher and its variables. It started this process if `rank`, `size` and one of `with` (unless empty) are set. If
// they are not, one of `signs` is an error: the variables are incomplete.
struct LauncherVariables {
    Launcher launcher;
    const char *name, *rank, *size;
    const char *local_rank = "", *local_size = "", *node = "";
    const char *with = "", *signs = "";  // separated by blanks
};

// Innermost first: mpirun's daemons are tasks of Slurm, and torchrun is started by either. docs/launch.md has the
// variables that each launcher was seen to set.
constexpr LauncherVariables kLaunchers[] = {
    {Launcher::tutti, "tutti", "TUTTI_RANK", "TUTTI_SIZE", "TUTTI_LOCAL_RANK", "TUTTI_LOCAL_SIZE", "TUTTI_NODE",
     "TUTTI_GENERATION", "TUTTI_RANK TUTTI_SIZE TUTTI_GENERATION"},
    {Launcher::torchrun, "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "LOCAL_RANK",
     "LOCAL_RANK LOCAL_WORLD_SIZE TORCHELASTIC_RUN_ID"},
    {Launcher::open_mpi, "open_mpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "", "", "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK"},
    {Launcher::mpich, "mpich", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "",
     "MPI_LOCALRANKID HYDI_CONTROL_FD PALS_RANKID", "PMI_RANK PMI_SIZE MPI_LOCALRANKID HYDI_CONTROL_FD PALS_RANKID"},
    {Launcher::mpich, "mpich", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
     "MV2_COMM_WORLD_LOCAL_SIZE", "", "", "MV2_COMM_WORLD_RANK MV2_COMM_WORLD_SIZE MV2_COMM_WORLD_LOCAL_RANK"},
    {Launcher::jsrun, "jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK", "", "", "",
     "JSM_NAMESPACE_RANK JSM_NAMESPACE_SIZE JSM_NAMESPACE_LOCAL_RANK"},
    {Launcher::flux, "flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", "", "", "",
     "FLUX_TASK_RANK FLUX_JOB_SIZE FLUX_TASK_LOCAL_ID"},
    {Launcher::slurm, "slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "", "SLURM_NODEID"},
    {Launcher::environment, "environment", "RANK", "WORLD_SIZE", "", "", "", "",
     "RANK WORLD_SIZE MASTER_ADDR MASTER_PORT"},
};

bool set(const Environment& environment, const std::string& name) {
    return !name.empty() && environment(name).value_or("") != "";
}

// The first of these names, separated by blanks, that is set; "" if none is.
std::string first_set(const Environment& environment, std::string_view names) {
    for (const std::string_view name : split(names, ' '))
        if (set(environment, std::string(name))) return std::string(name);
    return "";
}

constexpr const char* kOtherwise =
    "; if no launcher started this process and it is to train alone, set TUTTI_LAUNCHER=none";

// ---- Slurm, whose shells and batch scripts have variables of a step although they are not one ----

// A step that srun started. Interactive, batch and extern steps have ids from 0xfffffff0 on (slurm.h).
bool is_slurm_step(const Environment& environment) {
    const std::string id = environment("SLURM_STEP_ID").value_or("");
    return parse_number<uint64_t>(id).value_or(0xfffffff0U) < 0xfffffff0U && set(environment, "SLURM_PROCID");
}

const char* slurm_size(const Environment& environment) {
    return set(environment, "SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
}

bool fits(const Environment& environment, const LauncherVariables& row) {
    if (row.launcher == Launcher::slurm) {
        const char* size = slurm_size(environment);
        // A step of one task, such as an interactive shell, has no other processes: its ranks may be threads.
        return is_slurm_step(environment) && set(environment, size) && *environment(size) != "1";
    }
    return set(environment, row.rank) && set(environment, row.size) &&
           (*row.with == '\0' || !first_set(environment, row.with).empty());
}

// ---- reading the variables of a launcher ----

int number(const Environment& environment, const LauncherVariables& row, const char* name) {
    const auto text = environment(name);
    check<UsageError>(text.has_value(), "launcher ", row.name, ": the variable ", name,
                      " is not set; was this process started by that launcher?");
    const int value = parse_number<int>(*text).value_or(-1);
    check<UsageError>(value >= 0, "launcher ", row.name, ": ", name, " must be a whole number from 0 to ",
                      std::numeric_limits<int>::max(), ", got '", *text, "'");
    return value;
}

Launch read(const Environment& environment, const LauncherVariables& row) {
    const auto optional_number = [&](const char* name) {
        return set(environment, name) ? number(environment, row, name) : -1;
    };
    const char* size = row.launcher == Launcher::slurm ? slurm_size(environment) : row.size;
    Launch launch{.launcher = row.launcher,
                  .rank = number(environment, row, row.rank),
                  .size = number(environment, row, size),
                  .local_rank = optional_number(row.local_rank),
                  .local_size = optional_number(row.local_size),
                  .node = optional_number(row.node)};
    if (row.launcher == Launcher::tutti) launch.generation = number(environment, row, "TUTTI_GENERATION");
    launch.evidence = concat(row.rank, '=', *environment(row.rank), ", ", size, '=', *environment(size));
    check<UsageError>(launch.rank < launch.size, "launcher ", row.name, ": ", launch.evidence,
                      ": the rank must be below the number of ranks");
    if (launch.size == 1) launch.local_rank = 0, launch.local_size = 1;
    for (const char* name : {"MASTER_ADDR", "MASTER_PORT"})
        check<UsageError>(row.launcher != Launcher::environment || launch.size == 1 || set(environment, name) ||
                              set(environment, "TUTTI_RENDEZVOUS"),
                          launch.evidence, ", but ", name,
                          " is not set: the ranks need the address of rank 0 (or TUTTI_RENDEZVOUS=HOST:PORT)",
                          kOtherwise);
    return launch;
}

// Of the rows of `launcher`, the first whose variables are set, else the first.
const LauncherVariables& row_of(const Environment& environment, Launcher launcher) {
    const LauncherVariables* first = nullptr;
    for (const LauncherVariables& row : kLaunchers) {
        if (row.launcher != launcher) continue;
        if (fits(environment, row)) return row;
        if (first == nullptr) first = &row;
    }
    check(first != nullptr, "internal error: a launcher without variables");
    return *first;
}

// ---- other environments ----

// The largest number of nodes in PET_NNODES: 4 for "4" or "2:4".
int64_t most_nodes(const std::string& text) {
    const std::string last = text.substr(text.rfind(':') + 1);
    return parse_number<int64_t>(last).value_or(0);
}

// Refuses containers of a job in which torchrun is to start the ranks.
void refuse_one_of_many(const Environment& environment) {
    const std::string nodes = environment("PET_NNODES").value_or(""), hosts = environment("SM_HOSTS").value_or("");
    const int64_t quotes = std::count(hosts.begin(), hosts.end(), '"');
    const bool many = quotes > 2 || most_nodes(nodes) > 1;
    check<UsageError>(!many, "this container is one of ", quotes > 2 ? quotes / 2 : most_nodes(nodes), " (",
                      quotes > 2 ? "SM_HOSTS=" + hosts : "PET_NNODES=" + nodes,
                      ") and has no rank: start `torchrun --no-python tutti ...`, which reads PET_*, or set RANK, "
                      "WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
                      kOtherwise);
}

// Shells and batch scripts are task 0, so another task is one of several.
void refuse_task_without_step(const Environment& environment) {
    const std::string task = environment("SLURM_PROCID").value_or("");
    if (task.empty() || task == "0") return;
    const char* size = slurm_size(environment);
    const std::string wrong = !is_slurm_step(environment) ? "SLURM_STEP_ID is not that of a step"
                              : set(environment, size)    ? concat(size, " is ", *environment(size))
                                                          : std::string("SLURM_STEP_NUM_TASKS is not set");
    throw UsageError(concat("launcher slurm: SLURM_PROCID=", task, " is one of several tasks, but ", wrong,
                            ": with incomplete variables each rank would train alone", kOtherwise));
}

void refuse_incomplete(const Environment& environment) {
    refuse_task_without_step(environment);
    for (const LauncherVariables& row : kLaunchers) {
        // srun sets PMI_RANK and PMI_SIZE too, even in a step of one task.
        if (row.launcher == Launcher::mpich && is_slurm_step(environment)) continue;
        const std::string sign = first_set(environment, row.signs);
        if (sign.empty()) continue;
        std::string missing;
        for (const char* name : {row.rank, row.size})
            if (!set(environment, name)) missing += concat(missing.empty() ? "" : " and ", name);
        if (missing.empty()) missing = joined(split(row.with, ' '), " or ");
        throw UsageError(concat("launcher ", row.name, ": ", sign, '=', *environment(sign), " is set, but ", missing,
                                missing.find(" and ") == std::string::npos ? " is" : " are",
                                " not set: with incomplete variables each rank would train alone", kOtherwise));
    }
}

constexpr const char* kPortOfContainers = "29400";  // unless MASTER_PORT is set

std::string required(const Environment& environment, const char* name, const char* because) {
    const std::string text = environment(name).value_or("");
    check<UsageError>(!text.empty(), because, '=', *environment(because), " is set, but ", name,
                      " is not: this host does not know its rank among the hosts", kOtherwise);
    return text;
}

std::map<std::string, std::string> host_variables(const Environment& environment) {
    if (set(environment, "RANK")) return {};
    if (const int64_t nodes = most_nodes(environment("PET_NNODES").value_or("")); nodes > 1) {
        const auto value = [&](const char* name) { return required(environment, name, "PET_NNODES"); };
        return {{"RANK", value("PET_NODE_RANK")},
                {"WORLD_SIZE", std::to_string(nodes)},
                {"MASTER_ADDR", value("PET_MASTER_ADDR")},
                {"MASTER_PORT", value("PET_MASTER_PORT")}};
    }
    if (const auto hosts = Json::try_parse(environment("SM_HOSTS").value_or("")); hosts && hosts->is_array()) {
        const auto names = hosts->get<std::vector<std::string>>();
        const std::string own = names.size() > 1 ? required(environment, "SM_CURRENT_HOST", "SM_HOSTS") : "";
        const auto rank = std::find(names.begin(), names.end(), own) - names.begin();
        if (names.size() > 1)
            return {{"RANK", std::to_string(rank)},
                    {"WORLD_SIZE", std::to_string(names.size())},
                    {"MASTER_ADDR", names.front()},
                    {"MASTER_PORT", environment("MASTER_PORT").value_or(kPortOfContainers)}};
    }
    if (set(environment, "JOB_COMPLETION_INDEX") && set(environment, "WORLD_SIZE"))
        return {{"RANK", *environment("JOB_COMPLETION_INDEX")}};
    return {};
}

std::string warning_of(const Environment& environment) {
    if (is_slurm_step(environment)) return "";
    for (const char* name : {"JOB_COMPLETION_INDEX", "PMIX_RANK"})
        if (set(environment, name))
            return concat(name, '=', *environment(name),
                          " is set, but the number of ranks is not: this process trains alone. Each pod of a run needs "
                          "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT");
    return "";
}

}  // namespace

std::string_view name_of(Launcher launcher) {
    for (const LauncherVariables& row : kLaunchers)
        if (row.launcher == launcher) return row.name;
    return "none";
}

Launcher launcher_of(std::string_view name) {
    std::string known = "none", last;
    for (const LauncherVariables& row : kLaunchers) {
        if (row.name == name) return row.launcher;
        if (row.name != last) known += concat(", ", row.name);
        last = row.name;
    }
    check<UsageError>(name == "none", "unknown launcher '", name, "'; required one of ", known);
    return Launcher::none;
}

Environment process_environment() {
    return [](const std::string& name) { return environment_variable(name.c_str()); };
}

Launch detect_launcher(const Environment& environment, std::optional<Launcher> forced) {
    if (!forced && set(environment, "TUTTI_LAUNCHER")) forced = launcher_of(*environment("TUTTI_LAUNCHER"));
    if (forced == Launcher::none) return {};
    if (forced) return read(environment, row_of(environment, *forced));
    Launch launch;
    for (const LauncherVariables& row : kLaunchers) {
        if (!fits(environment, row)) continue;
        if (launch.launcher == Launcher::none)
            launch = read(environment, row);
        else if (row.rank != std::string_view(launch.evidence).substr(0, launch.evidence.find('=')))
            launch.passed_over += concat(launch.passed_over.empty() ? "" : ", ", row.name);
    }
    if (launch.launcher != Launcher::none) return launch;
    refuse_one_of_many(environment);
    refuse_incomplete(environment);
    launch.warning = warning_of(environment);
    return launch;
}

Environment of_hosts(const Environment& environment) {
    return
        [environment, variables = host_variables(environment)](const std::string& name) -> std::optional<std::string> {
            const auto found = variables.find(name);
            return found != variables.end() ? found->second : environment(name);
        };
}

int ranks_of_host(const Environment& environment) {
    for (const char* name : {"PET_NPROC_PER_NODE", "SM_NUM_GPUS"}) {
        const int value = parse_number<int>(environment(name).value_or("")).value_or(0);
        if (value > 0 && value <= 4096) return value;
    }
    return 0;
}

bool is_launched(const Environment& environment) {
    try {
        return detect_launcher(environment).launcher != Launcher::none;
    } catch (const UsageError&) {
        return true;
    }
}

Launch this_launch(std::string_view name) {
    return detect_launcher(process_environment(), name.empty() ? std::nullopt : std::optional(launcher_of(name)));
}

LocalRank local_rank(const Launch& launch, int rank, int ranks) {
    if (launch.size > 1)
        return {launch.local_rank >= 0 ? launch.local_rank : launch.rank, std::max(1, launch.local_size)};
    return {rank, ranks};
}

LocalRank local_rank(const Launch& launch, const World& world) {
    if (launch.size > 1 && launch.local_rank >= 0 && launch.local_size >= 0)
        return {launch.local_rank, launch.local_size};
    const std::vector<int> here = world.ranks_of_host();
    const auto own = std::find(here.begin(), here.end(), world.rank()) - here.begin();
    return {static_cast<int>(own), static_cast<int>(here.size())};
}

}  // namespace tutti::comm
