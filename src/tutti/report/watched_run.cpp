#include "tutti/report/watched_run.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <fstream>
#include <limits>

#include "tutti/base/digits.h"
#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/base/shell.h"
#include "tutti/base/to_size.h"
#include "tutti/base/units.h"
#include "tutti/report/parts.h"
#include "tutti/spec/stages.h"
#include "tutti/spec/toml.h"

namespace tutti::report {

namespace {

namespace fs = std::filesystem;

// Without a line for longer than this, and five times the time between lines, a run of another host counts as silent.
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
    std::optional<std::string> owner;
    try {
        owner = read_file_if_there(lock.string());
    } catch (const DataError&) {
    }
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

std::string with(const char* name, const std::optional<double>& value, const auto& format) {
    return value ? concat("   ", name, name[0] != 0 ? " " : "", format(*value)) : "";
}

}  // namespace

WatchedRun::WatchedRun(std::string path) : path_(std::move(path)), checkpoints_(path_ + "/checkpoints") {
    check<UsageError>(fs::is_directory(path_), path_,
                      " is no directory; required: the directory of a run, as `tutti train --out DIR` makes it");
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
    last_line_ = modified(*info);
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
    for (const auto& [key, number] : kLoggedNumbers) {
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
    const auto totals = status_of(fs::path(path_) / "run.json");
    const bool has_end = totals && modified(*totals) >= last_line_;
    if (history_.flight.written < last_line_ - 1) history_.flight = {};  // the run has gone on since
    std::optional<bool> lives = holder_lives(fs::path(path_) / "run.lock");
    if (holder_lives(fs::path(path_) / "launch.lock") == true) lives = true;  // its ranks are started again
    if (has_end && lives != true) {
        const std::optional<Json> document = Json::try_parse(read_file(path_ + "/run.json"));
        const Json* preempted = document ? document->find("preempted") : nullptr;
        state_ = preempted != nullptr && *preempted == true ? State::stopped : State::ended;
        return;
    }
    if (lives == false) {
        state_ = State::died;
        return;
    }
    const double between = last_ && last_->step_ms ? *last_->step_ms / 1000 * 50 : 0;
    if (!last_)
        state_ = State::waiting;
    else
        state_ = !lives && now - last_line_ > std::max(kSilentSeconds, between) ? State::silent : State::running;
}

const RunEvent* WatchedRun::start() const {
    const auto found =
        std::find_if(events_.rbegin(), events_.rend(), [](const RunEvent& e) { return e.kind == kStarted; });
    return found == events_.rend() ? nullptr : &*found;
}

const RunEvent* WatchedRun::death() const {
    const auto found =
        std::find_if(events_.rbegin(), events_.rend(), [](const RunEvent& e) { return e.kind == kDied; });
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

namespace {

constexpr size_t kRankLines = 16;

// A line for each rank; of more ranks those that wait least, since the others wait for them.
std::string rank_lines(const WatchedRun& run) {
    if (!run.last() || run.last()->ranks.empty()) return "";
    const LoggedStep& last = *run.last();
    std::vector<RankFigures> shown = last.ranks;
    if (shown.size() > kRankLines) {
        std::stable_sort(shown.begin(), shown.end(),
                         [](const RankFigures& a, const RankFigures& b) { return a.wait_ms < b.wait_ms; });
        shown.resize(kRankLines);
    }
    std::string text;
    for (const RankFigures& of : shown) {
        text += concat("rank ", right(concat(of.rank), 3), "   waits ", right(format_time(of.wait_ms / 1000), 8),
                       " a step");
        if (last.step_ms && *last.step_ms > 0)
            text += concat(", ", right(format_percent(of.wait_ms / *last.step_ms), 7));
        text += concat("   memory ", format_bytes(static_cast<int64_t>(of.mem_peak_bytes)));
        if (const double predicted = predicted_bytes(run.history(), of.rank); predicted > 0)
            text += concat(" of ", format_bytes(static_cast<int64_t>(predicted)), " predicted");
        text += '\n';
    }
    return text;
}

std::string spent_line(const WatchedRun& run) {
    const std::optional<TimeSpent> spent = newest_times(run.history());
    if (!spent || !spent->goodput()) return "";
    std::string text = concat("goodput ", format_percent(*spent->goodput()));
    for (const auto& [key, part] : kTimes) text += concat("   ", key, " ", format_duration((*spent).*part));
    return text + '\n';
}

}  // namespace

std::string render(const WatchedRun& run, size_t columns, double now) {
    std::string text =
        concat(run.path(), "   ", run.state() == WatchedRun::State::died ? "DIED" : name_of(run.state()));
    if (run.state() == WatchedRun::State::silent)
        text += concat(", no line for ", format_duration(now - run.last_line()));
    if (const auto& last = run.last()) {
        text += concat("   step ", last->step);
        if (run.steps() > 0)
            text += concat(" of ", run.steps(), ", ", format_percent(double(last->step) / double(run.steps())));
        if (const auto left = run.seconds_left()) text += concat("   ", format_duration(*left), " left");
    }
    text += '\n';
    if (const std::string stage = run.stage(); !stage.empty()) text += stage + '\n';
    if (const auto& last = run.last()) {
        text += concat("loss ", last->loss ? format_fixed(*last->loss, 4) : "-");
        for (size_t k = 0; k < last->mtp_losses.size(); ++k)
            text += concat("   ", name_of_mtp_loss(k), ' ', format_fixed(last->mtp_losses[k], 4));
        if (const auto& e = run.last_evaluation())
            text += concat("   eval ", format_fixed(*e->eval_loss, 4), " at step ", e->step);
        text += with("norm", last->grad_norm, [](double x) { return format_fixed(x, 3); });
        text += with("lr", last->lr, [](double x) { return short_number(x); }) + '\n';
        std::string rates = with("", last->tokens_per_s, [](double x) { return format_rate(x, "tokens"); });
        rates += with("step", last->step_ms, [](double x) { return format_time(x / 1000); });
        rates += with("mfu", last->mfu, [](double x) { return format_percent(x); });
        rates += with("memory", last->mem_peak_bytes, [](double x) { return format_bytes(static_cast<int64_t>(x)); });
        double wait = 0;
        for (const auto& [name, group] : last->comm) wait += group.wait_ms.value_or(0);
        if (wait > 0) rates += concat("   waits ", format_time(wait / 1000), " a step for other ranks");
        if (rates.size() > 3) text += rates.substr(3) + '\n';
    }
    if (const auto& c = run.checkpoint())
        text +=
            concat("checkpoint of step ", c->step, ", ", format_duration(std::max(0.0, now - c->written)), " ago\n");
    else
        text += "no checkpoint yet\n";
    if (const RunEvent* start = run.start())
        text += concat("generation ", start->generation, ", started ",
                       format_duration(std::max(0.0, now - start->time)), " ago: ", start->text, '\n');
    if (const RunEvent* death = run.death())
        text += concat("generation ", death->generation, " died ", format_duration(std::max(0.0, now - death->time)),
                       " ago: ", death->text, '\n');
    if (run.skipped() > 0) text += concat("warning: ", run.skipped(), " steps were skipped\n");
    if (run.state() == WatchedRun::State::died)
        text += concat("its process is gone: tutti report --flight ", quoted_for_shell(run.path()), "\n");
    text += rank_lines(run) + spent_line(run);
    for (const std::string& note : run.history().notes) text += concat("note: ", note, '\n');
    std::vector<Point> curve;
    for (const LoggedStep& step : run.history().steps)
        if (step.loss) curve.push_back({static_cast<double>(step.step), *step.loss});
    return text + braille_curve(curve, columns, 8);
}

std::string log_line(const WatchedRun& run, const LoggedStep& step) {
    std::string text = concat("step ", step.step);
    if (run.steps() > 0) text += concat("/", run.steps());
    text += with("loss", step.loss, [](double x) { return format_fixed(x, 4); });
    text += with("", step.tokens_per_s, [](double x) { return format_rate(x, "tokens"); });
    text += with("eval", step.eval_loss, [](double x) { return format_fixed(x, 4); });
    if (step.skipped_before > 0) text += concat("   ", step.skipped_before, " skipped");
    return text;
}

std::string braille_curve(const std::vector<Point>& points, size_t columns, size_t rows) {
    constexpr size_t kLabel = 10;  // columns of the two values
    double low = std::numeric_limits<double>::infinity(), high = -low, first = low, last = -low;
    size_t finite = 0;
    for (const auto& [step, loss] : points) {
        if (!std::isfinite(loss)) continue;
        ++finite;
        low = std::min(low, loss), high = std::max(high, loss);
        first = std::min(first, step), last = std::max(last, step);
    }
    if (finite < 2 || last <= first || columns < kLabel + 10 || rows == 0) return "";
    if (high <= low) high = low + 1;
    const size_t width = columns - kLabel, wide = 2 * width, tall = 4 * rows;
    std::vector<double> sum(wide, 0), count(wide, 0);
    for (const auto& [step, loss] : points) {
        if (!std::isfinite(loss)) continue;
        const auto x = static_cast<size_t>((step - first) / (last - first) * static_cast<double>(wide - 1));
        sum[x] += loss;
        count[x] += 1;
    }
    std::vector<unsigned> cells(width * rows, 0);
    // Dots of a character by column and row: the bits of Unicode's braille patterns from U+2800 on.
    constexpr unsigned kDots[2][4] = {{0x01, 0x02, 0x04, 0x40}, {0x08, 0x10, 0x20, 0x80}};
    for (size_t x = 0; x < wide; ++x) {
        if (count[x] == 0) continue;
        const double share = (high - sum[x] / count[x]) / (high - low);
        const auto y = static_cast<size_t>(std::lround(share * static_cast<double>(tall - 1)));
        cells[y / 4 * width + x / 2] |= kDots[x % 2][y % 4];
    }
    std::string text;
    for (size_t row = 0; row < rows; ++row) {
        text += right(row == 0 ? format_fixed(high, 4) : row + 1 == rows ? format_fixed(low, 4) : "", kLabel - 1) + ' ';
        for (size_t x = 0; x < width; ++x) {
            const unsigned code = 0x2800 + cells[row * width + x];
            text += static_cast<char>(0xE0 | (code >> 12));
            text += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
            text += static_cast<char>(0x80 | (code & 0x3F));
        }
        text += '\n';
    }
    return text;
}

}  // namespace tutti::report
