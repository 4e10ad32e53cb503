// comm/world.h: a rank's place among all ranks, and the maker of its groups. Each rank has one World, made by a
// backend: threads/thread_world.h (ranks are threads of this process) or processes/process_world.h (processes); run.h
// chooses.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/comm/stop.h"

namespace tutti::comm {

// The transport between ranks that are processes.
enum class ProcessBackend : uint8_t { of_launcher, mpi, tcp };
// "auto", "mpi", "tcp"; UsageError for others.
ProcessBackend process_backend_of(std::string_view name);

struct WorldOptions {
    double timeout_s = 300;        // of every wait
    bool progress_thread = false;  // one more thread per rank, which communicates while the rank computes
    std::string flight_directory;  // for rank-N.json, each rank's last operations, written on failure; "": none
    ProcessBackend backend = ProcessBackend::of_launcher;
    bool watched = false;  // another thread may check whether other ranks have aborted (nccl/)
    Stop* stop = nullptr;  // asked by every wait while there is nothing to save; outlives the world
    // Of processes on several hosts that meet over TCP (tcp/secret.h): comm.secret, and where its file may be made.
    std::string secret = "auto", run_directory;
};

// The order of the additions of a reduction between devices.
enum class SumOrder : uint8_t {
    tree,       // of tree_reduce.h: the bits of every other backend
    fast,       // the library's own, which depends on the machine; 16-bit values are rounded on the way
    automatic,  // tree, but fast in groups whose hosts are no subtrees: there the tree takes more bytes between hosts
};
// "tree", "fast", "auto".
SumOrder sum_order_of(std::string_view name);

// Whether a group of several devices keeps kReductionBytes of each for values of other ranks that have arrived to be
// added, by us: the library adds into the type of its input alone. `automatic` keeps them where the library adds, too.
inline bool adds_along_tree(SumOrder order, DType input, DType output) {
    return order != SumOrder::fast || input != output;
}
// One size, from before the first step on: to free memory or to take more may wait for the whole device, whose kernels
// may wait for other ranks.
inline constexpr int64_t kReductionBytes = int64_t{64} << 20;

// Of a world whose collectives work in the memory of its ranks' devices (kernels/backends.h).
struct DeviceWorldOptions {
    SumOrder order = SumOrder::tree;
    // Multiprocessors that an operation may take, a CTA on each (ncclConfig_t::maxCTAs); 0: the library's own choice.
    int max_ctas = 0;
    // The same for messages. A message holds them from when its own side is ready until its partner is, and a rank may
    // have one in flight on each of its channels: if these together took the whole GPU, messages that wait for their
    // partners would keep out those that the partners wait for.
    int message_ctas = 4;
    double timeout_s = 300;  // of one operation, from when all that it waits for on its own device is done
};

class World {
  public:
    virtual ~World() = default;
    virtual int rank() const = 0;
    virtual int size() const = 0;
    virtual std::string backend() const = 0;         // "threads"
    virtual std::vector<int> ranks_of_host() const;  // those that share this rank's host, in order; all by default

    // The group of these ranks, in this order. All ranks of the group call group() with the same name and order; two
    // ranks make the groups that they share in the same order.
    virtual std::unique_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) = 0;
    // A group of two ranks, for messages only.
    virtual std::unique_ptr<Communicator> channel(const std::string& name, const std::vector<int>& ranks) {
        return group(name, ranks);
    }
    // Stops all other ranks in their next wait, with this reason. The first reason stays.
    virtual void abort(const std::string& reason) = 0;

    virtual Progress& progress() = 0;
    virtual FlightRecorder& recorder() = 0;

    // The group of all ranks, in order.
    std::unique_ptr<Communicator> everyone(const std::string& name);

    // While a rank starts, its failure leaves no flight record unless a wait timed out: the error is enough, and the
    // directory may belong to a run that has not failed.
    void set_starting(bool starting) { starting_ = starting; }
    bool starting() const { return starting_; }

  protected:
    // This rank's place in `ranks`. Error, with the name of the group, if it is none of them.
    int place_in(const std::string& group, const std::vector<int>& ranks) const;

  private:
    bool starting_ = false;
};

// What a failed rank tells the others: "rank 3 failed: ...", or the reason of a rank that was asked to stop (stop.h).
std::string reason_of(int rank, const std::exception& error);

// Writes `directory`/rank-N.json, completely or not at all, unless the rank was starting. Does not throw, because
// `error` is already being handled: returns the reason when the file could not be written, else "". `tutti report
// --flight` reads the files.
std::string dump_flight_record(World& world, const std::string& directory, const std::exception& error);

}  // namespace tutti::comm
