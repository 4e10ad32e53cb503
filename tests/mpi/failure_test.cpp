// When a process fails, the others stop in time, name it, leave their flight records, and mpirun ends with a code that
// is not zero. The ranks are process_ranks (ranks.cpp) under mpirun; rank 1 is always the one at fault.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tutti/diagnose/flight_findings.h"

namespace {

namespace fs = std::filesystem;
using Finding = tutti::diagnose::FlightFinding::Kind;

std::string read_file(const fs::path& path) {
    std::ifstream in(path);
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
}

class MpiFailure : public ::testing::Test {
  protected:
    MpiFailure() {
        std::string name = (fs::temp_directory_path() / "tutti_mpi_XXXXXX").string();
        if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
        folder_ = name;
        setenv("TUTTI_TEST_DIR", name.c_str(), 1);
    }
    ~MpiFailure() override {
        if (pid_ > 0) {
            kill(pid_, SIGTERM);  // mpirun ends its ranks
            waitpid(pid_, nullptr, 0);
        }
        fs::remove_all(folder_);
    }

    void start(int ranks, const std::vector<std::string>& arguments, const std::string& program = TUTTI_RANKS) {
        std::string line = "exec " TUTTI_MPIRUN_LINE " -n " + std::to_string(ranks) + " " + program;
        for (const std::string& argument : arguments) line += " " + argument;
        line += " > " + (folder_ / "output").string() + " 2>&1";
        pid_ = fork();
        if (pid_ == 0) {
            execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
            _exit(127);
        }
    }
    // mpirun's code is that of the rank that ended first: one that noticed the failure, or one that was told.
    static void expect_failed(int code) { EXPECT_TRUE(code == 4 || code == 5) << code; }

    // The exit code of mpirun; 124 when it does not end within three minutes.
    int wait() {
        for (int i = 0; i < 18000; ++i) {
            int status = 0;
            if (waitpid(pid_, &status, WNOHANG) == pid_) {
                pid_ = -1;
                return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        return 124;
    }
    std::string output() const { return read_file(folder_ / "output"); }
    std::string record(int rank) const {
        return read_file(folder_ / "flight" / ("rank-" + std::to_string(rank) + ".json"));
    }
    pid_t pid_of_rank(int rank) const {
        const fs::path file = folder_ / ("pid-" + std::to_string(rank));
        for (int i = 0; i < 6000 && !fs::exists(file); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        return static_cast<pid_t>(std::stol("0" + read_file(file)));
    }
    // Once it runs.
    pid_t hit(int rank, int signal) const {
        const pid_t victim = pid_of_rank(rank);
        if (victim <= 1) throw std::runtime_error("no such rank runs:\n" + output());
        kill(victim, signal);
        return victim;
    }
    // The finding of `tutti report --flight`.
    void expect_finding(Finding kind, const std::string& part) const {
        const tutti::diagnose::FlightReading reading = tutti::diagnose::read_flight(folder_);
        const tutti::diagnose::FlightFinding& first = reading.findings.at(0);
        EXPECT_EQ(name_of(first.kind), name_of(kind)) << first.text;
        // If two ranks disagree before the third has arrived, there is no majority.
        EXPECT_NE(std::find(first.ranks.begin(), first.ranks.end(), 1), first.ranks.end()) << first.text;
        EXPECT_NE(first.text.find(part), std::string::npos) << first.text;
    }
    void expect_output(const std::string& part) const {
        EXPECT_NE(output().find(part), std::string::npos) << "no \"" << part << "\" in:\n" << output();
    }
    void expect_record(int rank, const std::string& part) const {
        EXPECT_NE(record(rank).find(part), std::string::npos) << "rank " << rank << ": " << record(rank);
    }

    fs::path folder_;
    pid_t pid_ = -1;
};

TEST_F(MpiFailure, AnExceptionStopsTheOthersWithItsReasonAndItsExitCode) {
    start(3, {"throw"});
    const int code = wait();
    EXPECT_TRUE(code == 3 || code == 5) << code;  // rank 1's, or that of a rank it stopped: whichever ends first
    expect_output("process_ranks: the disk of rank 1 is gone");
    expect_output("process_ranks: rank 1 failed: the disk of rank 1 is gone");
    for (int rank = 0; rank < 3; ++rank) {
        expect_record(rank, "the disk of rank 1 is gone");
        expect_record(rank, "\"operation\": \"barrier\"");
    }
    expect_finding(Finding::failed, "rank 1 failed: the disk of rank 1 is gone");
}

TEST_F(MpiFailure, TheReasonCrossesHosts) {
    start(4, {"throw", "hosts=0,0,1,1"});
    EXPECT_NE(wait(), 0);
    for (int rank = 0; rank < 4; ++rank) expect_record(rank, "the disk of rank 1 is gone");
}

TEST_F(MpiFailure, AProcessThatEndsInTheMiddleIsNoticedAtOnce) {
    start(3, {"exit", "timeout=600"});  // longer than wait()
    const int code = wait();
    EXPECT_NE(code, 0);
    EXPECT_NE(code, 124) << "found by the time-out only";
    expect_output("rank 1 has died");
    expect_record(0, "rank 1 has died");
    expect_record(2, "rank 1 has died");
    expect_finding(Finding::missing, "rank 1 left no record");
}

TEST_F(MpiFailure, ARankThatStaysAwayIsNamedWithWhatItDidLast) {
    start(3, {"absent", "timeout=1"});
    expect_failed(wait());
    const std::string reason =
        "all_reduce of 1 f64, operation 2 of group dp: waiting for rank 1 of the group, which has begun only operation "
        "1; its last operation is barrier, operation 1 of group tp, for more than 1 s (comm.timeout_s)";
    expect_record(0, reason);
    expect_record(2, reason);
    expect_finding(Finding::missing, "wait for rank 1 in operation 2 of group dp (all_reduce of 1 f64)");
}

TEST_F(MpiFailure, RanksThatDisagreeSayWhoCallsWhat) {
    start(3, {"disagree"});
    expect_failed(wait());
    expect_output(
        "the ranks of group dp disagree on its operation 2: rank 0 calls all_reduce of 8 f32, rank 1 calls broadcast "
        "of "
        "8 f32 from rank 0");
    expect_record(2, "disagree on its operation 2");
    expect_finding(Finding::different, "the ranks diverge at operation 2 of group dp");
    expect_finding(Finding::different, "rank 1 calls broadcast of 8 f32 from rank 0");
}

TEST_F(MpiFailure, SigkillIsNamed) {
    start(3, {"loop", "timeout=60"});
    hit(1, SIGKILL);
    EXPECT_NE(wait(), 0);
    // By us, or by mpirun when it was faster and ended the others first.
    const std::string text = output();
    EXPECT_TRUE(text.find("rank 1 has died") != std::string::npos || text.find("process rank 1") != std::string::npos)
        << text;
}

TEST_F(MpiFailure, AStoppedProcessIsNamedWithinTheTimeOut) {
    start(3, {"loop", "timeout=2"});
    const pid_t victim = hit(1, SIGSTOP);
    expect_failed(wait());
    expect_output("rank 1 of the group");
    expect_output("for more than 2 s (comm.timeout_s)");
    bool alive = true;
    for (int i = 0; i < 6000 && alive; ++i) {
        const std::string status = read_file("/proc/" + std::to_string(victim) + "/status");
        alive = !status.empty() && status.find("State:\tZ") == std::string::npos;  // killed, if not yet buried
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_FALSE(alive) << "mpirun left the stopped process behind";
}

TEST_F(MpiFailure, AStoppedProcessOfAnotherHostIsNamedToo) {
    start(4, {"loop", "timeout=2", "hosts=0,1,1,0"});
    hit(1, SIGSTOP);
    expect_failed(wait());
    // Rank 2 detects that it hangs; ranks 0 and 3 wait half as long again for data, and learn it from rank 2.
    expect_output("rank 1 of the group");
    expect_record(0, "rank 1 of the group");
}

TEST_F(MpiFailure, AStoppedProcessThatIsAloneOnItsHostIsNamedToo) {
    start(3, {"loop", "timeout=2", "hosts=0,1,0"});
    hit(1, SIGSTOP);
    expect_failed(wait());
    expect_output("rank 1 of the group");
}

// MPI_Init waits for all ranks, for ever.
TEST_F(MpiFailure, ARankThatNeverStartsEndsTheOthersInTime) {
    std::ofstream(folder_ / "late.sh") << "#!/bin/sh\n"
                                          "[ \"$OMPI_COMM_WORLD_RANK$PMI_RANK\" = 1 ] && exec sleep 50\n"
                                          "exec " TUTTI_RANKS " \"$@\"\n";
    fs::permissions(folder_ / "late.sh", fs::perms::owner_all);
    start(2, {"absent", "timeout=3"}, (folder_ / "late.sh").string());
    EXPECT_NE(wait(), 0);
    expect_output("rank 0 of 2: MPI has not started within");
}

}  // namespace
