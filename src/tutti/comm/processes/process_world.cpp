#include "tutti/comm/processes/process_world.h"

#include <chrono>
#include <exception>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "tutti/comm/processes/process_group.h"
#include "tutti/comm/processes/shared_state.h"
#include "tutti/comm/processes/wire.h"

namespace tutti::comm {

namespace processes {
namespace {

constexpr std::chrono::milliseconds kGrace{2000};     // of a failed rank, for the others to write their records
constexpr std::chrono::milliseconds kHeadStart{300};  // of the rank at fault, whose message then comes first

class ProcessCommunicator final : public Communicator {
  public:
    ProcessCommunicator(std::shared_ptr<ProcessGroup> group, std::vector<int> ranks, int rank, Progress& progress,
                        FlightRecorder& recorder)
        : Communicator(group->name, std::move(ranks), rank, progress, recorder), group_(std::move(group)) {}

  protected:
    std::shared_ptr<Operation> start(Collective collective, uint64_t sequence) override {
        LastOperation last{.sequence = sequence, .operation = collective.summary()};
        name().copy(last.group.data(), last.group.size() - 1);
        group_->host.set_last_operation(last);
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
    std::shared_ptr<ProcessGroup> group_;
};

class ProcessWorld final : public World {
  public:
    ProcessWorld(std::string backend, std::unique_ptr<Wire> wire, const WorldOptions& options)
        : options_(options),
          backend_(std::move(backend)),
          wire_(std::move(wire)),
          host_(start_host()),
          progress_(std::in_place, host_, options.timeout_s, options.progress_thread, options.stop),
          everyone_(World::everyone("world")) {
        wire_->started();
    }

    ~ProcessWorld() override {
        everyone_.reset();
        progress_.reset();   // ends the progress thread, so that no message moves any more
        wire_->drop_kept();  // before host_, which owns the memory of the groups
    }

    int rank() const override { return wire_->topology().rank; }
    int size() const override { return wire_->topology().size; }
    std::string backend() const override { return backend_; }
    std::vector<int> ranks_of_host() const override { return wire_->topology().locals; }

    std::unique_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) override {
        const int group_rank = rank_in(name, ranks);
        const uint64_t key = group_key(name, ranks, generations_[{name, ranks}]++);
        auto group = std::make_shared<ProcessGroup>(name, key, ranks, group_rank, *wire_, *host_, tags_);
        return std::make_unique<ProcessCommunicator>(std::move(group), ranks, group_rank, *progress_, recorder_);
    }

    void abort(const std::string& reason) override {
        host_->abort(reason);
        wire_->send_abort(reason);
    }

    // After the barrier all ranks have reached the end, so finalize() does not wait for a failed rank.
    void end() {
        everyone_->barrier();
        everyone_.reset();
        progress_.reset();  // ends the progress thread
        host_->close();
        wire_->finalize();
    }
    // Tells the other ranks, unless they told this rank; writes the flight record; and waits until the others have
    // written theirs, because mpirun and torchrun kill all processes as soon as the first one ends. The rank at fault
    // ends first, with its message.
    void fail(const std::exception& error) {
        const bool told = cause_of(error) == Cause::told;
        if (!told) abort(reason_of(rank(), error));
        dump_flight_record(*this, options_.flight_directory, error);
        host_->set_status(RankStatus::failed);
        const bool one_host =
            std::ssize(wire_->topology().locals) == size();  // the state of other hosts is not visible
        const bool preempted = dynamic_cast<const Preempted*>(&error) != nullptr;  // ends within a second
        for (const auto until = Clock::now() + (preempted ? kHeadStart : kGrace);
             Clock::now() < until && !(one_host && host_->all_stopped());)
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        if (told) std::this_thread::sleep_for(kHeadStart);
    }

    Progress& progress() override { return *progress_; }
    FlightRecorder& recorder() override { return recorder_; }

  private:
    std::shared_ptr<SharedState> start_host() {
        const auto ranks = static_cast<int>(wire_->topology().locals.size());
        const int64_t bytes = SharedState::control_bytes(ranks) + ranks * SharedState::kBytesPerRank;
        return std::make_shared<SharedState>(*wire_, wire_->share(bytes), bytes, options_.progress_thread);
    }

    const WorldOptions options_;
    const std::string backend_;
    const std::unique_ptr<Wire> wire_;
    std::shared_ptr<SharedState> host_;
    FlightRecorder recorder_;
    std::optional<Progress> progress_;
    std::map<std::pair<std::string, std::vector<int>>, int> generations_;
    Tags tags_{wire_->highest_tag()};
    std::unique_ptr<Communicator> everyone_;
};

}  // namespace

void run_processes(const std::string& backend, const std::function<std::unique_ptr<Wire>()>& make_wire,
                   const WorldOptions& options, const std::function<void(World&)>& body) {
    ProcessWorld world(backend, make_wire(), options);
    try {
        body(world);
        world.end();
    } catch (const std::exception& error) {
        world.fail(error);
        throw;
    }
}

}  // namespace processes
}  // namespace tutti::comm
