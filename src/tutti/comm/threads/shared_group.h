// comm/threads/shared_group.h: what the threads of one group share, and their operations on it. A rank publishes what
// it wants to do; once all have, each does its share directly on the others' memory, with no copy in between, and says
// so; once all have said so, everybody's buffers are free again. Called by thread_world.cpp.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "tutti/comm/operation.h"
#include "tutti/comm/progress.h"

namespace tutti::comm::threads {

// What one rank publishes of an operation. The Collective lives in its Operation, until everyone is done.
struct Published {
    std::atomic<const Collective*> collective{nullptr};
};

// Operations of a rank that may be under way at once, in a group and between two ranks.
inline constexpr uint64_t kInFlight = 64, kMessagesInFlight = 16;

struct alignas(64) Member {
    std::atomic<uint64_t> posted{0};  // operations that this rank has begun
    std::atomic<uint64_t> done{0};    // operations in which it has done its share
    std::array<Published, kInFlight> slots;
};

struct alignas(64) Mailbox {
    std::atomic<uint64_t> sent{0}, taken{0};
    std::array<Published, kMessagesInFlight> slots;
};

class SharedGroup {
  public:
    SharedGroup(std::string name_, size_t size, std::shared_ptr<Bell> bell_)
        : name(std::move(name_)), bell(std::move(bell_)), members(size), mailboxes(size * size) {}

    Mailbox& mailbox(int from, int to) {
        return mailboxes[static_cast<size_t>(from) * members.size() + static_cast<size_t>(to)];
    }

    const std::string name;
    const std::shared_ptr<Bell> bell;
    std::vector<Member> members;
    std::vector<Mailbox> mailboxes;  // by from, to
};

// One operation of rank `rank`; publishes itself at once. There must be room (can_start).
std::shared_ptr<Operation> start(const std::shared_ptr<SharedGroup>& group, int rank, Collective collective,
                                 uint64_t sequence);
bool can_start(const SharedGroup& group, int rank, const Collective& collective, uint64_t sequence);

}  // namespace tutti::comm::threads
