#include "tutti/comm/threads/thread_world.h"

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "tutti/comm/progress.h"
#include "tutti/comm/threads/shared_group.h"

namespace tutti::comm {

namespace threads {
namespace {

// One notifier for all ranks of the process. Ringing costs a load when no rank sleeps. It carries the abort flag too,
// because whoever is woken must look at it.
class ThreadNotifier final : public Notifier {
  public:
    explicit ThreadNotifier(std::chrono::nanoseconds spin_time) : spin_time_(spin_time) {}

    // Either the sleeper is counted before a ringer looks, and is woken; or the ringer has published before the sleeper
    // asks `ready`, and it does not sleep. Both sides use sequentially consistent operations for that.
    void sleep(Clock::time_point until, const std::function<bool()>& ready) override {
        uint64_t seen = 0;
        {
            std::lock_guard lock(mutex_);
            seen = rings_;
        }
        ++sleepers_;
        if (!ready() && !aborted_) {
            std::unique_lock lock(mutex_);
            rung_.wait_until(lock, until, [&] { return rings_ != seen; });
        }
        --sleepers_;
    }

    void notify() override {
        if (sleepers_ == 0) return;
        {
            std::lock_guard lock(mutex_);
            ++rings_;
        }
        rung_.notify_all();
    }

    void check_abort() const override {
        if (!aborted_) return;
        std::lock_guard lock(mutex_);
        throw Aborted(reason_);
    }

    std::chrono::nanoseconds spin_time() const override { return spin_time_; }

    void abort(const std::string& reason) {
        {
            std::lock_guard lock(mutex_);
            if (!aborted_) reason_ = reason;
            ++rings_;
        }
        aborted_ = true;
        rung_.notify_all();
    }

  private:
    const std::chrono::nanoseconds spin_time_;
    std::atomic<int> sleepers_{0};
    std::atomic<bool> aborted_{false};
    mutable std::mutex mutex_;
    std::condition_variable rung_;
    uint64_t rings_ = 0;
    std::string reason_;
};

// What all ranks of the process share.
class Registry {
  public:
    Registry(int ranks, const WorldOptions& world_options)
        : options(world_options),
          size(ranks),
          notifier(std::make_shared<ThreadNotifier>(spin_time_of(size, available_cores(), options.progress_thread))) {}

    // The k-th group that a rank makes with this name and these ranks is the k-th of every other member.
    std::shared_ptr<SharedGroup> group(const std::string& name, const std::vector<int>& ranks, int generation) {
        std::lock_guard lock(mutex_);
        auto& shared = groups_[{name, ranks, generation}];
        if (!shared) shared = std::make_shared<SharedGroup>(name, ranks.size(), notifier);
        return shared;
    }

    const WorldOptions options;
    const int size;
    const std::shared_ptr<ThreadNotifier> notifier;

  private:
    std::mutex mutex_;
    std::map<std::tuple<std::string, std::vector<int>, int>, std::shared_ptr<SharedGroup>> groups_;
};

class ThreadCommunicator final : public Communicator {
  public:
    ThreadCommunicator(std::shared_ptr<SharedGroup> group, std::vector<int> ranks, int rank, Progress& progress,
                       FlightRecorder& recorder)
        : Communicator(group->name, std::move(ranks), rank, progress, recorder), group_(std::move(group)) {}

  protected:
    std::shared_ptr<Operation> start(Collective collective, uint64_t sequence) override {
        return threads::start(group_, rank(), std::move(collective), sequence);
    }

  private:
    std::shared_ptr<SharedGroup> group_;
};

class ThreadWorld final : public World {
  public:
    ThreadWorld(std::shared_ptr<Registry> registry, int rank)
        : registry_(std::move(registry)),
          rank_(rank),
          progress_(registry_->notifier, registry_->options.timeout_s, registry_->options.progress_thread) {}

    int rank() const override { return rank_; }
    int size() const override { return registry_->size; }
    std::string engine() const override { return "threads"; }

    std::unique_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) override {
        int place = -1;
        for (size_t i = 0; i < ranks.size(); ++i)
            if (ranks[i] == rank_) place = static_cast<int>(i);
        check(place >= 0, "rank ", rank_, " asks for group ", name, ", of which it is not a member");
        const int generation = generations_[{name, ranks}]++;
        return std::make_unique<ThreadCommunicator>(registry_->group(name, ranks, generation), ranks, place, progress_,
                                                    recorder_);
    }

    void abort(const std::string& reason) override { registry_->notifier->abort(reason); }
    Progress& progress() override { return progress_; }
    FlightRecorder& recorder() override { return recorder_; }

  private:
    std::shared_ptr<Registry> registry_;
    int rank_;
    FlightRecorder recorder_;
    Progress progress_;
    std::map<std::pair<std::string, std::vector<int>>, int> generations_;
};

}  // namespace
}  // namespace threads

void run_ranks(int ranks, const WorldOptions& options, const std::function<void(World&)>& body) {
    check<UsageError>(ranks >= 1, "a run needs at least one rank, got ", ranks);
    const auto registry = std::make_shared<threads::Registry>(ranks, options);
    // All worlds end after all ranks: a rank that has failed may still be read by another's last share.
    std::vector<std::unique_ptr<threads::ThreadWorld>> worlds;
    for (int rank = 0; rank < ranks; ++rank) worlds.push_back(std::make_unique<threads::ThreadWorld>(registry, rank));
    std::mutex mutex;
    std::exception_ptr first;
    const auto run = [&](int rank) {
        World& world = *worlds[static_cast<size_t>(rank)];
        try {
            body(world);
        } catch (const Aborted& e) {  // the error of another rank
            dump_flight_record(world, options.flight_directory, e);
        } catch (const std::exception& e) {
            {
                std::lock_guard lock(mutex);
                if (!first) first = std::current_exception();
            }
            world.abort(concat("rank ", rank, " failed: ", e.what()));
            dump_flight_record(world, options.flight_directory, e);
        }
    };
    std::vector<std::thread> others;
    for (int rank = 1; rank < ranks; ++rank) others.emplace_back(run, rank);
    run(0);
    for (std::thread& thread : others) thread.join();
    if (first) std::rethrow_exception(first);
}

}  // namespace tutti::comm
