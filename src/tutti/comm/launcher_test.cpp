// Launchers by the variables that they were seen to set or are documented to set.
#include "tutti/comm/launcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>

#include "tutti/base/error.h"
#include "tutti/comm/run.h"

namespace tutti::comm {
namespace {

using Variables = std::map<std::string, std::string>;

Environment environment_of(const Variables& variables) {
    return [variables](const std::string& name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        if (found == variables.end()) return std::nullopt;
        return found->second;
    };
}

Launch detect(const Variables& variables, std::optional<Launcher> forced = std::nullopt) {
    return detect_launcher(environment_of(variables), forced);
}

std::string error_of(const Variables& variables, std::optional<Launcher> forced = std::nullopt) {
    try {
        detect(variables, forced);
    } catch (const UsageError& error) {
        return error.what();
    }
    return "";
}

const Variables kTorchrun = {{"RANK", "5"},       {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"},  {"LOCAL_WORLD_SIZE", "4"},
                             {"GROUP_RANK", "1"}, {"ROLE_RANK", "5"},  {"MASTER_ADDR", "a"}, {"MASTER_PORT", "29500"}};
const Variables kSlurm = {{"SLURM_PROCID", "3"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_LOCALID", "1"},
                          {"SLURM_NODEID", "1"}, {"SLURM_JOB_ID", "7"},         {"SLURM_STEP_ID", "0"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "2"},       {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"OMPI_COMM_WORLD_NODE_RANK", "0"},  {"PMIX_RANK", "2"}};
const Variables kMpich = {
    {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}, {"PMI_FD", "9"}};

const Variables kPod = {{"KUBERNETES_SERVICE_HOST", "10.0.0.1"},
                        {"RANK", "1"},
                        {"WORLD_SIZE", "3"},
                        {"MASTER_ADDR", "train-0.train"},
                        {"MASTER_PORT", "29400"}};

void expect(const Launch& launch, Launcher launcher, int rank, int size, int local_rank, int local_size, int node) {
    EXPECT_EQ(launch.launcher, launcher) << name_of(launch.launcher);
    EXPECT_EQ(launch.rank, rank);
    EXPECT_EQ(launch.size, size);
    EXPECT_EQ(launch.local_rank, local_rank);
    EXPECT_EQ(launch.local_size, local_size);
    EXPECT_EQ(launch.node, node);
}

const Variables kTutti = {{"TUTTI_RANK", "5"},       {"TUTTI_SIZE", "8"},       {"TUTTI_GENERATION", "3"},
                          {"TUTTI_LOCAL_RANK", "1"}, {"TUTTI_LOCAL_SIZE", "4"}, {"TUTTI_NODE", "1"}};

// The innermost launcher of all; incomplete variables are an error.
TEST(Launcher, Tutti) {
    expect(detect(kTutti), Launcher::tutti, 5, 8, 1, 4, 1);
    EXPECT_EQ(detect(kTutti).generation, 3);
    for (const Variables& around : {kTorchrun, kSlurm, kOpenMpi, kMpich}) {
        Variables both = kTutti;
        both.insert(around.begin(), around.end());
        expect(detect(both), Launcher::tutti, 5, 8, 1, 4, 1);
    }
    for (const char* name : {"TUTTI_RANK", "TUTTI_SIZE", "TUTTI_GENERATION"}) {
        Variables half = kTutti;
        half.erase(name);
        EXPECT_NE(error_of(half).find(concat(name, " is not set")), std::string::npos) << error_of(half);
    }
}

TEST(Launcher, Torchrun) { expect(detect(kTorchrun), Launcher::torchrun, 5, 8, 1, 4, 1); }
TEST(Launcher, Slurm) { expect(detect(kSlurm), Launcher::slurm, 3, 4, 1, -1, 1); }
TEST(Launcher, Mpich) { expect(detect(kMpich), Launcher::mpich, 1, 2, 1, 2, -1); }

TEST(Launcher, OpenMpi) {
    const Launch launch = detect(kOpenMpi);
    expect(launch, Launcher::open_mpi, 2, 4, 0, 2, -1);
    EXPECT_EQ(launch.evidence, "OMPI_COMM_WORLD_RANK=2, OMPI_COMM_WORLD_SIZE=4");
}

TEST(Launcher, FourVariablesAreALaunch) {
    expect(detect(kPod), Launcher::environment, 1, 3, -1, -1, -1);
    expect(detect({{"RANK", "0"}, {"WORLD_SIZE", "1"}}), Launcher::environment, 0, 1, 0, 1, -1);  // alone
}

TEST(Launcher, NoneIsOneRank) {
    expect(detect({{"PATH", "/bin"}}), Launcher::none, 0, 1, 0, 1, 0);
    // Indexed Jobs may be of independent runs.
    for (const char* name : {"JOB_COMPLETION_INDEX", "PMIX_RANK"}) {
        const Launch launch = detect({{name, "1"}});
        expect(launch, Launcher::none, 0, 1, 0, 1, 0);
        EXPECT_NE(launch.warning.find(name), std::string::npos);
    }
}

// A launcher's variables, and those by which it is detected. In the order of the table in launcher.cpp.
struct Known {
    Launcher launcher;
    Variables variables;
    std::vector<std::string> needed;  // without one of them: an error, or another launcher
};
const std::vector<Known> kKnown = {
    {Launcher::torchrun, kTorchrun, {"RANK", "WORLD_SIZE", "LOCAL_RANK"}},
    {Launcher::open_mpi, kOpenMpi, {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}},
    {Launcher::mpich, kMpich, {"PMI_RANK", "PMI_SIZE"}},
    {Launcher::mpich,
     {{"MV2_COMM_WORLD_RANK", "1"}, {"MV2_COMM_WORLD_SIZE", "2"}, {"MV2_COMM_WORLD_LOCAL_RANK", "1"}},
     {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"}},
    {Launcher::jsrun,
     {{"JSM_NAMESPACE_RANK", "1"}, {"JSM_NAMESPACE_SIZE", "2"}, {"JSM_NAMESPACE_LOCAL_RANK", "1"}},
     {"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"}},
    {Launcher::flux,
     {{"FLUX_TASK_RANK", "1"}, {"FLUX_JOB_SIZE", "2"}, {"FLUX_TASK_LOCAL_ID", "1"}},
     {"FLUX_TASK_RANK", "FLUX_JOB_SIZE"}},
    {Launcher::slurm, kSlurm, {"SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"}},
    {Launcher::environment, kPod, {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}},
};

// Every subset of a launcher's variables gives the launch, an error that names a missing variable, or, if none of the
// launcher's own variables is left, one rank. Never a rank of several that trains alone.
TEST(Launcher, EverySubsetOfEveryRowIsALaunchOrAnError) {
    const std::vector<std::string> harmless = {"ROLE_RANK",
                                               "GROUP_RANK",
                                               "OMPI_COMM_WORLD_LOCAL_SIZE",
                                               "PMI_FD",
                                               "MPI_LOCALNRANKS",
                                               "OMPI_COMM_WORLD_NODE_RANK",
                                               "PMIX_RANK",
                                               "KUBERNETES_SERVICE_HOST"};
    for (const Known& known : kKnown) {
        const std::vector<std::pair<std::string, std::string>> all(known.variables.begin(), known.variables.end());
        for (unsigned set = 0; set < 1u << all.size(); ++set) {
            Variables some;
            std::string names;
            bool launches = false;
            for (size_t i = 0; i < all.size(); ++i)
                if ((set >> i & 1) != 0) {
                    some.insert(all[i]);
                    names += all[i].first + " ";
                    launches = launches || std::find(harmless.begin(), harmless.end(), all[i].first) == harmless.end();
                }
            const bool whole = std::all_of(known.needed.begin(), known.needed.end(),
                                           [&](const std::string& name) { return some.contains(name); });
            const std::string error = error_of(some);
            const auto has = [&](const char* name) { return some.contains(name); };
            if (known.launcher == Launcher::torchrun && !whole && has("RANK") && has("WORLD_SIZE") &&
                has("MASTER_ADDR") && has("MASTER_PORT")) {
                EXPECT_EQ(detect(some).launcher, Launcher::environment) << names;
            } else if (whole && (known.launcher != Launcher::mpich || some.contains("MPI_LOCALRANKID") ||
                                 some.contains("MV2_COMM_WORLD_RANK"))) {
                EXPECT_EQ(error, "") << names;
                EXPECT_EQ(error.empty() ? detect(some).launcher : Launcher::none, known.launcher) << names;
            } else if (known.launcher == Launcher::slurm && !has("SLURM_PROCID")) {
                EXPECT_EQ(error, "") << names;
                EXPECT_EQ(detect(some).size, 1) << names;
            } else if (launches) {
                EXPECT_NE(error, "") << names;
                EXPECT_NE(error.find("TUTTI_LAUNCHER=none"), std::string::npos) << names << error;
                some["TUTTI_LAUNCHER"] = "none";
                EXPECT_EQ(detect(some).launcher, Launcher::none);
            } else {
                EXPECT_EQ(detect(some).size, 1) << names;
            }
        }
    }
}

TEST(Launcher, OfEveryPairTheInnermostWins) {
    for (size_t inner = 0; inner < kKnown.size(); ++inner)
        for (size_t outer = inner + 1; outer < kKnown.size(); ++outer) {
            Variables both = kKnown[inner].variables;
            both.insert(kKnown[outer].variables.begin(), kKnown[outer].variables.end());
            const Launch launch = detect(both);
            EXPECT_EQ(launch.launcher, kKnown[inner].launcher) << inner << ' ' << outer;
            const std::string other(name_of(kKnown[outer].launcher));
            // torchrun's variables are those of env:// and LOCAL_RANK.
            if (kKnown[inner].launcher == Launcher::torchrun && kKnown[outer].launcher == Launcher::environment)
                continue;
            EXPECT_NE(launch.passed_over.find(other), std::string::npos) << inner << ' ' << outer;
            EXPECT_EQ(detect(both, kKnown[outer].launcher).launcher, kKnown[outer].launcher);
            both["TUTTI_LAUNCHER"] = other;
            EXPECT_EQ(detect(both).launcher, kKnown[outer].launcher);
        }
}

TEST(Launcher, AContainerWithoutARankIsRefused) {
    for (const Variables& container : std::vector<Variables>{{{"PET_NNODES", "2"}, {"PET_NODE_RANK", "1"}},
                                                             {{"PET_NNODES", "1:4"}},
                                                             {{"SM_HOSTS", "[\"algo-1\",\"algo-2\"]"}}})
        EXPECT_NE(error_of(container).find("this container is one of "), std::string::npos);
    EXPECT_EQ(detect({{"PET_NNODES", "1"}}).size, 1);
    EXPECT_EQ(detect({{"SM_HOSTS", "[\"algo-1\"]"}}).size, 1);
}

// If one process represents a host, the variables of such containers give it a rank.
TEST(Launcher, OfHostsReadsTheVariablesOfContainers) {
    const auto launch_of_host = [](const Variables& variables) {
        return detect_launcher(of_hosts(environment_of(variables)));
    };
    const Variables pet = {{"PET_NNODES", "2:4"},
                           {"PET_NODE_RANK", "3"},
                           {"PET_NPROC_PER_NODE", "8"},
                           {"PET_MASTER_ADDR", "w-0.w"},
                           {"PET_MASTER_PORT", "29500"}};
    expect(launch_of_host(pet), Launcher::environment, 3, 4, -1, -1, -1);
    EXPECT_EQ(of_hosts(environment_of(pet))("MASTER_ADDR"), "w-0.w");
    EXPECT_EQ(of_hosts(environment_of(pet))("MASTER_PORT"), "29500");
    EXPECT_EQ(ranks_of_host(environment_of(pet)), 8);
    for (const auto& [name, value] : pet) {
        if (name == "PET_NNODES" || name == "PET_NPROC_PER_NODE") continue;
        Variables half = pet;
        half.erase(name);
        try {
            launch_of_host(half);
            ADD_FAILURE() << name;
        } catch (const UsageError& error) {
            EXPECT_NE(std::string(error.what()).find("PET_NNODES=2:4 is set, but " + name + " is not"),
                      std::string::npos)
                << error.what();
        }
    }
    const Variables sage = {
        {"SM_HOSTS", "[\"algo-1\", \"algo-2\", \"algo-3\"]"}, {"SM_CURRENT_HOST", "algo-2"}, {"SM_NUM_GPUS", "4"}};
    expect(launch_of_host(sage), Launcher::environment, 1, 3, -1, -1, -1);
    EXPECT_EQ(of_hosts(environment_of(sage))("MASTER_ADDR"), "algo-1");
    EXPECT_EQ(ranks_of_host(environment_of(sage)), 4);
    Variables elsewhere = sage;
    elsewhere["SM_CURRENT_HOST"] = "algo-9";
    EXPECT_THROW(launch_of_host(elsewhere), UsageError);
    // Pods of an indexed Job: with WORLD_SIZE one of many, without it a run of its own.
    const Variables pod = {
        {"JOB_COMPLETION_INDEX", "2"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "t-0.t"}, {"MASTER_PORT", "29400"}};
    expect(launch_of_host(pod), Launcher::environment, 2, 4, -1, -1, -1);
    EXPECT_EQ(launch_of_host({{"JOB_COMPLETION_INDEX", "2"}}).size, 1);
    // Other environments are unchanged; a text that is not a number of ranks is ignored.
    expect(launch_of_host(kSlurm), Launcher::slurm, 3, 4, 1, -1, 1);
    expect(launch_of_host(kPod), Launcher::environment, 1, 3, -1, -1, -1);
    EXPECT_EQ(launch_of_host({{"PET_NNODES", "1"}}).size, 1);
    EXPECT_EQ(launch_of_host({{"SM_HOSTS", "[\"algo-1\"]"}}).size, 1);
    EXPECT_EQ(ranks_of_host(environment_of({{"PET_NPROC_PER_NODE", "gpu"}})), 0);
}

TEST(Launcher, MpirunInsideASlurmJobIsNotSlurm) {
    Variables both = kOpenMpi;
    both.insert(kSlurm.begin(), kSlurm.end());
    EXPECT_EQ(detect(both).launcher, Launcher::open_mpi);
    both = kMpich;
    both.insert(kSlurm.begin(), kSlurm.end());
    EXPECT_EQ(detect(both).launcher, Launcher::mpich);
}

// srun also sets PMI_RANK when it starts programs of MPICH.
TEST(Launcher, SrunOfAnMpichProgramIsSlurm) {
    Variables both = kSlurm;
    both.insert({{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}});
    EXPECT_EQ(detect(both).launcher, Launcher::slurm);
}

// Variables of Debian's Slurm: a step of one task, an interactive shell, the body of a batch script.
TEST(Launcher, OnlyASlurmStepOfSeveralTasksIsALaunch) {
    Variables one = kSlurm;
    one["SLURM_STEP_NUM_TASKS"] = "1";
    one["SLURM_PROCID"] = "0";
    EXPECT_EQ(detect(one).launcher, Launcher::none);
    one.insert({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}, {"PMIX_RANK", "0"}});  // srun sets them too
    EXPECT_EQ(detect(one).launcher, Launcher::none);
    EXPECT_EQ(detect(one).warning, "");
    Variables interactive = kSlurm;
    interactive["SLURM_STEP_ID"] = "4294967290";
    interactive["SLURM_PROCID"] = "0";
    EXPECT_EQ(detect(interactive).launcher, Launcher::none);
    const Variables batch = {{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_NODEID", "0"},
                             {"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "7"},  {"SLURM_JOB_NAME", "train"}};
    EXPECT_EQ(detect(batch).launcher, Launcher::none);
    for (Variables variables : {one, interactive, batch}) {  // all of them are task 0
        variables["SLURM_PROCID"] = "1";
        EXPECT_NE(error_of(variables).find("SLURM_PROCID=1 is one of several tasks, but SLURM_STEP_"),
                  std::string::npos)
            << error_of(variables);
    }
    Variables loop = batch;  // a loop in the script
    loop.insert(kPod.begin(), kPod.end());
    EXPECT_EQ(detect(loop).launcher, Launcher::environment);
}

TEST(Launcher, WhatIsMissingOrWrongIsNamed) {
    EXPECT_EQ(
        error_of({{"OMPI_COMM_WORLD_RANK", "0"}}),
        "launcher open_mpi: OMPI_COMM_WORLD_RANK=0 is set, but OMPI_COMM_WORLD_SIZE is not set: with incomplete "
        "variables each rank would train alone; if no launcher started this process and it is to train alone, set "
        "TUTTI_LAUNCHER=none");
    EXPECT_EQ(error_of({}, Launcher::slurm),
              "launcher slurm: the variable SLURM_PROCID is not set; was this process started by that launcher?");
    Variables wrong = kOpenMpi;
    wrong["OMPI_COMM_WORLD_RANK"] = "2x";
    EXPECT_EQ(error_of(wrong),
              "launcher open_mpi: OMPI_COMM_WORLD_RANK must be a whole number from 0 to 2147483647, got '2x'");
    wrong["OMPI_COMM_WORLD_RANK"] = "4";
    EXPECT_EQ(error_of(wrong),
              "launcher open_mpi: OMPI_COMM_WORLD_RANK=4, OMPI_COMM_WORLD_SIZE=4: the rank must be below the number of "
              "ranks");
}

TEST(Run, WithoutALauncherRanksAreThreads) {
    std::atomic<int> sum = 0;
    run({}, 3, {.timeout_s = 60}, [&](World& world) {
        EXPECT_EQ(world.backend(), "threads");
        sum += world.rank() + 1;
    });
    EXPECT_EQ(sum, 6);
}

TEST(Run, WhatCannotBeServedIsRefused) {
    const auto body = [](World&) { FAIL() << "runs"; };
    EXPECT_THROW(run(detect(kTorchrun), 1, {.backend = ProcessBackend::mpi}, body), UsageError);
    EXPECT_THROW(run(detect(kOpenMpi), 1, {.backend = ProcessBackend::tcp}, body), UsageError);
    EXPECT_THROW(run(detect(kOpenMpi), 3, {}, body), UsageError);
    EXPECT_THROW(run({}, 2, {.backend = ProcessBackend::tcp}, body), UsageError);
    EXPECT_THROW(process_backend_of("threads"), UsageError);
}

TEST(Launcher, NamesReadBack) {
    for (const Launcher l : {Launcher::none, Launcher::torchrun, Launcher::slurm, Launcher::open_mpi, Launcher::mpich,
                             Launcher::jsrun, Launcher::flux, Launcher::environment})
        EXPECT_EQ(launcher_of(name_of(l)), l);
    EXPECT_THROW(launcher_of("pbs"), UsageError);
}

}  // namespace
}  // namespace tutti::comm
