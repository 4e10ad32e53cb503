// comm/world.h: a rank among all ranks, and the factory of its groups. Each rank has one World of a backend:
// threads/thread_world.h (ranks are threads of this process) or processes/process_world.h (processes); run.h chooses.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/comm/stop.h"

namespace tutti::comm {

// The transport between ranks that are processes.
enum class ProcessBackend : uint8_t { of_launcher, mpi, tcp };
// "auto", "mpi", "tcp"; UsageError for another name.
ProcessBackend process_backend_of(std::string_view name);

struct WorldOptions {
    double timeout_s = 300;        // of every wait
    bool progress_thread = false;  // a second thread per rank, which communicates while the rank computes
    std::string flight_directory;  // of the flight records rank-N.json, written on failure; "": none
    ProcessBackend backend = ProcessBackend::of_launcher;
    bool watched = false;  // any thread may call Progress::check_abort()
    Stop* stop = nullptr;  // checked by every wait while there is nothing to save; must outlive the world
    // For processes of several hosts over TCP (tcp/secret.h): comm.secret, and the directory in which rank 0 may make
    // it.
    std::string secret = "auto", run_directory;
};

// The order of additions in a reduction between devices.
enum class SumOrder : uint8_t {
    tree,       // that of tree_reduce.h, with the bits of every other backend
    fast,       // the library's own, which depends on the machine; 16-bit partial sums are rounded
    automatic,  // tree, but fast in groups whose hosts are not subtrees, where the tree sends more bytes between hosts
};
// "tree", "fast", "auto".
SumOrder sum_order_of(std::string_view name);

// Whether a group of several devices may add such a reduction by its own kernels, which need a buffer of
// kReductionBytes per device for the values of other ranks. A library adds into the type of its input alone.
inline bool adds_along_tree(SumOrder order, DType input, DType output) {
    return order != SumOrder::fast || input != output;
}
// Of constant size and allocated before the first step: an allocation or free may wait for all kernels of the device,
// which may wait for other ranks.
inline constexpr int64_t kReductionBytes = int64_t{64} << 20;

// Options of a world whose collectives access the memory of the ranks' devices directly.
struct DeviceWorldOptions {
    SumOrder order = SumOrder::tree;
    // Multiprocessors that an operation may occupy, with one CTA on each (ncclConfig_t::maxCTAs); 0: the library
    // chooses.
    int max_ctas = 0;
    // The same for messages. A message occupies them until its partner is ready too, and a rank may have one in flight
    // on each of its channels. If these occupied the whole GPU, messages that the partners wait for could not run.
    int message_ctas = 4;
    double timeout_s = 300;  // of one operation, once earlier work on its own device is done
};

class World {
  public:
    virtual ~World() = default;
    virtual int rank() const = 0;
    virtual int size() const = 0;
    virtual std::string backend() const = 0;         // "threads"
    virtual std::vector<int> ranks_of_host() const;  // ranks on this rank's host, ascending; by default all

    // The group of these ranks, in this order. All ranks of the group call group() with the same name and order, and
    // two ranks call it in the same order for all groups that they share.
    virtual std::unique_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) = 0;
    // A group of two ranks, for messages only.
    virtual std::unique_ptr<Communicator> channel(const std::string& name, const std::vector<int>& ranks) {
        return group(name, ranks);
    }
    // Makes the next wait of every other rank fail with this reason. The first reason is kept.
    virtual void abort(const std::string& reason) = 0;

    virtual Progress& progress() = 0;
    virtual FlightRecorder& recorder() = 0;

    // The group of all ranks, in order.
    std::unique_ptr<Communicator> everyone(const std::string& name);

    // While a rank starts, its failure writes no flight record unless a wait timed out: the error says enough, and the
    // directory may belong to a run that has not failed.
    void set_starting(bool starting) { starting_ = starting; }
    bool starting() const { return starting_; }

  protected:
    // This rank's index in `ranks`. Error, naming the group, if it is not a member.
    int rank_in(const std::string& group, const std::vector<int>& ranks) const;

  private:
    bool starting_ = false;
};

// The reason that a failed rank tells the others: "rank 3 failed: ...", or that of Preempted (stop.h).
std::string reason_of(int rank, const std::exception& error);

// Writes `directory`/rank-N.json, completely or not at all, unless `directory` is "" or the rank was starting. Failures
// are ignored, since `error` is already being handled. `tutti report --flight` reads the files.
void dump_flight_record(World& world, const std::string& directory, const std::exception& error);

}  // namespace tutti::comm
