// comm/tcp/socket.h: connections as objects, and the short frames that ranks and rank 0's hub exchange. Ranks of
// several hosts connect over TCP; those of one host through local sockets (AF_UNIX) of the abstract name space, which
// have no file that could be left behind, and which only processes of the same user may use: both ends ask the system
// for the user of the other. Only the .cpp files of this folder include the system's socket headers.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tutti::comm::tcp {

using Clock = std::chrono::steady_clock;

// Owns a descriptor.
class Socket {
  public:
    Socket() = default;
    explicit Socket(int fd) : fd_(fd) {}
    ~Socket();
    Socket(Socket&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
    Socket& operator=(Socket&& other) noexcept;
    int fd() const { return fd_; }
    bool open() const { return fd_ >= 0; }

  private:
    int fd_ = -1;
};

// The process at the other end of a local connection of this user; 0: unknown, as in another PID namespace.
int process_of_peer(const Socket& connection);
// Listens on `port` (0: any free port) of the loopback addresses only, or of all. Not open when the port is taken.
Socket listen_on(bool loopback, int port);
// Listens at a numeric address of this machine and a port (0: any free one). Not open on failure, with the reason in
// `why`.
Socket listen_at(const std::string& address, int port, std::string& why);
int port_of(const Socket& listener);
// Listens at a local name of up to 100 bytes; "": one that the system chooses. Not open when the name is taken.
Socket listen_locally(const std::string& name);
std::string local_name_of(const Socket& listener);
// A waiting connection; not open when none waits. Local connections of other users are closed.
Socket accept_from(const Socket& listener);
// A connection; not open on failure, with the reason in `why`. Resolves the name, and waits, until `until`.
Socket connect_to(const std::string& host, int port, Clock::time_point until, std::string& why);
// The same to a local name; not open, too, when a process of another user listens there.
Socket connect_locally(const std::string& name, Clock::time_point until, std::string& why);
// A connection to a numeric address, in progress or made; never waits. Not open on failure, with the reason in `why`.
Socket begin_connection(const std::string& address, int port, std::string& why);
// Of a begun connection: nullopt while it is in progress, "" once it is made, else why it failed.
std::optional<std::string> outcome_of(const Socket& connection);
// The numeric address of the other end: "10.0.0.7".
std::string address_of_peer(const Socket& socket);
bool is_loopback(const std::string& host);  // "localhost", or a numeric loopback address

// Bytes that have arrived, up to `most`; never waits. `ended`: the other end sends nothing more, or is gone.
struct Arrived {
    std::string bytes;
    bool ended = false;
};
Arrived receive_some(const Socket& socket, size_t most);
// The number of bytes that the kernel has accepted; does not block. Nothing: the other end has closed.
std::optional<size_t> send_some(const Socket& socket, std::string_view bytes);
void end_sending(const Socket& socket);  // the other end reads to the end of what was sent
bool out_of_descriptors();               // whether the last accept_from() failed for want of descriptors (EMFILE)

// Waits for data; false at `until`.
bool readable(const Socket& socket, Clock::time_point until);

// Messages for rare events: joining, the table of all ranks, the reason of an abort; between `tutti launch` and its
// agents (launch/link.h); and for files (file_service.h).
inline constexpr size_t kLongestFrame = size_t{64} << 20;
struct Frame {
    enum class Type : uint8_t {
        challenge,
        join,
        welcome,
        refusal,
        table,
        abort,
        bye,  // ranks and hub
        hello,
        start,
        stop,
        output,
        exited,
        asked,
        ping,
        open_copies,
        copies_opened,
        copied,
        sealed,  // launcher and agent
        question,
        answer,  // file_service.h
    };
    Type type = Type::challenge;
    std::string body;
};
// The bytes of a frame on its way.
std::string to_bytes(Frame::Type type, std::string_view body);
// False when the other end is gone or receives nothing for a second.
bool send_frame(const Socket& socket, Frame::Type type, std::string_view body);

// Assembles frames from received bytes.
class FrameReader {
  public:
    // A complete frame if one has arrived; never waits. After the end of the stream, and after the head of a frame of
    // more than `longest` bytes, closed() is true.
    std::optional<Frame> read(const Socket& socket, size_t longest = kLongestFrame);
    bool closed() const { return closed_; }
    // The parts of read(), for bytes that come another way.
    void add(std::string_view bytes) { buffer_ += bytes; }
    std::optional<Frame> take(size_t longest = kLongestFrame);

  private:
    std::string buffer_;
    bool closed_ = false;
};

}  // namespace tutti::comm::tcp
