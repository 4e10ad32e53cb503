#include "tutti/comm/mpi/mpi_world.h"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "tutti/comm/mpi/group.h"
#include "tutti/comm/mpi/host.h"
#include "tutti/comm/mpi/wire.h"

namespace tutti::comm {

namespace mpi {
namespace {

constexpr std::chrono::seconds kGrace{2};

// Ends the process when something that cannot be given a time-out, such as MPI_Init, takes too long.
class Watchdog {
  public:
    // Unless it is destroyed within `seconds`: prints `message` and exits with 4, as a failed rank does.
    Watchdog(double seconds, std::string message)
        : thread_([this, seconds, text = "tutti: " + std::move(message) + "\n"] {
              std::unique_lock lock(mutex_);
              if (ended_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return done_; })) return;
              std::fputs(text.c_str(), stderr);
              _exit(4);
          }) {}
    ~Watchdog() {
        {
            const std::lock_guard lock(mutex_);
            done_ = true;
        }
        ended_.notify_one();
        thread_.join();
    }
    Watchdog(const Watchdog&) = delete;
    Watchdog& operator=(const Watchdog&) = delete;

  private:
    std::mutex mutex_;
    std::condition_variable ended_;
    bool done_ = false;
    std::thread thread_;  // last: it uses the others
};

class MpiCommunicator final : public Communicator {
  public:
    MpiCommunicator(std::shared_ptr<Group> group, std::vector<int> ranks, int rank, Progress& progress,
                    FlightRecorder& recorder)
        : Communicator(group->name, std::move(ranks), rank, progress, recorder), group_(std::move(group)) {}

  protected:
    std::shared_ptr<Operation> start(Collective collective, uint64_t sequence) override {
        LastOperation last{.sequence = sequence, .operation = collective.summary()};
        name().copy(last.group.data(), last.group.size() - 1);
        group_->host.note(last);
        if (is_message(collective.kind)) return start_message(group_, std::move(collective), sequence);
        if (!group_->can_begin(sequence))
            progress().wait_until([&] { return group_->can_begin(sequence); },
                                  [&] {
                                      return concat(collective.summary().text(), ", operation ", sequence, " of group ",
                                                    name(), ": waiting for earlier operations to end");
                                  });
        return start_staged(group_, std::move(collective), sequence);
    }

  private:
    std::shared_ptr<Group> group_;
};

class MpiWorld final : public World {
  public:
    MpiWorld(const Launch& launch, const WorldOptions& options, const MpiOptions& mpi_options)
        : options_(options),
          exceptions_(std::uncaught_exceptions()),
          starting_(
              std::in_place, options.timeout_s,
              concat("rank ", launch.rank, " of ", launch.size, ": MPI has not started within ", options.timeout_s,
                     " s (comm.timeout_s): a rank is missing, or stands still before it has "
                     "said who it is; look for a process that is not running, and at the hosts")),
          wire_(launch, options.progress_thread, mpi_options.hosts),
          host_(start_host(mpi_options)),
          progress_(std::in_place, host_, options.timeout_s, options.progress_thread),
          everyone_(World::everyone("world")) {
        starting_.reset();
    }

    ~MpiWorld() override {
        leave();
        everyone_.reset();
        progress_.reset();  // ends its thread: nothing moves messages any more
        wire_.drop_kept();  // before the host, which their groups give their memory back to
    }

    int rank() const override { return wire_.place().rank; }
    int size() const override { return wire_.place().size; }
    std::string engine() const override { return "mpi"; }

    std::unique_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) override {
        int place = -1;
        for (size_t i = 0; i < ranks.size(); ++i)
            if (ranks[i] == rank()) place = static_cast<int>(i);
        check(place >= 0, "rank ", rank(), " asks for group ", name, ", of which it is not a member");
        const uint64_t key = group_key(name, ranks, generations_[{name, ranks}]++);
        auto group = std::make_shared<Group>(name, key, ranks, place, wire_, *host_);
        if (group->shape.hosts() > 1) {
            const auto [other, is_new] = tags_.insert({group->first_tag, {name, key}});
            check(is_new || other->second.second == key, "groups ", name, " and ", other->second.first,
                  " would share their MPI tags: give one of them another name");
        }
        return std::make_unique<MpiCommunicator>(std::move(group), ranks, place, *progress_, recorder_);
    }

    void abort(const std::string& reason) override {
        failed_ = true;
        host_->abort(reason);
        wire_.send_abort(reason);
    }

    // Everybody has come to the end, so MPI ends without waiting for anybody who will not come.
    void end() {
        everyone_->barrier();
        ended_ = true;
        everyone_.reset();
        progress_.reset();  // ends its thread
        const Watchdog ending(options_.timeout_s, concat("rank ", rank(), ": MPI has not ended within ",
                                                         options_.timeout_s, " s (comm.timeout_s)"));
        host_->close();
        wire_.finalize();
    }
    // Tells the others (unless it was they who told us), leaves the record, and gives them time to do the same: mpirun
    // kills all as soon as the first process ends.
    void fail(const std::exception& error) {
        if (cause_of(error) != Cause::told) abort(concat("rank ", rank(), " failed: ", error.what()));
        failed_ = true;
        dump_flight_record(*this, options_.flight_directory, error);
        host_->set_status(RankStatus::failed);
        const bool one_host = static_cast<int>(wire_.place().locals.size()) == size();  // others cannot be looked at
        for (const auto until = Clock::now() + kGrace; Clock::now() < until && !(one_host && host_->all_stopped());)
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }

    Progress& progress() override { return *progress_; }
    FlightRecorder& recorder() override { return recorder_; }

  private:
    void leave() {
        if (ended_ || failed_) return;
        try {
            if (std::uncaught_exceptions() > exceptions_)
                fail(Error("it was left by an exception"));
            else
                end();
        } catch (const std::exception& error) {
            fail(error);
        }
    }

    std::shared_ptr<Host> start_host(const MpiOptions& mpi_options) {
        const auto ranks = static_cast<int>(wire_.place().locals.size());
        const int64_t bytes = Host::control_bytes(ranks) + ranks * mpi_options.shared_bytes_per_rank;
        return std::make_shared<Host>(wire_, wire_.share(bytes), bytes, options_.progress_thread);
    }

    const WorldOptions options_;
    const int exceptions_;
    bool ended_ = false, failed_ = false;
    std::optional<Watchdog> starting_;
    Wire wire_;
    std::shared_ptr<Host> host_;
    FlightRecorder recorder_;
    std::optional<Progress> progress_;
    std::map<std::pair<std::string, std::vector<int>>, int> generations_;
    std::map<int, std::pair<std::string, uint64_t>> tags_;
    std::unique_ptr<Communicator> everyone_;
};

}  // namespace
}  // namespace mpi

std::unique_ptr<World> mpi_world(const Launch& launch, const WorldOptions& options, const MpiOptions& mpi) {
    return std::make_unique<mpi::MpiWorld>(launch, options, mpi);
}

void run_mpi(const Launch& launch, const WorldOptions& options, const std::function<void(World&)>& body,
             const MpiOptions& mpi) {
    mpi::MpiWorld world(launch, options, mpi);
    try {
        body(world);
        world.end();
    } catch (const std::exception& error) {
        world.fail(error);
        throw;
    }
}

}  // namespace tutti::comm
