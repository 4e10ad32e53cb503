// comm/processes/tags.h: the tags of messages between ranks of different hosts. Two ranks use kUses tags for each group
// that they share.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tutti::comm::processes {

enum class Use : uint8_t { announcement, part, result, message, message_data, all_to_all, all_to_all_data };
inline constexpr int kUses = 8;  // tags of a group between two ranks

// The key of a group: equal on all ranks, different for another name, other ranks or another generation.
uint64_t group_key(const std::string& name, const std::vector<int>& ranks, int generation);
// The first of a group's kUses tags, unless another group of the two ranks has taken them.
int preferred_tag(uint64_t key, int highest);

// The tags in use on one rank, by other rank.
class Tags {
  public:
    explicit Tags(int highest) : highest_(highest) {}

    // The first of the group's tags for messages between this rank and `peer`: the preferred ones, or the next that no
    // earlier group of the two ranks has taken. Both ranks choose the same tags without a message if they make the
    // groups that they share in the same order. Another order is noticed only where preferred tags collide, as an error
    // of the first operation, since an announcement carries its group's key. Tags are never freed, because `peer` may
    // release the group later. Error when all are taken.
    int claim(int peer, uint64_t key);

  private:
    int highest_;
    std::map<int, std::vector<int>> taken_;  // by peer
};

}  // namespace tutti::comm::processes
