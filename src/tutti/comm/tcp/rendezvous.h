// comm/tcp/rendezvous.h: how processes of a launcher without MPI find each other: the address of rank 0, derived from
// environment variables alone, and the hub, a thread of rank 0 that listens there. The protocol of a connection:
//   hub -> rank   challenge   a nonce
//   rank -> hub   join        a nonce, the rank's Contact, and a proof of these and the challenge (secret.h)
//   hub -> rank   welcome or refusal, later the table of all ranks; each with a proof of both nonces and its text
//   both ways     abort, bye
// The hub reads nothing but a join from a connection without proof.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tutti/comm/launcher.h"
#include "tutti/comm/tcp/listener.h"
#include "tutti/comm/tcp/secret.h"
#include "tutti/comm/tcp/socket.h"

namespace tutti::comm::tcp {

struct Rendezvous {
    std::string host;  // of rank 0: a name or an address
    // Rank 0 listens at the first free port of `port` ... port + ports - 1; the other ranks try all of them.
    int port = 0, ports = 1;
    std::string job;        // identifies this job and attempt among jobs that may use the same ports
    std::string origin;     // the variables that gave the address: "MASTER_ADDR, MASTER_PORT + 1"
    bool one_host = false;  // all ranks are on one host: local sockets instead of ports, for this user alone
    Secret secret{};        // of a job on several hosts

    std::string local_name(int port) const;  // of the local socket that replaces the port
    std::string text() const;                // for error messages: "n1:29501 to 29516 (MASTER_ADDR, MASTER_PORT + 1)"
};

// TUTTI_RENDEZVOUS=HOST:PORT for any launcher but `tutti`; else by launcher:
//   tutti       TUTTI_ADDRESS and the 16 ports from TUTTI_PORT on
//   torchrun    MASTER_ADDR and the 16 ports after MASTER_PORT, at which the agent's store listens
//   environment MASTER_ADDR:MASTER_PORT
//   slurm       the first host of the step's nodes, and 16 ports chosen by the ids of job and step
// UsageError, naming the variable that is missing or wrong; also for other launchers, which give no address.
Rendezvous rendezvous_of(const Launch& launch, const Environment& environment);

// The first host of a list as Slurm prints it: "node[01-03,7],gpu2" -> "node01".
std::string first_host(const std::string& nodes);

// A rank's host and address, sent as plain bytes.
struct Contact {
    std::array<char, 16> magic{};  // kMagic: the version of this protocol
    int32_t rank = 0, size = 0;
    std::array<char, 256> job{};
    std::array<char, 192> memory_space{};  // equal for ranks that can share memory
    std::array<char, 64> host{};           // name, for error messages
    std::array<char, 64> address{};        // as seen by the hub; on one host, the name of the rank's local socket
    int32_t port = 0;                      // at which the rank accepts links (tcp_wire.h)
    int32_t process = 0, memory = 0;       // process id, and the descriptor of its shared memory
    std::array<uint64_t, 16> cores{};      // available to the rank, one bit each
};
inline constexpr std::string_view kMagic = "tutti tcp 2";

// The first frame of a rank.
struct Join {
    Nonce nonce{};
    Contact contact;
    Proof proof{};
};
Join make_join(const Key& key, const Nonce& challenge, const Contact& contact);
// nullopt unless the bytes, which may be any, are a Join of this protocol and job with a valid proof.
std::optional<Join> read_join(std::string_view bytes, const Key& key, const Nonce& challenge, std::string_view job);

// The body of the hub's frames to a rank with a valid join, and the inverse: nullopt unless the proof is valid.
std::string make_answer(const Key& key, const Nonce& challenge, const Nonce& nonce, Frame::Type type,
                        std::string_view text);
std::optional<std::string> read_answer(std::string_view bytes, const Key& key, const Nonce& challenge,
                                       const Nonce& nonce, Frame::Type type);

// Collects the contacts of all ranks, sends the table of all to every rank, and then tells all ranks if one aborts or
// dies.
class Hub {
  public:
    // Listens at one of the ports of the rendezvous and starts the thread. Error if no port is free.
    Hub(const Rendezvous& rendezvous, int size, double timeout_s);
    // After end(), waits until all ranks have sent `bye` or are gone, for at most timeout_s.
    ~Hub();
    void end() { ending_ = true; }

  private:
    struct Member {  // a rank that has proved that it knows the secret
        Socket socket;
        FrameReader reader;
        Nonce challenge, nonce{};  // the hub's, the rank's
        int rank = -1;
        bool gone = false;
    };
    void run();
    void handle_events();  // waits for at most kPollMs
    void receive(Member& member);
    void admit(Listener::Connection connection);
    std::string refusal_of(const Contact& contact) const;  // "": accepted
    bool answer(Member& member, Frame::Type type, std::string_view text) const;
    void send_tables();
    void fail(const std::string& reason, int except = -1);  // tells all ranks, except that one
    std::string missing_ranks() const;

    const Rendezvous rendezvous_;
    const int size_;
    const double timeout_s_;
    Key key_{};
    Listener listener_;
    std::vector<Member> members_;
    std::vector<Contact> contacts_;  // by rank
    int joined_ = 0;
    bool running_ = false;
    std::string failure_;  // the reason why all ranks must stop
    std::atomic<bool> ending_{false}, stopping_{false}, all_gone_{false};
    std::thread thread_;  // last member: uses the others
};

}  // namespace tutti::comm::tcp
