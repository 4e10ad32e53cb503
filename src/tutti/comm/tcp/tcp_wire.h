// comm/tcp/tcp_wire.h: the wire between processes without MPI, over TCP or, on one host, local sockets. A rank has one
// connection to rank 0's hub for the whole run, and a link to each rank of another host that it sends to: a connection
// that is made for the first message. No call waits for a connection. On a link the receiver first sends a nonce, and
// the sender's hello proves that it knows the nonce, the nonce of this rendezvous and the job's secret. Nothing is
// encrypted.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tutti/base/awake_time.h"
#include "tutti/comm/launcher.h"
#include "tutti/comm/processes/wire.h"
#include "tutti/comm/stop.h"
#include "tutti/comm/tcp/rendezvous.h"
#include "tutti/comm/tcp/socket.h"

namespace tutti::comm::tcp {

class TcpWire final : public processes::Wire {
  public:
    // Collective over all ranks. TimedOut names the missing ranks. `hosts`: AssignedHosts; empty: ranks that can share
    // memory are on one host. `stop`: checked while the ranks connect; nullptr: none.
    TcpWire(const Launch& launch, const Rendezvous& rendezvous, double timeout_s, const std::vector<int>& hosts,
            const Stop* stop = nullptr);
    ~TcpWire() override;

    int highest_tag() const override { return 0x7fffffff; }
    std::byte* share(int64_t bytes) override;
    void barrier_of_host() override;
    Request send(const void* data, int64_t bytes, int to, int tag) override;
    Request receive(void* data, int64_t bytes, int from, int tag) override;
    bool done(Request request) override;
    void send_abort(const std::string& reason) override;
    std::optional<std::string> abort_received() override;
    void finalize() override;

  private:
    // A message of up to kEager bytes is sent at once (data). A longer one is offered, and sent (bulk) once the
    // receiver has granted a destination, so that no long message is buffered.
    enum class HeaderKind : uint32_t { hello, data, offer, grant, bulk };
    struct Header {
        HeaderKind kind = HeaderKind::data;
        int32_t tag = 0;
        int64_t bytes = 0;    // of the message; in a grant, the number that the bulk will carry
        uint64_t number = 0;  // offer, grant: chosen by the sender of the message; bulk: by its receiver
    };
    struct Hello {  // the first message of a link; the tag is the rank of its sender
        Header header{.kind = HeaderKind::hello, .bytes = sizeof(Proof)};
        Proof proof{};
    };
    struct QueuedMessage {
        Header header;
        const std::byte* data = nullptr;  // header.bytes of them; null for a header alone
        int64_t sent = 0;                 // bytes of header and data
        Request request = -1;             // done when all bytes are sent
    };
    struct UnexpectedMessage {  // arrived before its receive was posted
        int64_t bytes = 0;
        std::vector<std::byte> data;
        bool offered = false;  // the data wait for a grant
        uint64_t number = 0;   // of the offer
    };
    struct PostedReceive {
        std::byte* data = nullptr;
        int64_t bytes = 0;
        Request request = -1;
    };
    struct IncomingLink {
        Socket socket;
        int from = 0;
        Header header;
        int64_t got = 0;                // bytes of header and data
        std::byte* data = nullptr;      // destination of the data
        Request request = -1;           // of the receive to which the data belong
        std::vector<std::byte> buffer;  // data without a matching receive
    };
    struct Peer {
        Socket out;                 // the link to it
        bool is_connected = false;  // the challenge has arrived
        AwakeTime connecting{0};
        Nonce challenge{};
        size_t got = 0;  // bytes of the challenge
        Hello hello;
        std::deque<QueuedMessage> queue;
        // By tag; no queue is empty.
        std::map<int, std::deque<UnexpectedMessage>> unexpected;
        std::map<int, std::deque<PostedReceive>> posted;
    };
    struct OfferedMessage {
        const std::byte* data;
        int64_t bytes;
        Request request;
    };

    void join(const Launch& launch, const std::vector<int>& hosts);
    void take_table(const std::string& body, const Launch& launch);
    Contact own_contact(const Launch& launch, const std::vector<int>& hosts) const;
    bool join_at(int port, const Contact& own, Clock::time_point until, std::string& why);
    std::optional<Frame> first_answer(Clock::time_point until);
    std::optional<std::string> proved(const Frame& answer, Frame::Type type) const;
    bool wait_for_control(Clock::time_point until);
    void check_stop();

    Request new_request();
    void finish(Request request);
    void push(int to, QueuedMessage message);
    std::string address_of(int rank) const;
    std::string full_address_of(int rank) const;  // with the port: for error messages
    void connect_peer(int to);
    bool is_connected(int to);
    Proof proof_of_link(const Nonce& challenge, int from, int to) const;
    void progress();
    void flush(int to);
    bool read(IncomingLink& in);  // false: the connection is over
    void admit(Listener::Connection connection);
    void take_header(IncomingLink& in);
    void take_message(IncomingLink& in);
    PostedReceive take_posted(
        const IncomingLink& in);  // removes the oldest receive with the message's tag; there must be one
    void grant(int from, const PostedReceive& posted, uint64_t offer);
    const std::optional<std::string>& poll_abort();
    [[noreturn]] void lost(int peer, const std::string& why);
    [[noreturn]] void cannot_connect(int to, const std::string& why);
    [[noreturn]] void fail(const std::string& error);
    std::string name_of(int rank) const;

    const Rendezvous rendezvous_;
    const double timeout_s_;
    const Stop* stop_;
    std::unique_ptr<Hub> hub_;  // of rank 0
    Listener listener_;         // for links
    Socket control_, memory_;   // control_: the connection to the hub; memory_: the shared memory
    FrameReader control_reader_;
    std::optional<std::string> abort_;
    Key key_{};                       // of the job; after the rendezvous, of its links
    Nonce challenge_{}, nonce_{};     // of the hub and of this rank, for the connection to the hub
    std::vector<Contact> contacts_;   // by rank
    std::string rendezvous_address_;  // of rank 0's host, as seen by this rank
    std::byte* window_ = nullptr;     // the barrier's counters, then the shared memory
    int64_t window_bytes_ = 0;
    uint32_t barriers_ = 0;

    std::mutex mutex_;
    std::vector<Peer> peers_;  // by rank
    std::vector<IncomingLink> incoming_;
    std::vector<bool> complete_;  // by request
    std::vector<Request> free_;
    std::map<uint64_t, OfferedMessage> offers_;  // of this rank, by number
    std::map<uint64_t, PostedReceive> granted_;  // by number
    uint64_t last_number_ = 0;
};

}  // namespace tutti::comm::tcp
