// comm/tcp/socket.h: sockets as objects, and frames, the short messages of rare events. Ranks of several hosts connect
// over TCP. Ranks of one host connect through local sockets (AF_UNIX) in the abstract namespace, which leave no file
// behind, and of which both ends refuse processes of other users. Only the .cpp files of this folder include the
// system's socket headers.
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

// The process id of the peer of a local connection; 0: unknown, as in another PID namespace.
int process_of_peer(const Socket& connection);
// Listens on `port` (0: any free port) of the loopback address or of all addresses. Not open if the port is taken.
Socket listen_on(bool loopback, int port);
// Listens at a numeric address of this machine and a port (0: any free port). Not open on failure, with the reason in
// `why`.
Socket listen_at(const std::string& address, int port, std::string& why);
int port_of(const Socket& listener);
// Listens at a local name of up to 100 bytes; "": the system chooses one. Not open if the name is taken.
Socket listen_locally(const std::string& name);
std::string local_name_of(const Socket& listener);
// A waiting connection; not open if there is none. Closes local connections of other users.
Socket accept_from(const Socket& listener);
// Connects, and waits until `until`. Not open on failure, with the reason in `why`.
Socket connect_to(const std::string& host, int port, Clock::time_point until, std::string& why);
// The same to a local name; also fails if a process of another user listens there.
Socket connect_locally(const std::string& name, Clock::time_point until, std::string& why);
// Begins to connect to a numeric address, without blocking. Not open on failure, with the reason in `why`.
Socket begin_connection(const std::string& address, int port, std::string& why);
// The outcome of begin_connection(): nullopt while it is in progress, "" if it is connected, else why it failed.
std::optional<std::string> outcome_of(const Socket& connection);
// The numeric address of the peer: "10.0.0.7".
std::string address_of_peer(const Socket& socket);
bool is_numeric(const std::string& host);   // an address, and no name
bool is_loopback(const std::string& host);  // "localhost", or a numeric loopback address

// Bytes that have arrived, up to `most`; does not block. `ended`: the peer has closed the connection or is gone.
struct ReceivedBytes {
    std::string bytes;
    bool ended = false;
};
ReceivedBytes receive_some(const Socket& socket, size_t most);
// The number of bytes that the kernel has accepted; does not block. nullopt: the peer has closed the connection.
std::optional<size_t> send_some(const Socket& socket, std::string_view bytes);
void end_sending(const Socket& socket);  // the peer can still read all that was sent
bool out_of_descriptors();               // whether the last accept_from() failed because of EMFILE or ENFILE

// Waits for data; false at `until`.
bool readable(const Socket& socket, Clock::time_point until);

// A message of the rendezvous, of `tutti launch` and its agents (launch/link.h), or of the file service.
inline constexpr size_t kLongestFrame = size_t{64} << 20;
struct Frame {
    enum class Type : uint8_t {
        // rendezvous.h; the first three also handshake.h
        challenge,
        join,
        welcome,
        refusal,
        table,
        abort,
        bye,
        // launch/link.h
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
        sealed,
        // file_service.h
        question,
        answer,
    };
    Type type = Type::challenge;
    std::string body;
};
// A frame as bytes: length of the body, type, body.
std::string to_bytes(Frame::Type type, std::string_view body);
// False if the peer is gone or accepts nothing for a second.
bool send_frame(const Socket& socket, Frame::Type type, std::string_view body);

// Reads frames from a stream.
class FrameReader {
  public:
    // A frame, if a complete one has arrived; does not block. At the end of the stream, or if a frame is longer than
    // `longest`, closed() becomes true.
    std::optional<Frame> read(const Socket& socket, size_t longest = kLongestFrame);
    bool closed() const { return closed_; }
    // The two parts of read(), for bytes from another source.
    void add(std::string_view bytes) { buffer_ += bytes; }
    std::optional<Frame> take(size_t longest = kLongestFrame);

  private:
    std::string buffer_;
    bool closed_ = false;
};

}  // namespace tutti::comm::tcp
