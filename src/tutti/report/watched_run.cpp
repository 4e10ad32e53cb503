#include "tutti/report/watched_run.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <csignal>
#include <fstream>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/base/units.h"
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

// Whether the process that holds run.lock lives; nullopt: it is of another host, or there is no lock. The lock holds
// "HOST-PID" (checkpoint/file_system.h); trying the lock itself would refuse a run that starts at that moment.
std::optional<bool> holder_lives(const fs::path& lock) {
    std::optional<std::string> owner = read_file_if_there(lock.string());
    if (!owner) return std::nullopt;
    while (owner->ends_with('\n')) owner->pop_back();
    const size_t dash = owner->rfind('-');
    std::array<char, 256> host = {};
    if (dash == std::string::npos || ::gethostname(host.data(), host.size() - 1) != 0 ||
        owner->substr(0, dash) != host.data())
        return std::nullopt;
    int pid = 0;
    const char* end = owner->data() + owner->size();
    if (std::from_chars(owner->data() + dash + 1, end, pid).ptr != end || pid <= 0) return std::nullopt;
    return ::kill(pid, 0) == 0 || errno == EPERM;
}

std::string with(const char* name, const std::optional<double>& value, const auto& format) {
    return value ? concat("   ", name, name[0] != 0 ? " " : "", format(*value)) : "";
}

}  // namespace

WatchedRun::WatchedRun(std::string path) : path_(std::move(path)), checkpoints_(path_ + "/checkpoints") {
    check<UsageError>(fs::is_directory(path_), path_,
                      " is no directory; required: the directory of a run, as `tutti train --out DIR` makes it");
}

std::vector<LoggedStep> WatchedRun::update(double now) {
    if (steps_ == 0) read_config();
    std::vector<LoggedStep> added;
    const fs::path path = fs::path(path_) / "metrics.jsonl";
    if (const auto info = status_of(path)) {
        if (info->st_ino != file_ || info->st_size < offset_) {
            file_ = info->st_ino;
            offset_ = line_ = 0;
            skipped_ = in_point_ = 0;
            stride_ = 1;
            curve_.clear();
            last_ = last_evaluation_ = std::nullopt;
            read_config();  // of a resumed run
        }
        std::ifstream file(path, std::ios::binary);
        file.seekg(offset_);
        for (std::string line; std::getline(file, line) && !file.eof();) {
            offset_ += static_cast<int64_t>(line.size()) + 1;
            ++line_;
            const LoggedStep step = read_step(line, concat(path.string(), ":", line_), skipped_);
            if (step.eval_loss) last_evaluation_ = step;
            last_ = step;
            if (step.loss) add_point({static_cast<double>(step.step), *step.loss});
            if (seen_.insert(std::hash<std::string>()(line)).second) added.push_back(step);
        }
        last_line_ = modified(*info);
    }
    read_checkpoints();
    events_ = read_events(path_);
    find_state(now);
    return added;
}

void WatchedRun::read_config() {
    const std::optional<std::string> text = read_file_if_there(path_ + "/config.toml");
    if (!text) return;
    const spec::RunSpec run = spec::parse_text(*text, path_ + "/config.toml");
    steps_ = run.train.steps;
    if (!run.checkpoint.dir.empty()) checkpoints_ = run.checkpoint.dir;
}

void WatchedRun::read_checkpoints() {
    std::error_code unreadable;
    std::optional<Checkpoint> newest;
    for (const auto& entry : fs::directory_iterator(checkpoints_, unreadable)) {
        const std::string name = entry.path().filename().string();
        constexpr std::string_view kBefore = "step-";
        if (!name.starts_with(kBefore)) continue;
        Checkpoint found;
        const char* end = name.data() + name.size();
        if (std::from_chars(name.data() + kBefore.size(), end, found.step).ptr != end) continue;  // not complete
        const auto info = status_of(entry.path());
        if (!info || (newest && newest->step >= found.step)) continue;
        found.written = modified(*info);
        newest = found;
    }
    checkpoint_ = newest;
}

void WatchedRun::add_point(Point point) {
    if (in_point_ > 0 && in_point_ < stride_) {
        Point& last = curve_.back();
        const auto n = static_cast<double>(in_point_);
        last = {(last.step * n + point.step) / (n + 1), (last.loss * n + point.loss) / (n + 1)};
        ++in_point_;
        return;
    }
    if (curve_.size() == kMostPoints) {
        for (size_t i = 0; i < kMostPoints / 2; ++i) {
            const Point a = curve_[2 * i], b = curve_[2 * i + 1];
            curve_[i] = {(a.step + b.step) / 2, (a.loss + b.loss) / 2};
        }
        curve_.resize(kMostPoints / 2);
        stride_ *= 2;
    }
    curve_.push_back(point);
    in_point_ = 1;
}

void WatchedRun::find_state(double now) {
    const auto totals = status_of(fs::path(path_) / "run.json");
    const bool has_end = totals && modified(*totals) >= last_line_;
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
    if (state_ != State::running || steps_ == 0 || !last_ || !last_->step_ms) return std::nullopt;
    return static_cast<double>(steps_ - last_->step) * *last_->step_ms / 1000;
}

const char* name_of(WatchedRun::State state) {
    constexpr const char* kNames[] = {"waiting", "running", "stopped", "ended", "died", "silent"};  // by State
    return kNames[static_cast<size_t>(state)];
}

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
    if (const auto& last = run.last()) {
        text += concat("loss ", last->loss ? format_fixed(*last->loss, 4) : "-");
        if (const auto& e = run.last_evaluation())
            text += concat("   eval ", format_fixed(*e->eval_loss, 4), " at step ", e->step);
        text += with("norm", last->grad_norm, [](double x) { return format_fixed(x, 3); });
        text += with("lr", last->lr, [](double x) { return Json(x).dump(); }) + '\n';
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
        text += concat("its process is gone: tutti report --flight ", run.path(), "\n");
    return text + braille_curve(run.curve(), columns, 8);
}

std::string render(const WatchedRun& run, const LoggedStep& step) {
    std::string text = concat(run.path(), " step ", step.step);
    if (run.steps() > 0) text += concat("/", run.steps());
    text += with("loss", step.loss, [](double x) { return format_fixed(x, 4); });
    text += with("", step.tokens_per_s, [](double x) { return format_rate(x, "tokens"); });
    text += with("eval", step.eval_loss, [](double x) { return format_fixed(x, 4); });
    if (step.skipped_before > 0) text += concat("   ", step.skipped_before, " skipped");
    return text;
}

std::string braille_curve(const std::vector<WatchedRun::Point>& points, size_t columns, size_t rows) {
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
