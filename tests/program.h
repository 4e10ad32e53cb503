// tests/program.h: runs the built `tutti` as a user would: its own process, arguments, signals, limits.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace tutti::testing {

namespace fs = std::filesystem;

inline std::string read_file(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
}

struct Result {
    int exit_code = -1;  // 128 + n: killed by signal n
    std::string out, err;
};

// A running program. Its output goes to files of a scratch folder.
class Program {
  public:
    // `before_exec` runs in the child: limits. `launcher`: what starts the program, such as mpirun -n 3.
    Program(const fs::path& folder, std::vector<std::string> arguments, const std::function<void()>& before_exec = {},
            const std::vector<std::string>& launcher = {})
        : out_(folder / "stdout"), err_(folder / "stderr") {
        arguments.insert(arguments.begin(), TUTTI_PROGRAM);
        arguments.insert(arguments.begin(), launcher.begin(), launcher.end());
        std::vector<char*> argv;
        for (std::string& argument : arguments) argv.push_back(argument.data());
        argv.push_back(nullptr);
        fs::remove(out_);  // of the program before
        fs::remove(err_);
        pid_ = fork();
        if (pid_ != 0) return;
        if (!freopen(out_.c_str(), "w", stdout) || !freopen(err_.c_str(), "w", stderr)) _exit(126);
        if (before_exec) before_exec();
        execvp(argv[0], argv.data());
        _exit(127);
    }
    ~Program() {
        if (pid_ > 0) {
            kill(pid_, SIGKILL);
            waitpid(pid_, nullptr, 0);
        }
    }
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;

    pid_t pid() const { return pid_; }
    void signal(int number) const { kill(pid_, number); }
    std::string output() const { return read_file(out_); }
    // Waits until the fact holds; false when the program ended before.
    bool wait_until(const std::function<bool()>& fact) {
        while (!fact()) {
            if (ended()) return fact();
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        return true;
    }
    // Waits until one of its two outputs holds `text`.
    bool wait_for(const std::string& text) {
        return wait_until([&] { return (output() + '\n' + read_file(err_)).find(text) != std::string::npos; });
    }
    // While `body` runs the program stands still: what it was doing is neither done nor undone meanwhile.
    void while_stopped(const std::function<void()>& body) const {
        int status = 0;
        signal(SIGSTOP);
        if (waitpid(pid_, &status, WUNTRACED) != pid_ || !WIFSTOPPED(status)) throw std::runtime_error("not stopped");
        body();
        signal(SIGCONT);
    }
    bool ends_within(std::chrono::seconds limit) {
        const auto begin = std::chrono::steady_clock::now();
        while (!ended()) {
            if (std::chrono::steady_clock::now() - begin > limit) return false;
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        return true;
    }
    Result wait() {
        if (!ended(0)) ADD_FAILURE() << "waitpid failed";
        return {code_, read_file(out_), read_file(err_)};
    }

  private:
    bool ended(int flags = WNOHANG) {
        if (pid_ <= 0) return true;
        int status = 0;
        if (waitpid(pid_, &status, flags) != pid_) return false;
        code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        pid_ = -1;
        return true;
    }
    fs::path out_, err_;
    pid_t pid_ = -1;
    int code_ = -1;
};

class ProgramTest : public ::testing::Test {
  protected:
    ProgramTest() {
        std::string name = (fs::temp_directory_path() / "tutti_e2e_XXXXXX").string();
        if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
        folder_ = name;
        std::ofstream text(folder_ / "text.txt");
        for (int i = 0; i < 500; ++i) text << "line " << i * i << " of a text that repeats itself\n";
        write("tiny.toml",
              "[model]\npreset = \"llama-tiny\"\nwidth = 32\nlayers = 2\nheads = 2\nkv_heads = 2\n"
              "head_dim = 16\nffn = 48\n[data]\ntrain = \"" +
                  path("text.txt") +
                  "\"\n[train]\nsteps = 12\nseq_len = 16\nglobal_batch = 4\nmicro_batch = 4\nthreads = 1\n"
                  "[log]\nevery = 1\n[checkpoint]\nevery = 2\n");
    }
    ~ProgramTest() override { fs::remove_all(folder_); }

    std::string path(const std::string& name) const { return (folder_ / name).string(); }
    void write(const std::string& name, const std::string& text) const {
        std::ofstream(folder_ / name, std::ios::binary) << text;
    }
    std::vector<std::string> train_arguments(const std::string& out, const std::vector<std::string>& set = {}) const {
        std::vector<std::string> arguments = {"train", path("tiny.toml"), "--out", path(out)};
        for (const std::string& s : set) {
            arguments.push_back("--set");
            arguments.push_back(s);
        }
        return arguments;
    }
    Result run(const std::vector<std::string>& arguments, const std::function<void()>& before_exec = {}) const {
        return Program(folder_, arguments, before_exec).wait();
    }
    Result train(const std::string& out, const std::vector<std::string>& set = {}) const {
        return run(train_arguments(out, set));
    }

    fs::path folder_;
};

inline void expect_contains(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in:\n" << text;
}

}  // namespace tutti::testing
