// comm/tcp/tcp_wire.h: the messages, shared memory and places of processes that meet without MPI, over TCP or, on one
// host, local sockets. A rank has one connection to rank 0's hub for the whole run, and one to every rank of another
// host that it sends to (a link), made for the first message; no call waits for a connection. On a link the receiver
// sends a fresh number first, and the sender's hello proves that it knows the number of this rendezvous and the job's
// secret. Nothing is encrypted.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tutti/comm/launcher.h"
#include "tutti/comm/processes/wire.h"
#include "tutti/comm/stop.h"
#include "tutti/comm/tcp/rendezvous.h"
#include "tutti/comm/tcp/socket.h"

namespace tutti::comm::tcp {

class TcpWire final : public processes::Wire {
  public:
    // Collective over all ranks. TimedOut names the missing ranks. `hosts`: the host assigned to each rank; empty:
    // ranks that can share memory are on one host.
    // `stop`: asked while the ranks meet; nullptr: none.
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
    // A message of up to kEager bytes is sent at once (data). A longer one is offered and sent (bulk) when the receiver
    // has granted a destination, so that no long message waits in a buffer.
    enum class Kind : uint32_t { hello, data, offer, grant, bulk };
    struct Header {
        Kind kind = Kind::data;
        int32_t tag = 0;
        int64_t bytes = 0;
        uint64_t number = 0;  // offer: of the sender; grant, bulk: of the receiver
    };
    struct Hello {  // the first message of a connection; `tag` is the rank that sends it
        Header header{.kind = Kind::hello, .bytes = sizeof(Proof)};
        Proof proof{};
    };
    struct Outgoing {
        Header header;
        const std::byte* data = nullptr;  // header.bytes of them; null for a header alone
        int64_t sent = 0;                 // header and data
        Request request = -1;             // done when all is sent
    };
    struct Arrived {
        int64_t bytes = 0;
        std::vector<std::byte> data;
        bool offered = false;  // the data wait for a grant
        uint64_t number = 0;
    };
    struct Posted {
        std::byte* data = nullptr;
        int64_t bytes = 0;
        Request request = -1;
    };
    struct Incoming {  // a connection made by another rank
        Socket socket;
        int from = 0;
        Header header;
        int64_t got = 0;                // bytes of the header and the data
        std::byte* data = nullptr;      // destination of the data
        Request request = -1;           // the receive that the data belong to
        std::vector<std::byte> buffer;  // data without a matching receive yet
    };
    struct Peer {
        Socket out;
        bool is_connected = false;  // and the challenge has come
        Clock::time_point connect_until;
        Nonce challenge{};
        size_t got = 0;  // bytes of the challenge
        Hello hello;
        std::deque<Outgoing> queue;
        std::map<int, std::deque<Arrived>> arrived;  // by tag
        std::map<int, std::deque<Posted>> posted;    // by tag; no queue is empty
    };
    struct Offered {
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
    Clock::time_point deadline() const;
    bool wait_for_control(Clock::time_point until);
    void look_for_stop();

    Request new_request();
    void finish(Request request);
    void push(int to, Outgoing message);
    std::string address_of(int rank) const;
    std::string place_of(int rank) const;
    void connect_peer(int to);
    bool is_connected(int to);
    Proof proof_of_link(const Nonce& challenge, int from, int to) const;
    void progress();
    void flush(int to);
    bool read(Incoming& in);  // false: the connection is over
    void admit(Listener::Connection connection);
    void take_header(Incoming& in);
    void take_message(Incoming& in);
    Posted take_posted(const Incoming& in);  // removes the oldest receive of the message's tag, which there must be
    void grant(int from, const Posted& posted, uint64_t offer);
    const std::optional<std::string>& look_for_abort();
    [[noreturn]] void lost(int peer, const std::string& why);
    [[noreturn]] void cannot_connect(int to, const std::string& why);
    [[noreturn]] void fail(const std::string& error);
    std::string name_of(int rank) const;

    const Rendezvous rendezvous_;
    const double timeout_s_;
    const Stop* stop_;
    std::unique_ptr<Hub> hub_;  // rank 0
    Listener listener_;
    Socket control_, memory_;
    FrameReader control_reader_;
    std::optional<std::string> abort_;
    Key key_{};                       // of the job; then of the links of this rendezvous
    Nonce challenge_{}, nonce_{};     // of the connection to the hub: its number, this rank's
    std::vector<Contact> contacts_;   // by rank
    std::string rendezvous_address_;  // rank 0's host as reached by this rank
    std::byte* window_ = nullptr;     // the barrier's counters, then the shared memory
    int64_t window_bytes_ = 0;
    uint32_t barriers_ = 0;

    std::mutex mutex_;
    std::vector<Peer> peers_;  // by rank
    std::vector<Incoming> incoming_;
    std::vector<bool> complete_;  // by request
    std::vector<Request> free_;
    std::map<uint64_t, Offered> offers_;  // of this rank, by number
    std::map<uint64_t, Posted> granted_;  // granted destinations, by number
    uint64_t last_number_ = 0;
};

}  // namespace tutti::comm::tcp
