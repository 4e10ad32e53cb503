// comm/threads/shared_group.h: what the threads of one group share, and their operations on it. A rank publishes what
// it wants to do; once all have, each does its share directly on the others' memory, with no copy in between, and says
// so; once all have said so, everybody's buffers are free again.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tutti/comm/operation.h"
#include "tutti/comm/progress.h"

namespace tutti::comm::threads {

// The operations that a rank has begun and that others may still read, by number. Any number of them may be under way,
// so beginning one never waits. Each Collective lives in its Operation until everyone is done with it. Thread safe.
class Published {
  public:
    // `number`: one more than the last one's.
    void add(uint64_t number, const Collective& collective) {
        std::lock_guard lock(mutex_);
        if (collectives_.empty()) first_ = number;
        collectives_.push_back(&collective);
    }
    const Collective& at(uint64_t number) const {
        std::lock_guard lock(mutex_);
        return *collectives_[number - first_];
    }
    // No rank reads those up to `number` any more.
    void forget(uint64_t number) {
        std::lock_guard lock(mutex_);
        for (; !collectives_.empty() && first_ <= number; ++first_) collectives_.pop_front();
    }

  private:
    mutable std::mutex mutex_;
    std::deque<const Collective*> collectives_;
    uint64_t first_ = 1;
};

struct alignas(64) Member {
    std::atomic<uint64_t> posted{0};  // operations that this rank has begun
    std::atomic<uint64_t> done{0};    // operations in which it has done its share
    Published operations;
};

struct alignas(64) Mailbox {
    std::atomic<uint64_t> sent{0}, taken{0};
    Published messages;
};

class SharedGroup {
  public:
    SharedGroup(std::string name_, size_t size, std::shared_ptr<Notifier> notifier_)
        : name(std::move(name_)), notifier(std::move(notifier_)), members(size), mailboxes(size * size) {}

    Mailbox& mailbox(int from, int to) {
        return mailboxes[static_cast<size_t>(from) * members.size() + static_cast<size_t>(to)];
    }

    const std::string name;
    const std::shared_ptr<Notifier> notifier;
    std::vector<Member> members;
    std::vector<Mailbox> mailboxes;  // by from, to
};

// One operation of rank `rank`; publishes itself at once.
std::shared_ptr<Operation> start(const std::shared_ptr<SharedGroup>& group, int rank, Collective collective,
                                 uint64_t sequence);

}  // namespace tutti::comm::threads
