// tests/tcp/processes.h: processes with the environment of a launcher that starts no MPI, and what becomes of them.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace tutti::testing {

namespace fs = std::filesystem;

using Variables = std::map<std::string, std::string>;

// A port that another program listens at, as torchrun's agent does at MASTER_PORT.
class TakenPort {
  public:
    TakenPort() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t size = sizeof address;
        if (bind(fd_, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(fd_, 8) != 0 ||
            getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) != 0)
            throw std::runtime_error("no port");
        port_ = ntohs(address.sin_port);
    }
    ~TakenPort() { close(fd_); }
    TakenPort(const TakenPort&) = delete;
    TakenPort& operator=(const TakenPort&) = delete;
    int port() const { return port_; }

  private:
    int fd_, port_ = 0;
};

class Processes : public ::testing::Test {
  protected:
    Processes() {
        std::string name = (fs::temp_directory_path() / "tutti_tcp_XXXXXX").string();
        if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
        folder_ = name;
    }
    ~Processes() override {
        for (const auto& [rank, pid] : pids_) {
            kill(pid, SIGKILL);
            waitpid(pid, nullptr, 0);
        }
        fs::remove_all(folder_);
    }

    // The variables that torchrun sets for rank `rank` of `ranks` on one host.
    Variables torchrun(int rank, int ranks) const {
        return {{"RANK", std::to_string(rank)},
                {"WORLD_SIZE", std::to_string(ranks)},
                {"LOCAL_RANK", std::to_string(rank)},
                {"LOCAL_WORLD_SIZE", std::to_string(ranks)},
                {"GROUP_RANK", "0"},
                {"MASTER_ADDR", "localhost"},
                {"MASTER_PORT", std::to_string(agent_.port())},
                {"TORCHELASTIC_RUN_ID", "none"},
                {"TORCHELASTIC_RESTART_COUNT", "0"},
                {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
    }
    // A pod of a job of `ranks` pods.
    Variables pod(int rank, int ranks) const {
        return {{"KUBERNETES_SERVICE_HOST", "10.96.0.1"},
                {"RANK", std::to_string(rank)},
                {"WORLD_SIZE", std::to_string(ranks)},
                {"MASTER_ADDR", "127.0.0.1"},
                {"MASTER_PORT", std::to_string(agent_.port() + 40)}};
    }
    void start(int rank, const Variables& variables, std::vector<std::string> command) {
        std::vector<char*> argv;
        for (std::string& word : command) argv.push_back(word.data());
        argv.push_back(nullptr);
        const pid_t pid = fork();
        if (pid == 0) {
            const std::string output = (folder_ / ("output-" + std::to_string(rank))).string();
            if (!freopen(output.c_str(), "w", stdout) || dup2(fileno(stdout), fileno(stderr)) < 0) _exit(126);
            for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
            setenv("TUTTI_TEST_DIR", folder_.c_str(), 1);
            execv(argv[0], argv.data());
            _exit(127);
        }
        pids_[rank] = pid;
    }
    void start_all(int ranks, const std::vector<std::string>& command) {
        for (int rank = 0; rank < ranks; ++rank) start(rank, torchrun(rank, ranks), command);
    }
    // Fails after five minutes.
    static void wait_until(const std::function<bool()>& fact) {
        const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(5);
        while (!fact()) {
            if (std::chrono::steady_clock::now() > limit) throw std::runtime_error("waited in vain");
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
    }
    // The exit code of a rank, 128 + n when signal n ended it.
    int wait(int rank) {
        const pid_t pid = pids_.at(rank);
        int status = 0;
        wait_until([&] { return waitpid(pid, &status, WNOHANG) == pid; });
        pids_.erase(rank);
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    // The one of these processes that ends first.
    int first_to_end(const std::vector<int>& processes) const {
        int first = -1;
        const auto has_ended = [&](int process) {
            siginfo_t info{};
            waitid(P_PID, static_cast<id_t>(pids_.at(process)), &info, WEXITED | WNOHANG | WNOWAIT);
            return info.si_pid != 0;
        };
        wait_until([&] {
            for (const int process : processes)
                if (has_ended(process)) first = process;
            return first >= 0;
        });
        return first;
    }
    // How many sockets a process has open.
    int sockets_of(int process) const {
        int count = 0;
        std::error_code gone;
        for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(pids_.at(process)) + "/fd", gone))
            count += fs::read_symlink(entry.path(), gone).string().starts_with("socket:") ? 1 : 0;
        return count;
    }
    std::string output(int rank) const { return read(folder_ / ("output-" + std::to_string(rank))); }
    std::string record(int rank) const { return read(folder_ / "flight" / ("rank-" + std::to_string(rank) + ".json")); }
    static std::string read(const fs::path& path) {
        std::ifstream in(path);
        std::ostringstream text;
        text << in.rdbuf();
        return text.str();
    }
    // Whether a process waits for this signal, which would end it otherwise.
    bool heeds(int process, int signal) const {
        const std::string status = read("/proc/" + std::to_string(pids_.at(process)) + "/status");
        const size_t blocked = status.find("SigBlk:");
        return blocked != std::string::npos &&
               (std::stoull(status.substr(blocked + 7, 24), nullptr, 16) >> (signal - 1) & 1) != 0;
    }
    void expect_all_well(int ranks) {
        for (int rank = 0; rank < ranks; ++rank) EXPECT_EQ(wait(rank), 0) << "rank " << rank << ": " << output(rank);
    }
    // Every rank but `culprit` ends with `code` and says `part`: 5, because of another rank. 4: at least one rank has
    // found the fault itself.
    void expect_named(int ranks, int culprit, const std::string& part, int code = 5) {
        int found = 0;
        for (int rank = 0; rank < ranks; ++rank) {
            if (rank == culprit) continue;
            const int ended = wait(rank);
            found += ended == 4 ? 1 : 0;
            EXPECT_TRUE(ended == 5 || ended == code)
                << "rank " << rank << " ended with " << ended << ": " << output(rank);
            EXPECT_NE(output(rank).find(part), std::string::npos)
                << "no \"" << part << "\" in what rank " << rank << " said:\n"
                << output(rank);
        }
        EXPECT_EQ(found > 0, code == 4);
    }
    // Once `loop` of ranks.cpp runs there.
    void hit(int rank, int signal) const {
        const fs::path file = folder_ / ("pid-" + std::to_string(rank));
        wait_until([&] { return fs::exists(file); });
        kill(pids_.at(rank), signal);
    }

    fs::path folder_;
    std::map<int, pid_t> pids_;
    TakenPort agent_;
};

}  // namespace tutti::testing
