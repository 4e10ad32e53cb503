#include "tutti/launch/hosts.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <sstream>

#include "tutti/base/digits.h"
#include "tutti/base/error.h"
#include "tutti/base/strings.h"
#include "tutti/base/to_size.h"
#include "tutti/device/device.h"

namespace tutti::launch {

namespace {

constexpr int kMostSlots = 4096;

int slots_of(const std::string& text, const std::string& where) {
    const int slots = parse_number<int>(text).value_or(0);
    check<UsageError>(slots >= 1 && slots <= kMostSlots, where, "slots must be 1 to ", kMostSlots, ", got '", text,
                      "'");
    return slots;
}

// A key of a line, KEY=VALUE.
struct Key {
    const char *name, *form;
    void (*set)(HostLine& host, const std::string& value, const std::string& where);
};
constexpr Key kKeys[] = {
    {"slots", "slots=N",
     [](HostLine& host, const std::string& value, const std::string& where) { host.slots = slots_of(value, where); }},
    {"addr", "addr=ADDRESS",
     [](HostLine& host, const std::string& value, const std::string&) { host.address = value; }},
    {"rack", "rack=NAME", [](HostLine& host, const std::string& value, const std::string&) { host.rack = value; }}};

// A name as the command line of ssh takes it: USER@NAME, an address, or a name of its config.
bool is_host_name(const std::string& name) {
    const bool legal = std::all_of(name.begin(), name.end(), [](char c) {
        return is_alphanumeric(c) || std::string_view("-._:@%[]").find(c) != std::string_view::npos;
    });
    return legal && !name.empty() && name.front() != '-';
}

// Nothing for a line without a host.
std::optional<HostLine> parse_line(const std::string& line, const std::string& where) {
    std::istringstream words(line.substr(0, line.find('#')));
    HostLine host;
    if (!(words >> host.name)) return std::nullopt;
    std::set<std::string> given;
    // hydra's host:8; an address of IPv6 has several colons.
    if (std::count(host.name.begin(), host.name.end(), ':') == 1) {
        const size_t colon = host.name.find(':');
        host.slots = slots_of(host.name.substr(colon + 1), where);
        host.name.resize(colon);
        given.insert("slots");
    }
    check<UsageError>(is_host_name(host.name), where, "a host cannot be named '", host.name.substr(0, 80), "'");
    host.address = host.name;
    for (std::string word; words >> word;) {
        const std::string name = word.substr(0, word.find('=')),
                          value = word.substr(std::min(word.size(), name.size() + 1));
        const auto key = std::ranges::find(kKeys, std::string_view(name), &Key::name);
        check<UsageError>(key != std::end(kKeys) && !value.empty(), where, "'", word, "' is none of ",
                          joined(kKeys, ", ", &Key::form), "; a line is `n1 slots=8 addr=10.0.0.1`");
        check<UsageError>(given.insert(name).second, where, name, " is given twice; give it once");
        key->set(host, value, where);
    }
    return host;
}

}  // namespace

std::vector<HostLine> parse_hosts(const std::string& text, const std::string& origin) {
    std::vector<HostLine> hosts;
    std::istringstream lines(text);
    int number = 0;
    for (std::string line; std::getline(lines, line);) {
        const std::string where = concat(origin, ":", ++number, ": ");
        std::optional<HostLine> host = parse_line(line, where);
        if (!host) continue;
        check<UsageError>(std::ranges::find(hosts, host->name, &HostLine::name) == hosts.end(), where, "the host ",
                          host->name, " is named twice; slots=N says how many ranks it takes");
        hosts.push_back(*std::move(host));
    }
    check<UsageError>(!hosts.empty(), origin, " names no host; a line is `n1 slots=8`");
    return hosts;
}

bool is_this_host(const std::string& name) { return name == "localhost" || name == host_name(); }

std::vector<int> place(const std::vector<int>& ready, int ranks) {
    std::vector<int> placed;
    for (const int slots : ready) {
        placed.push_back(std::min(slots, ranks));
        ranks -= placed.back();
    }
    return placed;
}

std::vector<int> buddies(const std::vector<std::string>& racks) {
    const auto hosts = static_cast<int>(racks.size());
    std::vector<int> order(racks.size()), buddy(racks.size(), -1);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return racks[to_size(a)] < racks[to_size(b)]; });
    const auto give = [&](int from, int to) { buddy[to_size(order[to_size(from)])] = order[to_size(to)]; };
    const int half = hosts / 2;
    for (int i = 0; i < half; ++i) {
        give(i, half + i);
        give(half + i, i);
    }
    if (hosts % 2 == 0 || hosts == 1) return buddy;
    give(0, half);
    give(half, hosts - 1);
    give(hosts - 1, 0);
    return buddy;
}

}  // namespace tutti::launch
