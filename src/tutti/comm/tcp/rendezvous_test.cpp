// The address of the rendezvous, from the environments of launchers.
#include "tutti/comm/tcp/rendezvous.h"

#include <gtest/gtest.h>

#include <map>

#include "tutti/base/error.h"

namespace tutti::comm::tcp {
namespace {

using Variables = std::map<std::string, std::string>;

Rendezvous rendezvous(const Variables& variables) {
    const Environment environment = [&](const std::string& name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        if (found == variables.end()) return std::nullopt;
        return found->second;
    };
    return rendezvous_of(detect_launcher(environment), environment);
}

std::string error_of(const Variables& variables) {
    try {
        rendezvous(variables);
    } catch (const UsageError& error) {
        return error.what();
    }
    return "";
}

const Variables kTorchrun = {{"RANK", "3"},         {"WORLD_SIZE", "8"},      {"LOCAL_RANK", "3"},
                             {"MASTER_ADDR", "n1"}, {"MASTER_PORT", "29500"}, {"LOCAL_WORLD_SIZE", "4"}};
const Variables kSlurm = {{"SLURM_PROCID", "1"},
                          {"SLURM_STEP_NUM_TASKS", "4"},
                          {"SLURM_JOB_ID", "77"},
                          {"SLURM_STEP_ID", "2"},
                          {"SLURM_STEP_NODELIST", "gpu[07-09,12]"}};

TEST(Rendezvous, TheFirstHostOfASlurmList) {
    EXPECT_EQ(first_host("node7"), "node7");
    EXPECT_EQ(first_host("a,b"), "a");
    EXPECT_EQ(first_host("node[01-03,7],gpu2"), "node01");
    EXPECT_EQ(first_host("r[3,5]c[2-4]-ib"), "r3c2-ib");
    EXPECT_THROW(first_host("node[1-2"), UsageError);
}

TEST(Rendezvous, OfTorchrunIsBesideTheAgentsPort) {
    const Rendezvous m = rendezvous(kTorchrun);
    EXPECT_EQ(m.host, "n1");
    EXPECT_EQ(m.port, 29501);
    EXPECT_EQ(m.ports, 16);
    Variables one_host = kTorchrun;
    one_host["LOCAL_WORLD_SIZE"] = "8";
    EXPECT_EQ(rendezvous(one_host).host, "127.0.0.1");
    EXPECT_TRUE(rendezvous(one_host).one_host);
    EXPECT_FALSE(m.one_host);
    Variables restarted = kTorchrun;
    restarted["TORCHELASTIC_RESTART_COUNT"] = "1";
    EXPECT_NE(rendezvous(restarted).job, m.job);
}

TEST(Rendezvous, OfSlurmFollowsFromTheJob) {
    const Rendezvous m = rendezvous(kSlurm);
    EXPECT_EQ(m.host, "gpu07");
    EXPECT_GE(m.port, 15000);
    EXPECT_LT(m.port + m.ports, 32768);
    Variables other = kSlurm;
    other["SLURM_STEP_ID"] = "3";
    EXPECT_GE(std::abs(rendezvous(other).port - m.port), m.ports) << "steps of one job";
    EXPECT_EQ(rendezvous(kSlurm).port, m.port);
    EXPECT_FALSE(m.one_host);
    other["SLURM_STEP_NODELIST"] = "gpu07";
    EXPECT_TRUE(rendezvous(other).one_host);
}

TEST(Rendezvous, OfPodsIsTheMaster) {
    const Rendezvous m = rendezvous({{"KUBERNETES_SERVICE_HOST", "10.96.0.1"},
                                     {"RANK", "1"},
                                     {"WORLD_SIZE", "2"},
                                     {"MASTER_ADDR", "train-0.train"},
                                     {"MASTER_PORT", "29400"}});
    EXPECT_EQ(m.host, "train-0.train");
    EXPECT_EQ(m.port, 29400);
    EXPECT_EQ(m.ports, 1);
}

// Two jobs of one user at one port have different local names, which are not too long.
TEST(Rendezvous, LocalNamesAreOfAJob) {
    Variables v = kTorchrun;
    v["LOCAL_WORLD_SIZE"] = "8";
    v["TORCHELASTIC_RUN_ID"] = std::string(500, 'x');
    const Rendezvous m = rendezvous(v);
    v["TORCHELASTIC_RUN_ID"] += "y";
    EXPECT_NE(rendezvous(v).local_name(m.port), m.local_name(m.port));
    EXPECT_NE(m.local_name(m.port + 1), m.local_name(m.port));
    EXPECT_LE(m.local_name(65535).size(), 100u);
}

TEST(Rendezvous, CanBeNamed) {
    Variables named = kTorchrun;
    named["TUTTI_RENDEZVOUS"] = "head:4000";
    EXPECT_EQ(rendezvous(named).host, "head");
    EXPECT_EQ(rendezvous(named).port, 4000);
    EXPECT_EQ(rendezvous(named).ports, 1);
    named["TUTTI_RENDEZVOUS"] = "[fe80::1]:4000";
    EXPECT_EQ(rendezvous(named).host, "fe80::1");
    named["TUTTI_RENDEZVOUS"] = "head";
    EXPECT_EQ(error_of(named), "TUTTI_RENDEZVOUS must be HOST:PORT, got 'head'");
    const Variables mpi = {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}};
    EXPECT_NE(error_of(mpi).find("only at TUTTI_RENDEZVOUS=HOST:PORT"), std::string::npos);
}

TEST(Rendezvous, WhatIsMissingOrWrongIsNamed) {
    Variables v = kTorchrun;
    v.erase("MASTER_ADDR");
    EXPECT_NE(error_of(v).find("the variable MASTER_ADDR is not set"), std::string::npos) << error_of(v);
    v = kTorchrun;
    v["MASTER_PORT"] = "70000";
    EXPECT_EQ(error_of(v), "MASTER_PORT must be a whole number from 0 to 65519, got '70000'");
}

}  // namespace
}  // namespace tutti::comm::tcp
