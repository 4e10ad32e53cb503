// launch/link.h: the connection between `tutti launch` and the agent of a host: frames (comm/tcp/socket.h) over two
// descriptors, which are pipes or ends of ssh; or over one socket, sealed (comm/tcp/handshake.h).
//   launcher -> agent   open_copies {where}, start {what to run}, stop {signal}, ping, bye {code, why}
//   agent -> launcher   hello {version, digest}, copies_opened {directory, port}, copied {step},
//                       output (rank, stream, bytes), exited {rank, how}, asked {signal}, ping
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tutti/base/awake_time.h"
#include "tutti/comm/tcp/handshake.h"
#include "tutti/comm/tcp/rendezvous.h"
#include "tutti/comm/tcp/socket.h"

namespace tutti::launch {

using comm::tcp::Clock;
using comm::tcp::Frame;
using comm::tcp::seconds;

inline constexpr std::chrono::seconds kPing{1};  // between two pings of either end
inline constexpr double kShortestSilence = 4;    // s, after which a link may be taken for broken

// Owns a descriptor of a pipe.
using Descriptor = comm::tcp::Socket;

class Link {
  public:
    Link() = default;
    // Makes both descriptors non-blocking. `in` and `out` may be copies of one descriptor.
    Link(Descriptor in, Descriptor out);
    // An encrypted link; a frame that the other end did not seal closes it.
    enum class End { caller, listener };
    Link(comm::tcp::AuthenticatedSession session, End end);

    bool open() const { return in_.open() && !closed_; }
    int in() const { return in_.fd(); }
    int out() const { return out_.fd(); }
    bool has_to_write() const { return open() && !unsent_.empty(); }
    size_t unsent() const { return unsent_.size(); }
    // For how many seconds nothing has come. To be asked more often than once a second (base/awake_time.h).
    double silence() { return silence_.passed(); }

    // Does not block: queues what the other end does not take yet.
    void send(Frame::Type type, std::string_view body = "");
    void write();  // sends more of the queue
    // A complete frame, if one has arrived. Does not block. After the end of the stream open() is false.
    std::optional<Frame> read();

  private:
    std::optional<Frame> take();

    Descriptor in_, out_;
    comm::tcp::FrameReader reader_;
    std::optional<comm::tcp::Cipher> cipher_out_, cipher_in_;
    std::string unsent_;
    AwakeTime silence_{kShortestSilence};
    bool closed_ = false;
};

// The body of an output frame: rank, stream (1 or 2), bytes.
std::string output_body(int rank, int stream, std::string_view bytes);
struct RankOutput {
    int rank = 0, stream = 1;
    std::string_view bytes;
};
RankOutput read_output(std::string_view body);  // Error for a body that output_body() did not make

}  // namespace tutti::launch
