// comm/world.h: a rank's place among all ranks, and where its groups come from. One World per rank, made by an engine:
// threads/thread_world.h (ranks are threads of this process), processes/process_world.h (processes). run.h chooses.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/comm/communicator.h"

namespace tutti::comm {

// What joins ranks that are processes.
enum class ProcessEngine : uint8_t { of_launcher, mpi, tcp };
// "auto", "mpi", "tcp"; UsageError for others.
ProcessEngine process_engine_of(std::string_view name);

struct WorldOptions {
    double timeout_s = 300;        // of every wait
    bool progress_thread = false;  // one more thread per rank, which communicates while the rank computes
    std::string flight_directory;  // where every rank leaves rank-N.json, its last operations, on failure; "": nowhere
    ProcessEngine engine = ProcessEngine::of_launcher;
    bool watched = false;  // a thread beside the rank's own may look whether other ranks have given up (nccl/)
};

class World {
  public:
    virtual ~World() = default;
    virtual int rank() const = 0;
    virtual int size() const = 0;
    virtual std::string engine() const = 0;  // "threads"

    // The group of these ranks, in this order; every one of them calls it, with the same name and order.
    virtual std::unique_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) = 0;
    // All other ranks stop in their next wait, with this reason. The first reason stays.
    virtual void abort(const std::string& reason) = 0;

    virtual Progress& progress() = 0;
    virtual FlightRecorder& recorder() = 0;

    // Everybody, in order.
    std::unique_ptr<Communicator> everyone(const std::string& name);

    // While a rank starts, its failure leaves no flight record, unless a wait timed out: the error says all, and the
    // directory may be that of a run which has not failed.
    void set_starting(bool starting) { starting_ = starting; }
    bool starting() const { return starting_; }

  private:
    bool starting_ = false;
};

// WorldOptions::flight_directory/rank-N.json, whole or not at all, when the failure leaves one. Does not throw: it is
// called when something else, `error`, went wrong already, and returns why it could not write, or "". `tutti report
// --flight` reads them.
std::string dump_flight_record(World& world, const std::string& directory, const std::exception& error);

}  // namespace tutti::comm
