#include "tutti/comm/processes/host.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"

namespace tutti::comm::processes {

namespace {

// Neither a message of the wire nor the death of a process wakes a sleeping rank, which polls after these times.
constexpr Clock::duration kShortestNap = std::chrono::microseconds(20), kLongestNap = std::chrono::milliseconds(2);
constexpr std::chrono::milliseconds kLookForTheDead{20};
// A waiting rank polls every few milliseconds; a rank that has not polled for this long stands still or computes.
constexpr std::chrono::milliseconds kStandsStill{500};
constexpr size_t kFirstBlocks = 1024;  // entries of the table before it grows

constexpr int64_t rounded(int64_t bytes) { return (bytes + 4095) / 4096 * 4096; }

void init_shared_mutex(pthread_mutex_t& mutex) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

// The lock of the table of blocks. A rank that died while it held the lock leaves the table in an unknown state.
class TableLock {
  public:
    explicit TableLock(pthread_mutex_t& mutex) : mutex_(mutex) {
        const int code = pthread_mutex_lock(&mutex_);
        if (code == EOWNERDEAD) pthread_mutex_unlock(&mutex_);  // not made consistent: unusable from now on
        check(code == 0, "a rank died while it changed the table of shared memory");
    }
    ~TableLock() { pthread_mutex_unlock(&mutex_); }
    TableLock(const TableLock&) = delete;
    TableLock& operator=(const TableLock&) = delete;

  private:
    pthread_mutex_t& mutex_;
};

}  // namespace

struct Host::Block {
    uint64_t key;  // 0: free
    Section section;
    int64_t offset, bytes;
    int members, released;
};

// The rank's thread holds the mutex for its lifetime: the kernel reports the death of the thread to a rank that tries
// to lock the mutex.
struct alignas(64) Host::RankState {
    pthread_mutex_t alive;
    std::atomic<RankStatus> status;
    std::atomic<Clock::rep> looked;  // time of the rank's last poll; one clock for all processes of a host
    std::atomic<uint32_t> version;   // of `last`, odd while it is written
    LastOperation last;
};

struct Host::Control {
    alignas(64) std::atomic<uint32_t> rings;  // a futex
    std::atomic<int32_t> sleepers;
    std::atomic<uint32_t> aborted;  // 1: the reason is being written, 2: it stands
    std::array<char, 2048> reason;
    alignas(64) pthread_mutex_t table_mutex;
    int64_t used;
    int64_t table;  // offset of the blocks' descriptions
    size_t entries;
};

int64_t Host::control_bytes(int ranks_of_host) {
    return rounded(static_cast<int64_t>(sizeof(Control) + sizeof(RankState) * to_size(ranks_of_host))) +
           rounded(static_cast<int64_t>(kFirstBlocks * sizeof(Block)));
}

Host::Host(Wire& wire, std::byte* window, int64_t bytes, bool progress_threads)
    : wire_(wire),
      window_(window),
      bytes_(bytes),
      control_(reinterpret_cast<Control*>(window)),
      nap_(kShortestNap.count()) {
    const Place& place = wire.place();
    const auto ranks = static_cast<int>(place.locals.size());
    local_ = local_of(place.rank);
    spin_time_ = spin_time_of(ranks, place.cores, progress_threads);
    if (local_ == 0) {
        control_ = new (window) Control{};
        control_->used = control_bytes(ranks);
        control_->entries = kFirstBlocks;
        control_->table = control_->used - rounded(static_cast<int64_t>(kFirstBlocks * sizeof(Block)));
        std::uninitialized_value_construct_n(blocks().data(), kFirstBlocks);
        init_shared_mutex(control_->table_mutex);
        for (size_t r = 0; r < place.locals.size(); ++r) init_shared_mutex((new (&state(r)) RankState{})->alive);
    }
    wire_.barrier_of_host();
    pthread_mutex_lock(&state(local_).alive);
    set_status(RankStatus::running);
    wire_.barrier_of_host();
}

Host::~Host() {
    if (!closed_) pthread_mutex_unlock(&state(local_).alive);
}

void Host::close() {
    set_status(RankStatus::ended);
    pthread_mutex_unlock(&state(local_).alive);
    closed_ = true;
}

Host::RankState& Host::state(size_t local) const {
    return reinterpret_cast<RankState*>(window_ + sizeof(Control))[local];
}

size_t Host::local_of(int world_rank) const {
    const auto& locals = wire_.place().locals;
    return to_size(std::find(locals.begin(), locals.end(), world_rank) - locals.begin());
}

// --- memory of the groups --------------------------------------------------------------------------------------------

std::span<Host::Block> Host::blocks() const {
    return {reinterpret_cast<Block*>(window_ + control_->table), control_->entries};
}

int64_t Host::take(int64_t bytes) {
    check(control_->used + bytes <= bytes_, "the shared memory of this host is full: a group needs ", bytes >> 10,
          " KiB, and ", control_->used >> 10, " of ", bytes_ >> 10,
          " KiB are taken; axes of parallelism with fewer ranks of this host, and fewer pipeline stages on it, make "
          "fewer groups");
    return std::exchange(control_->used, control_->used + bytes);
}

// A free block is reused only for the same size: there are few sizes. A full table is replaced by one of twice the
// size.
Host::Block& Host::free_block(int64_t bytes) {
    Block* unused = nullptr;
    for (Block& block : blocks()) {
        if (block.key == 0 && block.bytes == bytes) return block;
        if (block.bytes == 0 && unused == nullptr) unused = &block;
    }
    if (unused == nullptr) {
        const std::span<const Block> old = blocks();
        control_->table = take(rounded(2 * static_cast<int64_t>(old.size_bytes())));
        control_->entries = 2 * old.size();
        std::uninitialized_value_construct_n(blocks().data(), blocks().size());
        std::copy(old.begin(), old.end(), blocks().begin());
        unused = &blocks()[old.size()];
    }
    unused->offset = take(bytes);
    unused->bytes = bytes;
    return *unused;
}

std::byte* Host::acquire(uint64_t key, Section section, int64_t bytes, int64_t zeroed, int members) {
    const TableLock lock(control_->table_mutex);
    for (const Block& block : blocks())
        if (block.key == key && block.section == section) return window_ + block.offset;
    Block& block = free_block(rounded(bytes));
    block.key = key;
    block.section = section;
    block.members = members;
    block.released = 0;
    std::memset(window_ + block.offset, 0, to_size(zeroed));
    return window_ + block.offset;
}

void Host::release(uint64_t key) {
    if (closed_ || control_->aborted != 0) return;  // after an abort, other ranks may be in the middle of an access
    const TableLock lock(control_->table_mutex);
    const auto counted = std::find_if(blocks().begin(), blocks().end(), [&](const Block& block) {
        return block.key == key && block.section == Section::channels;
    });
    if (counted == blocks().end() || ++counted->released < counted->members) return;
    for (Block& block : blocks())
        if (block.key == key) block.key = 0;
}

// --- status and last operation of ranks ---

std::string LastOperation::text() const {
    return concat(operation.text(), ", operation ", sequence, " of group ", group.data());
}

void Host::note(const LastOperation& operation) {
    RankState& own = state(local_);
    own.version.fetch_add(1, std::memory_order_acq_rel);
    own.last = operation;
    own.version.fetch_add(1, std::memory_order_release);
}

std::string Host::last_operation(int world_rank) const {
    const size_t local = local_of(world_rank);
    if (local == wire_.place().locals.size()) return "";
    RankState& other = state(local);
    LastOperation last;
    for (int attempt = 0; attempt < 100; ++attempt) {  // a rank may stand still in the middle of a write
        const uint32_t version = other.version.load(std::memory_order_acquire);
        last = other.last;
        // Reads as a change of nothing: the copy above stays before it, without a fence, which the thread sanitizer
        // lacks.
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

bool Host::is_waiting(int world_rank) const {
    const size_t local = local_of(world_rank);
    if (local == wire_.place().locals.size()) return false;
    return Clock::now().time_since_epoch() - Clock::duration(state(local).looked) < kStandsStill;
}

void Host::set_status(RankStatus status) {
    state(local_).status = status;
    notify();
}

bool Host::all_stopped() const {
    for (size_t r = 0; r < wire_.place().locals.size(); ++r)
        if (state(r).status <= RankStatus::running) return false;
    return true;
}

void Host::detect_dead_ranks() {
    for (size_t r = 0; r < wire_.place().locals.size(); ++r) {
        RankState& other = state(r);
        if (r == local_ || other.status != RankStatus::running) continue;
        const int code = pthread_mutex_trylock(&other.alive);
        if (code == EBUSY) continue;
        if (code == EOWNERDEAD) pthread_mutex_consistent(&other.alive);
        const RankStatus status = other.status;
        if (code == EOWNERDEAD && status == RankStatus::running) {
            other.status = RankStatus::dead;
            abort(concat("rank ", wire_.place().locals[r],
                         " has died: it was killed, or its process ended in the middle of the run (",
                         other.last.sequence == 0 ? "before its first operation" : other.last.text(),
                         " was its last)"));
        }
        pthread_mutex_unlock(&other.alive);
    }
}

void Host::abort(const std::string& reason) {
    uint32_t none = 0;
    if (control_->aborted.compare_exchange_strong(none, 1)) {
        reason.copy(control_->reason.data(), control_->reason.size() - 1);
        control_->aborted = 2;
    }
    notify();
}

void Host::poll() {
    if (const auto reason = wire_.abort_received()) abort(*reason);
    const Clock::rep now = Clock::now().time_since_epoch().count();
    std::atomic<Clock::rep>& looked = state(local_).looked;
    if (Clock::duration(now - looked) < kLookForTheDead) return;
    looked = now;
    detect_dead_ranks();
}

// --- the notifier ---

// As in threads/thread_world.cpp: the sleeper is counted before its last check, so notify() either sees the sleeper or
// comes after a publication that the check sees; and the futex does not sleep when notify() was called since `seen`.
void Host::sleep(Clock::time_point until, const std::function<bool()>& ready) {
    const uint32_t seen = control_->rings;
    ++control_->sleepers;
    if (!ready() && control_->aborted != 2) {
        if (messages_seen_.exchange(wire_.completed()) != wire_.completed()) nap_ = kShortestNap.count();
        const Clock::duration limit = wire_.busy() ? Clock::duration(nap_) : Clock::duration(kLookForTheDead);
        nap_ = std::min(2 * nap_, kLongestNap.count());
        const auto wait = std::max(Clock::duration(0), std::min(limit, until - Clock::now()));
        const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(wait).count();
        const timespec time{static_cast<time_t>(ns / 1000000000), static_cast<long>(ns % 1000000000)};
        syscall(SYS_futex, reinterpret_cast<uint32_t*>(&control_->rings), FUTEX_WAIT, seen, &time, nullptr, 0);
    }
    --control_->sleepers;
    poll();
}

void Host::notify() {
    if (control_->sleepers == 0) return;
    ++control_->rings;
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&control_->rings), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Host::check_abort() const {
    if (control_->aborted == 2) rethrow_reason(control_->reason.data());
}

}  // namespace tutti::comm::processes
