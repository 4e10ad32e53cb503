// comm/processes/stream.h: a message from one rank to another: after its announcement, through a ring of shared memory
// inside a host or through the wire between hosts; and the messages of an all_to_all.
#pragma once

#include <list>
#include <string>
#include <vector>

#include "tutti/comm/processes/group.h"

namespace tutti::comm::processes {

// The two streams between two ranks: messages, and parts of all_to_all. Each stream keeps its own order.
enum class StreamKind : uint8_t { messages, exchanges };

class Outgoing {
  public:
    Outgoing(Group& group, StreamKind kind, int to, const Announcement& head, const std::byte* data, int64_t bytes);
    bool advance();  // true once the caller may use `data` again

  private:
    Group& group_;
    const StreamKind kind_;
    const int to_;
    const Announcement head_;
    const std::byte* data_;
    const int64_t bytes_;
    int64_t sent_ = 0;  // the announcement counts
    bool begun_ = false;
    std::vector<Wire::Request> requests_;
};

class Incoming {
  public:
    // `data`: room for `count` elements of `dtype`, written only when the announcement has the same type and count.
    Incoming(Group& group, StreamKind kind, int from, uint64_t sequence, DType dtype, int64_t count, std::byte* data);
    bool advance();  // true once the whole message has arrived, also one that does not fit
    bool head_is_here() const { return received_ >= static_cast<int64_t>(sizeof head_); }
    // After advance(): Error when the message is not the expected one.
    void check_fit() const;

  private:
    void look_at_head();

    Group& group_;
    const StreamKind kind_;
    const int from_;
    const uint64_t sequence_;
    const DType dtype_;
    const int64_t count_;
    std::byte* data_;
    Announcement head_;
    int64_t bytes_ = 0;  // after the announcement
    int64_t received_ = 0;
    bool begun_ = false, fits_ = false;
    std::vector<std::byte> refused_;  // receives a message that does not fit
    std::vector<Wire::Request> requests_;
};

// The data of one all_to_all: a message to every other rank of the group and one from each. All ranks must call the
// same operation.
class Exchange {
  public:
    Exchange(Group& group, const Collective& collective, uint64_t sequence);
    bool advance();  // true once all messages are done; Error when a rank sent an unexpected number of elements
    std::string waits_for() const;

  private:
    struct Out {
        int to;
        Outgoing stream;
    };
    struct In {
        int from;
        Incoming stream;
    };
    Group& group_;
    std::list<Out> out_;
    std::list<In> in_, came_;
};

}  // namespace tutti::comm::processes
