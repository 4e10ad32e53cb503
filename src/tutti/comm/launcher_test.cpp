// Launchers by their environments, as they were printed by the launchers themselves or are documented (formats.md, B4).
#include "tutti/comm/launcher.h"

#include <gtest/gtest.h>

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

const Variables kTorchrun = {{"RANK", "5"},       {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"},
                             {"GROUP_RANK", "1"}, {"ROLE_RANK", "5"},  {"MASTER_ADDR", "a"}};
const Variables kSlurm = {{"SLURM_PROCID", "3"},       {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "1"},
                          {"SLURM_NODEID", "1"},       {"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NAME", "train"},
                          {"SLURM_JOB_NUM_NODES", "2"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "2"},       {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"OMPI_COMM_WORLD_NODE_RANK", "0"},  {"PMIX_RANK", "2"}};
const Variables kMpich = {
    {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}, {"PMI_FD", "9"}};

void expect(const Launch& launch, Launcher launcher, int rank, int size, int local_rank, int local_size, int node) {
    EXPECT_EQ(launch.launcher, launcher) << name_of(launch.launcher);
    EXPECT_EQ(launch.rank, rank);
    EXPECT_EQ(launch.size, size);
    EXPECT_EQ(launch.local_rank, local_rank);
    EXPECT_EQ(launch.local_size, local_size);
    EXPECT_EQ(launch.node, node);
}

TEST(Launcher, Torchrun) { expect(detect(kTorchrun), Launcher::torchrun, 5, 8, 1, 4, 1); }
TEST(Launcher, Slurm) { expect(detect(kSlurm), Launcher::slurm, 3, 4, 1, -1, 1); }
TEST(Launcher, Mpich) { expect(detect(kMpich), Launcher::mpich, 1, 2, 1, 2, -1); }

TEST(Launcher, OpenMpi) {
    const Launch launch = detect(kOpenMpi);
    expect(launch, Launcher::open_mpi, 2, 4, 0, 2, -1);
    EXPECT_EQ(launch.evidence, "OMPI_COMM_WORLD_RANK=2, OMPI_COMM_WORLD_SIZE=4");
}

TEST(Launcher, APodIsOneRank) {
    expect(detect({{"KUBERNETES_SERVICE_HOST", "10.0.0.1"}, {"RANK", "1"}, {"WORLD_SIZE", "3"}}), Launcher::kubernetes,
           1, 3, -1, -1, -1);
}

TEST(Launcher, NoneIsOneRank) {
    expect(detect({{"PATH", "/bin"}}), Launcher::none, 0, 1, 0, 1, 0);
    // Left-over variables of a user's own shell identify no launcher.
    expect(detect({{"RANK", "5"}, {"WORLD_SIZE", "8"}}), Launcher::none, 0, 1, 0, 1, 0);
}

TEST(Launcher, TheFirstInTheOrderWins) {
    Variables both = kTorchrun;
    both.insert(kSlurm.begin(), kSlurm.end());
    EXPECT_EQ(detect(both).launcher, Launcher::torchrun);
    EXPECT_EQ(detect(both, Launcher::slurm).launcher, Launcher::slurm);
    EXPECT_EQ(detect(both, Launcher::none).launcher, Launcher::none);
}

// Every process of such a run has the batch step's SLURM_PROCID=0: all of them would be rank 0.
TEST(Launcher, MpirunInsideASlurmJobIsNotSlurm) {
    Variables both = kOpenMpi;
    both.insert(kSlurm.begin(), kSlurm.end());
    EXPECT_EQ(detect(both).launcher, Launcher::open_mpi);
    both = kMpich;
    both.insert(kSlurm.begin(), kSlurm.end());
    EXPECT_EQ(detect(both).launcher, Launcher::mpich);
}

// srun sets PMI_RANK too when it starts MPICH programs; it is Slurm all the same.
TEST(Launcher, SrunOfAnMpichProgramIsSlurm) {
    Variables both = kSlurm;
    both.insert({{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}});
    EXPECT_EQ(detect(both).launcher, Launcher::slurm);
}

TEST(Launcher, AnInteractiveSlurmShellStartsNoRanks) {
    for (const char* name : {"bash", "interactive"}) {
        Variables shell = kSlurm;
        shell["SLURM_JOB_NAME"] = name;
        shell["SLURM_NTASKS"] = "1";
        shell["SLURM_PROCID"] = "0";
        EXPECT_EQ(detect(shell).launcher, Launcher::none);
        shell["SLURM_NTASKS"] = "4";
        EXPECT_EQ(detect(shell).launcher, Launcher::slurm);
    }
}

TEST(Launcher, WhatIsMissingOrWrongIsNamed) {
    EXPECT_EQ(error_of({{"OMPI_COMM_WORLD_RANK", "0"}}),
              "launcher open_mpi: the variable OMPI_COMM_WORLD_SIZE is not set; is this process started by it?");
    EXPECT_EQ(error_of({}, Launcher::slurm),
              "launcher slurm: the variable SLURM_PROCID is not set; is this process started by it?");
    Variables wrong = kOpenMpi;
    wrong["OMPI_COMM_WORLD_RANK"] = "2x";
    EXPECT_EQ(error_of(wrong), "launcher open_mpi: OMPI_COMM_WORLD_RANK must be a whole number, got '2x'");
    wrong["OMPI_COMM_WORLD_RANK"] = "4";
    EXPECT_EQ(error_of(wrong),
              "launcher open_mpi: OMPI_COMM_WORLD_RANK=4, OMPI_COMM_WORLD_SIZE=4: a rank must be below the number of "
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
                             Launcher::kubernetes})
        EXPECT_EQ(launcher_of(name_of(l)), l);
    EXPECT_THROW(launcher_of("pbs"), UsageError);
}

}  // namespace
}  // namespace tutti::comm
