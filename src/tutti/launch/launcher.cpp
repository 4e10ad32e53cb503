#include "tutti/launch/launcher.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <future>
#include <map>
#include <numeric>
#include <span>
#include <sstream>

#include "tutti/base/error.h"
#include "tutti/base/timing.h"
#include "tutti/base/to_size.h"
#include "tutti/checkpoint/digest.h"
#include "tutti/checkpoint/file_system.h"
#include "tutti/checkpoint/file_writer.h"
#include "tutti/checkpoint/generation.h"
#include "tutti/comm/launcher.h"
#include "tutti/comm/tcp/secret.h"
#include "tutti/launch/host.h"
#include "tutti/launch/printer.h"
#include "tutti/launch/verdict.h"
#include "tutti/report/run_events.h"

namespace tutti::launch {

using exit_codes::kBecauseOfOthers, exit_codes::kPreempted;

namespace {

using comm::tcp::CopyPlaces;

constexpr int kTurnMs = 50;
constexpr std::chrono::seconds kLook{1};         // between looks at the disk
constexpr std::chrono::seconds kLastWords{1};    // of the ranks, after one of them has failed
constexpr std::chrono::seconds kUnkillable{10};  // a process that outlives SIGKILL for so long waits for its device
constexpr std::chrono::seconds kFarewell{5};
constexpr int kMostLosses = 3;  // of a host, from one checkpoint; then it is left out for an hour
constexpr std::chrono::hours kLeftOut{1};
constexpr std::chrono::seconds kToldAfter{3};  // a wait of so long for the first agents is said
constexpr ptrdiff_t kMostConnecting = 8;       // OpenSSH refuses some of more than 10 at once (MaxStartups)

// Of this process's environment, what the ranks of other hosts get too.
constexpr std::array kForwarded = {"TUTTI_", "OMP_", "CUDA_", "NCCL_", "DNNL_", "LD_LIBRARY_PATH="};

std::map<std::string, std::string> forwarded() {
    std::map<std::string, std::string> all;
    for (char** entry = environ; *entry != nullptr; ++entry) {
        const std::string text = *entry;
        const bool goes = std::any_of(kForwarded.begin(), kForwarded.end(),
                                      [&](const char* before) { return text.starts_with(before); });
        if (goes) all[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
    }
    return all;
}

bool reader_has_ended() {
    pollfd out{.fd = STDOUT_FILENO, .events = 0, .revents = 0};
    return poll(&out, 1, 0) > 0 && (out.revents & POLLERR) != 0;
}

// The processes of one start.
struct Running {
    int64_t number = 0;
    Layout layout;
    std::vector<size_t> host_of;  // by rank
    std::vector<bool> has_ended;  // by rank
    std::vector<RankEnd> ends;
    std::optional<Clock::time_point> failed_at, asked_at, killed_at;
    bool grows = false;  // was asked to stop so that more ranks can go on

    bool over() const { return ends.size() == has_ended.size(); }
};

class Launcher {
  public:
    Launcher(const LaunchedRun& run, const LaunchOptions& options, std::ostream& out, std::ostream& err)
        : run_(run), options_(options), printer_(out, err) {
        if (options.agents) agents_.emplace(*options.agents);
        for (HostLine line : options.hosts) {
            const bool direct = agents_ ? hosts_.empty() : is_this_host(line.name);
            std::vector<std::string> words = {options.program, "agent"};
            if (direct && agents_) line.address = agents_->own_address();
            if (!direct) words.clear();
            if (!direct && !agents_) {
                std::istringstream parts(options.ssh);
                for (std::string part; parts >> part;) words.push_back(part);
                words.insert(words.end(), {line.name, concat("exec ", options.program, " agent")});
            }
            std::string open_copies;
            if (run.copies_in_memory)
                open_copies =
                    to_body(OpenCopies{.job = job_,
                                       .host = std::to_string(hosts_.size()),
                                       .launch = comm::tcp::fresh_hex().substr(0, 12),
                                       .root = comm::process_environment()("TUTTI_MEMORY_ROOT").value_or("/dev/shm"),
                                       .secret = options.hosts.size() > 1 ? secret_of_copies_ : "",
                                       .silence_s = options.silence_s});
            hosts_.emplace_back(line, words, direct, open_copies);
        }
    }

    // Agents that end by themselves remove the copies in memory; else their guards do, later.
    ~Launcher() {
        for (Host& host : hosts_) host.dismiss(code_);
        const auto until = Clock::now() + kFarewell;
        const auto have_ended = [&] {
            return std::all_of(hosts_.begin(), hosts_.end(), [](Host& host) { return host.has_ended(); });
        };
        while (!have_ended() && Clock::now() < until) poll(nullptr, 0, 10);
    }
    Launcher(const Launcher&) = delete;
    Launcher& operator=(const Launcher&) = delete;

    int run() {
        try {
            return run_generations();
        } catch (const Error& error) {
            code_ = error.exit_code();
            throw;
        }
    }

  private:
    int run_generations() {
        checkpoint::PosixFileSystem files;
        checkpoint::make_directories(files, run_.out);
        const auto lock = files.lock(checkpoint::join(run_.out, "launch.lock"), checkpoint::this_owner());
        for (int64_t starts = 1;; ++starts) {
            if (!wait_for_hosts(starts == 1)) return code_ = stopped_by_ != 0 ? kPreempted : kBecauseOfOthers;
            const bool last = stopped_by_ != 0;  // what this generation is for is the save at its end
            begin();
            if (last) stop_all(stopped_by_);
            while (!running_->over()) turn();
            const Verdict verdict = judge(running_->ends);
            const int64_t number = running_->number;
            const bool grows = running_->grows && verdict.code == kPreempted;
            running_.reset();
            if (!verdict.culprit.empty()) tell(report::kDied, number, verdict.culprit);
            if (!verdict.again && !grows) return end(number, verdict);
            if (verdict.again && options_.max_restarts == 0) return end(number, verdict);
            if (stopped_by_ != 0 && (last || !has_to_save()))
                return end(number, {.code = grows ? kPreempted : verdict.code});
            back_off();
        }
    }

    // ---- one look at all that can happen ----

    void turn() {
        wait();
        while (const auto signal = signals_.next()) asked(*signal);
        if (stopped_by_ == 0 && reader_has_ended()) asked(SIGPIPE);
        for (size_t i = 0; i < hosts_.size(); ++i) update(i);
        connect();
        if (agents_) admit();
        if (running_) mind_the_ranks();
    }

    void wait() {
        std::vector<pollfd> watched = {{.fd = signals_.fd(), .events = POLLIN, .revents = 0}};
        if (agents_) watched.push_back({.fd = agents_->fd(), .events = POLLIN, .revents = 0});
        for (const Host& host : hosts_)
            for (const auto& [fd, writes] : host.watched())
                watched.push_back({.fd = fd, .events = static_cast<int16_t>(writes ? POLLOUT : POLLIN), .revents = 0});
        poll(watched.data(), watched.size(), kTurnMs);
    }

    void connect() {
        auto connecting = std::count_if(hosts_.begin(), hosts_.end(),
                                        [](const Host& host) { return host.state() == Host::State::connecting; });
        for (Host& host : hosts_)
            if (connecting < kMostConnecting && host.may_connect()) host.connect(), ++connecting;
    }

    // One that dials in again has noticed the end of its connection earlier than this launcher.
    void admit() {
        for (AgentListener::Agent& agent : agents_->accept()) {
            const size_t index = to_size(agent.number);
            Host& host = hosts_[index];
            if (host.state() != Host::State::away) {
                const bool was_ready = host.is_ready();
                host.lose("another agent of it has dialled in", options_.silence_s);
                if (was_ready) lost(index);
            }
            if (host.may_retry()) host.admit(std::move(agent.link), agent.address);
        }
    }

    // As it calls itself, if no other host has that name.
    void name(Host& host) {
        const bool is_taken = std::any_of(hosts_.begin(), hosts_.end(), [&](const Host& other) {
            return &other != &host && other.line().name == host.own_name();
        });
        const std::string number = std::to_string(&host - hosts_.data());
        host.set_name(is_taken ? concat(host.own_name(), '.', number) : host.own_name());
    }

    void update(size_t index) {
        Host& host = hosts_[index];
        const Host::State before = host.state();
        for (const Frame& frame : host.turn(options_.silence_s)) take(index, frame);
        std::istringstream lines(host.take_lines());
        for (std::string line; std::getline(lines, line);)  // a host that is tried again and again says it once
            if (std::exchange(said_[host.line().name], line) != line)
                printer_.say(concat("host ", host.line().name, ": ", line));
        if (host.state() == before) return;
        if (host.is_ready() && host.dials_in()) name(host);
        if (host.is_ready() && has_run_) tell_of_host(host, "is there again");
        if (before == Host::State::ready) lost(index);
    }

    void take(size_t index, const Frame& frame) {
        if (frame.type == Frame::Type::output) {
            const Output output = read_output(frame.body);
            printer_.add(hosts_[index].line().name, output.rank, output.stream, output.bytes);
        } else if (frame.type == Frame::Type::asked) {
            if (stopped_by_ == 0) asked(Json::parse(frame.body).at("signal").get<int>());
        } else if (frame.type == Frame::Type::exited) {
            const Json json = Json::parse(frame.body);
            ended({.rank = json.at("rank").get<int>(),
                   .host = hosts_[index].line().name,
                   .ending = {.code = json.at("code").get<int>(), .signal = json.at("signal").get<int>()}});
        }
    }

    void ended(RankEnd end) {
        if (!running_ || end.rank < 0 || to_size(end.rank) >= running_->has_ended.size()) return;
        if (running_->has_ended[to_size(end.rank)]) return;
        running_->has_ended[to_size(end.rank)] = true;
        printer_.end(end.host, end.rank);
        end.by_launcher = running_->killed_at && end.ending.signal == SIGKILL;
        const bool well =
            !end.lost && end.ending.signal == 0 && (end.ending.code == 0 || end.ending.code == kPreempted);
        if (!well && !running_->failed_at) running_->failed_at = Clock::now();
        running_->ends.push_back(std::move(end));
    }

    void lost(size_t index) {
        Host& host = hosts_[index];
        tell_of_host(host, concat("is lost: ", host.why()));
        const int64_t step = newest_step();
        Losses& losses = losses_[host.line().name];
        losses = losses.step == step ? Losses{step, losses.count + 1} : Losses{step, 1};
        if (losses.count >= kMostLosses) {
            host.retry_after(kLeftOut);
            tell_of_host(host, concat("was lost ", losses.count, " times without a new checkpoint and is left out for ",
                                      kLeftOut.count(), " h"));
        }
        if (!running_) return;
        for (size_t rank = 0; rank < running_->host_of.size(); ++rank)
            if (running_->host_of[rank] == index)
                ended({.rank = static_cast<int>(rank), .host = host.line().name, .ending = {}, .lost = true});
    }

    // ---- stopping ----

    // Whether the newest state is in the memory of hosts alone, which ends with their agents.
    bool has_to_save() const { return run_.copies_in_memory && newest_step() > run_.newest_step(); }

    void asked(int signal) {
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

    void send_to_all(int signal) {
        for (Host& host : hosts_)
            if (host.is_ready()) host.send(Frame::Type::stop, Json{{"signal", signal}}.dump());
    }

    void mind_the_ranks() {
        const auto now = Clock::now();
        const Running& r = *running_;
        if (r.failed_at && now - *r.failed_at > kLastWords) kill_all();
        if (r.asked_at && now - *r.asked_at > seconds(options_.grace_s)) kill_all();
        if (r.killed_at && now - *r.killed_at > kUnkillable) {
            for (size_t rank = 0; rank < r.host_of.size(); ++rank) {
                Host& host = hosts_[r.host_of[rank]];
                if (r.has_ended[rank] || !host.is_ready()) continue;
                host.lose(concat("rank ", rank, " cannot be killed"), options_.silence_s);
                host.retry_after(kLeftOut);
                lost(r.host_of[rank]);
            }
        }
        if (now - looked_ < kLook) return;
        looked_ = now;
        if (!r.failed_at && !r.asked_at && could_grow()) {
            printer_.say(concat("more hosts are there: the ranks save, and more of them go on"));
            running_->grows = true;
            stop_all(SIGUSR1);
        }
    }

    // Whether hosts that came back have stayed for long enough, give more ranks, and a checkpoint was due since.
    bool could_grow() {
        std::vector<int> ready = ready_slots(seconds(options_.grow_after_s));
        const int slots = std::accumulate(ready.begin(), ready.end(), 0);
        const int64_t step = run_.newest_step();
        const auto layout = slots > running_->layout.ranks ? layout_in_time(slots) : nullptr;
        if (layout == nullptr || !*layout || (*layout)->ranks <= running_->layout.ranks) {
            step_before_growth_ = step;
            return false;
        }
        return step > step_before_growth_;
    }

    // ---- starting ----

    // Slots of the hosts that are ready for `time`; 0 for others.
    std::vector<int> ready_slots(Clock::duration time = {}) const {
        std::vector<int> slots;
        for (const Host& host : hosts_)
            slots.push_back(host.is_ready() && Clock::now() - host.since() >= time ? host.line().slots : 0);
        return slots;
    }

    // Null while the planner works. It may take longer than the agents wait for a word.
    const std::optional<Layout>* layout_in_time(int slots) {
        const int ranks = std::min(slots, options_.ranks);
        if (planning_.valid()) {
            if (planning_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return nullptr;
            layouts_[planned_ranks_] = planning_.get();
        }
        const auto found = layouts_.find(ranks);
        if (found != layouts_.end()) return &found->second;
        planned_ranks_ = ranks;
        planning_ =
            std::async(std::launch::async, [this, ranks] { return ranks > 0 ? run_.layout(ranks) : std::nullopt; });
        return nullptr;
    }

    // Waits until it is decided which hosts take part, and they suffice. False: no hosts came, or a stop was asked for;
    // but if that has to save, any number of ranks suffices.
    bool wait_for_hosts(bool first) {
        const auto begin = Clock::now();
        bool told = false;
        for (;; turn()) {
            const bool stops = stopped_by_ != 0;
            if (gives_up_ || (stops && !has_to_save())) return false;
            const auto now = Clock::now();
            const bool settled = std::none_of(hosts_.begin(), hosts_.end(), [&](const Host& host) {
                return host.may_connect() || host.state() == Host::State::connecting || now < host.unsafe_until();
            });
            if (!settled) continue;
            const std::vector<int> ready = ready_slots();
            const int slots = std::accumulate(ready.begin(), ready.end(), 0);
            if (first && agents_ && slots < options_.ranks && now - begin <= kWaitForOthers) {
                if (!told && now - begin > kToldAfter) {
                    printer_.say(concat("waiting for agents", missing()));
                    told = true;
                }
                continue;
            }
            const std::optional<Layout>* planned = layout_in_time(slots);
            if (planned == nullptr) continue;
            const std::optional<Layout>& layout = *planned;
            if (layout && layout->ranks >= (stops ? 1 : options_.min_ranks)) {
                layout_ = *layout;
                return true;
            }
            const std::string why = concat("required: ", options_.min_ranks, " ranks (--min-ranks); ",
                                           layout ? layout->ranks : 0, " can run", missing());
            check(!first || agents_, why);
            if (stops) {
                tell(report::kEnded, newest_, concat("the state of step ", newest_step(), " in memory is lost. ", why));
                return false;
            }
            if (!std::exchange(told, true)) printer_.say(concat("waiting for hosts. ", why));
            if (now - begin > kWaitForOthers) {
                tell(report::kEnded, newest_, concat("no hosts for ", kWaitForOthers.count(), " min. ", why));
                return false;
            }
        }
    }

    std::string missing() const {
        std::string text;
        for (const Host& host : hosts_)
            if (!host.is_ready()) text += concat("; host ", host.line().name, ": ", host.why());
        return text;
    }

    // Of a checkpoint, or of copies that hosts have had: progress, also when such copies are lost later.
    int64_t newest_step() const {
        int64_t newest = run_.newest_step();
        for (const Host& host : hosts_) newest = std::max(newest, host.copied_step());
        return newest;
    }

    // By host that takes part: the one that fetches its copies.
    std::map<size_t, size_t> holders_among(const std::vector<int>& placed) const {
        std::vector<size_t> taking_part;
        std::vector<std::string> racks;
        for (size_t i = 0; i < placed.size(); ++i)
            if (placed[i] > 0 && hosts_[i].port_of_copies() > 0) {
                taking_part.push_back(i);
                racks.push_back(hosts_[i].line().rack);
            }
        const std::vector<int> buddy = buddies(racks);
        std::map<size_t, size_t> holders;
        for (size_t i = 0; i < taking_part.size(); ++i)
            if (buddy[i] >= 0) holders[taking_part[i]] = taking_part[to_size(buddy[i])];
        return holders;
    }

    CopyPlaces::Peer copies_at(size_t index) const {
        return {static_cast<int>(index), hosts_[index].line().address, hosts_[index].port_of_copies()};
    }

    // For the ranks of host `index`. Any host that is there may have copies, whether it takes part or not.
    CopyPlaces copies_for(size_t index, const std::map<size_t, size_t>& holders) const {
        const auto holder = holders.find(index);
        CopyPlaces places{.directory = hosts_[index].copies(),
                          .host = static_cast<int>(index),
                          .holder = holder == holders.end() ? -1 : static_cast<int>(holder->second),
                          .peers = {},
                          .secret = secret_of_copies_};
        for (size_t i = 0; i < hosts_.size(); ++i)
            if (i != index && hosts_[i].is_ready() && hosts_[i].port_of_copies() > 0)
                places.peers.push_back(copies_at(i));
        return places;
    }

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
        const std::vector<int> placed = place(ready_slots(), layout_.ranks);
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
        tell(report::kStarted, newest_, text, false);
        start_ranks(placed);
    }

    // A rank that was killed may hold its lock for a moment longer, and one that an earlier launcher has left behind
    // until it has saved.
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
        const auto first = hosts_.begin() + std::distance(placed.begin(), std::find_if(placed.begin(), placed.end(),
                                                                                       [](int n) { return n > 0; }));
        std::map<std::string, std::string> environment = forwarded();
        // Below the ports that Linux gives to connections (32768 and up); other ports for each generation.
        const std::string place = concat(job_, newest_);
        const uint64_t hash = checkpoint::xxh3_64(std::as_bytes(std::span(place)));
        environment.insert_or_assign("TUTTI_LAUNCHER", "tutti");
        environment.insert_or_assign("TUTTI_SIZE", std::to_string(layout_.ranks));
        environment.insert_or_assign("TUTTI_GENERATION", std::to_string(newest_));
        environment.insert_or_assign("TUTTI_JOB", job_);
        environment.insert_or_assign("TUTTI_ADDRESS", first->line().address);
        environment.insert_or_assign("TUTTI_PORT", std::to_string(15000 + hash % 1000 * 16));
        environment.insert_or_assign("TUTTI_SECRET", comm::tcp::fresh_hex());
        Start start{.job = job_,
                    .host = {},
                    .generation = newest_,
                    .silence_s = options_.silence_s,
                    .grace_s = options_.silence_s,
                    .directory = std::filesystem::current_path().string(),
                    .words = run_.words,
                    .environment = environment,
                    .ranks = {}};
        start.words.insert(start.words.end(), layout_.words.begin(), layout_.words.end());
        const std::map<size_t, size_t> holders = holders_among(placed);
        int rank = 0;
        for (size_t i = 0; i < placed.size(); ++i) {
            start.host = std::to_string(i);
            start.ranks.clear();
            start.source.reset();
            for (const auto& [host, holder] : holders)
                if (holder == i) start.source = copies_at(host);
            start.environment[comm::tcp::kCopiesVariable] =
                hosts_[i].copies().empty() ? "" : copies_for(i, holders).to_text();
            for (int local = 0; local < placed[i]; ++local, ++rank)
                start.ranks.push_back({.rank = rank,
                                       .environment = {{"TUTTI_RANK", std::to_string(rank)},
                                                       {"TUTTI_LOCAL_RANK", std::to_string(local)},
                                                       {"TUTTI_LOCAL_SIZE", std::to_string(placed[i])},
                                                       {"TUTTI_NODE", std::to_string(i)}}});
            if (placed[i] > 0) hosts_[i].send(Frame::Type::start, to_body(start));
        }
    }

    // 0, 1, 2, 4 ... 60 s before the next start from the same checkpoint.
    void back_off() {
        if (newest_step() != step_of_start_) return;
        const double pause = starts_here_ < 2 ? 0 : std::min(60.0, std::exp2(starts_here_ - 2));
        for (const auto until = Clock::now() + seconds(pause); Clock::now() < until && stopped_by_ == 0;) turn();
    }

    int end(int64_t number, const Verdict& verdict) {
        tell(report::kEnded, number, concat("code ", verdict.code), false);
        return code_ = verdict.code;
    }

    // ---- telling ----

    void tell(const char* kind, int64_t generation, const std::string& text, bool aloud = true) {
        if (aloud) printer_.say(text);
        if (!report::append_event(run_.out, {unix_time(), kind, generation, layout_.ranks, text}))
            printer_.say(concat(run_.out, "/events.jsonl cannot be written"));
    }

    void tell_of_host(const Host& host, const std::string& text) {
        tell(report::kHost, newest_, concat("host ", host.line().name, " ", text));
    }

    struct Losses {
        int64_t step = -1;
        int count = 0;
    };

    const LaunchedRun& run_;
    const LaunchOptions& options_;
    const std::string job_ = job_of(run_.out);
    const std::string secret_of_copies_ = comm::tcp::fresh_hex();
    SignalDescriptor signals_{kStopSignals};
    Printer printer_;
    std::optional<AgentListener> agents_;
    std::vector<Host> hosts_;
    std::map<std::string, Losses> losses_;
    std::map<std::string, std::string> said_;       // the last line of each host
    std::map<int, std::optional<Layout>> layouts_;  // by most ranks
    int planned_ranks_ = 0;
    Layout layout_;  // of the newest generation
    std::optional<Running> running_;
    int64_t newest_ = 0, step_of_start_ = -1, step_before_growth_ = 0;
    int starts_here_ = 0;  // from the same checkpoint
    bool has_run_ = false;
    int stopped_by_ = 0;           // signal
    bool gives_up_ = false;        // asked again while no rank runs
    int code_ = kBecauseOfOthers;  // of this launch, for agents that dial in
    Clock::time_point looked_{};
    std::future<std::optional<Layout>> planning_;  // of planned_ranks_; last: uses run_
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
