#include "tutti/report/watched_run.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <fstream>

#include "tutti/base/digits.h"
#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/base/to_size.h"
#include "tutti/spec/stages.h"
#include "tutti/spec/toml.h"

namespace tutti::report {

namespace {

namespace fs = std::filesystem;

// Without a line for longer than this, and than 50 steps take, a run of another host counts as silent.
constexpr double kSilentSeconds = 120;

std::optional<struct stat> status_of(const fs::path& path) {
    struct stat info = {};
    return ::stat(path.c_str(), &info) == 0 ? std::optional(info) : std::nullopt;
}

double modified(const struct stat& info) {
    return static_cast<double>(info.st_mtim.tv_sec) + 1e-9 * static_cast<double>(info.st_mtim.tv_nsec);
}

// Whether the process that holds run.lock lives; nullopt: it is of another host, or there is no readable lock. It holds
// "HOST-PID" (checkpoint/file_system.h); trying the lock itself would refuse a run that starts at that moment.
std::optional<bool> holder_lives(const fs::path& lock) {
    std::optional<std::string> owner = read_file_if_readable(lock.string());
    if (!owner) return std::nullopt;
    while (owner->ends_with('\n')) owner->pop_back();
    const size_t dash = owner->rfind('-');
    std::array<char, 256> host = {};
    if (dash == std::string::npos || ::gethostname(host.data(), host.size() - 1) != 0 ||
        owner->substr(0, dash) != host.data())
        return std::nullopt;
    const int pid = parse_number<int>(std::string_view(*owner).substr(dash + 1)).value_or(0);
    if (pid <= 0) return std::nullopt;
    return ::kill(pid, 0) == 0 || errno == EPERM;
}

}  // namespace

WatchedRun::WatchedRun(std::string path) : path_(std::move(path)), checkpoints_(path_ + "/checkpoints") {
    check_run_directory(path_);
    history_.name = name_of_run(path_);
}

std::vector<LoggedStep> WatchedRun::update(double now) {
    std::vector<LoggedStep> added;
    read_log(added);
    read_other();
    read_checkpoints();
    if (has_changed("events.jsonl")) events_ = read_events(path_);
    find_state(now);
    return added;
}

bool WatchedRun::has_changed(const std::string& name) {
    const auto info = status_of(fs::path(path_) / name);
    const Stamp stamp = info ? Stamp{info->st_ino, info->st_size, modified(*info)} : Stamp{};
    return std::exchange(stamps_[name], stamp) != stamp;
}

void WatchedRun::read_log(std::vector<LoggedStep>& added) {
    const fs::path path = fs::path(path_) / "metrics.jsonl";
    const auto info = status_of(path);
    if (!info || !S_ISREG(info->st_mode)) return;  // opening a pipe would wait for a writer
    if (info->st_ino != file_ || info->st_size < offset_) {
        file_ = info->st_ino;
        offset_ = line_ = 0;
        skipped_ = in_point_ = 0;
        stride_ = 1;
        history_.steps.clear();
        tail_.clear();
        damaged_.clear();
        sums_ = {};
        last_ = last_evaluation_ = std::nullopt;
    }
    std::ifstream file(path, std::ios::binary);
    file.seekg(offset_);
    for (std::string line; std::getline(file, line) && !file.eof();) {
        offset_ += static_cast<int64_t>(line.size()) + 1;
        ++line_;
        try {
            take(line, added);
        } catch (const DataError& error) {
            constexpr size_t kMostNotes = 5;
            if (damaged_.size() < kMostNotes) damaged_.push_back(concat(error.what(), "; the line is left out"));
            stamps_.erase("run.json");  // its notes are read again
        }
    }
    last_line_ = last_ && last_->time ? *last_->time : modified(*info);  // a copy of a log is as old as its lines
}

void WatchedRun::take(const std::string& line, std::vector<LoggedStep>& added) {
    const auto step = read_step(line, concat(path_, "/metrics.jsonl:", line_), skipped_, header_);
    if (!step) return;
    if (step->eval_loss) last_evaluation_ = step;
    const auto steps = static_cast<double>(step->step - (last_ ? last_->step : 0));
    if (step->tokens_per_s && step->step_ms) sums_.positions += *step->tokens_per_s * *step->step_ms / 1000 * steps;
    for (const auto& [name, group] : step->comm) sums_.wait_of_group[name] += group.wait_ms.value_or(0) / 1000 * steps;
    for (const RankFigures& of : step->ranks) sums_.wait_of_rank[of.rank] += of.wait_ms / 1000 * steps;
    last_ = step;
    tail_.push_back(*step);
    if (tail_.size() > kTail) tail_.pop_front();
    add_point(history_.steps, *step, kMostPoints, stride_, in_point_);
    if (seen_.insert(std::hash<std::string>()(line)).second) added.push_back(*step);
}

// The files other than the log, when one of them is new.
void WatchedRun::read_other() {
    bool is_new = false;
    for (const char* name : kOtherFiles) is_new = has_changed(name) || is_new;
    if (!is_new) return;
    RunHistory fresh;
    fresh.name = history_.name;
    fresh.totals = header_;
    fresh.notes = damaged_;
    fresh.flight = std::move(history_.flight);
    try {
        read_other_files(path_, fresh);
    } catch (const DataError& error) {
        fresh.notes.emplace_back(error.what());
    }
    fresh.steps = std::move(history_.steps);
    history_ = std::move(fresh);
    if (history_.config.empty()) return;
    try {
        config_ = spec::parse_text(history_.config, path_ + "/config.toml");
        checkpoints_ = config_->checkpoint.dir.empty() ? path_ + "/checkpoints" : config_->checkpoint.dir;
    } catch (const Error& error) {  // of another version
        history_.notes.emplace_back(error.what());
    }
}

void WatchedRun::read_checkpoints() {
    std::error_code unreadable;
    std::optional<Checkpoint> newest;
    for (const auto& entry : fs::directory_iterator(checkpoints_, unreadable)) {
        const std::string name = entry.path().filename().string();
        constexpr std::string_view kBefore = "step-";
        if (!name.starts_with(kBefore)) continue;
        const auto step = parse_number<int64_t>(std::string_view(name).substr(kBefore.size()));
        if (!step) continue;  // not complete
        Checkpoint found{.step = *step};
        const auto info = status_of(entry.path());
        if (!info || (newest && newest->step >= found.step)) continue;
        found.written = modified(*info);
        newest = found;
    }
    checkpoint_ = newest;
}

namespace {

// The mean of what both have, where `a` stands for `n` lines and `b` for `m`; else what one has.
void add_mean(std::optional<double>& a, double n, const std::optional<double>& b, double m) {
    if (a && b)
        a = (*a * n + *b * m) / (n + m);
    else if (b)
        a = b;
}

// `a`, of `n` lines, and the `m` lines of `b` behind them.
void merge(LoggedStep& a, double n, const LoggedStep& b, double m) {
    LoggedStep both = b;
    for (const auto& [key, number, tag] : kLoggedNumbers) {
        if (number == &LoggedStep::tokens || number == &LoggedStep::time) continue;
        both.*number = a.*number;
        add_mean(both.*number, n, b.*number, m);
    }
    both.skipped_before += a.skipped_before;
    if (both.skip_reason.empty()) both.skip_reason = a.skip_reason;
    for (size_t k = 0; k < std::min(a.mtp_losses.size(), both.mtp_losses.size()); ++k)
        both.mtp_losses[k] = (a.mtp_losses[k] * n + both.mtp_losses[k] * m) / (n + m);
    if (both.expert_load.empty()) both.expert_load = a.expert_load, both.expert_layers = a.expert_layers;
    for (const auto& [name, group] : a.comm) {
        LoggedStep::Group& into = both.comm[name];
        LoggedStep::Group mean = group;
        for (const auto part : {&LoggedStep::Group::operations, &LoggedStep::Group::bytes, &LoggedStep::Group::wait_ms})
            add_mean(mean.*part, n, into.*part, m);
        into = mean;
    }
    a = std::move(both);
}

}  // namespace

void add_point(std::vector<LoggedStep>& points, const LoggedStep& line, size_t most, int64_t& stride,
               int64_t& in_point) {
    if (in_point > 0 && in_point < stride) {
        merge(points.back(), static_cast<double>(in_point), line, 1);
        ++in_point;
        return;
    }
    if (points.size() == most) {
        const auto n = static_cast<double>(stride);
        for (size_t i = 0; i < most / 2; ++i) {
            merge(points[2 * i], n, points[2 * i + 1], n);
            if (i > 0) points[i] = std::move(points[2 * i]);
        }
        points.resize(most / 2);
        stride *= 2;
    }
    points.push_back(line);
    in_point = 1;
}

void WatchedRun::find_state(double now) {
    if (history_.flight.written < last_line_ - 1) history_.flight = {};  // the run has gone on since
    std::optional<bool> lives = holder_lives(fs::path(path_) / "run.lock");
    if (holder_lives(fs::path(path_) / "launch.lock") == true) lives = true;  // its ranks are started again
    const fs::path totals = fs::path(path_) / "run.json";
    if (const auto info = status_of(totals); info && lives != true) {
        const Json end = Json::try_parse(read_file_if_readable(totals.string()).value_or("")).value_or(Json());
        const Json *time = end.find("time"), *preempted = end.find("preempted");
        if ((time != nullptr && time->is_number() ? time->get<double>() : modified(*info)) >= last_line_) {
            state_ = preempted != nullptr && *preempted == true ? State::stopped : State::ended;
            return;
        }
    }
    if (lives == false) {
        state_ = State::died;
        return;
    }
    const double steps = last_ ? 50 * last_->step_ms.value_or(0) / 1000 : 0;
    const bool silent = !lives && now - last_line_ > std::max(kSilentSeconds, steps);
    state_ = !last_ ? State::waiting : silent ? State::silent : State::running;
}

const RunEvent* WatchedRun::newest(std::string_view kind) const {
    const auto found =
        std::find_if(events_.rbegin(), events_.rend(), [&](const RunEvent& e) { return e.kind == kind; });
    return found == events_.rend() ? nullptr : &*found;
}

std::optional<double> WatchedRun::seconds_left() const {
    if (state_ != State::running || steps() == 0 || !last_ || !last_->step_ms) return std::nullopt;
    return static_cast<double>(steps() - last_->step) * *last_->step_ms / 1000;
}

std::string WatchedRun::stage() const {
    if (!config_ || !last_) return "";
    return spec::stage_status(*config_, spec::stage_at(spec::stages_of(*config_), last_->step));
}

const char* name_of(WatchedRun::State state) {
    constexpr const char* kNames[] = {"waiting", "running", "stopped", "ended", "died", "silent"};  // by State
    return kNames[to_size(state)];
}

}  // namespace tutti::report
