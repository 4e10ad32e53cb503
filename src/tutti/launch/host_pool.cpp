#include "tutti/launch/host_pool.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <span>
#include <sstream>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/checkpoint/digest.h"
#include "tutti/comm/tcp/secret.h"

namespace tutti::launch {

using comm::tcp::CopyPlaces;

namespace {

constexpr int kTurnMs = 50;
constexpr std::chrono::seconds kDismissal{5};
constexpr ptrdiff_t kMostConnecting = 8;  // OpenSSH refuses some of more than 10 at once (MaxStartups)

// The command that starts the agent of a host, over ssh or as a child of this process.
std::vector<std::string> agent_command(const LaunchOptions& options, const std::string& host, bool direct) {
    if (direct) return {options.program, "agent"};
    std::vector<std::string> words;
    std::istringstream parts(options.ssh);
    for (std::string part; parts >> part;) words.push_back(part);
    words.insert(words.end(), {host, concat("exec ", options.program, " agent")});
    return words;
}

// Prefixes of the environment variables that ranks on other hosts get.
constexpr std::array kForwarded = {"TUTTI_", "OMP_", "CUDA_", "NCCL_", "DNNL_", "LD_LIBRARY_PATH="};

std::map<std::string, std::string> forwarded() {
    std::map<std::string, std::string> all;
    for (char** entry = environ; *entry != nullptr; ++entry) {
        const std::string text = *entry;
        const bool is_forwarded = std::any_of(kForwarded.begin(), kForwarded.end(),
                                              [&](const char* prefix) { return text.starts_with(prefix); });
        if (is_forwarded) all[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
    }
    return all;
}

// By host: the one that fetches its copies, of those that take part; -1: none.
std::vector<int> holders_of(const std::vector<Host>& hosts, const std::vector<int>& placed) {
    std::vector<size_t> taking_part;
    std::vector<std::string> racks;
    for (size_t i = 0; i < placed.size(); ++i)
        if (placed[i] > 0 && hosts[i].port_of_copies() > 0) {
            taking_part.push_back(i);
            racks.push_back(hosts[i].line().rack);
        }
    const std::vector<int> buddy = buddies(racks);
    std::vector<int> holders(hosts.size(), -1);
    for (size_t i = 0; i < taking_part.size(); ++i)
        if (buddy[i] >= 0) holders[taking_part[i]] = static_cast<int>(taking_part[to_size(buddy[i])]);
    return holders;
}

CopyPlaces::Peer copies_at(const std::vector<Host>& hosts, size_t index) {
    return {static_cast<int>(index), hosts[index].line().address, hosts[index].port_of_copies()};
}

// For the ranks of host `index`. Any connected host may have copies, also one that runs no ranks.
CopyPlaces copies_for(const std::vector<Host>& hosts, size_t index, int holder, const std::string& secret) {
    CopyPlaces places{.directory = hosts[index].copies(),
                      .host = static_cast<int>(index),
                      .holder = holder,
                      .peers = {},
                      .secret = secret};
    for (size_t i = 0; i < hosts.size(); ++i)
        if (i != index && hosts[i].is_ready() && hosts[i].port_of_copies() > 0)
            places.peers.push_back(copies_at(hosts, i));
    return places;
}

// The environment of all ranks.
std::map<std::string, std::string> environment_of(const Start& generation, const std::string& address, int ranks) {
    std::map<std::string, std::string> all = forwarded();
    // Below the ports that Linux gives to connections (32768 and up); other ports for each generation.
    const std::string place = concat(generation.job, generation.generation);
    const uint64_t hash = checkpoint::xxh3_64(std::as_bytes(std::span(place)));
    all["TUTTI_LAUNCHER"] = "tutti";
    all["TUTTI_SIZE"] = std::to_string(ranks);
    all["TUTTI_GENERATION"] = std::to_string(generation.generation);
    all["TUTTI_JOB"] = generation.job;
    all["TUTTI_ADDRESS"] = address;
    all["TUTTI_PORT"] = std::to_string(15000 + hash % 1000 * 16);
    all["TUTTI_SECRET"] = comm::tcp::fresh_hex();
    return all;
}

}  // namespace

HostPool::HostPool(const LaunchOptions& options, const std::optional<OpenCopies>& copies, Events events)
    : options_(options), events_(std::move(events)) {
    if (options.agents) agents_.emplace(*options.agents);
    for (HostLine line : options.hosts) {
        const bool direct = agents_ ? hosts_.empty() : is_this_host(line.name);
        const bool connects_itself = agents_ && !direct;
        if (agents_ && direct) line.address = agents_->own_address();
        std::optional<OpenCopies> open = copies;
        if (open) {
            open->host = std::to_string(hosts_.size());
            open->launch = comm::tcp::fresh_hex().substr(0, 12);
        }
        hosts_.emplace_back(line,
                            connects_itself ? std::vector<std::string>() : agent_command(options, line.name, direct),
                            direct, open ? to_body(*open) : "");
    }
}

void HostPool::wait(int signals) const {
    std::vector<pollfd> watched = {{.fd = signals, .events = POLLIN, .revents = 0}};
    if (agents_) watched.push_back({.fd = agents_->fd(), .events = POLLIN, .revents = 0});
    for (const Host& host : hosts_)
        for (const auto& [fd, writes] : host.watched())
            watched.push_back({.fd = fd, .events = static_cast<int16_t>(writes ? POLLOUT : POLLIN), .revents = 0});
    poll(watched.data(), watched.size(), kTurnMs);
}

void HostPool::turn() {
    for (size_t i = 0; i < hosts_.size(); ++i) update(i);
    connect();
    if (agents_) admit();
}

void HostPool::connect() {
    auto connecting = std::count_if(hosts_.begin(), hosts_.end(),
                                    [](const Host& host) { return host.state() == Host::State::connecting; });
    for (Host& host : hosts_)
        if (connecting < kMostConnecting && host.may_connect()) host.connect(), ++connecting;
}

// An agent that dials in again has noticed the end of its connection earlier than this launcher.
void HostPool::admit() {
    for (AgentListener::Agent& agent : agents_->accept()) {
        const size_t index = to_size(agent.number);
        Host& host = hosts_[index];
        if (host.state() != Host::State::away) {
            const bool was_ready = host.is_ready();
            host.lose("a new agent of the host has connected", options_.silence_s);
            if (was_ready) events_.lost(index);
        }
        if (host.may_retry()) host.admit(std::move(agent.link), agent.address);
    }
}

// The name that the host gives itself; with its number where another host has that name.
void HostPool::name(size_t index) {
    const std::string& own = hosts_[index].own_name();
    const bool is_taken = std::any_of(hosts_.begin(), hosts_.end(), [&](const Host& other) {
        return &other != &hosts_[index] && other.line().name == own;
    });
    hosts_[index].set_name(is_taken ? concat(own, '.', index) : own);
}

void HostPool::update(size_t index) {
    Host& host = hosts_[index];
    const Host::State before = host.state();
    for (const Frame& frame : host.turn(options_.silence_s)) events_.frame(index, frame);
    std::istringstream lines(host.take_lines());
    for (std::string line; std::getline(lines, line);)  // retries of a host repeat a line, which is logged once
        if (std::exchange(logged_[host.line().name], line) != line)
            events_.log(concat("host ", host.line().name, ": ", line));
    if (host.state() == before) return;
    if (host.is_ready() && host.connects_itself()) name(index);
    if (host.is_ready()) events_.ready(index);
    if (before == Host::State::ready) events_.lost(index);
}

void HostPool::send_to_all(Frame::Type type, const std::string& body) {
    for (Host& host : hosts_)
        if (host.is_ready()) host.send(type, body);
}

void HostPool::start(const Start& common, const std::vector<int>& placed, const std::string& secret_of_copies) {
    const auto first = std::find_if(placed.begin(), placed.end(), [](int n) { return n > 0; }) - placed.begin();
    const int ranks = std::accumulate(placed.begin(), placed.end(), 0);
    const auto environment = environment_of(common, hosts_[to_size(first)].line().address, ranks);
    const std::vector<int> holders = holders_of(hosts_, placed);
    int rank = 0;
    for (size_t i = 0; i < placed.size(); ++i) {
        if (placed[i] == 0) continue;
        Start start = common;
        start.host = std::to_string(i);
        start.environment = environment;
        const auto fetched = std::find(holders.begin(), holders.end(), static_cast<int>(i));
        if (fetched != holders.end()) start.source = copies_at(hosts_, to_size(fetched - holders.begin()));
        start.environment[comm::tcp::kCopiesVariable] =
            hosts_[i].copies().empty() ? "" : copies_for(hosts_, i, holders[i], secret_of_copies).to_text();
        for (int local = 0; local < placed[i]; ++local, ++rank)
            start.ranks.push_back({.rank = rank,
                                   .environment = {{"TUTTI_RANK", std::to_string(rank)},
                                                   {"TUTTI_LOCAL_RANK", std::to_string(local)},
                                                   {"TUTTI_LOCAL_SIZE", std::to_string(placed[i])},
                                                   {"TUTTI_NODE", std::to_string(i)}}});
        hosts_[i].send(Frame::Type::start, to_body(start));
    }
}

void HostPool::dismiss(int code) {
    for (Host& host : hosts_) host.dismiss(code);
    const auto until = Clock::now() + kDismissal;
    const auto have_ended = [&] {
        return std::all_of(hosts_.begin(), hosts_.end(), [](Host& host) { return host.has_ended(); });
    };
    while (!have_ended() && Clock::now() < until) poll(nullptr, 0, 10);
}

std::vector<int> HostPool::ready_slots(Clock::duration time) const {
    std::vector<int> slots;
    for (const Host& host : hosts_)
        slots.push_back(host.is_ready() && Clock::now() - host.since() >= time ? host.line().slots : 0);
    return slots;
}

bool HostPool::is_settled() const {
    return std::none_of(hosts_.begin(), hosts_.end(), [now = Clock::now()](const Host& host) {
        return host.may_connect() || host.state() == Host::State::connecting || now < host.unsafe_until();
    });
}

std::string HostPool::missing() const {
    std::string text;
    for (const Host& host : hosts_)
        if (!host.is_ready()) text += concat("; host ", host.line().name, ": ", host.why());
    return text;
}

int64_t HostPool::copied_step() const {
    int64_t newest = 0;
    for (const Host& host : hosts_) newest = std::max(newest, host.copied_step());
    return newest;
}

}  // namespace tutti::launch
