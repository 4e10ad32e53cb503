// comm/mpi/wire.h: all that is asked of MPI itself: places of the ranks, one piece of memory that the ranks of a host
// share, and messages that never wait. The only header behind which mpi.h stands.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tutti/comm/launcher.h"

namespace tutti::comm::mpi {

struct Place {
    int rank = 0, size = 1;
    std::vector<int> host_of;             // by rank
    std::vector<std::string> host_names;  // by rank
    std::vector<int> locals;              // ranks of the own host, rising
    int cores = 1;                        // that the ranks of the own host may use, together
};

class Wire {
  public:
    // Starts MPI; collective over all ranks. `hosts`: the host that each rank counts as being on, for tests of the path
    // between hosts on one machine; empty: as MPI says. UsageError when MPI sees other ranks than the launcher started.
    Wire(const Launch& launch, bool progress_thread, const std::vector<int>& hosts);
    ~Wire();  // leaves MPI running unless finalize() was called: others may be gone, and MPI would wait for them
    Wire(const Wire&) = delete;
    Wire& operator=(const Wire&) = delete;

    const Place& place() const { return place_; }
    int highest_tag() const { return highest_tag_; }
    // Memory that all ranks of the host see; collective over them. Once. Pages cost nothing until they are touched.
    std::byte* share(int64_t bytes);
    void barrier_of_host();  // while starting only

    using Request = int;
    // `data` must live until done() said so. Messages between two ranks with one tag arrive in order.
    Request send(const void* data, int64_t bytes, int to, int tag);
    Request receive(void* data, int64_t bytes, int from, int tag);
    bool done(Request request);                        // true once; then the request is gone
    bool all_done(std::vector<Request>& requests);     // removes those that are
    bool busy() const { return pending_ > 0; }         // messages are under way
    uint64_t completed() const { return completed_; }  // messages so far
    // Holds what a message still under way may touch after its operation has failed.
    void keep(std::shared_ptr<const void> owner) { kept_.push_back(std::move(owner)); }
    void drop_kept() { kept_.clear(); }  // when nothing calls MPI any more

    // Tells all ranks of other hosts; waits for at most a second until the words are out.
    void send_abort(const std::string& reason);
    std::optional<std::string> abort_received();

    void finalize();

  private:
    struct Mpi;  // everything that needs mpi.h

    Place place_;
    int highest_tag_ = 0;
    std::atomic<int> pending_{0};
    std::atomic<uint64_t> completed_{0};
    std::mutex mutex_;  // MPI calls come from the rank's thread and from its progress thread, one at a time
    std::unique_ptr<Mpi> mpi_;
    std::vector<std::shared_ptr<const void>> kept_;
};

}  // namespace tutti::comm::mpi
