// comm/processes/wire.h: the interface to the transport between processes: the hosts of the ranks, one block of memory
// that the ranks of a host share, and non-blocking messages. Implemented over MPI (mpi/mpi_wire.cpp) and over sockets
// (tcp/tcp_wire.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tutti::comm::processes {

struct Topology {
    int rank = 0, size = 1;
    std::vector<int> host_of;             // by rank
    std::vector<std::string> host_names;  // by rank
    std::vector<int> locals;              // ranks of this host, ascending
    int cores = 1;                        // available to the ranks of this host together
};

// Called by the rank's thread and its progress thread; implementations serialise the calls.
class Wire {
  public:
    Wire() = default;
    virtual ~Wire() = default;  // without finalize(): does not wait for other ranks, which may have ended
    Wire(const Wire&) = delete;
    Wire& operator=(const Wire&) = delete;

    const Topology& topology() const { return topology_; }
    virtual int highest_tag() const = 0;
    // Memory that all ranks of the host share, aligned to a page; collective over these ranks, called once. Pages are
    // allocated when they are first written.
    virtual std::byte* share(int64_t bytes) = 0;
    virtual void barrier_of_host() = 0;  // before started() only
    virtual void started() {}            // all ranks are connected; no collective call follows before finalize()

    using Request = int;
    // `data` must live until done() is true. Messages between two ranks with one tag arrive in order.
    virtual Request send(const void* data, int64_t bytes, int to, int tag) = 0;
    virtual Request receive(void* data, int64_t bytes, int from, int tag) = 0;
    virtual bool done(Request request) = 0;  // true once; the request is then invalid
    // Removes the requests that are done; true if none is left.
    bool all_done(std::vector<Request>& requests) {
        std::erase_if(requests, [&](Request request) { return done(request); });
        return requests.empty();
    }
    bool busy() const { return pending_ > 0; }         // messages are in flight
    uint64_t completed() const { return completed_; }  // messages so far
    // Keeps the owner of messages in flight alive after its operation has failed.
    void keep(std::shared_ptr<const void> owner) { kept_.push_back(std::move(owner)); }
    void drop_kept() { kept_.clear(); }  // once no message moves any more

    // Sends the reason to all ranks that share no memory with this rank, and waits at most a second.
    virtual void send_abort(const std::string& reason) = 0;
    virtual std::optional<std::string> abort_received() = 0;

    // Called when all ranks have reached the end.
    virtual void finalize() = 0;

  protected:
    Topology topology_;
    std::atomic<int> pending_{0};
    std::atomic<uint64_t> completed_{0};

  private:
    std::vector<std::shared_ptr<const void>> kept_;
};

}  // namespace tutti::comm::processes
