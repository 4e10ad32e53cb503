#include "tutti/launch/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"

namespace tutti::launch {

namespace {

struct Pipe {
    Descriptor read, write;
    Pipe() {
        std::array<int, 2> ends{};
        const bool made = pipe2(ends.data(), O_CLOEXEC) == 0;
        check(made, "no pipe: ", std::strerror(errno));
        read = Descriptor(ends[0]);
        write = Descriptor(ends[1]);
    }
};

std::vector<char*> pointers_to(std::vector<std::string>& words) {
    std::vector<char*> all;
    for (std::string& word : words) all.push_back(word.data());
    all.push_back(nullptr);
    return all;
}

std::vector<std::string> environment_with(const std::map<std::string, std::string>& added) {
    std::vector<std::string> all;
    for (char** entry = environ; *entry != nullptr; ++entry) {
        const std::string text = *entry;
        if (!added.contains(text.substr(0, text.find('=')))) all.push_back(text);
    }
    for (const auto& [name, value] : added) all.push_back(concat(name, '=', value));
    return all;
}

[[noreturn]] void leave_child(const char* what, const char* name) {
    dprintf(STDERR_FILENO, "tutti: %s %s: %s\n", what, name, std::strerror(errno));
    _exit(127);
}

}  // namespace

Process::Process(const Command& command) {
    check(!command.words.empty(), "a process needs a program");
    // All memory is allocated here: between fork and exec the allocator's lock may be held by another thread.
    std::vector<std::string> words = command.words, environment = environment_with(command.environment);
    const std::vector<char*> argv = pointers_to(words), envp = pointers_to(environment);
    Pipe to, from, errors;
    const pid_t parent = getpid();
    pid_ = fork();
    check(pid_ >= 0, "no process for ", command.words.front(), ": ", std::strerror(errno));
    if (pid_ > 0) {
        setpgid(pid_, pid_);  // in parent and child, so that it is done whichever runs first
        if (command.reads) in = std::move(to.write);
        out = std::move(from.read);
        err = std::move(errors.read);
        return;
    }
    setpgid(0, 0);
    if (command.dies_with_parent) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(127);  // the parent died before prctl()
    }
    const int nothing = command.reads ? to.read.fd() : open("/dev/null", O_RDONLY);
    dup2(nothing, STDIN_FILENO);
    dup2(from.write.fd(), STDOUT_FILENO);
    dup2(errors.write.fd(), STDERR_FILENO);
    sigset_t held;
    sigemptyset(&held);
    if (command.holds_stops)
        for (const int signal : kStopSignals) sigaddset(&held, signal);
    sigprocmask(SIG_SETMASK, &held, nullptr);
    for (const int signal : {SIGPIPE, SIGINT, SIGHUP}) std::signal(signal, SIG_DFL);
    if (!command.directory.empty() && chdir(command.directory.c_str()) != 0)
        leave_child("cannot go to the directory", command.directory.c_str());
    execvpe(argv.front(), argv.data(), envp.data());
    leave_child("cannot run", argv.front());
}

Process::~Process() {
    if (pid_ <= 0) return;
    kill_group();
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
}

Process::Process(Process&& other) noexcept
    : in(std::move(other.in)), out(std::move(other.out)), err(std::move(other.err)), pid_(other.pid_) {
    other.pid_ = -1;
}

Process& Process::operator=(Process&& other) noexcept {
    std::swap(in, other.in);
    std::swap(out, other.out);
    std::swap(err, other.err);
    std::swap(pid_, other.pid_);
    return *this;
}

void Process::send(int signal) const {
    if (pid_ > 0) kill(pid_, signal);
}

void Process::kill_group() const {
    if (pid_ <= 0) return;
    kill(-pid_, SIGKILL);
    kill(pid_, SIGKILL);
}

std::optional<Ending> Process::ended() {
    int status = 0;
    if (pid_ <= 0 || waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
    kill(-pid_, SIGKILL);  // other processes of its group
    pid_ = -1;
    return WIFEXITED(status) ? Ending{.code = WEXITSTATUS(status)} : Ending{.signal = WTERMSIG(status)};
}

bool reader_has_ended() {
    pollfd out{.fd = STDOUT_FILENO, .events = 0, .revents = 0};
    return poll(&out, 1, 0) > 0 && (out.revents & POLLERR) != 0;
}

bool read_some(const Descriptor& pipe, std::string& text) {
    std::array<char, 65536> piece;
    const ssize_t n = ::read(pipe.fd(), piece.data(), piece.size());
    if (n > 0) text.append(piece.data(), to_size(n));
    return n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN));
}

SignalDescriptor::SignalDescriptor(std::initializer_list<int> signals, std::initializer_list<int> more) {
    sigset_t all;
    sigemptyset(&all);
    for (const auto& list : {signals, more})
        for (const int signal : list) sigaddset(&all, signal);
    sigprocmask(SIG_BLOCK, &all, &before_);
    descriptor_ = Descriptor(signalfd(-1, &all, SFD_NONBLOCK | SFD_CLOEXEC));
    check(descriptor_.open(), "no signalfd: ", std::strerror(errno));
    std::signal(SIGPIPE, SIG_IGN);
}

SignalDescriptor::~SignalDescriptor() {
    while (next()) {
    }
    sigprocmask(SIG_SETMASK, &before_, nullptr);
}

std::optional<int> SignalDescriptor::next() const {
    signalfd_siginfo info{};
    if (::read(fd(), &info, sizeof info) != sizeof info) return std::nullopt;
    return static_cast<int>(info.ssi_signo);
}

}  // namespace tutti::launch
