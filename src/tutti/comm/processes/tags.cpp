#include "tutti/comm/processes/tags.h"

#include <algorithm>

#include "tutti/base/error.h"

namespace tutti::comm::processes {

namespace {
// Groups that two ranks can share. Tags below kUses are reserved for the wire.
int most_groups(int highest) { return highest / kUses - 1; }
}  // namespace

uint64_t group_key(const std::string& name, const std::vector<int>& ranks, int generation) {
    uint64_t key = 0xcbf29ce484222325;  // FNV-1a
    const auto add = [&](uint64_t value) {
        for (int i = 0; i < 64; i += 8) key = (key ^ (value >> i & 0xff)) * 0x100000001b3;
    };
    for (const char c : name) add(static_cast<unsigned char>(c));
    add(ranks.size());
    for (const int rank : ranks) add(static_cast<uint64_t>(rank));
    add(static_cast<uint64_t>(generation));
    return key == 0 ? 1 : key;
}

int preferred_tag(uint64_t key, int highest) {
    return static_cast<int>(1 + (key ^ key >> 32) % static_cast<uint64_t>(most_groups(highest))) * kUses;
}

int Tags::claim(int peer, uint64_t key) {
    std::vector<int>& taken = taken_[peer];
    check(static_cast<int>(taken.size()) < most_groups(highest_), "this rank and rank ", peer, " share ", taken.size(),
          " groups, and the transport has tags up to ", highest_, ", ", kUses,
          " for each group: make fewer groups, or use comm.backend = \"tcp\", which has 2147483647");
    int tag = preferred_tag(key, highest_);
    while (std::find(taken.begin(), taken.end(), tag) != taken.end())
        tag = tag == most_groups(highest_) * kUses ? kUses : tag + kUses;
    return taken.emplace_back(tag);
}

}  // namespace tutti::comm::processes
