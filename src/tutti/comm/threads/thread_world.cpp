// comm/threads/thread_world.cpp: the shared state of a group and its operations, then worlds and run_ranks().
//
// A rank publishes its operation. Once all ranks have published theirs, each rank does its share of the work directly
// on the memory of the others, without intermediate copies, and counts as done. Once all are done, the operation is
// complete and the buffers may be reused.
#include "tutti/comm/threads/thread_world.h"

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "tutti/base/to_size.h"
#include "tutti/comm/progress.h"
#include "tutti/comm/tree_reduce.h"

namespace tutti::comm {

namespace threads {
namespace {

// ---- groups and their operations ----

// The operations that a rank has begun and that other ranks may still read, by number. Unbounded, so the begin of an
// operation never waits. Each Collective is owned by its Operation until all ranks are done. Thread safe.
class Published {
  public:
    // `number`: one more than in the previous call.
    void add(uint64_t number, const Collective& collective) {
        std::lock_guard lock(mutex_);
        if (collectives_.empty()) first_ = number;
        collectives_.push_back(&collective);
    }
    const Collective& at(uint64_t number) const {
        std::lock_guard lock(mutex_);
        return *collectives_[number - first_];
    }
    // No rank reads operations up to `number` any more.
    void forget(uint64_t number) {
        std::lock_guard lock(mutex_);
        for (; !collectives_.empty() && first_ <= number; ++first_) collectives_.pop_front();
    }

  private:
    mutable std::mutex mutex_;
    std::deque<const Collective*> collectives_;
    uint64_t first_ = 1;
};

struct alignas(64) Member {
    std::atomic<uint64_t> posted{0};  // operations that this rank has begun
    std::atomic<uint64_t> done{0};    // operations whose share this rank has done
    Published operations;
};

struct alignas(64) Mailbox {
    std::atomic<uint64_t> sent{0}, taken{0};
    Published messages;
};

class SharedGroup {
  public:
    SharedGroup(std::string name_, size_t size, std::shared_ptr<Notifier> notifier_)
        : name(std::move(name_)), notifier(std::move(notifier_)), members(size), mailboxes(size * size) {}

    Mailbox& mailbox(int from, int to) { return mailboxes[to_size(from) * members.size() + to_size(to)]; }

    const std::string name;
    const std::shared_ptr<Notifier> notifier;
    std::vector<Member> members;
    std::vector<Mailbox> mailboxes;  // by sender, receiver
};

const std::byte* bytes_of(const Tensor& x) { return x.view().as<const std::byte>(); }
std::byte* mutable_bytes_of(const Tensor& x) { return x.view().as<std::byte>(); }

void copy(const std::byte* from, int64_t bytes, std::byte* to) {
    if (bytes > 0 && from != to) std::memcpy(to, from, to_size(bytes));
}

class GroupOperation final : public Operation {
  public:
    GroupOperation(std::shared_ptr<SharedGroup> shared, int rank, Collective what, uint64_t number)
        : Operation(std::move(what), shared->name, number), group_(std::move(shared)), rank_(rank) {
        Member& self = member(rank_);
        self.operations.add(sequence(), collective());
        self.posted = sequence();
        group_->notifier->notify();
    }

    bool advance() override {
        Member& self = member(rank_);
        if (!share_done_) {
            if (self.done != sequence() - 1 || !all(&Member::posted)) return false;
            // If ranks disagree, the share counts as done: every rank finds the disagreement, and none may wait.
            share_done_ = true;
            for (const Member& m : group_->members) all_.push_back(&m.operations.at(sequence()));
            try {
                check_agreement();
                do_share();
            } catch (...) {
                failure_ = std::current_exception();
            }
            self.done = sequence();
            group_->notifier->notify();
        }
        if (!all(&Member::done)) return false;
        self.operations.forget(sequence());
        if (failure_) std::rethrow_exception(failure_);
        return true;
    }

    // The ranks that have not begun, or if all have, those that have not finished.
    std::string waits_for() const override {
        const bool begun = all(&Member::posted);
        std::string text;
        for (int r = 0; r < size(); ++r) {
            const uint64_t reached = begun ? member(r).done : member(r).posted;
            if (reached >= sequence()) continue;
            text += concat(text.empty() ? "" : ", ", "rank ", r, " of the group, which has ",
                           begun ? "finished" : "begun", " only operation ", reached);
        }
        return text.empty() ? "no rank" : text;
    }

  private:
    int size() const { return static_cast<int>(group_->members.size()); }
    Member& member(int r) const { return group_->members[to_size(r)]; }
    const Collective& of(int r) const { return *all_[to_size(r)]; }
    bool all(std::atomic<uint64_t> Member::*counter) const {
        for (const Member& m : group_->members)
            if ((m.*counter) < sequence()) return false;
        return true;
    }

    void check_agreement() const {
        const Summary first = of(0).summary();
        for (int r = 0; r < size(); ++r) {
            const Collective& other = of(r);
            check_agree(group_->name, sequence(), 0, first, r, other.summary());
            if (first.kind != Kind::all_to_all) continue;
            const auto here = to_size(rank_), there = to_size(r);
            check(other.send_counts[here] == collective().receive_counts[there], "all_to_all, operation ", sequence(),
                  " of group ", group_->name, ": rank ", r, " sends ", other.send_counts[here], " elements to rank ",
                  rank_, ", which expects ", collective().receive_counts[there]);
        }
    }

    // This rank's share of the work. all_reduce: reduces part r into the outputs of all ranks. Other operations: reads
    // the inputs of all ranks and writes this rank's output.
    void do_share() const {
        const Collective& c = collective();
        switch (c.kind) {
            case Kind::all_reduce:
                return reduce_part(c.input.numel() * rank_ / size(), c.input.numel() * (rank_ + 1) / size(), true);
            case Kind::reduce_scatter:
                return reduce_part(c.output.numel() * rank_, c.output.numel() * (rank_ + 1), false);
            case Kind::all_gather:
                for (int r = 0; r < size(); ++r)
                    copy(bytes_of(of(r).input), c.input.bytes(), mutable_bytes_of(c.output) + r * c.input.bytes());
                return;
            case Kind::broadcast: return copy(bytes_of(of(c.peer).input), c.input.bytes(), mutable_bytes_of(c.output));
            case Kind::all_to_all: return exchange();
            case Kind::barrier: return;
            case Kind::send:
            case Kind::receive: break;
        }
        throw Error(concat("internal error: ", name_of(c.kind), " as an operation of a whole group"));
    }

    void reduce_part(int64_t begin, int64_t end, bool into_all) const {
        const Collective& c = collective();
        std::vector<const void*> inputs;
        std::vector<void*> outputs;
        for (int r = 0; r < size(); ++r) {
            inputs.push_back(bytes_of(of(r).input));
            if (into_all) outputs.push_back(mutable_bytes_of(of(r).output));
        }
        // reduce_scatter: element `begin` of the whole is the output's first.
        if (!into_all) outputs.push_back(mutable_bytes_of(c.output) - begin * size_of(c.output.dtype()));
        tree_reduce(c.reduce, c.input.dtype(), inputs, c.output.dtype(), outputs, begin, end);
    }

    void exchange() const {
        const Collective& c = collective();
        const int64_t element = size_of(c.input.dtype());
        std::byte* to = mutable_bytes_of(c.output);
        for (int r = 0; r < size(); ++r) {
            const Collective& other = of(r);
            const auto here = other.send_counts.begin() + rank_;
            const int64_t before = std::accumulate(other.send_counts.begin(), here, int64_t{0});
            copy(bytes_of(other.input) + before * element, *here * element, to);
            to += *here * element;
        }
    }

    std::shared_ptr<SharedGroup> group_;
    int rank_;
    std::vector<const Collective*> all_;  // of all ranks, once they have begun
    bool share_done_ = false;
    std::exception_ptr failure_;
};

class Send final : public Operation {
  public:
    Send(std::shared_ptr<SharedGroup> shared, int rank, Collective what, uint64_t number)
        : Operation(std::move(what), shared->name, number),
          group_(std::move(shared)),
          box_(group_->mailbox(rank, collective().peer)) {
        box_.messages.add(sequence(), collective());
        box_.sent = sequence();
        group_->notifier->notify();
    }
    bool advance() override { return box_.taken >= sequence(); }
    std::string waits_for() const override { return concat("rank ", collective().peer, " of the group to receive it"); }

  private:
    std::shared_ptr<SharedGroup> group_;
    Mailbox& box_;
};

class Receive final : public Operation {
  public:
    Receive(std::shared_ptr<SharedGroup> shared, int rank, Collective what, uint64_t number)
        : Operation(std::move(what), shared->name, number),
          group_(std::move(shared)),
          box_(group_->mailbox(collective().peer, rank)) {}
    bool advance() override {
        if (box_.taken != sequence() - 1 || box_.sent < sequence()) return false;
        const Collective& message = box_.messages.at(sequence());
        const bool fits = message.input.numel() == collective().output.numel() &&
                          message.input.dtype() == collective().output.dtype();
        const std::string sent = fits ? "" : message.summary().text();
        if (fits) copy(bytes_of(message.input), message.input.bytes(), mutable_bytes_of(collective().output));
        box_.messages.forget(sequence());
        box_.taken = sequence();
        group_->notifier->notify();
        check(fits, "message ", sequence(), " of group ", group_->name, ": ", collective().summary().text(),
              " does not fit the message: ", sent);
        return true;
    }
    std::string waits_for() const override { return concat("rank ", collective().peer, " of the group to send it"); }

  private:
    std::shared_ptr<SharedGroup> group_;
    Mailbox& box_;
};

std::shared_ptr<Operation> start(const std::shared_ptr<SharedGroup>& group, int rank, Collective collective,
                                 uint64_t sequence) {
    if (collective.kind == Kind::send) return std::make_shared<Send>(group, rank, std::move(collective), sequence);
    if (collective.kind == Kind::receive)
        return std::make_shared<Receive>(group, rank, std::move(collective), sequence);
    return std::make_shared<GroupOperation>(group, rank, std::move(collective), sequence);
}

// ---- worlds ----

// The notifier of all ranks of the process. notify() costs one load while no rank sleeps. It holds the abort flag too,
// which every rank checks when it wakes up.
class ThreadNotifier final : public Notifier {
  public:
    explicit ThreadNotifier(std::chrono::nanoseconds spin_time) : spin_time_(spin_time) {}

    // Either the sleeper is counted before notify() reads the count, and is woken; or the notifying rank has published
    // its progress before the sleeper calls `ready`, and the sleeper does not sleep. All these operations are
    // sequentially consistent.
    void sleep(Clock::time_point until, const std::function<bool()>& ready) override {
        uint64_t seen = 0;
        {
            std::lock_guard lock(mutex_);
            seen = notifications_;
        }
        ++sleepers_;
        if (!ready() && !aborted_) {
            std::unique_lock lock(mutex_);
            notified_.wait_until(lock, until, [&] { return notifications_ != seen; });
        }
        --sleepers_;
    }

    void notify() override {
        if (sleepers_ == 0) return;
        {
            std::lock_guard lock(mutex_);
            ++notifications_;
        }
        notified_.notify_all();
    }

    void check_abort() const override {
        if (!aborted_) return;
        std::lock_guard lock(mutex_);
        throw_reason(reason_);
    }

    std::chrono::nanoseconds spin_time() const override { return spin_time_; }

    void abort(const std::string& reason) {
        {
            std::lock_guard lock(mutex_);
            if (!aborted_) reason_ = reason;
            aborted_ = true;  // before the lock is free: a sleeper that has seen this notification sees the abort too
            ++notifications_;
        }
        notified_.notify_all();
    }

  private:
    const std::chrono::nanoseconds spin_time_;
    std::atomic<int> sleepers_{0};
    std::atomic<bool> aborted_{false};
    mutable std::mutex mutex_;
    std::condition_variable notified_;
    uint64_t notifications_ = 0;
    std::string reason_;
};

// The state shared by all ranks of the process.
class Registry {
  public:
    Registry(int ranks, const WorldOptions& world_options)
        : options(world_options),
          size(ranks),
          notifier(std::make_shared<ThreadNotifier>(spin_time_of(size, available_cores(), options.progress_thread))) {}

    // `generation` k: the k-th group that each member makes with this name and these ranks.
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
          progress_(registry_->notifier, registry_->options.timeout_s, registry_->options.progress_thread,
                    registry_->options.stop) {}

    int rank() const override { return rank_; }
    int size() const override { return registry_->size; }
    std::string backend() const override { return "threads"; }

    std::unique_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) override {
        const int group_rank = rank_in(name, ranks);
        const int generation = generations_[{name, ranks}]++;
        return std::make_unique<ThreadCommunicator>(registry_->group(name, ranks, generation), ranks, group_rank,
                                                    progress_, recorder_);
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
    // All worlds outlive all ranks, because other ranks may still read the buffers of a failed rank.
    std::vector<std::unique_ptr<threads::ThreadWorld>> worlds;
    for (int rank = 0; rank < ranks; ++rank) worlds.push_back(std::make_unique<threads::ThreadWorld>(registry, rank));
    std::mutex mutex;
    std::exception_ptr first;
    const auto run = [&](int rank) {
        World& world = *worlds[to_size(rank)];
        try {
            body(world);
        } catch (const Aborted& e) {  // the error of another rank
            dump_flight_record(world, options.flight_directory, e);
        } catch (const std::exception& e) {
            {
                std::lock_guard lock(mutex);
                if (!first) first = std::current_exception();
            }
            world.abort(reason_of(rank, e));
            dump_flight_record(world, options.flight_directory, e);
        }
    };
    std::vector<std::thread> others;
    others.reserve(to_size(ranks - 1));
    try {
        for (int rank = 1; rank < ranks; ++rank) others.emplace_back(run, rank);
    } catch (const std::system_error& e) {  // the ranks that were started end in their next wait
        const Error error(concat("rank ", others.size() + 1, " of ", ranks, " cannot be started as a thread (",
                                 e.code().message(), "): use fewer ranks, or raise the limit of threads (ulimit -u, ",
                                 "pids.max of the container) or of memory (ulimit -v)"));
        {
            std::lock_guard lock(mutex);
            if (!first) first = std::make_exception_ptr(error);
        }
        worlds.front()->abort(error.what());
    }
    if (to_size(ranks - 1) == others.size()) run(0);
    for (std::thread& thread : others) thread.join();
    // A progress thread may still read the buffers of another rank's operations, which are freed with that rank's
    // world.
    for (const auto& world : worlds) world->progress().stop();
    if (first) std::rethrow_exception(first);
}

}  // namespace tutti::comm
