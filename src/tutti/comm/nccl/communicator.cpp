#include "tutti/comm/nccl/communicator.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "tutti/comm/nccl/tree_sum.h"
#include "tutti/device/cuda/runtime.h"

namespace tutti::comm::nccl {

namespace {

constexpr int64_t kScratch = 64 << 20;
// Below this size every rank sends its values to all ranks: one exchange instead of two.
constexpr int64_t kSmall = 256 << 10;

Type type_of(DType dtype) {
    switch (dtype) {
        case DType::i32: return kInt32;
        case DType::i64: return kInt64;
        case DType::f16: return kFloat16;
        case DType::f32: return kFloat32;
        case DType::f64: return kFloat64;
        case DType::bf16: return kBfloat16;
        default: throw Error(concat("no reduction of ", dtype, " by NCCL"));
    }
}

Op op_of(Reduce reduce) { return reduce == Reduce::max ? kMax : kSum; }

bool on_host(const Collective& c) {
    const Tensor& x = c.input.defined() ? c.input : c.output;
    return !x.defined() || x.device().host_readable();
}

}  // namespace

// --- operations ------------------------------------------------------------------------------------------------------

// Without the tensors, whose memory may be reused before the host knows that the GPU has finished with it.
NcclOperation::NcclOperation(const Collective& collective, std::string group, uint64_t sequence, Guard& guard)
    : Operation({.kind = collective.kind, .input = {}, .output = {}, .reduce = collective.reduce}, std::move(group),
                sequence),
      guard_(guard),
      text_(collective.summary().text()) {}

void NcclOperation::launched(std::shared_ptr<SideWork> work) {
    const std::lock_guard lock(mutex_);
    work_ = std::move(work);
    launched_ = true;
}

bool NcclOperation::is_launched() const {
    const std::lock_guard lock(mutex_);
    return launched_;
}

// Without the lock: where the stream's queue is full, the call returns only after the GPU has progressed.
void NcclOperation::join() const {
    std::shared_ptr<SideWork> work;
    {
        const std::lock_guard lock(mutex_);
        work = work_;
    }
    if (work) work->join();
}

// Aborted operations stay in flight in the record, which shows their progress.
bool NcclOperation::advance() {
    try {
        return look();
    } catch (...) {
        guard_.fail(std::current_exception());
        return false;
    }
}

bool NcclOperation::look() {
    std::shared_ptr<SideWork> work;
    {
        const std::lock_guard lock(mutex_);
        if (launched_ && !work_) return true;
        work = work_;
    }
    guard_.look();
    if (!work) return false;
    if (begun_ == Clock::time_point{}) {
        if (!work->begun()) return false;
        begun_ = Clock::now();
        if (on_begin) on_begin();
    }
    // The GPU's work of an aborted operation ends without an error.
    if (work->done()) {
        guard_.check_failed();
        times_ = work->times();
        return true;
    }
    check<TimedOut>(std::chrono::duration<double>(Clock::now() - begun_).count() < guard_.timeout_s(), text_,
                    ", operation ", sequence(), " of group ", group(), ": under way on the GPU for more than ",
                    guard_.timeout_s(),
                    " s (comm.timeout_s); a rank that is missing has died, hangs, or took another path: tutti report "
                    "--flight compares the last operations of all ranks");
    return false;
}

Scratch::~Scratch() {
    if (data_ != nullptr) cudaFree(data_);
}

// cudaFree waits for the streams that used the old memory.
std::byte* Scratch::of(int64_t bytes) {
    if (bytes <= bytes_) return data_;
    const auto more = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(bytes)));
    if (data_ != nullptr) check_cuda(cudaFree(data_), "cudaFree");
    data_ = nullptr;
    bytes_ = 0;
    void* place = nullptr;
    check_cuda(cudaMalloc(&place, static_cast<size_t>(more)), "cudaMalloc of ", more, " bytes for sums over ranks");
    data_ = static_cast<std::byte*>(place);
    bytes_ = more;
    return data_;
}

// --- the group -------------------------------------------------------------------------------------------------------

NcclCommunicator::NcclCommunicator(std::unique_ptr<Communicator> host, Device& device, Guard& guard, Progress& progress,
                                   const DeviceWorldOptions& options, std::vector<NcclCommunicator*>& waiting)
    : Communicator(host->name(), host->ranks(), host->rank(), progress, guard.world().recorder()),
      host_(std::move(host)),
      device_(device),
      guard_(guard),
      recorder_(guard.world().recorder()),
      options_(options),
      exceptions_(std::uncaught_exceptions()),
      waiting_(waiting) {
    if (size() == 1) return;
    side_ = device.side_stream();
    message_side_ = device.side_stream();
    join_ranks();
}

NcclCommunicator::~NcclCommunicator() {
    std::erase(waiting_, this);
    // Operations in flight may never end on other ranks when this rank has failed.
    if (std::uncaught_exceptions() > exceptions_)
        guard_.fail(std::make_exception_ptr(Aborted("the rank leaves its groups by an exception")));
    leave(message_comm_);
    leave(comm_);
}

// The group's id from NCCL is broadcast over a separate group, whose traffic is not counted.
void NcclCommunicator::join_ranks() {
    UniqueId id{};
    guard_.check_failed();
    std::byte* const two_bytes = size() == 2 ? first_messages_.of(2) : nullptr;
    if (rank() == 0) guard_.check(api().get_unique_id(&id), "a new communicator", name());
    const auto cpu = make_cpu_device(1);
    const Tensor bytes = Tensor::empty(*cpu, {static_cast<int64_t>(sizeof id)}, DType::u8, Purpose::communication);
    std::memcpy(bytes.view().data, &id, sizeof id);
    guard_.world().group(name() + ", for NCCL", ranks())->broadcast(bytes, 0).wait();
    std::memcpy(&id, bytes.view().data, sizeof id);
    Config config;
    if (options_.max_ctas > 0) config.max_ctas = options_.max_ctas;
    const std::lock_guard call(guard_.calling());
    guard_.check_failed();
    try {
        guard_.check(api().comm_init_rank_config(&comm_, size(), id, rank(), &config), "a new communicator", name());
        guard_.add(comm_, name());
        guard_.settle(comm_, "a new communicator", name());
        guard_.check(api().comm_split(comm_, 0, rank(), &message_comm_, &config), "a communicator for messages",
                     name());
        guard_.settle(comm_, "a communicator for messages", name());
        guard_.settle(message_comm_, "a communicator for messages", name());
        // NCCL connects two ranks with their first message, and its call completes when the other rank has called too.
        // Two ranks of a pipeline may both send before they receive; connected here, only their GPUs wait.
        if (size() == 2) {
            tutti::comm::nccl::Stream stream = message_side_->stream().native;
            grouped("the first messages", [&] {
                guard_.check(api().send(two_bytes, 1, kBytes, 1 - rank(), message_comm_, stream), "a send", name());
                guard_.check(api().receive(two_bytes + 1, 1, kBytes, 1 - rank(), message_comm_, stream), "a receive",
                             name());
            });
            guard_.settle(message_comm_, "the first messages", name());
        }
    } catch (...) {  // no destructor follows
        if (message_comm_ != nullptr) api().comm_abort(message_comm_);
        if (guard_.remove(comm_)) api().comm_abort(comm_);
        throw;
    }
    guard_.add(message_comm_, name());
}

// After a failure, Guard::fail() aborts the communicators.
void NcclCommunicator::leave(Comm& comm) noexcept {
    const std::lock_guard call(guard_.calling());
    if (comm == nullptr || guard_.failed()) return;
    try {
        guard_.check(api().comm_finalize(comm), "the end", name());
        guard_.settle(comm, "the end", name());
        if (guard_.remove(comm)) api().comm_destroy(comm);
    } catch (...) {
        if (guard_.remove(comm)) api().comm_abort(comm);
    }
    comm = nullptr;
}

Work NcclCommunicator::begin(Collective collective) {
    if (!on_host(collective)) return Communicator::begin(std::move(collective));
    start_all_messages();  // the host may next wait for a rank that waits for them
    return host_->begin(std::move(collective));
}

const Traffic& NcclCommunicator::traffic(Kind kind) const {
    const Traffic &here = Communicator::traffic(kind), &there = host_->traffic(kind);
    return both_ = {here.calls + there.calls, here.bytes + there.bytes, here.sent + there.sent};
}

Usage NcclCommunicator::usage() const {
    const Usage here = Communicator::usage(), there = host_->usage();
    return {here.operations + there.operations, here.sent + there.sent, here.waited_s + there.waited_s};
}

std::shared_ptr<Operation> NcclCommunicator::start(Collective c, uint64_t sequence) {
    guard_.check_failed();
    auto operation = std::make_shared<NcclOperation>(c, name(), sequence, guard_);
    if (size() == 1) return start_alone(c, std::move(operation));
    if (is_message(c.kind)) {
        const bool sends = c.kind == Kind::send;
        messages_.push_back({operation, sends ? c.input : c.output, c.peer, sends});
        if (std::find(waiting_.begin(), waiting_.end(), this) == waiting_.end()) waiting_.push_back(this);
        return operation;
    }
    // Before the stream is told to wait: a buffer's data() joins the work that uses the buffer.
    for (const Tensor* x : {&c.input, &c.output}) static_cast<void>(x->view());
    side_->begin(recorder_.traces());
    launch(c);
    const std::shared_ptr<SideWork> work = side_->end();
    for (const Tensor* x : {&c.input, &c.output}) x->buffer()->used_by(work);
    operation->launched(work);
    return operation;
}

void NcclCommunicator::start_messages() {
    if (messages_.empty()) return;
    const std::vector<Message> all = std::exchange(messages_, {});
    std::erase(waiting_, this);
    for (const Message& m : all) static_cast<void>(m.x.view());
    message_side_->begin(recorder_.traces());
    together(message_comm_, "messages", [&] {
        for (const Message& m : all) {
            auto* data = m.x.view().as<std::byte>();
            const auto bytes = static_cast<size_t>(m.x.bytes());
            tutti::comm::nccl::Stream stream = message_side_->stream().native;
            guard_.check(m.sends ? api().send(data, bytes, kBytes, m.peer, message_comm_, stream)
                                 : api().receive(data, bytes, kBytes, m.peer, message_comm_, stream),
                         m.sends ? "a send" : "a receive", name());
        }
    });
    const std::shared_ptr<SideWork> work = message_side_->end();
    for (const Message& m : all) {
        m.x.buffer()->used_by(work);
        m.operation->launched(work);
    }
}

void NcclCommunicator::start_all_messages() {
    while (!waiting_.empty()) waiting_.front()->start_messages();
}

// The rank's stream waits. Operations of all groups that were begun and not started must start first: other ranks may
// wait for them.
void NcclCommunicator::wait(const Operation& operation) {
    start_all_messages();
    static_cast<const NcclOperation&>(operation).join();
    guard_.check_failed();
}

// --- operations ------------------------------------------------------------------------------------------------------

// A group of one rank: the rank's stream copies or rounds.
std::shared_ptr<NcclOperation> NcclCommunicator::start_alone(const Collective& c,
                                                             std::shared_ptr<NcclOperation> operation) {
    const bool copies = c.output.defined() && c.output.view().data != c.input.view().data;
    if (copies && c.kind == Kind::reduce_scatter && c.input.dtype() != c.output.dtype())
        tree_sum(device_.stream(), c.reduce, c.input.dtype(), {.own = c.input.view().data}, c.output.dtype(),
                 c.output.view().data, c.output.numel());
    else if (copies)
        device_.copy(c.output.view().data, c.input.view().data, c.output.bytes());
    operation->launched(nullptr);
    return operation;
}

template <class Calls>
void NcclCommunicator::grouped(std::string_view what, const Calls& calls) {
    guard_.check(api().group_start(), what, name());
    try {
        calls();
    } catch (...) {
        api().group_end();
        throw;
    }
    guard_.check(api().group_end(), what, name());
}

template <class Calls>
void NcclCommunicator::call(Comm comm, std::string_view what, const Calls& calls) {
    const std::lock_guard lock(guard_.calling());
    guard_.check_failed();
    calls();
    guard_.settle(comm, what, name());
}

template <class Calls>
void NcclCommunicator::together(Comm comm, std::string_view what, const Calls& calls) {
    call(comm, what, [&] { grouped(what, calls); });
}

void NcclCommunicator::send(const void* data, int64_t bytes, int to) {
    if (bytes > 0)
        guard_.check(api().send(data, static_cast<size_t>(bytes), kBytes, to, comm_, native()), "a send", name());
}

void NcclCommunicator::receive(void* data, int64_t bytes, int from) {
    if (bytes > 0)
        guard_.check(api().receive(data, static_cast<size_t>(bytes), kBytes, from, comm_, native()), "a receive",
                     name());
}

void NcclCommunicator::launch(const Collective& c) {
    if (c.input.numel() == 0 && c.kind != Kind::all_to_all) return;
    const bool fast = !options_.tree && c.input.dtype() == c.output.dtype();
    if (c.kind == Kind::all_to_all) return all_to_all(c);
    if (c.kind == Kind::all_reduce && !fast) return all_reduce(c);
    if (c.kind == Kind::reduce_scatter && !fast) return reduce_scatter(c);
    call(comm_, name_of(c.kind), [&] { guard_.check(launch_alone(c), name_of(c.kind), name()); });
}

// Operations that are a single call of NCCL.
Result NcclCommunicator::launch_alone(const Collective& c) {
    const void* from = c.input.view().data;
    void* to = c.output.view().data;
    const auto count = static_cast<size_t>(c.input.numel()), bytes = static_cast<size_t>(c.input.bytes());
    switch (c.kind) {
        case Kind::all_reduce:
            return api().all_reduce(from, to, count, type_of(c.input.dtype()), op_of(c.reduce), comm_, native());
        case Kind::reduce_scatter:
            return api().reduce_scatter(from, to, static_cast<size_t>(c.output.numel()), type_of(c.input.dtype()),
                                        op_of(c.reduce), comm_, native());
        case Kind::all_gather: return api().all_gather(from, to, bytes, kBytes, comm_, native());
        case Kind::broadcast: return api().broadcast(from, to, bytes, kBytes, c.peer, comm_, native());
        case Kind::all_to_all:
        case Kind::barrier:
        case Kind::send:
        case Kind::receive: break;
    }
    throw Error(concat("no operation of a group on GPU memory: ", name_of(c.kind)));
}

// All ranks send this rank their values of its part, which are summed here, in chunks to limit the memory.
void NcclCommunicator::reduce_scatter(const Collective& c) {
    const int n = size(), me = rank();
    const int64_t part = c.output.numel(), element = size_of(c.input.dtype()), out = size_of(c.output.dtype());
    const int64_t chunk = std::max<int64_t>(1, kScratch / (n * element));
    std::byte* arrived = scratch_.of(std::min(chunk, part) * element * n);
    const auto* x = c.input.view().as<const std::byte>();
    auto* y = c.output.view().as<std::byte>();
    for (int64_t at = 0; at < part; at += chunk) {
        const int64_t count = std::min(chunk, part - at), bytes = count * element;
        together(comm_, "reduce_scatter", [&] {
            for (int step = 1; step < n; ++step) {
                const int to = (me + step) % n, from = (me + n - step) % n;
                send(x + (to * part + at) * element, bytes, to);
                receive(arrived + from * bytes, bytes, from);
            }
        });
        tree_sum(side_->stream(), c.reduce, c.input.dtype(),
                 {.own = x + (me * part + at) * element, .arrived = arrived, .stride = bytes, .rank = me, .ranks = n},
                 c.output.dtype(), y + at * out, count);
    }
}

void NcclCommunicator::all_reduce(const Collective& c) {
    const int n = size();
    const int64_t bytes = c.input.bytes();
    if (bytes * n > kSmall) return sum_in_place(c);
    std::byte* arrived = scratch_.of(bytes * n);
    void* x = c.output.view().data;
    call(comm_, "all_reduce", [&] {
        guard_.check(api().all_gather(x, arrived, static_cast<size_t>(bytes), kBytes, comm_, native()), "all_reduce",
                     name());
    });
    tree_sum(side_->stream(), c.reduce, c.input.dtype(),
             {.own = x, .arrived = arrived, .stride = bytes, .rank = rank(), .ranks = n}, c.input.dtype(), x,
             c.input.numel());
}

// Chunk by chunk: each rank sums a piece of it and gives the sum to all.
void NcclCommunicator::sum_in_place(const Collective& c) {
    const int n = size(), me = rank();
    const int64_t element = size_of(c.input.dtype()), total = c.input.numel();
    const int64_t chunk = std::max<int64_t>(n, kScratch / element / 2);
    const int64_t longest = (std::min(chunk, total) + n - 1) / n;
    std::byte* arrived = scratch_.of(longest * element * n);
    auto* x = c.output.view().as<std::byte>();
    for (int64_t at = 0; at < total; at += chunk) {
        const int64_t length = std::min(chunk, total - at);
        const auto begin = [&](int r) { return at + length * r / n; };
        const auto count = [&](int r) { return begin(r + 1) - begin(r); };
        together(comm_, "all_reduce", [&] {
            for (int step = 1; step < n; ++step) {
                const int to = (me + step) % n, from = (me + n - step) % n;
                send(x + begin(to) * element, count(to) * element, to);
                receive(arrived + from * longest * element, count(me) * element, from);
            }
        });
        std::byte* own = x + begin(me) * element;
        tree_sum(side_->stream(), c.reduce, c.input.dtype(),
                 {.own = own, .arrived = arrived, .stride = longest * element, .rank = me, .ranks = n}, c.input.dtype(),
                 own, count(me));
        together(comm_, "all_reduce", [&] {
            for (int step = 1; step < n; ++step) {
                const int to = (me + step) % n, from = (me + n - step) % n;
                send(own, count(me) * element, to);
                receive(x + begin(from) * element, count(from) * element, from);
            }
        });
    }
}

void NcclCommunicator::all_to_all(const Collective& c) {
    const int64_t element = size_of(c.input.dtype());
    const auto* x = c.input.view().as<const std::byte>();
    auto* y = c.output.view().as<std::byte>();
    together(comm_, "all_to_all", [&] {
        for (int r = 0; r < size(); ++r) {  // the own share too
            const int64_t out = c.send_counts[static_cast<size_t>(r)] * element;
            const int64_t in = c.receive_counts[static_cast<size_t>(r)] * element;
            send(x, out, r);
            receive(y, in, r);
            x += out;
            y += in;
        }
    });
}

}  // namespace tutti::comm::nccl
