// comm/tcp/hub.h: the meeting point of a job, a thread in the process of rank 0: it collects where each rank can be
// reached, gives every rank the table of all, and afterwards tells all ranks when one gives up or disappears.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "tutti/comm/tcp/meeting.h"
#include "tutti/comm/tcp/socket.h"

namespace tutti::comm::tcp {

// What a rank says of itself; plain bytes on the connection.
struct Contact {
    std::array<char, 16> magic{};  // kMagic: this protocol, in this version
    int32_t rank = 0, size = 0;
    std::array<char, 256> job{};
    std::array<char, 192> memory_space{};  // equal for ranks that can share memory
    std::array<char, 64> host{};           // name, for messages
    std::array<char, 64> address{};        // as the hub sees it
    int32_t port = 0;                      // for messages
    int32_t process = 0, memory = 0;       // its id, and the descriptor of the memory that it may share
    std::array<uint64_t, 16> cores{};      // that it may run on, a bit each
};
inline constexpr std::string_view kMagic = "tutti tcp 1";

class Hub {
  public:
    // Listens at the meeting's ports and returns; a thread goes on. Error when none of them is free.
    Hub(const Meeting& meeting, int size, double timeout_s);
    // After end(): stays until all ranks have said goodbye or are gone, but not longer than the time-out.
    ~Hub();
    void end() { ending_ = true; }

  private:
    struct Guest {
        Socket socket;
        FrameReader reader;
        Clock::time_point since;
        int rank = -1;  // not joined yet
        bool gone = false;
    };
    void run();
    void turn();  // waits for something to happen, for a moment, and deals with it
    void welcome(Guest& guest, const Frame& frame);
    void refuse(Guest& guest, const std::string& reason);
    void give_tables();
    void tell_all(Frame::Type type, const std::string& text, int but = -1);
    void fail(const std::string& reason, int but = -1);
    std::string missing() const;

    const Meeting meeting_;
    const int size_;
    const double timeout_s_;
    Socket listener_;
    std::vector<Guest> guests_;
    std::vector<Contact> contacts_;  // by rank
    int joined_ = 0;
    bool running_ = false;
    std::string failure_;  // why all must stop
    std::atomic<bool> ending_{false}, stopping_{false}, all_gone_{false};
    std::thread thread_;  // last: it uses the others
};

}  // namespace tutti::comm::tcp
