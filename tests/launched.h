// tests/launched.h: `tutti launch` as processes of this machine: a run directory, what its processes are, and what the
// run has done. Hosts are agents of this machine, which a script in place of ssh starts; a file says which are down.
#pragma once

#include <cstring>
#include <map>

#include "program.h"
#include "tutti/base/json.h"

namespace tutti::testing {

using Words = std::vector<std::string>;

class Launched : public ProgramTest {
  protected:
    Launched() {
        setenv("TUTTI_TEST_MARK", folder_.c_str(), 1);  // goes to all processes of this test
        write("ssh",
              "#!/bin/sh\nif [ -e '" + path("down-") +
                  "'\"$1\" ]; then echo \"ssh: $1 does not answer\" >&2; exit 255; fi\nshift\nexec sh -c \"$*\"\n");
        fs::permissions(path("ssh"), fs::perms::owner_all);
        write("hosts", "a slots=5 addr=127.0.0.1\nb slots=3 addr=127.0.0.1\n");
    }
    ~Launched() override {
        for (const auto& [pid, process] : processes()) kill(pid, SIGKILL);
    }

    struct Process {
        std::string command;  // train, agent
        int rank = -1;
        pid_t parent = 0;
        std::string host;
    };
    // The processes of this test's runs that live.
    std::map<pid_t, Process> processes() const {
        std::map<pid_t, Process> found;
        for (const auto& entry : fs::directory_iterator("/proc")) {
            const std::string name = entry.path().filename();
            if (name.find_first_not_of("0123456789") != std::string::npos) continue;
            const std::string environment = read_file(entry.path() / "environ");
            if (environment.find("TUTTI_TEST_MARK=" + folder_.string() + '\0') == std::string::npos) continue;
            const std::string words = read_file(entry.path() / "cmdline"), stat = read_file(entry.path() / "stat");
            const size_t after = stat.rfind(')');
            if (words.empty() || after == std::string::npos || stat[after + 2] == 'Z') continue;
            Process process;
            process.command = words.c_str() + std::min(words.size(), std::strlen(words.c_str()) + 1);
            process.parent = std::stoi(stat.substr(after + 4));
            const auto value = [&](const std::string& key) -> std::string {
                const size_t at = environment.find('\0' + key + '=');
                return at == std::string::npos ? "" : environment.c_str() + at + key.size() + 2;
            };
            if (!value("TUTTI_RANK").empty()) process.rank = std::stoi(value("TUTTI_RANK"));
            process.host = value("TUTTI_NODE");
            found[std::stoi(name)] = process;
        }
        return found;
    }
    // The process of a rank, once there is one.
    pid_t pid_of(int rank) const {
        for (;;) {
            for (const auto& [pid, process] : processes())
                if (process.command == "train" && process.rank == rank) return pid;
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
    }
    size_t ranks() const {
        const auto all = processes();
        return static_cast<size_t>(
            std::count_if(all.begin(), all.end(), [](const auto& entry) { return entry.second.rank >= 0; }));
    }
    void expect_no_process() const {
        for (int i = 0; i < 12000 && !processes().empty(); ++i)
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        for (const auto& [pid, process] : processes()) ADD_FAILURE() << pid << ' ' << process.command << " lives";
    }

    Words launch_arguments(const std::string& out, const Words& options, const Words& set) const {
        Words words = train_arguments(out, {"train.micro_batch=1", "train.global_batch=40", "checkpoint.keep=100000"});
        words.front() = "launch";
        for (const std::string& s : set) words.insert(words.end(), {"--set", s});
        words.insert(words.end(), options.begin(), options.end());
        return words;
    }
    Words hosts(const Words& more = {}) const {
        Words words = {"--hosts", path("hosts"), "--ssh", path("ssh"), "--silence", "6", "--grow-after", "0"};
        words.insert(words.end(), more.begin(), more.end());
        return words;
    }

    int64_t newest_step(const std::string& out) const {
        int64_t newest = 0;
        std::error_code gone;
        for (fs::directory_iterator i(path(out + "/checkpoints"), gone), end; !gone && i != end; i.increment(gone)) {
            const std::string name = i->path().filename();
            if (name.starts_with("step-") && name.find('.') == std::string::npos)
                newest = std::max<int64_t>(newest, std::stoll(name.substr(5)));
        }
        return newest;
    }
    // The newest step of the log, which is ahead of the checkpoints on disk.
    int64_t logged_step(const std::string& out) const {
        const auto all = lines(out + "/metrics.jsonl");
        return all.empty() ? 0 : all.back().at("step").get<int64_t>();
    }
    bool wait_for_step(Program& program, const std::string& out, int64_t step) const {
        return program.wait_until([&] { return newest_step(out) >= step; });
    }

    // The last line may be half written.
    std::vector<Json> lines(const std::string& file) const {
        std::vector<Json> all;
        std::istringstream in(read_file(folder_ / file));
        for (std::string line; std::getline(in, line) && !in.eof();) all.push_back(Json::parse(line));
        return all;
    }
    std::vector<Json> events(const std::string& out, const std::string& kind) const {
        std::vector<Json> all;
        for (const Json& event : lines(out + "/events.jsonl"))
            if (event.at("event").text() == kind) all.push_back(event);
        return all;
    }

    // All weights and moments of a checkpoint in one rank's file, whatever the layout that wrote it.
    std::string weights(const std::string& out, int64_t step) const {
        char name[32];
        std::snprintf(name, sizeof name, "step-%010lld", static_cast<long long>(step));
        const std::string to = path("exported-" + out);
        fs::remove_all(to);
        const Result r = run({"convert", "--from", path(out + "/checkpoints/" + name), "--to", to, "--dtype", "f32"});
        EXPECT_EQ(r.exit_code, 0) << r.err;
        return read_file(fs::path(to) / "model.safetensors");
    }
    static std::vector<float> values_of(const std::string& safetensors) {
        uint64_t head = 0;
        std::memcpy(&head, safetensors.data(), sizeof head);
        std::vector<float> values((safetensors.size() - 8 - head) / sizeof(float));
        std::memcpy(values.data(), safetensors.data() + 8 + head, values.size() * sizeof(float));
        return values;
    }
    // Every step was logged once, with the same samples: tokens and, within rounding, losses.
    void expect_same_steps(const std::string& out, const std::string& whole, double tolerance) const {
        const auto got = lines(out + "/metrics.jsonl"), want = lines(whole + "/metrics.jsonl");
        ASSERT_EQ(got.size(), want.size());
        for (size_t i = 0; i < want.size(); ++i) {
            EXPECT_EQ(got[i].at("step"), want[i].at("step"));
            EXPECT_EQ(got[i].at("tokens"), want[i].at("tokens"));
            EXPECT_EQ(got[i].at("lr"), want[i].at("lr"));
            EXPECT_NEAR(got[i].at("loss").get<double>(), want[i].at("loss").get<double>(), tolerance) << "line " << i;
        }
    }
    // The run `out` of `set` and of several starts, of any ranks, ended as 8 ranks that are started once.
    void expect_steps_and_weights_of_one_start(const std::string& out, Words set) {
        const int64_t last = newest_step(out);
        set.insert(set.end(), {"train.steps=" + std::to_string(last), "checkpoint.every=0"});
        ASSERT_EQ(run(launch_arguments("whole", {"-n", "8"}, set)).exit_code, 0);
        expect_same_steps(out, "whole", 1e-5);
        const std::vector<float> got = values_of(weights(out, last)), want = values_of(weights("whole", last));
        ASSERT_EQ(got.size(), want.size());
        double largest = 0;
        for (size_t i = 0; i < got.size(); ++i) largest = std::max<double>(largest, std::abs(got[i] - want[i]));
        EXPECT_LE(largest, 1e-5) << "after " << last << " steps";
        expect_no_process();
    }
};

}  // namespace tutti::testing
