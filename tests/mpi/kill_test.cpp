// One process of a run under mpirun is killed or stopped at a random moment, again and again. Each time the other
// processes end within the time-out and one of them names the process; in the end the run equals the undisturbed run,
// bit for bit. TUTTI_KILLS: how often (12).
#include <cstdlib>
#include <random>

#include "../program.h"
#include "tutti/base/json.h"

namespace tutti::testing {
namespace {

constexpr int kRanks = 3;
constexpr int kSteps = 60;

class KilledRanks : public ProgramTest {
  protected:
    std::vector<std::string> arguments(const std::string& out) const {
        return train_arguments(out,
                               {"train.steps=" + std::to_string(kSteps), "checkpoint.every=1", "checkpoint.keep=2",
                                "train.global_batch=6", "train.micro_batch=2", "parallel.zero=3", "comm.timeout_s=3"});
    }
    static std::vector<std::string> launcher() {
        std::vector<std::string> words;
        std::istringstream line(TUTTI_MPIRUN_LINE " -n " + std::to_string(kRanks));
        for (std::string word; line >> word;) words.push_back(word);
        return words;
    }
    // The processes of mpirun's ranks, in no order.
    static std::vector<pid_t> children(pid_t parent) {
        std::vector<pid_t> found;
        std::error_code gone;  // processes end while we look
        for (const auto& entry : fs::directory_iterator("/proc", gone)) {
            std::istringstream stat(read_file(entry.path() / "stat"));
            std::string pid, name, state;
            pid_t its_parent = 0;
            if (stat >> pid >> name >> state >> its_parent && its_parent == parent && name == "(tutti)")
                found.push_back(static_cast<pid_t>(std::stol(pid)));
        }
        return found;
    }
    static std::vector<std::string> metrics(const std::string& file) {
        std::vector<std::string> lines;
        std::istringstream in(read_file(file));
        for (std::string line; std::getline(in, line);) {
            const auto json = Json::parse(line);
            lines.push_back(
                Json::array({json.at("step"), json.at("loss"), json.at("grad_norm"), json.at("tokens")}).dump());
        }
        return lines;
    }
    void expect_the_undisturbed_run(const std::string& out) const {
        EXPECT_EQ(metrics(path(out + "/metrics.jsonl")), metrics(path("whole/metrics.jsonl"))) << out;
        for (int rank = 0; rank < kRanks; ++rank) {
            const std::string weights = "checkpoints/step-00000000" + std::to_string(kSteps) + "/rank-0000" +
                                        std::to_string(rank) + "-of-0000" + std::to_string(kRanks) + ".safetensors";
            EXPECT_FALSE(read_file(folder_ / "whole" / weights).empty()) << weights;
            EXPECT_EQ(read_file(folder_ / out / weights), read_file(folder_ / "whole" / weights)) << out;
        }
    }
};

TEST_F(KilledRanks, LoseNothingAndAreNamed) {
    const char* asked = std::getenv("TUTTI_KILLS");
    const int wanted = asked ? std::atoi(asked) : 12;
    Program whole(folder_, arguments("whole"), {}, launcher());
    ASSERT_TRUE(whole.wait_for("step "));
    const auto first_step = std::chrono::steady_clock::now();
    ASSERT_EQ(whole.wait().exit_code, 0);
    // From its first step to its end: the moments to choose from.
    const std::chrono::duration<double, std::milli> span = std::chrono::steady_clock::now() - first_step;
    const unsigned seed = 20261121;  // printed on failure
    std::mt19937 random(seed);
    int disturbed = 0, resumed = 0, runs = 0;
    while (disturbed < wanted) {
        const std::string out = "killed" + std::to_string(runs);
        Program program(folder_, arguments(out), {}, launcher());
        const bool steps = program.wait_for("step ");
        std::this_thread::sleep_for(std::chrono::milliseconds(random() % static_cast<unsigned>(span.count() + 1)));
        const auto ranks = children(program.pid());
        const bool stop = random() % 3 == 0;
        const auto chosen = random();
        if (steps && static_cast<int>(ranks.size()) == kRanks) {
            const pid_t rank = ranks[chosen % ranks.size()];
            kill(rank, stop ? SIGSTOP : SIGKILL);
            // Stopped when the others had nothing left to ask of it, it is missed by mpirun alone, which waits.
            if (stop && !program.ends_within(std::chrono::seconds(20))) {
                EXPECT_NE(program.output().find("step " + std::to_string(kSteps) + "/"), std::string::npos)
                    << "a stopped rank was not noticed:\n"
                    << program.output();
                kill(rank, SIGCONT);
            }
        }
        const Result r = program.wait();
        resumed += r.out.find("continuing after step") != std::string::npos ? 1 : 0;
        const std::string context = "seed " + std::to_string(seed) + ", moment " + std::to_string(disturbed) +
                                    (stop ? ", stopped" : ", killed") + ":\n" + r.out + r.err;
        EXPECT_EQ((r.out + r.err).find("corrupt"), std::string::npos) << context;
        if (r.exit_code == 0) {  // it ended before it was hit
            expect_the_undisturbed_run(out);
            ++runs;
            continue;
        }
        ++disturbed;
        // mpirun detects a process that dies; the other ranks detect one that hangs.
        EXPECT_TRUE((r.out + r.err).find("rank ") != std::string::npos) << context;
    }
    EXPECT_GE(resumed, wanted / 3);  // else nothing was proved
    const std::string out = "killed" + std::to_string(runs);
    const Result last = Program(folder_, arguments(out), {}, launcher()).wait();
    ASSERT_EQ(last.exit_code, 0) << last.err;
    expect_the_undisturbed_run(out);
}

}  // namespace
}  // namespace tutti::testing
