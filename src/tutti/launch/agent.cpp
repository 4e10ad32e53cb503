#include "tutti/launch/agent.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <utility>

#include "tutti/base/build_info.h"
#include "tutti/base/error.h"
#include "tutti/base/read_file.h"
#include "tutti/checkpoint/digest.h"
#include "tutti/device/device.h"
#include "tutti/launch/process.h"

namespace tutti::launch {

namespace {

constexpr int kAgentTurnMs = 100;
constexpr size_t kMostUnsent = size_t{16} << 20;  // of output; ranks that write more wait, the launcher's pings do not

class Agent {
  public:
    explicit Agent(Link link) : link_(std::move(link)) {
        prctl(PR_SET_CHILD_SUBREAPER, 1);  // adopts processes that a rank started and did not wait for
        Json hello = identity_of_program();
        hello["name"] = host_name();
        link_.send(Frame::Type::hello, hello.dump());
    }

    std::optional<Bye> serve() {
        while (link_.open() || !ranks_.empty()) turn();
        return bye_;
    }

  private:
    struct Rank {
        int rank = 0;
        Process process;
        std::optional<Ending> ending = {};
    };

    void turn() {
        wait();
        while (const auto frame = link_.read()) on_frame(*frame);
        while (const auto signal = signals_.next())
            if (*signal != SIGCHLD) on_stop_signal(*signal);
        if (link_.open() && Clock::now() - pinged_ > kPing) {
            link_.send(Frame::Type::ping);
            pinged_ = Clock::now();
        }
        check_link();
        if (open_copies_) open_copies();
        if (start_ && !open_copies_) start_ranks();
        report_copies();
        for (Rank& rank : ranks_) update(rank);
        std::erase_if(ranks_, [](const Rank& rank) { return rank.ending.has_value(); });
        while (ranks_.empty() && waitpid(-1, nullptr, WNOHANG) > 0) {  // adopted processes
        }
    }

    void wait() {
        std::vector<pollfd> watched = {{.fd = signals_.fd(), .events = POLLIN, .revents = 0}};
        if (link_.open()) {
            watched.push_back({.fd = link_.in(), .events = POLLIN, .revents = 0});
            if (link_.has_to_write()) watched.push_back({.fd = link_.out(), .events = POLLOUT, .revents = 0});
        }
        if (link_.unsent() < kMostUnsent)
            for (const Rank& rank : ranks_)
                for (const Descriptor* pipe : {&rank.process.out, &rank.process.err})
                    if (pipe->open()) watched.push_back({.fd = pipe->fd(), .events = POLLIN, .revents = 0});
        poll(watched.data(), watched.size(), kAgentTurnMs);
        link_.write();
    }

    void on_frame(const Frame& frame) {
        switch (frame.type) {
            case Frame::Type::start:
                start_ = read_start(frame.body);
                stop_ = 0;
                start_at_ = Clock::now();
                break;
            case Frame::Type::open_copies:
                open_copies_ = read_open_copies(frame.body);
                silence_s_ = open_copies_->silence_s;
                start_at_ = Clock::now();
                break;
            case Frame::Type::bye: {
                const Json json = Json::parse(frame.body);
                bye_ = {.code = json.at("code").get<int>(), .why = json.at("why").text()};
                link_ = Link();
                break;
            }
            case Frame::Type::stop: send_all(Json::parse(frame.body).at("signal").get<int>()); break;
            default: break;  // ping: Link has recorded the time
        }
    }

    void send_all(int signal) {
        for (const Rank& rank : ranks_) {
            if (signal == SIGKILL)
                rank.process.kill_group();
            else
                rank.process.send(signal);
        }
        if (signal == SIGKILL) start_.reset();
        stop_ = signal;  // also of ranks that are to start
    }

    // A stop of one host is a stop of the run: the launcher signals all ranks.
    void on_stop_signal(int signal) {
        link_.send(Frame::Type::asked, Json{{"signal", signal}}.dump());
        if (!link_.open()) send_all(signal);
    }

    void check_link() {
        const auto now = Clock::now();
        if (link_.open() && link_.silence() > silence_s_) {
            send_all(SIGKILL);
            link_ = Link();  // a broken connection may stay open for hours
        }
        if (link_.open()) return;
        start_.reset();
        if (!closed_at_) {
            closed_at_ = now;
            send_all(SIGTERM);
        }
        if (now - *closed_at_ > seconds(grace_s_)) send_all(SIGKILL);
    }

    // Waits for the end of an earlier agent of this job and host, whose ranks may still be ending.
    void start_ranks() {
        silence_s_ = start_->silence_s;
        grace_s_ = start_->grace_s;
        if (!is_only_agent(start_->job, start_->host)) return;
        if (copies_) copies_->follow(start_->source);
        for (const Start::Rank& rank : start_->ranks) {
            Command command{.words = start_->words,
                            .environment = start_->environment,
                            .directory = start_->directory,
                            .dies_with_parent = true,
                            .holds_stops = true};
            for (const auto& [name, value] : rank.environment) command.environment[name] = value;
            ranks_.push_back({.rank = rank.rank, .process = Process(command)});
        }
        start_.reset();
        if (stop_ != 0) send_all(stop_);
    }

    bool is_only_agent(const std::string& job, const std::string& host) {
        const std::string place = concat("tutti-agent-", geteuid(), "-", job, "-", host);
        if (!name_.open()) name_ = comm::tcp::listen_locally(place);
        if (!name_.open()) end_earlier_agent(place);
        return name_.open();
    }

    // Before ranks are started: the guard process of the copies must not inherit their descriptors.
    void open_copies() {
        if (!is_only_agent(open_copies_->job, open_copies_->host)) return;
        Json answer = {{"directory", ""}, {"port", 0}, {"problem", ""}};
        try {
            copies_ = std::make_unique<CopyStore>(*open_copies_, [](const std::string& text) {
                dprintf(STDERR_FILENO, "%s\n", text.c_str());  // of any thread
            });
            answer["directory"] = copies_->directory();
            answer["port"] = copies_->port();
        } catch (const std::exception& error) {
            answer["problem"] = error.what();
        }
        open_copies_.reset();
        link_.send(Frame::Type::copies_opened, answer.dump());
    }

    void report_copies() {
        if (!copies_ || !link_.open()) return;
        const int64_t step = copies_->newest_step();
        if (std::exchange(reported_step_, step) != step) link_.send(Frame::Type::copied, Json{{"step", step}}.dump());
    }

    // An agent that has not ended by then is stopped, as under a debugger. The kernel kills its ranks with it.
    void end_earlier_agent(const std::string& name) const {
        if (Clock::now() - start_at_ < seconds(silence_s_ * 4 / 3)) return;
        std::string why;
        const Descriptor earlier = comm::tcp::connect_locally(name, Clock::now(), why);
        const int process = earlier.open() ? comm::tcp::process_of_peer(earlier) : 0;
        if (process > 0) kill(process, SIGKILL);
    }

    // The exit code is read first: after it, the pipes hold all that the rank has written.
    void update(Rank& rank) {
        const auto ending = rank.process.ended();
        for (const int stream : {1, 2}) {
            Descriptor& pipe = stream == 1 ? rank.process.out : rank.process.err;
            if (pipe.open() && (ending || link_.unsent() < kMostUnsent)) forward(rank.rank, stream, pipe);
        }
        if (!ending) return;
        rank.ending = ending;
        rank.process.out = Descriptor();
        rank.process.err = Descriptor();
        link_.send(Frame::Type::exited,
                   Json{{"rank", rank.rank}, {"code", ending->code}, {"signal", ending->signal}}.dump());
    }

    void forward(int rank, int stream, Descriptor& pipe) {
        for (;;) {
            pollfd one{.fd = pipe.fd(), .events = POLLIN, .revents = 0};
            if (poll(&one, 1, 0) <= 0) return;
            std::string text;
            const bool goes_on = read_some(pipe, text);
            if (!text.empty()) link_.send(Frame::Type::output, output_body(rank, stream, text));
            if (!goes_on) {
                pipe = Descriptor();
                return;
            }
        }
    }

    SignalDescriptor signals_{kStopSignals, {SIGCHLD}};
    Link link_;
    std::optional<Bye> bye_;
    Descriptor name_;
    std::optional<OpenCopies> open_copies_;  // pending
    std::optional<Start> start_;             // pending
    int stop_ = 0;                           // the signal of a stop since the newest start; 0: none
    std::unique_ptr<CopyStore> copies_;
    int64_t reported_step_ = 0;
    std::vector<Rank> ranks_;
    double silence_s_ = 60, grace_s_ = 15;  // before the first start frame
    std::optional<Clock::time_point> closed_at_;
    Clock::time_point pinged_{}, start_at_{};
};

}  // namespace

Json identity_of_program() {
    const std::string program = read_file("/proc/self/exe");
    return {{"version", build_info().version},
            {"digest", checkpoint::to_hex(checkpoint::xxh3_128(std::as_bytes(std::span(program))))}};
}

std::string to_body(const OpenCopies& open) {
    return Json{{"job", open.job},   {"host", open.host},     {"launch", open.launch},
                {"root", open.root}, {"secret", open.secret}, {"silence_s", open.silence_s}}
        .dump();
}

OpenCopies read_open_copies(std::string_view body) {
    const Json json = Json::parse(std::string(body));
    return {.job = json.at("job").text(),
            .host = json.at("host").text(),
            .launch = json.at("launch").text(),
            .root = json.at("root").text(),
            .secret = json.at("secret").text(),
            .silence_s = json.at("silence_s").get<double>()};
}

std::string to_body(const Start& start) {
    Json ranks = Json::array();
    for (const Start::Rank& rank : start.ranks)
        ranks.push_back({{"rank", rank.rank}, {"environment", rank.environment}});
    Json source;
    if (start.source)
        source = {{"host", start.source->host}, {"address", start.source->address}, {"port", start.source->port}};
    return Json{{"job", start.job},
                {"source", source},
                {"host", start.host},
                {"generation", start.generation},
                {"silence_s", start.silence_s},
                {"grace_s", start.grace_s},
                {"directory", start.directory},
                {"words", start.words},
                {"environment", start.environment},
                {"ranks", ranks}}
        .dump();
}

Start read_start(std::string_view body) {
    const Json json = Json::parse(std::string(body));
    Start start{.job = json.at("job").text(),
                .host = json.at("host").text(),
                .generation = json.at("generation").get<int64_t>(),
                .silence_s = json.at("silence_s").get<double>(),
                .grace_s = json.at("grace_s").get<double>(),
                .directory = json.at("directory").text(),
                .words = json.at("words").get<std::vector<std::string>>(),
                .environment = json.at("environment").get<std::map<std::string, std::string>>(),
                .ranks = {}};
    if (const Json& source = json.at("source"); source.is_object())
        start.source = {.host = source.at("host").get<int>(),
                        .address = source.at("address").text(),
                        .port = source.at("port").get<int>()};
    for (const Json& rank : json.at("ranks"))
        start.ranks.push_back({.rank = rank.at("rank").get<int>(),
                               .environment = rank.at("environment").get<std::map<std::string, std::string>>()});
    return start;
}

std::string to_body(const Bye& bye) { return Json{{"code", bye.code}, {"why", bye.why}}.dump(); }

std::optional<Bye> serve(Link link) { return Agent(std::move(link)).serve(); }

}  // namespace tutti::launch
