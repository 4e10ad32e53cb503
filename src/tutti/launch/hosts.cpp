#include "tutti/launch/hosts.h"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <set>
#include <sstream>

#include "tutti/base/digits.h"
#include "tutti/base/error.h"
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

}  // namespace

std::vector<HostLine> parse_hosts(const std::string& text, const std::string& origin) {
    std::vector<HostLine> hosts;
    std::istringstream lines(text);
    int number = 0;
    for (std::string line; std::getline(lines, line);) {
        const std::string where = concat(origin, ":", ++number, ": ");
        std::istringstream words(line.substr(0, line.find('#')));
        HostLine host;
        if (!(words >> host.name)) continue;
        std::set<std::string> given;
        // hydra's host:8; an address of IPv6 has several colons.
        if (std::count(host.name.begin(), host.name.end(), ':') == 1) {
            const size_t colon = host.name.find(':');
            host.slots = slots_of(host.name.substr(colon + 1), where);
            host.name.resize(colon);
            given.insert("slots");
        }
        // The command line of ssh takes the name as it is: USER@NAME, an address, or a name of its config.
        const bool named = std::all_of(host.name.begin(), host.name.end(), [](unsigned char c) {
            return std::isalnum(c) != 0 || std::string_view("-._:@%[]").find(char(c)) != std::string_view::npos;
        });
        check<UsageError>(named && !host.name.empty() && host.name.front() != '-', where, "a host cannot be named '",
                          host.name.substr(0, 80), "'");
        for (std::string word; words >> word;) {
            const std::string key = word.substr(0, word.find('=')),
                              value = word.substr(std::min(word.size(), key.size() + 1));
            check<UsageError>((key == "slots" || key == "addr" || key == "rack") && !value.empty(), where, "'", word,
                              "' is none of slots=N, addr=ADDRESS and rack=NAME; a line is `n1 slots=8 addr=10.0.0.1`");
            check<UsageError>(given.insert(key).second, where, key, " is given twice; give it once");
            if (key == "slots")
                host.slots = slots_of(value, where);
            else
                (key == "addr" ? host.address : host.rack) = value;
        }
        const bool is_new =
            std::none_of(hosts.begin(), hosts.end(), [&](const HostLine& h) { return h.name == host.name; });
        check<UsageError>(is_new, where, "the host ", host.name,
                          " is named twice; slots=N says how many ranks it takes");
        if (host.address.empty()) host.address = host.name;
        hosts.push_back(std::move(host));
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
