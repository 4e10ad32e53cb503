// comm/processes/tags.h: the tags of messages between two ranks. Every group that two ranks of different hosts belong
// to has kUses tags of its own for their messages.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tutti::comm::processes {

enum class Use : uint8_t { announcement, part, result, message, message_data, exchange, exchange_data };
inline constexpr int kUses = 8;  // tags of a group between two ranks

// The key of a group: equal on all ranks, different for other names, ranks or generations.
uint64_t group_key(const std::string& name, const std::vector<int>& ranks, int generation);
// The first of the kUses tags that a group has unless another group of the two ranks has them already.
int preferred_tag(uint64_t key, int highest);

// One rank's table of tags in use, by other rank.
class Tags {
  public:
    explicit Tags(int highest) : highest_(highest) {}

    // The first of the group's tags for messages between this rank and `peer`: the preferred ones, or the next that no
    // earlier group of the two ranks has. Both ends find the same tags without a message, because both know the groups
    // that they share; so two ranks must make the groups that they share in the same order. A different order shows
    // only where tags are equal, as an error of the first operation: an announcement carries its group's key.
    // Tags are never given back: the other end may drop the group later. Error when all are taken.
    int claim(int peer, uint64_t key);

  private:
    int highest_;
    std::map<int, std::vector<int>> taken_;  // by peer
};

}  // namespace tutti::comm::processes
