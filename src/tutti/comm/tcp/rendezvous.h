// comm/tcp/rendezvous.h: how processes that a launcher started without MPI find each other: the address, read from the
// environment alone, at which rank 0 listens, and the hub, rank 0's thread at that address. On a connection:
//   hub -> rank   challenge  a fresh number
//   rank -> hub   join       a fresh number, the rank's Contact, a proof of both (secret.h); nothing else is read
//   before hub -> rank   welcome, refusal, table: a proof, and the text that it proves both ways     abort, bye
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
    std::string host;  // rank 0's: a name or an address
    int port = 0;      // rank 0 takes the first free one of `ports` ports from this on; the other ranks try all of them
    int ports = 1;
    std::string job;        // identifies this job and attempt among jobs that may use the same ports
    std::string origin;     // the variables behind the address: "MASTER_ADDR, MASTER_PORT + 1"
    bool one_host = false;  // all ranks are on one host: local names in place of ports, open to this user alone
    Secret secret{};        // of a job on several hosts

    std::string local_name(int port) const;
    std::string place() const;  // "n1:29501 to 29516 (MASTER_ADDR, MASTER_PORT + 1)": for messages
};

// TUTTI_RENDEZVOUS=HOST:PORT for any launcher but `tutti`; else by launcher:
//   tutti       TUTTI_ADDRESS and the 16 ports from TUTTI_PORT on
//   torchrun    MASTER_ADDR and the 16 ports after MASTER_PORT, which is the agent's own store
//   kubernetes  MASTER_ADDR:MASTER_PORT
//   slurm       the first host of the step's nodes, and 16 ports from one that the numbers of job and step choose
// UsageError with the variable that is missing or wrong; also for other launchers, which give no address.
Rendezvous rendezvous_of(const Launch& launch, const Environment& environment);

// The first host of a list as Slurm prints it: "node[01-03,7],gpu2" -> "node01".
std::string first_host(const std::string& nodes);

// A rank's description of itself; plain bytes on the connection.
struct Contact {
    std::array<char, 16> magic{};  // kMagic: this protocol, in this version
    int32_t rank = 0, size = 0;
    std::array<char, 256> job{};
    std::array<char, 192> memory_space{};  // equal for ranks that can share memory
    std::array<char, 64> host{};           // name, for messages
    std::array<char, 64> address{};        // as seen by the hub; on one host the local name for messages
    int32_t port = 0;                      // for messages
    int32_t process = 0, memory = 0;       // process id, and descriptor of the memory that the rank may share
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
// Of any bytes: nothing unless they are a Join of this protocol and job whose proof fits.
std::optional<Join> read_join(std::string_view bytes, const Key& key, const Nonce& challenge, std::string_view job);

// What the hub says to a rank that it knows, and the inverse: nothing unless the proof fits.
std::string make_answer(const Key& key, const Nonce& challenge, const Nonce& nonce, Frame::Type type,
                        std::string_view text);
std::optional<std::string> read_answer(std::string_view bytes, const Key& key, const Nonce& challenge,
                                       const Nonce& nonce, Frame::Type type);

// Collects the address of each rank, sends every rank the table of all, and afterwards tells all ranks when one aborts
// or disappears.
class Hub {
  public:
    // Listens at one of the ports of the rendezvous and starts the thread. Error when no port is free.
    Hub(const Rendezvous& rendezvous, int size, double timeout_s);
    // After end(): waits until all ranks have sent `bye` or are gone, at most for the time-out.
    ~Hub();
    void end() { ending_ = true; }

  private:
    struct Member {  // a process that knows the secret
        Socket socket;
        FrameReader reader;
        Nonce challenge, nonce{};  // the hub's, the rank's
        int rank = -1;
        bool gone = false;
    };
    void run();
    void turn();  // waits a moment for an event and handles it
    void receive(Member& member);
    void admit(Listener::Connection connection);
    std::string refusal_of(const Contact& contact) const;  // "": it is welcome
    bool answer(Member& member, Frame::Type type, std::string_view text) const;
    void give_tables();
    void fail(const std::string& reason, int but = -1);
    std::string missing() const;

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
