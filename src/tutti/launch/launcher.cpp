#include "tutti/launch/launcher.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <future>
#include <map>
#include <numeric>
#include <span>

#include "tutti/base/error.h"
#include "tutti/base/refused.h"
#include "tutti/base/timing.h"
#include "tutti/base/to_size.h"
#include "tutti/checkpoint/digest.h"
#include "tutti/checkpoint/file_system.h"
#include "tutti/checkpoint/file_writer.h"
#include "tutti/checkpoint/generation.h"
#include "tutti/comm/launcher.h"
#include "tutti/comm/tcp/secret.h"
#include "tutti/launch/host_pool.h"
#include "tutti/launch/printer.h"
#include "tutti/launch/verdict.h"
#include "tutti/report/run_events.h"

namespace tutti::launch {

using exit_codes::kBecauseOfOthers, exit_codes::kData, exit_codes::kPreempted, exit_codes::kUsage;

namespace {

constexpr std::chrono::seconds kBetweenLooksAtDisk{1};  // at the disk, for a checkpoint after which the run can grow
constexpr std::chrono::seconds kAfterRankFailure{1};    // that the other ranks get to report before they are killed
constexpr std::chrono::seconds kUnkillable{10};  // a process that outlives SIGKILL for so long waits for its device
constexpr int kMostLosses = 3;                   // of a host, from one checkpoint; then it is left out for an hour
constexpr std::chrono::hours kLeftOut{1};
constexpr std::chrono::seconds kLongWaitForAgents{3};  // for the first agents: a longer wait is reported

int sum(const std::vector<int>& values) { return std::accumulate(values.begin(), values.end(), 0); }

// The ranks of one generation.
struct Running {
    int64_t number = 0;
    Layout layout;
    std::vector<size_t> host_of;  // by rank
    std::vector<bool> has_ended;  // by rank
    std::vector<RankEnd> ends;
    std::optional<Clock::time_point> failed_at, asked_at, killed_at;  // asked: to stop
    bool grows = false;  // was asked to stop so that a generation of more ranks continues

    bool over() const { return ends.size() == has_ended.size(); }
};

// Layouts for numbers of ranks. The planner runs in a thread: it may take longer than agents wait for a ping.
class Layouts {
  public:
    explicit Layouts(const LaunchedRun& run) : run_(run) {}

    // The best layout of at most `ranks` ranks, or nothing for no layout. Null while the planner works.
    const std::optional<Layout>* find(int ranks) {
        if (planning_.valid()) {
            if (planning_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return nullptr;
            layouts_[planned_ranks_] = planning_.get();
        }
        const auto found = layouts_.find(ranks);
        if (found != layouts_.end()) return &found->second;
        planned_ranks_ = ranks;
        planning_ =
            start_async("plans a layout", [this, ranks] { return ranks > 0 ? run_.layout(ranks) : std::nullopt; });
        return nullptr;
    }

  private:
    const LaunchedRun& run_;
    std::map<int, std::optional<Layout>> layouts_;  // by most ranks
    int planned_ranks_ = 0;
    std::future<std::optional<Layout>> planning_;  // of planned_ranks_; last: uses run_
};

class Launcher {
  public:
    Launcher(const LaunchedRun& run, const LaunchOptions& options, std::ostream& out, std::ostream& err)
        : run_(run),
          options_(options),
          printer_(out, err),
          layouts_(run),
          hosts_(options, copies(),
                 {.frame = [this](size_t host, const Frame& frame) { on_frame(host, frame); },
                  .ready =
                      [this](size_t host) {
                          if (has_run_) report_host(host, "is back");
                      },
                  .lost = [this](size_t host) { on_lost(host); },
                  .log = [this](const std::string& line) { printer_.say(line); }}) {}
    ~Launcher() { hosts_.dismiss(code_); }
    Launcher(const Launcher&) = delete;
    Launcher& operator=(const Launcher&) = delete;

    int run() {
        try {
            checkpoint::PosixFileSystem files;
            checkpoint::make_directories(files, run_.out);
            const auto lock = files.lock(checkpoint::join(run_.out, kLaunchLock), checkpoint::this_owner());
            return run_locked();
        } catch (const Error& error) {
            code_ = error.exit_code();
            throw;
        }
    }

  private:
    // A start that was refused or stopped, and no failure that starts.json counts.
    int run_locked() {
        const auto is_refused = [&](int code) {
            return !has_run_ || code == kUsage || code == kData || code == kPreempted;
        };
        try {
            const int code = run_generations();
            if (is_refused(code)) run_.remove_traces();
            return code;
        } catch (const Error& error) {
            if (is_refused(error.exit_code())) run_.remove_traces();
            throw;
        }
    }

    int run_generations() {
        for (int64_t starts = 1;; ++starts) {
            if (!wait_for_hosts(starts == 1)) return code_ = stopped_by_ != 0 ? kPreempted : kBecauseOfOthers;
            const bool last = stopped_by_ != 0;  // this generation only saves the state in memory
            begin();
            if (last) stop_all(stopped_by_);
            while (!running_->over()) turn();
            const Verdict verdict = judge(running_->ends);
            const int64_t number = running_->number;
            const bool grows = running_->grows && verdict.code == kPreempted;
            running_.reset();
            if (!verdict.culprit.empty()) report_event(report::kDied, number, verdict.culprit);
            if (!verdict.again && !grows) return end(number, verdict);
            if (verdict.again && options_.max_restarts == 0) return end(number, verdict);
            if (stopped_by_ != 0 && (last || !has_to_save()))
                return end(number, {.code = grows ? kPreempted : verdict.code});
            back_off();
        }
    }

    // ---- signals, frames of agents, and time limits ----

    void turn() {
        hosts_.wait(signals_.fd());
        while (const auto signal = signals_.next()) {
            if (*signal != SIGTSTP)
                on_stop_request(*signal);
            else
                printer_.say(
                    "Ctrl-Z does not suspend a launched run, whose ranks would end without this process; "
                    "Ctrl-C saves and stops, and the same command continues");
        }
        if (stopped_by_ == 0 && reader_has_ended()) on_stop_request(SIGPIPE);
        hosts_.turn();
        if (running_) check_time_limits();
    }

    void on_frame(size_t host, const Frame& frame) {
        if (frame.type == Frame::Type::output) {
            const RankOutput output = read_output(frame.body);
            printer_.add(hosts_[host].line().name, output.rank, output.stream, output.bytes);
        } else if (frame.type == Frame::Type::asked) {
            if (stopped_by_ == 0) on_stop_request(Json::parse(frame.body).at("signal").get<int>());
        } else if (frame.type == Frame::Type::exited) {
            const Json json = Json::parse(frame.body);
            on_end({.rank = json.at("rank").get<int>(),
                    .host = hosts_[host].line().name,
                    .ending = {.code = json.at("code").get<int>(), .signal = json.at("signal").get<int>()}});
        }
    }

    void on_end(RankEnd end) {
        if (!running_ || end.rank < 0 || to_size(end.rank) >= running_->has_ended.size()) return;
        if (running_->has_ended[to_size(end.rank)]) return;
        running_->has_ended[to_size(end.rank)] = true;
        printer_.end(end.host, end.rank);
        end.by_launcher = running_->killed_at && end.ending.signal == SIGKILL;
        const bool succeeded =
            !end.lost && end.ending.signal == 0 && (end.ending.code == 0 || end.ending.code == kPreempted);
        if (!succeeded && !running_->failed_at) running_->failed_at = Clock::now();
        running_->ends.push_back(std::move(end));
    }

    void on_lost(size_t index) {
        Host& host = hosts_[index];
        report_host(index, concat("is lost: ", host.why()));
        const int64_t step = newest_step();
        Losses& losses = losses_[host.line().name];
        losses = losses.step == step ? Losses{step, losses.count + 1} : Losses{step, 1};
        if (losses.count >= kMostLosses) {
            host.retry_after(kLeftOut);
            report_host(index, concat("was lost ", losses.count, " times without a new checkpoint and is left out for ",
                                      kLeftOut.count(), " h"));
        }
        if (!running_) return;
        for (size_t rank = 0; rank < running_->host_of.size(); ++rank)
            if (running_->host_of[rank] == index)
                on_end({.rank = static_cast<int>(rank), .host = host.line().name, .ending = {}, .lost = true});
    }

    void check_time_limits() {
        const auto now = Clock::now();
        const Running& r = *running_;
        if (r.failed_at && now - *r.failed_at > kAfterRankFailure) kill_all();
        if (r.asked_at && now - *r.asked_at > seconds(options_.grace_s)) kill_all();
        if (r.killed_at && now - *r.killed_at > kUnkillable) {
            for (size_t rank = 0; rank < r.host_of.size(); ++rank) {
                Host& host = hosts_[r.host_of[rank]];
                if (r.has_ended[rank] || !host.is_ready()) continue;
                host.lose(concat("rank ", rank, " cannot be killed"), options_.silence_s);
                host.retry_after(kLeftOut);
                on_lost(r.host_of[rank]);
            }
        }
        if (now - looked_ < kBetweenLooksAtDisk) return;
        looked_ = now;
        if (!r.failed_at && !r.asked_at && could_grow()) {
            printer_.say("more hosts are available: the ranks save, and a larger generation continues");
            running_->grows = true;
            stop_all(SIGUSR1);
        }
    }

    // Whether hosts that came back have stayed for long enough, give more ranks, and a checkpoint was saved since.
    bool could_grow() {
        const int slots = sum(hosts_.ready_slots(seconds(options_.grow_after_s)));
        const int64_t step = run_.newest_step();
        const auto* layout = slots > running_->layout.ranks ? layout_for(slots) : nullptr;
        if (layout == nullptr || !*layout || (*layout)->ranks <= running_->layout.ranks) {
            step_before_growth_ = step;
            return false;
        }
        return step > step_before_growth_;
    }

    // ---- stopping ----

    // Whether the newest state is in the memory of hosts alone, which ends with their agents.
    bool has_to_save() const { return run_.copies_in_memory && newest_step() > run_.newest_step(); }

    void on_stop_request(int signal) {
        const bool again = stopped_by_ != 0;
        if (!again) stopped_by_ = signal;
        if (!running_) {
            gives_up_ = gives_up_ || (again && signal == SIGINT);
            if (!again && has_to_save())
                printer_.say(concat(strsignal(signal), ": the state of step ", newest_step(),
                                    " is in memory alone: ranks start once more to save it"));
            return;
        }
        if (again && signal == SIGINT) return kill_all();
        if (again) return;
        printer_.say(concat(strsignal(signal), ": all ranks finish their step and save; killed after ",
                            options_.grace_s, " s (--grace)"));
        stop_all(signal == SIGPIPE ? SIGTERM : signal);
    }

    void stop_all(int signal) {
        if (!running_->asked_at) running_->asked_at = Clock::now();
        send_to_all(signal);
    }

    void kill_all() {
        if (running_->killed_at) return;
        running_->killed_at = Clock::now();
        send_to_all(SIGKILL);
    }

    void send_to_all(int signal) { hosts_.send_to_all(Frame::Type::stop, Json{{"signal", signal}}.dump()); }

    // ---- starting ----

    const std::optional<Layout>* layout_for(int slots) { return layouts_.find(std::min(slots, options_.ranks)); }

    // Waits until enough hosts are ready and no others are expected. False: no hosts came, or a stop was requested; but
    // where the state in memory has to be saved, any number of ranks suffices.
    bool wait_for_hosts(bool first) {
        const auto begin = Clock::now();
        bool reported = false;
        for (;; turn()) {
            const bool stops = stopped_by_ != 0;
            if (gives_up_ || (stops && !has_to_save())) return false;
            const auto now = Clock::now();
            if (!hosts_.is_settled()) continue;
            const int slots = sum(hosts_.ready_slots());
            if (first && hosts_.agents_connect() && slots < options_.ranks && now - begin <= kWaitForOthers) {
                if (now - begin > kLongWaitForAgents && !std::exchange(reported, true))
                    printer_.say(concat("waiting for agents", hosts_.missing()));
                continue;
            }
            const std::optional<Layout>* planned = layout_for(slots);
            if (planned == nullptr) continue;
            const std::optional<Layout>& layout = *planned;
            if (layout && layout->ranks >= (stops ? 1 : options_.min_ranks)) {
                layout_ = *layout;
                return true;
            }
            const std::string why = concat("required: ", options_.min_ranks, " ranks (--min-ranks); ",
                                           layout ? layout->ranks : 0, " can run", hosts_.missing());
            check(!first || hosts_.agents_connect(), why);
            if (stops) {
                report_event(report::kEnded, newest_,
                             concat("the state of step ", newest_step(), " in memory is lost. ", why));
                return false;
            }
            if (!std::exchange(reported, true)) printer_.say(concat("waiting for hosts. ", why));
            if (now - begin > kWaitForOthers) {
                report_event(report::kEnded, newest_, concat("no hosts for ", kWaitForOthers.count(), " min. ", why));
                return false;
            }
        }
    }

    // Of a checkpoint, or of copies that hosts have had: progress, also when such copies are lost later.
    int64_t newest_step() const { return std::max(run_.newest_step(), hosts_.copied_step()); }

    void begin() {
        wait_until_free();
        const int64_t step = newest_step(), newest = checkpoint::newest_generation(run_.out);
        check<UsageError>(!has_run_ || newest == newest_, run_.out, ": generation ", newest,
                          " of this run was started elsewhere, after generation ", newest_, " of this launcher");
        if (options_.max_restarts > 0) run_.count_start(step);
        starts_here_ = has_run_ && step == step_of_start_ ? starts_here_ + 1 : 1;
        step_of_start_ = step;
        step_before_growth_ = run_.newest_step();
        newest_ = newest + 1;
        has_run_ = true;
        Running running{.number = newest_, .layout = layout_};
        const std::vector<int> placed = place(hosts_.ready_slots(), layout_.ranks);
        std::string hosts;
        for (size_t i = 0; i < placed.size(); ++i) {
            if (placed[i] > 0) hosts += concat(hosts.empty() ? "" : ", ", hosts_[i].line().name);
            running.host_of.insert(running.host_of.end(), to_size(placed[i]), i);
        }
        running.has_ended.resize(running.host_of.size());
        const std::string text = concat(layout_.ranks, " of ", options_.ranks, " ranks on ", hosts, ": ", layout_.text,
                                        ", from step ", step, run_.copies_in_memory ? " at best" : "");
        checkpoint::Generation::take(run_.out, newest_, concat(checkpoint::this_owner(), " ", text, "\n"));
        running_ = std::move(running);
        if (newest_ > 1 || layout_.ranks != options_.ranks) printer_.say(concat("generation ", newest_, ": ", text));
        report_event(report::kStarted, newest_, text, false);
        start_ranks(placed);
    }

    // A rank that was killed may hold its lock for a moment longer, and one of an earlier launcher until it has saved.
    void wait_until_free() {
        const auto until = Clock::now() + seconds(options_.silence_s * 4 / 3);
        for (;; turn()) {
            try {
                return run_.require_free();
            } catch (const UsageError&) {
                if (Clock::now() > until || stopped_by_ != 0) throw;
            }
        }
    }

    void start_ranks(const std::vector<int>& placed) {
        Start common{.job = job_,
                     .host = "",
                     .generation = newest_,
                     .silence_s = options_.silence_s,
                     .grace_s = options_.silence_s,
                     .directory = std::filesystem::current_path().string(),
                     .words = run_.words,
                     .environment = {},
                     .ranks = {}};
        common.words.insert(common.words.end(), layout_.words.begin(), layout_.words.end());
        hosts_.start(common, placed, secret_of_copies_);
    }

    // What agents open for copies of the ranks' state.
    std::optional<OpenCopies> copies() const {
        if (!run_.copies_in_memory) return std::nullopt;
        return OpenCopies{.job = job_,
                          .host = "",
                          .launch = "",
                          .root = comm::process_environment()("TUTTI_MEMORY_ROOT").value_or("/dev/shm"),
                          .secret = options_.hosts.size() > 1 ? secret_of_copies_ : "",
                          .silence_s = options_.silence_s};
    }

    // 0, 1, 2, 4 ... 60 s before the next start from the same checkpoint.
    void back_off() {
        if (newest_step() != step_of_start_) return;
        const double pause = starts_here_ < 2 ? 0 : std::min(60.0, std::exp2(starts_here_ - 2));
        for (const auto until = Clock::now() + seconds(pause); Clock::now() < until && stopped_by_ == 0;) turn();
    }

    int end(int64_t number, const Verdict& verdict) {
        report_event(report::kEnded, number, concat("code ", verdict.code), false);
        return code_ = verdict.code;
    }

    // ---- reports ----

    // Into events.jsonl, and on standard error if `prints`.
    void report_event(const char* kind, int64_t generation, const std::string& text, bool prints = true) {
        if (prints) printer_.say(text);
        if (!report::append_event(run_.out, {unix_time(), kind, generation, layout_.ranks, text}))
            printer_.say(concat(run_.out, "/events.jsonl cannot be written"));
    }

    void report_host(size_t host, const std::string& text) {
        report_event(report::kHost, newest_, concat("host ", hosts_[host].line().name, " ", text));
    }

    struct Losses {
        int64_t step = -1;
        int count = 0;
    };

    const LaunchedRun& run_;
    const LaunchOptions& options_;
    const std::string job_ = job_of(run_.out);
    const std::string secret_of_copies_ = comm::tcp::fresh_hex();
    SignalDescriptor signals_{kStopSignals, {SIGTSTP}};
    Printer printer_;
    Layouts layouts_;
    HostPool hosts_;
    std::map<std::string, Losses> losses_;  // by host
    Layout layout_;                         // of the newest generation
    std::optional<Running> running_;
    int64_t newest_ = 0, step_of_start_ = -1, step_before_growth_ = 0;
    int starts_here_ = 0;  // from the same checkpoint
    bool has_run_ = false;
    int stopped_by_ = 0;           // signal
    bool gives_up_ = false;        // a second SIGINT came while no rank ran
    int code_ = kBecauseOfOthers;  // of this launch, for agents that dial in
    Clock::time_point looked_{};
};

}  // namespace

std::string job_of(const std::string& out) {
    const std::string path = std::filesystem::absolute(out).lexically_normal().string();
    return checkpoint::to_hex(checkpoint::xxh3_64(std::as_bytes(std::span(path))));
}

int launch(const LaunchedRun& run, const LaunchOptions& options, std::ostream& out, std::ostream& err) {
    return Launcher(run, options, out, err).run();
}

}  // namespace tutti::launch
