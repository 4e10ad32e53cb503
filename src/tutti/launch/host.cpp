#include "tutti/launch/host.h"

#include <poll.h>

#include <sstream>

#include "tutti/base/error.h"

namespace tutti::launch {

namespace {

constexpr std::chrono::seconds kHello{60};  // ssh asks a name server, and starts a shell
constexpr std::chrono::seconds kRetry{5};
constexpr int kOtherProgram = 2;

}  // namespace

void Host::connect() {
    agent_ = Process({.words = words_, .reads = true});
    begin(Link(std::move(agent_.out), std::move(agent_.in)));
}

void Host::admit(Link link, const std::string& address) {
    line_.address = address;
    begin(std::move(link));
}

void Host::begin(Link link) {
    link_ = std::move(link);
    state_ = State::connecting;
    since_ = Clock::now();
}

void Host::dismiss(int code) {
    link_.send(Frame::Type::bye, to_body(Bye{.code = code, .why = ""}));
    if (!connects_itself()) link_ = Link();
}

// TCP drops unsent data of an end that closes with unread data, so the agent closes first.
bool Host::has_ended() {
    link_.write();
    while (link_.read()) {
    }
    agent_.ended();
    return !agent_.runs() && !link_.open();
}

std::vector<std::pair<int, bool>> Host::watched() const {
    std::vector<std::pair<int, bool>> all;
    if (agent_.err.open()) all.push_back({agent_.err.fd(), false});
    if (!link_.open()) return all;
    all.push_back({link_.in(), false});
    if (link_.has_to_write()) all.push_back({link_.out(), true});
    return all;
}

std::vector<Frame> Host::turn(double silence_s) {
    std::vector<Frame> frames;
    if (state_ == State::away) return frames;
    const auto now = Clock::now();
    if (now - pinged_ > kPing) {
        link_.send(Frame::Type::ping);
        pinged_ = now;
    }
    link_.write();
    while (auto frame = link_.read()) {
        if (frame->type == Frame::Type::hello)
            receive_hello(*frame, silence_s);
        else if (frame->type == Frame::Type::copies_opened)
            receive_copies_opened(*frame);
        else if (frame->type == Frame::Type::copied)
            copied_step_ = std::max(copied_step_, Json::parse(frame->body).at("step").get<int64_t>());
        else if (frame->type != Frame::Type::ping)
            frames.push_back(std::move(*frame));
    }
    for (pollfd one{.fd = agent_.err.fd(), .events = POLLIN, .revents = 0}; agent_.err.open() && poll(&one, 1, 0) > 0;)
        if (!read_some(agent_.err, errors_)) agent_.err = Descriptor();
    if (state_ == State::away) return frames;
    std::istringstream lines(errors_);
    for (std::string text; std::getline(lines, text);) last_line_ = text;
    if (!link_.open())
        lose(concat("its agent has ended", last_line_.empty() ? "" : ": ", last_line_), silence_s);
    else if (state_ == State::connecting && now - since_ > kHello + seconds(silence_s * 4 / 3))
        lose(concat("its agent has not answered within ", kHello.count(), " s"), silence_s);
    else if (state_ == State::ready && link_.silence() > silence_s)
        lose(concat("its agent has sent nothing for ", silence_s, " s"), silence_s);
    return frames;
}

void Host::receive_hello(const Frame& hello, double silence_s) {
    const std::optional<Json> theirs = Json::try_parse(hello.body);
    const Json ours = identity_of_program();
    bool same = theirs && theirs->is_object();
    for (const auto& [key, value] : ours.items()) same = same && theirs->contains(key) && theirs->at(key) == value;
    if (same) {
        own_name_ = theirs->at("name").text();
        if (open_copies_.empty()) return become_ready();
        return link_.send(Frame::Type::open_copies, open_copies_);
    }
    const std::string why = concat("its program differs from that of this host: required ", ours.dump(), ", got ",
                                   theirs ? theirs->dump() : "no hello frame", "; install the same build");
    link_.send(Frame::Type::bye, to_body(Bye{.code = kOtherProgram, .why = why}));
    lose(why, silence_s);
    retry_after(std::chrono::hours(1));
}

// An agent without memory for copies still runs ranks.
void Host::receive_copies_opened(const Frame& opened) {
    const Json json = Json::parse(opened.body);
    copies_ = json.at("directory").text();
    port_ = json.at("port").get<int>();
    if (const std::string problem = json.at("problem").text(); !problem.empty()) errors_ += problem + "\n";
    become_ready();
}

void Host::become_ready() {
    state_ = State::ready;
    since_ = Clock::now();
}

void Host::lose(const std::string& why, double silence_s) {
    const bool was_ready = state_ == State::ready;
    state_ = State::away;
    since_ = Clock::now();
    why_ = why;
    link_ = Link();
    copies_.clear();
    port_ = 0;
    agent_ = Process();  // kills it
    retry_at_ = was_ready ? since_ : since_ + kRetry;
    // An unreachable agent kills its ranks after silence_s, or that long after the end of its connection.
    if (was_ready && !direct_) unsafe_until_ = since_ + seconds(silence_s * 4 / 3);
}

std::string Host::take_lines() {
    const size_t end = errors_.rfind('\n');
    if (end == std::string::npos) return "";
    std::string lines = errors_.substr(0, end + 1);
    errors_.erase(0, end + 1);
    return lines;
}

}  // namespace tutti::launch
