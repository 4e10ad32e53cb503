// tests/cuda/nccl/fake_nccl.cpp: a libnccl for the emulated GPU, opened through TUTTI_NCCL as the real one is. Ranks
// are threads of one process. Operations wait in the emulated streams until their turn, and there for their partners,
// as NCCL's kernels do; ranks that call different things wait for ever, as with NCCL. Sums are in descending order of
// ranks, which is no order of Tutti's.
//
// As in NCCL's sources (2.30): an abort returns when no operation of another communicator is in flight on its GPU
// unless that one is aborted too (src/group.cc, commReclaim); an operation takes its communicator's CTAs, one
// multiprocessor of 132 each, from when its own side is ready until its end (src/include/device.h), and messages as
// many as the next power of two (src/graph/paths.cc, ncclTopoComputeP2pChannels); calls on non-blocking communicators
// cost the host far more than those on blocking ones, which a virtual clock counts.
//
// Stricter than NCCL: using a communicator before its last call has completed is an error. Two threads that ask a
// communicator for its error at once end the program (NCCL may free the memory of a call twice then), and so does an
// abort whose group ends, which frees the communicators, while a call on one of them has not returned (NCCL's call uses
// them to its end: src/group.cc, groupCleanup).
// The functions fake_nccl_* are for tests.
#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/cuda/emulation/api.h"
#include "tests/cuda/emulation/memory.h"
#include "tutti/base/dtype.h"
#include "tutti/comm/nccl/api.h"

using tutti::comm::nccl::Config;
using tutti::comm::nccl::Op;
using tutti::comm::nccl::Result;
using tutti::comm::nccl::Type;
using tutti::comm::nccl::UniqueId;
using tutti::emulation::DeviceAccess;

namespace {

constexpr auto kInvalidUsage = static_cast<Result>(5);

struct Call {
    enum class Kind { all_reduce, reduce_scatter, all_gather, broadcast } kind;
    const void* from;
    void* to;
    size_t count;
    Type type;
    Op op;
    int root;
    bool agrees(const Call& other) const {
        return kind == other.kind && count == other.count && type == other.type && op == other.op && root == other.root;
    }
};

// NCCL copies a message 16 bytes at a time only where both addresses are multiples of 16 (src/device/common_kernel.h,
// reduceCopy).
std::atomic<int64_t> unaligned_bytes{0};
void look_at(const void* data, size_t bytes) {
    if (bytes > 16 && reinterpret_cast<uintptr_t>(data) % 16 != 0) unaligned_bytes += static_cast<int64_t>(bytes);
}

struct Mail {
    const void* data;
    size_t bytes;
    bool taken = false;
};

// State shared by the ranks of a communicator.
struct Net {
    explicit Net(int ranks) : size(ranks) {}
    std::mutex mutex;
    std::condition_variable changed;
    const int size;
    int joined = 0;
    struct Meeting {
        std::map<int, Call> calls;
        bool done = false;
        int left = 0;
    };
    std::map<uint64_t, Meeting> meetings;  // by number of the call
    std::map<std::pair<int, int>, std::deque<std::shared_ptr<Mail>>> mail;
    std::map<int, std::shared_ptr<Net>> splits;
    // Who has called a message of a pair: from, to, whether the sender or the receiver has.
    std::set<std::tuple<int, int, bool>> met;
};

size_t size_of(Type type) {
    switch (type) {
        case tutti::comm::nccl::kBytes: return 1;
        case tutti::comm::nccl::kFloat16:
        case tutti::comm::nccl::kBfloat16: return 2;
        case tutti::comm::nccl::kInt32:
        case tutti::comm::nccl::kFloat32: return 4;
        default: return 8;
    }
}

template <class T, class Sums>
void reduce(const std::vector<const void*>& from, const std::vector<void*>& to, size_t at, size_t count, Op op) {
    for (size_t i = 0; i < count; ++i) {
        auto sum = static_cast<Sums>(static_cast<const T*>(from.back())[at + i]);
        for (size_t r = from.size() - 1; r-- > 0;) {
            const auto x = static_cast<Sums>(static_cast<const T*>(from[r])[at + i]);
            sum = op == tutti::comm::nccl::kMax ? std::max(sum, x) : sum + x;
        }
        for (void* y : to) static_cast<T*>(y)[i] = static_cast<T>(sum);
    }
}

void reduce(Type type, const std::vector<const void*>& from, const std::vector<void*>& to, size_t at, size_t count,
            Op op) {
    switch (type) {
        case tutti::comm::nccl::kFloat32: return reduce<float, float>(from, to, at, count, op);
        case tutti::comm::nccl::kFloat64: return reduce<double, double>(from, to, at, count, op);
        case tutti::comm::nccl::kInt32: return reduce<int32_t, int32_t>(from, to, at, count, op);
        case tutti::comm::nccl::kInt64: return reduce<int64_t, int64_t>(from, to, at, count, op);
        case tutti::comm::nccl::kFloat16: return reduce<tutti::f16, float>(from, to, at, count, op);
        case tutti::comm::nccl::kBfloat16: return reduce<tutti::bf16, float>(from, to, at, count, op);
        default: std::abort();
    }
}

// Computes for all ranks at once; the last rank to arrive runs it.
void carry_out(const std::map<int, Call>& calls) {
    const DeviceAccess access;
    const Call& c = calls.begin()->second;
    const size_t bytes = c.count * size_of(c.type);
    std::vector<const void*> from;
    for (const auto& [rank, call] : calls) from.push_back(call.from);
    switch (c.kind) {
        case Call::Kind::all_reduce: {
            std::vector<void*> to;
            for (const auto& [rank, call] : calls) to.push_back(call.to);
            return reduce(c.type, from, to, 0, c.count, c.op);
        }
        case Call::Kind::reduce_scatter:
            for (const auto& [rank, call] : calls) {
                std::vector<std::byte> part(bytes);  // the output may be part of an input
                reduce(c.type, from, {part.data()}, static_cast<size_t>(rank) * c.count, c.count, c.op);
                std::memcpy(call.to, part.data(), bytes);
            }
            return;
        case Call::Kind::all_gather:
            for (const auto& [rank, call] : calls)
                for (const auto& [other, its] : calls)
                    std::memmove(static_cast<std::byte*>(call.to) + static_cast<size_t>(other) * bytes, its.from,
                                 bytes);
            return;
        case Call::Kind::broadcast:
            for (const auto& [rank, call] : calls) std::memmove(call.to, calls.at(c.root).from, bytes);
    }
}

std::mutex nets_mutex;
std::map<uint64_t, std::weak_ptr<Net>> nets;  // by unique id
std::atomic<uint64_t> last_id{0};
std::atomic<int> live{0};
std::atomic<int64_t> started{0};
std::atomic<int> split_ctas[2];  // of the first and the second split of the newest communicator
std::mutex sent_mutex;
std::map<std::pair<int, int>, int64_t> sent_bytes;  // from, to, in any communicator
std::atomic<int64_t> host_us{0};     // that calls on working communicators would have taken, of all ranks
constexpr int kCallUs[] = {100, 8};  // of a call on a communicator that is not blocking, and on one that is
constexpr auto kPatience = std::chrono::seconds(10);

[[noreturn]] void die(const char* why) {
    std::fprintf(stderr, "fake NCCL: %s\n", why);
    std::_Exit(1);
}

// What communicators and their operations know of each other on one GPU. Streams may still have the operations of a
// communicator when it is destroyed.
std::atomic<int> running{0};  // operations that have their multiprocessors
struct Gpu;
struct State {
    State(Gpu& on, int takes) : gpu(on), ctas(takes) {}
    Gpu& gpu;
    const int ctas;  // of an operation
    std::atomic<bool> aborted{false};
    std::atomic<int> error{0};
    std::atomic<int> calls{0};  // that have not returned
};
// A call on a communicator, which may wait inside.
class Inside {
  public:
    explicit Inside(std::shared_ptr<State> state) : state_(std::move(state)) { ++state_->calls; }
    ~Inside() { --state_->calls; }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

  private:
    const std::shared_ptr<State> state_;
};
struct Gpu {
    std::mutex mutex;
    std::condition_variable changed;
    int free_multiprocessors = 132;
    std::multiset<const State*> under_way;

    // Runs an operation; false: aborted before it began.
    template <class Work>
    void run(const State& state, int ctas, const Work& work) {
        {
            std::unique_lock lock(mutex);
            under_way.insert(&state);
            changed.wait(lock, [&] { return state.aborted || free_multiprocessors >= ctas; });
            free_multiprocessors -= ctas;
            ++running;
        }
        if (!state.aborted) work();
        {
            const std::lock_guard lock(mutex);
            free_multiprocessors += ctas;
            --running;
            under_way.erase(under_way.find(&state));
        }
        changed.notify_all();
    }
    void wait_for_others() {
        std::unique_lock lock(mutex);
        const auto all_end = [&] {
            return std::all_of(under_way.begin(), under_way.end(), [](const State* s) { return s->aborted.load(); });
        };
        if (!changed.wait_for(lock, kPatience, all_end))
            die("ncclCommAbort waits for an operation of another communicator of this GPU, which no abort ends; abort "
                "all as one group");
    }
};
// A rank is a thread with a GPU of its own; worlds beside each other in a test have the same numbers of GPUs.
Gpu& gpu_here() {
    static std::mutex mutex;
    static std::map<std::thread::id, Gpu> gpus;
    const std::lock_guard lock(mutex);
    return gpus[std::this_thread::get_id()];
}

enum class Fault { none, hang, error, slow, stuck };
struct Plan {
    Fault fault = Fault::none;
    int milliseconds = 0;
};
thread_local Plan next_plan;  // of the next collective or, for error and stuck, communicator that this thread starts
thread_local int64_t messages = 0;

}  // namespace

namespace tutti::comm::nccl {

struct Opaque {
    std::shared_ptr<Net> net;
    int rank;
    bool blocking;
    std::shared_ptr<State> state;
    int looks = 2;  // until the last call has completed
    uint64_t calls = 0;
    int splits = 0;
    std::vector<std::pair<int, int>> connecting = {};  // from, to, of the last messages
    std::atomic<bool> asked{false};                    // for its error, by a thread that is still inside
};

}  // namespace tutti::comm::nccl

using tutti::comm::nccl::Comm;

extern "C" Result ncclCommDestroy(Comm comm);

namespace {

struct Message {
    bool sends;
    void* data;
    size_t bytes;
    int peer;
    Comm comm;
    cudaStream_t stream;
};
thread_local int group_depth = 0;
thread_local std::vector<Message> group;
thread_local std::vector<Comm> group_aborts;

// False while the last call has not completed, else a new call begins.
bool begin_call(Comm comm) {
    if (comm->blocking) return true;
    const std::lock_guard lock(comm->net->mutex);
    if (comm->looks > 0 || comm->net->joined < comm->net->size) return false;
    comm->looks = 2;
    return true;
}

Result begun(Comm comm) { return comm->blocking ? tutti::comm::nccl::kSuccess : tutti::comm::nccl::kInProgress; }

constexpr auto kInternalError = static_cast<Result>(3);

// What a call does with its communicator after an abort (src/group.cc, groupCleanup).
Result clean_up() {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return kInternalError;
}

// A call that returns only when another thread aborts the communicator.
Result wait_for_abort(Comm comm) {
    const auto net = comm->net;
    const auto state = comm->state;
    {
        std::unique_lock lock(net->mutex);
        net->changed.wait(lock, [&] { return state->aborted.load(); });
    }
    return clean_up();
}

Result collective(const Call& call, Comm comm, void* stream) {
    const Inside call_on(comm->state);
    if (!begin_call(comm)) return kInvalidUsage;
    ++started;
    host_us += kCallUs[comm->blocking];
    const Plan plan = std::exchange(next_plan, {});
    if (plan.fault == Fault::stuck) return wait_for_abort(comm);
    auto work = [net = comm->net, state = comm->state, rank = comm->rank, number = comm->calls++, call, plan] {
        if (plan.fault == Fault::slow) std::this_thread::sleep_for(std::chrono::milliseconds(plan.milliseconds));
        std::unique_lock lock(net->mutex);
        const auto aborted = [&] { return state->aborted.load(); };
        if (plan.fault == Fault::error) state->error = 6;
        if (plan.fault == Fault::hang || plan.fault == Fault::error) return net->changed.wait(lock, aborted);
        Net::Meeting& meeting = net->meetings[number];
        if (aborted()) return;
        meeting.calls.emplace(rank, call);
        const auto same = [&](const auto& c) { return c.second.agrees(call); };
        if (static_cast<int>(meeting.calls.size()) == net->size &&
            std::all_of(meeting.calls.begin(), meeting.calls.end(), same)) {
            carry_out(meeting.calls);
            meeting.done = true;
            net->changed.notify_all();
        }
        net->changed.wait(lock, [&] { return meeting.done || aborted(); });
        if (!meeting.done) meeting.calls.erase(rank);
        if (meeting.done && ++meeting.left == net->size) net->meetings.erase(number);
    };
    tutti::emulation::enqueue(static_cast<cudaStream_t>(stream), [state = comm->state, work = std::move(work)] {
        state->gpu.run(*state, state->ctas, work);
    });
    return begun(comm);
}

// All messages of a group proceed at once.
void exchange(const std::vector<Message>& all, const std::shared_ptr<Net>& net, const std::shared_ptr<State>& state,
              int rank) {
    std::unique_lock lock(net->mutex);
    std::vector<std::pair<int, std::shared_ptr<Mail>>> sent;
    std::vector<Message> receives;
    for (const Message& m : all) {
        if (!m.sends) {
            receives.push_back(m);
            continue;
        }
        sent.emplace_back(m.peer, std::make_shared<Mail>(Mail{m.data, m.bytes}));
        net->mail[{rank, m.peer}].push_back(sent.back().second);
        const std::lock_guard count(sent_mutex);
        sent_bytes[{rank, m.peer}] += static_cast<int64_t>(m.bytes);
    }
    net->changed.notify_all();
    const auto take = [&] {
        for (auto m = receives.begin(); m != receives.end();) {
            auto& box = net->mail[{m->peer, rank}];
            // In the order of the receives from one rank.
            const bool first = std::none_of(receives.begin(), m, [&](const Message& e) { return e.peer == m->peer; });
            if (!first || box.empty() || box.front()->bytes != m->bytes) {
                ++m;
                continue;
            }
            const DeviceAccess access;
            std::memmove(m->data, box.front()->data, m->bytes);
            box.front()->taken = true;
            box.pop_front();
            m = receives.erase(m);
            net->changed.notify_all();
        }
    };
    net->changed.wait(lock, [&] {
        if (state->aborted) return true;
        take();
        return receives.empty() && std::all_of(sent.begin(), sent.end(), [](const auto& s) { return s.second->taken; });
    });
    for (const auto& [to, mail] : sent)
        if (!mail->taken) std::erase(net->mail[{rank, to}], mail);
}

Result message(const Message& m) {
    {
        const std::lock_guard lock(m.comm->net->mutex);
        if (!m.comm->blocking && m.comm->looks > 0) return kInvalidUsage;
    }
    group.push_back(m);
    return tutti::comm::nccl::kSuccess;
}

void wake(Comm comm) {
    {
        const std::lock_guard lock(comm->net->mutex);
        comm->net->changed.notify_all();
    }
    const std::lock_guard lock(comm->state->gpu.mutex);
    comm->state->gpu.changed.notify_all();
}

// With the net's lock.
bool connected(Comm comm) {
    const auto& met = comm->net->met;
    std::erase_if(comm->connecting, [&](const auto& pair) {
        return met.contains({pair.first, pair.second, true}) && met.contains({pair.first, pair.second, false});
    });
    return comm->connecting.empty();
}

// Ranks are connected with their first message, when both have called it; the call is not through before. False: it
// was aborted.
bool connect(const std::vector<Message>& all, Comm comm) {
    const auto net = comm->net;
    const auto state = comm->state;
    std::unique_lock lock(net->mutex);
    for (const Message& m : all) {
        if (m.peer == comm->rank) continue;
        const auto [from, to] = m.sends ? std::pair(comm->rank, m.peer) : std::pair(m.peer, comm->rank);
        comm->net->met.insert({from, to, m.sends});
        comm->connecting.emplace_back(from, to);
    }
    net->changed.notify_all();
    if (comm->blocking) net->changed.wait(lock, [&] { return state->aborted || connected(comm); });
    return !state->aborted;
}

Result state_of(Comm comm) {
    if (const int error = comm->state->error; error != 0) return static_cast<Result>(error);
    if (comm->blocking) return tutti::comm::nccl::kSuccess;
    const std::lock_guard lock(comm->net->mutex);
    const bool through = comm->net->joined == comm->net->size && connected(comm) && comm->looks <= 0;
    if (!through) comm->looks = std::max(comm->looks - 1, 0);
    return through ? tutti::comm::nccl::kSuccess : tutti::comm::nccl::kInProgress;
}

Comm join(const std::shared_ptr<Net>& net, int rank, const Config& config) {
    constexpr int kOwnChoice = 16;
    const int ctas = config.max_ctas > 0 ? config.max_ctas : kOwnChoice;
    const std::lock_guard lock(net->mutex);
    ++net->joined;
    ++live;
    return new tutti::comm::nccl::Opaque{
        .net = net, .rank = rank, .blocking = config.blocking != 0, .state = std::make_shared<State>(gpu_here(), ctas)};
}

void end_aborts() {
    for (const Comm comm : std::exchange(group_aborts, {})) {
        comm->state->gpu.wait_for_others();
        if (comm->state->calls > 0)
            die("an abort frees a communicator on which another thread is inside a call; end the group of the aborts "
                "when "
                "that call has returned");
        ncclCommDestroy(comm);
    }
}

}  // namespace

extern "C" {

Result ncclGetVersion(int* version) {
    *version = 21801;
    return tutti::comm::nccl::kSuccess;
}
const char* ncclGetErrorString(Result result) {
    switch (static_cast<int>(result)) {
        case 0: return "no error";
        case 5: return "invalid usage: the communicator's last call is not through";
        case 6: return "remote process exited or there was a network error";
        default: return "unknown";
    }
}
Result ncclGetUniqueId(UniqueId* id) {
    *id = {};
    const uint64_t number = ++last_id;
    std::memcpy(id->bytes, &number, sizeof number);
    return tutti::comm::nccl::kSuccess;
}
Result ncclCommInitRankConfig(Comm* comm, int ranks, UniqueId id, int rank, Config* config) {
    if (config->size != 48 || config->magic != 0xcafebeef || config->blocking != 0) return kInvalidUsage;
    uint64_t number = 0;
    std::memcpy(&number, id.bytes, sizeof number);
    std::shared_ptr<Net> net;
    {
        const std::lock_guard lock(nets_mutex);
        net = nets[number].lock();
        if (!net) nets[number] = net = std::make_shared<Net>(ranks);
    }
    if (next_plan.fault == Fault::error) return next_plan = {}, tutti::comm::nccl::kRemoteError;
    *comm = join(net, rank, *config);
    return tutti::comm::nccl::kInProgress;
}
Result ncclCommSplit(Comm comm, int, int, Comm* split, Config* config) {
    const Inside call_on(comm->state);
    if (!begin_call(comm)) return kInvalidUsage;
    if (next_plan.fault == Fault::stuck) return next_plan = {}, wait_for_abort(comm);
    std::shared_ptr<Net> net;
    {
        const std::lock_guard lock(comm->net->mutex);
        if (comm->splits < 2) split_ctas[comm->splits] = config->max_ctas;
        auto& of_call = comm->net->splits[comm->splits++];
        if (!of_call) of_call = std::make_shared<Net>(comm->net->size);
        net = of_call;
    }
    *split = join(net, comm->rank, *config);
    return tutti::comm::nccl::kInProgress;
}
Result ncclCommFinalize(Comm comm) { return begin_call(comm) ? begun(comm) : kInvalidUsage; }
Result ncclCommDestroy(Comm comm) {
    --live;
    delete comm;
    return tutti::comm::nccl::kSuccess;
}
Result ncclCommAbort(Comm comm) {
    comm->state->aborted = true;
    wake(comm);
    group_aborts.push_back(comm);
    if (group_depth == 0) end_aborts();
    return tutti::comm::nccl::kSuccess;
}
Result ncclCommGetAsyncError(Comm comm, Result* error) {
    if (comm->asked.exchange(true)) {  // NCCL would free the memory of the last call twice
        std::fprintf(stderr, "fake NCCL: two threads ask one communicator for its error\n");
        std::abort();
    }
    std::this_thread::yield();
    *error = state_of(comm);
    comm->asked = false;
    return tutti::comm::nccl::kSuccess;
}
Result ncclGroupStart() {
    ++group_depth;
    return tutti::comm::nccl::kSuccess;
}
Result ncclGroupEnd() {
    if (--group_depth > 0) return tutti::comm::nccl::kSuccess;
    end_aborts();
    const std::vector<Message> all = std::exchange(group, {});
    if (all.empty()) return tutti::comm::nccl::kSuccess;
    ++started;
    const Comm comm = all.front().comm;  // all are of one communicator and stream
    host_us += kCallUs[comm->blocking];
    const Inside call_on(comm->state);
    if (!begin_call(comm)) return kInvalidUsage;
    const auto work = [all, net = comm->net, state = comm->state, rank = comm->rank] {
        const int ctas = static_cast<int>(std::bit_ceil(static_cast<unsigned>(state->ctas)));
        state->gpu.run(*state, ctas, [&] { exchange(all, net, state, rank); });
    };
    const Result result = begun(comm);
    if (!connect(all, comm)) return clean_up();
    tutti::emulation::enqueue(all.front().stream, work);
    return result;
}
Result ncclAllReduce(const void* from, void* to, size_t count, Type type, Op op, Comm comm, void* stream) {
    return collective({Call::Kind::all_reduce, from, to, count, type, op, 0}, comm, stream);
}
Result ncclReduceScatter(const void* from, void* to, size_t count, Type type, Op op, Comm comm, void* stream) {
    return collective({Call::Kind::reduce_scatter, from, to, count, type, op, 0}, comm, stream);
}
Result ncclAllGather(const void* from, void* to, size_t count, Type type, Comm comm, void* stream) {
    return collective({Call::Kind::all_gather, from, to, count, type, Op{}, 0}, comm, stream);
}
Result ncclBroadcast(const void* from, void* to, size_t count, Type type, int root, Comm comm, void* stream) {
    return collective({Call::Kind::broadcast, from, to, count, type, Op{}, root}, comm, stream);
}
Result ncclSend(const void* from, size_t count, Type type, int to, Comm comm, void* stream) {
    ++messages;
    look_at(from, count * size_of(type));
    return message({true, const_cast<void*>(from), count * size_of(type), to, comm, static_cast<cudaStream_t>(stream)});
}
Result ncclRecv(void* to, size_t count, Type type, int from, Comm comm, void* stream) {
    ++messages;
    look_at(to, count * size_of(type));
    return message({false, to, count * size_of(type), from, comm, static_cast<cudaStream_t>(stream)});
}

// Fault of the next collective that the calling thread starts: 1 never ends, 2 fails with an error, 3 is late, 4: the
// call itself returns only after an abort. 2 applies to the next communicator too, 4 to the next split.
void fake_nccl_fault(int fault, int milliseconds) { next_plan = {static_cast<Fault>(fault), milliseconds}; }
int64_t fake_nccl_messages() { return messages; }  // that the calling thread has sent or received so far
int fake_nccl_live() { return live; }              // communicators
int fake_nccl_split_ctas(int split) { return split_ctas[split]; }  // of the newest root: collectives, messages
// Of messages between ranks of which `of_host` in a row are on one host, so far; equal for all communicators.
int64_t fake_nccl_bytes_between(int of_host) {
    int64_t bytes = 0;
    const std::lock_guard lock(sent_mutex);
    for (const auto& [ranks, sent] : sent_bytes)
        if (ranks.first / of_host != ranks.second / of_host) bytes += sent;
    return bytes;
}
int64_t fake_nccl_unaligned() { return unaligned_bytes; }  // of messages that NCCL would copy byte by byte
int fake_nccl_running() { return running; }
int64_t fake_nccl_host_us() { return host_us; }
int64_t fake_nccl_calls() { return started; }  // of collectives and groups of messages
}
