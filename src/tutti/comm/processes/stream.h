// comm/processes/stream.h: messages from one rank to another, each after its announcement: through a ring of shared
// memory inside a host, through the wire between hosts; and the messages of an all_to_all.
#pragma once

#include <list>
#include <string>
#include <vector>

#include "tutti/comm/processes/process_group.h"

namespace tutti::comm::processes {

class Outgoing {
  public:
    Outgoing(ProcessGroup& group, StreamKind kind, int to, const Announcement& announcement, const std::byte* data,
             int64_t bytes);
    bool advance();  // true once `data` may be reused

  private:
    ProcessGroup& group_;
    const StreamKind kind_;
    const int to_;
    const Announcement announcement_;
    const std::byte* data_;
    const int64_t bytes_;
    int64_t sent_ = 0;  // bytes of announcement and data
    bool begun_ = false;
    std::vector<Wire::Request> requests_;
};

class Incoming {
  public:
    // `data`: room for `count` elements of `dtype`, written only if the announcement has this type and count.
    Incoming(ProcessGroup& group, StreamKind kind, int from, uint64_t sequence, DType dtype, int64_t count,
             std::byte* data);
    bool advance();  // true once the whole message has arrived, even if it does not fit
    // After advance(): Error if the message is not the expected one.
    void check_fit() const;

  private:
    bool has_announcement() const { return received_ >= static_cast<int64_t>(sizeof announcement_); }
    void read_announcement();

    ProcessGroup& group_;
    const StreamKind kind_;
    const int from_;
    const uint64_t sequence_;
    const DType dtype_;
    const int64_t count_;
    std::byte* data_;
    Announcement announcement_;
    int64_t bytes_ = 0;     // of the data
    int64_t received_ = 0;  // bytes of announcement and data
    bool begun_ = false, fits_ = false;
    std::vector<std::byte> unexpected_;  // the data of a message that does not fit
    std::vector<Wire::Request> requests_;
};

// The data of one all_to_all: a message to and from every other rank of the group. All ranks must have agreed on the
// operation.
class AllToAll {
  public:
    AllToAll(ProcessGroup& group, const Collective& collective, uint64_t sequence);
    bool advance();  // true once all messages are complete; Error if a rank sent an unexpected number of elements
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
    ProcessGroup& group_;
    std::list<Out> out_;
    std::list<In> in_, complete_;
};

}  // namespace tutti::comm::processes
