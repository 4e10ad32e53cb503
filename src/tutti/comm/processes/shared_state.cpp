#include "tutti/comm/processes/shared_state.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <new>
#include <utility>

#include "tutti/base/ceil_div.h"
#include "tutti/base/error.h"
#include "tutti/base/to_size.h"

namespace tutti::comm::processes {

namespace {

// Neither a message of the wire nor the death of a process wakes a sleeping rank, so it polls for both.
constexpr Clock::duration kShortestNap = std::chrono::microseconds(20), kLongestNap = std::chrono::milliseconds(2);
constexpr std::chrono::milliseconds kCheckForDeaths{20};
// A waiting rank polls every few milliseconds; a rank that has not polled for this long hangs or computes.
constexpr std::chrono::milliseconds kNotWaiting{500};
constexpr size_t kFirstBlocks = 1024;  // initial capacity of the table

constexpr int64_t to_pages(int64_t bytes) { return round_up(bytes, 4096); }

void init_shared_mutex(pthread_mutex_t& mutex) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

// Locks the table of blocks. Error after a rank died with the lock, which leaves the table in an unknown state.
class TableLock {
  public:
    explicit TableLock(pthread_mutex_t& mutex) : mutex_(mutex) {
        const int code = pthread_mutex_lock(&mutex_);
        if (code == EOWNERDEAD) pthread_mutex_unlock(&mutex_);  // not made consistent: every later lock fails
        check(code == 0, "a rank of this host died while it allocated shared memory for a group");
    }
    ~TableLock() { pthread_mutex_unlock(&mutex_); }
    TableLock(const TableLock&) = delete;
    TableLock& operator=(const TableLock&) = delete;

  private:
    pthread_mutex_t& mutex_;
};

}  // namespace

struct SharedState::Block {
    uint64_t key;  // 0: free
    Section section;
    int64_t offset, bytes;
    int members, released;
};

// The rank's thread holds `alive` for its lifetime. After its death, the kernel reports EOWNERDEAD to a rank that tries
// to lock the mutex.
struct alignas(64) SharedState::RankState {
    pthread_mutex_t alive;
    std::atomic<RankStatus> status;
    std::atomic<Clock::rep> polled;  // time of the last poll; all processes of a host have the same clock
    std::atomic<uint32_t> version;   // of `last`, odd while it is written
    LastOperation last;
};

struct SharedState::Control {
    alignas(64) std::atomic<uint32_t> notifications;  // a futex
    std::atomic<int32_t> sleepers;
    std::atomic<uint32_t> aborted;  // 1: the reason is being written, 2: the reason is complete
    std::array<char, 2048> reason;
    alignas(64) pthread_mutex_t table_mutex;
    int64_t used;   // bytes of the window
    int64_t table;  // offset of the table of blocks
    size_t entries;
};

int64_t SharedState::control_bytes(int ranks_of_host) {
    return to_pages(static_cast<int64_t>(sizeof(Control) + sizeof(RankState) * to_size(ranks_of_host))) +
           to_pages(static_cast<int64_t>(kFirstBlocks * sizeof(Block)));
}

SharedState::SharedState(Wire& wire, std::byte* window, int64_t bytes, bool progress_threads)
    : wire_(wire),
      window_(window),
      bytes_(bytes),
      control_(reinterpret_cast<Control*>(window)),
      nap_(kShortestNap.count()) {
    const Topology& place = wire.topology();
    const auto ranks = static_cast<int>(place.locals.size());
    local_ = local_of(place.rank);
    spin_time_ = spin_time_of(ranks, place.cores, progress_threads);
    if (local_ == 0) {
        control_ = new (window) Control{};
        control_->used = control_bytes(ranks);
        control_->entries = kFirstBlocks;
        control_->table = control_->used - to_pages(static_cast<int64_t>(kFirstBlocks * sizeof(Block)));
        std::uninitialized_value_construct_n(blocks().data(), kFirstBlocks);
        init_shared_mutex(control_->table_mutex);
        for (size_t r = 0; r < place.locals.size(); ++r) init_shared_mutex((new (&state(r)) RankState{})->alive);
    }
    wire_.barrier_of_host();
    pthread_mutex_lock(&state(local_).alive);
    set_status(RankStatus::running);
    wire_.barrier_of_host();
}

SharedState::~SharedState() {
    if (!closed_) pthread_mutex_unlock(&state(local_).alive);
}

void SharedState::close() {
    set_status(RankStatus::ended);
    pthread_mutex_unlock(&state(local_).alive);
    closed_ = true;
}

SharedState::RankState& SharedState::state(size_t local) const {
    return reinterpret_cast<RankState*>(window_ + sizeof(Control))[local];
}

size_t SharedState::local_of(int world_rank) const {
    const auto& locals = wire_.topology().locals;
    return to_size(std::find(locals.begin(), locals.end(), world_rank) - locals.begin());
}

// --- allocation ------------------------------------------------------------------------------------------------------

std::span<SharedState::Block> SharedState::blocks() const {
    return {reinterpret_cast<Block*>(window_ + control_->table), control_->entries};
}

int64_t SharedState::allocate(int64_t bytes) {
    check(control_->used + bytes <= bytes_, "the shared memory of this host is full: a group needs ", bytes >> 10,
          " KiB, and ", control_->used >> 10, " of ", bytes_ >> 10,
          " KiB are in use; put fewer ranks or fewer pipeline stages on this host, which makes fewer groups");
    return std::exchange(control_->used, control_->used + bytes);
}

// A free block is reused only for the same size, since there are few sizes. A full table is replaced by one of twice
// its size.
SharedState::Block& SharedState::free_block(int64_t bytes) {
    Block* unused = nullptr;
    for (Block& block : blocks()) {
        if (block.key == 0 && block.bytes == bytes) return block;
        if (block.bytes == 0 && unused == nullptr) unused = &block;
    }
    if (unused == nullptr) {
        const std::span<const Block> old = blocks();
        control_->table = allocate(to_pages(2 * static_cast<int64_t>(old.size_bytes())));
        control_->entries = 2 * old.size();
        std::uninitialized_value_construct_n(blocks().data(), blocks().size());
        std::copy(old.begin(), old.end(), blocks().begin());
        unused = &blocks()[old.size()];
    }
    unused->offset = allocate(bytes);
    unused->bytes = bytes;
    return *unused;
}

std::byte* SharedState::acquire(uint64_t key, Section section, int64_t bytes, int64_t zeroed, int members) {
    const TableLock lock(control_->table_mutex);
    for (const Block& block : blocks())
        if (block.key == key && block.section == section) return window_ + block.offset;
    Block& block = free_block(to_pages(bytes));
    block.key = key;
    block.section = section;
    block.members = members;
    block.released = 0;
    std::memset(window_ + block.offset, 0, to_size(zeroed));
    return window_ + block.offset;
}

void SharedState::release(uint64_t key) {
    if (closed_ || control_->aborted != 0) return;  // after an abort, other ranks may still access the block
    const TableLock lock(control_->table_mutex);
    const auto counted = std::find_if(blocks().begin(), blocks().end(), [&](const Block& block) {
        return block.key == key && block.section == Section::rings;
    });
    if (counted == blocks().end() || ++counted->released < counted->members) return;
    for (Block& block : blocks())
        if (block.key == key) block.key = 0;
}

// --- status and last operation of ranks ---

std::string LastOperation::text() const {
    return concat(operation.text(), ", operation ", sequence, " of group ", group.data());
}

void SharedState::set_last_operation(const LastOperation& operation) {
    RankState& own = state(local_);
    own.version.fetch_add(1, std::memory_order_acq_rel);
    own.last = operation;
    own.version.fetch_add(1, std::memory_order_release);
}

std::string SharedState::last_operation(int world_rank) const {
    const size_t local = local_of(world_rank);
    if (local == wire_.topology().locals.size()) return "";
    RankState& other = state(local);
    LastOperation last;
    for (int attempt = 0; attempt < 100; ++attempt) {  // a rank may hang in the middle of a write
        const uint32_t version = other.version.load(std::memory_order_acquire);
        last = other.last;
        // Read by adding 0, which orders the copy above before the read; the thread sanitizer does not support fences.
        if (version % 2 == 0 && other.version.fetch_add(0, std::memory_order_acq_rel) == version) break;
        last = {};
    }
    switch (other.status) {
        case RankStatus::ended: return " and has ended";
        case RankStatus::failed: return " and has failed";
        case RankStatus::dead: return " and has died";
        default: return last.sequence == 0 ? "" : concat("; its last operation is ", last.text());
    }
}

bool SharedState::is_waiting(int world_rank) const {
    const size_t local = local_of(world_rank);
    if (local == wire_.topology().locals.size()) return false;
    return Clock::now().time_since_epoch() - Clock::duration(state(local).polled) < kNotWaiting;
}

void SharedState::set_status(RankStatus status) {
    state(local_).status = status;
    notify();
}

bool SharedState::all_stopped() const {
    for (size_t r = 0; r < wire_.topology().locals.size(); ++r)
        if (state(r).status <= RankStatus::running) return false;
    return true;
}

void SharedState::detect_dead_ranks() {
    for (size_t r = 0; r < wire_.topology().locals.size(); ++r) {
        RankState& other = state(r);
        if (r == local_ || other.status != RankStatus::running) continue;
        const int code = pthread_mutex_trylock(&other.alive);
        if (code == EBUSY) continue;
        if (code == EOWNERDEAD) pthread_mutex_consistent(&other.alive);
        const RankStatus status = other.status;
        if (code == EOWNERDEAD && status == RankStatus::running) {
            other.status = RankStatus::dead;
            abort(concat("rank ", wire_.topology().locals[r],
                         " has died: it was killed, or its process ended in the middle of the run (",
                         other.last.sequence == 0 ? "before its first operation"
                                                  : concat("its last operation: ", other.last.text()),
                         ")"));
        }
        pthread_mutex_unlock(&other.alive);
    }
}

void SharedState::abort(const std::string& reason) {
    uint32_t none = 0;
    if (control_->aborted.compare_exchange_strong(none, 1)) {
        reason.copy(control_->reason.data(), control_->reason.size() - 1);
        control_->aborted = 2;
    }
    notify();
}

void SharedState::poll() {
    if (const auto reason = wire_.abort_received()) abort(*reason);
    const Clock::rep now = Clock::now().time_since_epoch().count();
    std::atomic<Clock::rep>& polled = state(local_).polled;
    if (Clock::duration(now - polled) < kCheckForDeaths) return;
    polled = now;
    detect_dead_ranks();
}

// --- the notifier ---

// As in threads/thread_world.cpp: the sleeper is counted before it calls `ready`, so either notify() sees the sleeper,
// or `ready` sees what the notifying rank published. The futex does not sleep if notify() was called since `seen` was
// read.
void SharedState::sleep(Clock::time_point until, const std::function<bool()>& ready) {
    const uint32_t seen = control_->notifications;
    ++control_->sleepers;
    if (!ready() && control_->aborted != 2) {
        if (messages_seen_.exchange(wire_.completed()) != wire_.completed()) nap_ = kShortestNap.count();
        const Clock::duration limit = wire_.busy() ? Clock::duration(nap_) : Clock::duration(kCheckForDeaths);
        nap_ = std::min(2 * nap_, kLongestNap.count());
        const auto wait = std::max(Clock::duration(0), std::min(limit, until - Clock::now()));
        const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(wait).count();
        const timespec time{static_cast<time_t>(ns / 1000000000), static_cast<long>(ns % 1000000000)};
        syscall(SYS_futex, reinterpret_cast<uint32_t*>(&control_->notifications), FUTEX_WAIT, seen, &time, nullptr, 0);
    }
    --control_->sleepers;
    poll();
}

void SharedState::notify() {
    if (control_->sleepers == 0) return;
    ++control_->notifications;
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&control_->notifications), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void SharedState::check_abort() const {
    if (control_->aborted == 2) throw_reason(control_->reason.data());
}

}  // namespace tutti::comm::processes
