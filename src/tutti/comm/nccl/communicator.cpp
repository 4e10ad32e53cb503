#include "tutti/comm/nccl/communicator.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <thread>
#include <utility>

#include "tutti/base/ceil_div.h"
#include "tutti/base/to_size.h"
#include "tutti/comm/nccl/tree_sum.h"
#include "tutti/comm/tree_reduce.h"
#include "tutti/device/cuda/runtime.h"

namespace tutti::comm::nccl {

namespace {

// Up to this size every rank sends its values to all ranks: one exchange instead of two.
constexpr int64_t kSmall = 256 << 10;

// The length, in whole words, of the equal parts into which `total` elements are divided, as few as parts of at most
// `longest` elements allow.
int64_t equal_part(int64_t total, int64_t longest, int64_t element) {
    const int64_t part = ceil_div(total, ceil_div(total, longest)), of_word = kWordBytes / element;
    return std::min(longest, ceil_div(part, of_word) * of_word);
}

Type type_of(DType dtype) {
    switch (dtype) {
        case DType::i32: return kInt32;
        case DType::i64: return kInt64;
        case DType::f16: return kFloat16;
        case DType::f32: return kFloat32;
        case DType::f64: return kFloat64;
        case DType::bf16: return kBfloat16;
        default: throw Error(concat("reduction of ", dtype, " by NCCL: required f32, f64, bf16, f16, i32 or i64"));
    }
}

Op op_of(Reduce reduce) { return reduce == Reduce::max ? kMax : kSum; }

bool on_host(const Collective& c) {
    const Tensor& x = c.input.defined() ? c.input : c.output;
    return !x.defined() || x.device().host_readable();
}

}  // namespace

// --- operations ------------------------------------------------------------------------------------------------------

// Keeps no tensors: their memory may be reused before the host knows that the GPU has finished with it.
NcclOperation::NcclOperation(const Collective& collective, std::string group, uint64_t sequence, Guard& guard)
    : Operation({.kind = collective.kind, .input = {}, .output = {}, .reduce = collective.reduce}, std::move(group),
                sequence),
      guard_(guard),
      text_(collective.summary().text()) {}

void NcclOperation::set_launched(std::shared_ptr<SideWork> work) {
    const std::lock_guard lock(mutex_);
    work_ = std::move(work);
    launched_ = true;
}

// Not under the lock: if the stream's queue is full, join() blocks until the GPU has progressed.
void NcclOperation::join() const {
    std::shared_ptr<SideWork> work;
    {
        const std::lock_guard lock(mutex_);
        work = work_;
    }
    if (work) work->join();
}

// An aborted operation does not complete, so the flight record shows whether it was running.
bool NcclOperation::advance() {
    try {
        return poll();
    } catch (...) {
        guard_.fail(std::current_exception());
        return false;
    }
}

bool NcclOperation::poll() {
    std::shared_ptr<SideWork> work;
    {
        const std::lock_guard lock(mutex_);
        if (launched_ && !work_) return true;
        work = work_;
    }
    guard_.check_failed();
    if (!work) return false;
    if (!since_begin_) {
        if (!work->begun()) return false;
        since_begin_.emplace(guard_.timeout_s());
        if (on_begin) on_begin();
    }
    // The GPU's work of an aborted operation also ends, without an error.
    if (work->done()) {
        guard_.check_failed();
        times_ = work->times();
        return true;
    }
    check<TimedOut>(since_begin_->passed() < guard_.timeout_s(), text_, ", operation ", sequence(), " of group ",
                    group(), ": in flight on the GPU ", for_too_long(guard_.timeout_s()),
                    ": tutti report --flight compares the last operations of all ranks");
    return false;
}

// --- the group -------------------------------------------------------------------------------------------------------

Hosts hosts_of(const std::vector<std::string>& names) {
    const auto ranks = static_cast<int>(names.size());
    const auto local = static_cast<int>(std::count(names.begin(), names.end(), names.front()));
    if (local == ranks) return {.count = 1, .local = ranks};
    const auto host_of = [&](int rank) -> const std::string& { return names[to_size(rank)]; };
    bool in_order = std::has_single_bit(static_cast<unsigned>(local)) && ranks % local == 0;
    for (int r = 0; r < ranks && in_order; ++r)
        in_order =
            host_of(r) == host_of(r / local * local) && std::count(names.begin(), names.end(), host_of(r)) == local;
    if (!in_order || local == 1) return {.count = 1, .local = ranks, .in_order = in_order};
    return {.count = ranks / local, .local = local};
}

NcclCommunicator::NcclCommunicator(std::unique_ptr<Communicator> host, Device& device, Guard& guard, Progress& progress,
                                   const DeviceWorldOptions& options, std::vector<NcclCommunicator*>& waiting,
                                   bool is_channel)
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
    join_ranks(is_channel);
}

NcclCommunicator::~NcclCommunicator() {
    std::erase(waiting_, this);
    // If this rank has failed, operations in flight may never end on other ranks.
    if (std::uncaught_exceptions() > exceptions_)
        guard_.fail(std::make_exception_ptr(Aborted("the rank's groups are destroyed by an exception")));
    destroy();
}

// NCCL's id of the group and the names of hosts pass over a separate group, whose traffic is not counted.
void NcclCommunicator::join_ranks(bool is_channel) {
    UniqueId id{};
    guard_.check_failed();
    if (rank() == 0) guard_.check(api().get_unique_id(&id), "a new communicator", name());
    const auto cpu = make_cpu_device(1);
    const Tensor bytes = Tensor::empty(*cpu, {static_cast<int64_t>(sizeof id)}, DType::u8, Purpose::communication);
    std::memcpy(bytes.view().data, &id, sizeof id);
    const auto bootstrap = guard_.world().group(name() + ", for NCCL", ranks());
    bootstrap->broadcast(bytes, 0).wait();
    std::memcpy(&id, bytes.view().data, sizeof id);
    if (!is_channel) hosts_ = hosts_of(gather_texts(*bootstrap, concat(guard_.world().ranks_of_host().front())));
    try {
        make_communicators(id, is_channel);
    } catch (...) {  // the destructor will not run
        guard_.fail(std::current_exception());
        throw;
    }
}

void NcclCommunicator::make_communicators(const UniqueId& id, bool is_channel) {
    constexpr std::string_view kWhat = "a new communicator";
    const Guard::Turn turn(guard_, kWhat, name());
    Config config;
    if (options_.max_ctas > 0) config.max_ctas = options_.max_ctas;
    const Result result = api().comm_init_rank_config(&root_, size(), id, rank(), &config);
    if (root_ != nullptr) guard_.add(root_, name());
    guard_.check(result, kWhat, name());
    guard_.settle(root_, kWhat, name());
    if (!is_channel) split(comm_, options_.max_ctas, "a communicator for collectives");
    const int most = options_.max_ctas > 0 ? options_.max_ctas : options_.message_ctas;
    split(message_comm_, std::min(most, options_.message_ctas), "a communicator for messages");
    if (size() == 2) connect_pair();
}

// For messages, of which sums along the tree consist, NCCL rounds the number of CTAs up to a power of two
// (src/graph/paths.cc), so it gets a power of two.
void NcclCommunicator::split(Comm& made, int max_ctas, std::string_view what) {
    Config config{.blocking = 1};
    if (max_ctas > 0) config.max_ctas = static_cast<int>(std::bit_floor(static_cast<unsigned>(max_ctas)));
    const Result result = api().comm_split(root_, 0, rank(), &made, &config);
    guard_.check(result, what, name());
    guard_.settle(root_, what, name());
    guard_.add(made, name());
}

// NCCL connects two ranks with their first message, in a call that blocks until the other rank has called too. Two
// ranks of a pipeline may both send before they receive; once connected here, only their GPUs wait.
void NcclCommunicator::connect_pair() {
    message_side_->begin(false);
    void* const stream = message_side_->stream().native;
    auto* const two_bytes = static_cast<std::byte*>(device_.stream().workspace);  // no kernel uses it now
    guard_.check(api().group_start(), "the first messages", name());
    const Result sent = api().send(two_bytes, 1, kBytes, 1 - rank(), message_comm_, stream);
    const Result received = api().receive(two_bytes + 1, 1, kBytes, 1 - rank(), message_comm_, stream);
    const Result both = api().group_end();
    for (const Result result : {sent, received, both}) guard_.check(result, "the first messages", name());
    message_side_->end()->join();
}

// The destruction of streams and communicators waits for their operations without a time-out. This wait ends when the
// watching thread finds that they take too long.
void NcclCommunicator::drain() {
    for (const auto& work : {last_, last_messages_})
        while (work && !work->done()) {
            guard_.check_failed();
            std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
}

// After a failure, Guard::fail() aborts the communicators instead. The root goes last, since the others share its
// buffers.
void NcclCommunicator::destroy() noexcept {
    constexpr std::string_view kWhat = "the end of a communicator";
    try {
        drain();
        for (Comm* comm : {&message_comm_, &comm_, &root_}) {
            if (*comm == nullptr) continue;
            if (guard_.failed()) return;
            const Guard::Turn turn(guard_, kWhat, name());
            guard_.check(api().comm_finalize(*comm), kWhat, name());
            guard_.settle(*comm, kWhat, name());
            if (guard_.remove(*comm)) api().comm_destroy(*comm);
        }
    } catch (...) {
        guard_.fail(std::current_exception());
    }
}

Work NcclCommunicator::begin(Collective collective) {
    if (!on_host(collective)) return Communicator::begin(std::move(collective));
    start_all_messages();  // this rank may next wait, on the host, for a rank that waits for them
    return host_->begin(std::move(collective));
}

void NcclCommunicator::reserve_reductions(Device&, DType input, DType output) {
    if (size() == 1 || arrived_.defined() || !adds_along_tree(options_.order, input, output)) return;
    arrived_ = Tensor::empty(device_, {kReductionBytes}, DType::u8, Purpose::communication);
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
    check(is_message(c.kind) || comm_ != nullptr, "group ", name(), " is a channel, for messages only: it has no ",
          name_of(c.kind));
    if (is_message(c.kind)) {
        const bool sends = c.kind == Kind::send;
        messages_.push_back({operation, sends ? c.input : c.output, c.peer, sends});
        if (std::find(waiting_.begin(), waiting_.end(), this) == waiting_.end()) waiting_.push_back(this);
        return operation;
    }
    // Before side_->begin(): a view of a buffer joins the work that uses the buffer.
    for (const Tensor* x : {&c.input, &c.output}) static_cast<void>(x->view());
    if (is_reduction(c.kind)) reserve_reductions(device_, c.input.dtype(), c.output.dtype());
    side_->begin(recorder_.traces());
    launch(c);
    const std::shared_ptr<SideWork> work = last_ = side_->end();
    for (const Tensor* x : {&c.input, &c.output}) x->buffer()->used_by(work);
    operation->set_launched(work);
    return operation;
}

void NcclCommunicator::start_messages() {
    if (messages_.empty()) return;
    const std::vector<Message> all = std::exchange(messages_, {});
    std::erase(waiting_, this);
    for (const Message& m : all) static_cast<void>(m.x.view());
    message_side_->begin(recorder_.traces());
    grouped("messages", [&] {
        for (const Message& m : all) {
            auto* data = m.x.view().as<std::byte>();
            const auto bytes = to_size(m.x.bytes());
            StreamHandle stream = message_side_->stream().native;
            guard_.check(m.sends ? api().send(data, bytes, kBytes, m.peer, message_comm_, stream)
                                 : api().receive(data, bytes, kBytes, m.peer, message_comm_, stream),
                         m.sends ? "a send" : "a receive", name());
        }
    });
    const std::shared_ptr<SideWork> work = last_messages_ = message_side_->end();
    for (const Message& m : all) {
        m.x.buffer()->used_by(work);
        m.operation->set_launched(work);
    }
}

void NcclCommunicator::start_all_messages() {
    while (!waiting_.empty()) waiting_.front()->start_messages();
}

// The rank's stream waits, not the host. Messages of all groups must start first, since other ranks may wait for them.
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
    operation->set_launched(nullptr);
    return operation;
}

template <class Calls>
void NcclCommunicator::call(std::string_view what, const Calls& calls) {
    const Guard::Turn turn(guard_, what, name());
    calls();
}

// Even for single messages: outside of a group, NCCL returns from a send before the send is queued on its stream.
template <class Calls>
void NcclCommunicator::grouped(std::string_view what, const Calls& calls) {
    call(what, [&] {
        guard_.check(api().group_start(), what, name());
        try {
            calls();
        } catch (...) {
            api().group_end();
            throw;
        }
        guard_.check(api().group_end(), what, name());
    });
}

void NcclCommunicator::send(const void* data, int64_t bytes, int to) {
    if (bytes > 0) guard_.check(api().send(data, to_size(bytes), kBytes, to, comm_, native()), "a send", name());
}

void NcclCommunicator::receive(void* data, int64_t bytes, int from) {
    if (bytes > 0)
        guard_.check(api().receive(data, to_size(bytes), kBytes, from, comm_, native()), "a receive", name());
}

void NcclCommunicator::launch(const Collective& c) {
    if (c.input.numel() == 0 && c.kind != Kind::all_to_all) return;
    const bool by_library =
        options_.order == SumOrder::fast || (options_.order == SumOrder::automatic && !hosts_.in_order);
    const bool fast = by_library && c.input.dtype() == c.output.dtype();
    if (c.kind == Kind::all_to_all) return all_to_all(c);
    if (c.kind == Kind::all_reduce && !fast) return all_reduce(c);
    if (c.kind == Kind::reduce_scatter && !fast) return reduce_scatter(c);
    call(name_of(c.kind), [&] { guard_.check(launch_single_call(c), name_of(c.kind), name()); });
}

// An operation that is a single call of NCCL.
Result NcclCommunicator::launch_single_call(const Collective& c) {
    const void* from = c.input.view().data;
    void* to = c.output.view().data;
    const auto count = to_size(c.input.numel()), bytes = to_size(c.input.bytes());
    switch (c.kind) {
        case Kind::all_reduce:
            return api().all_reduce(from, to, count, type_of(c.input.dtype()), op_of(c.reduce), comm_, native());
        case Kind::reduce_scatter:
            return api().reduce_scatter(from, to, to_size(c.output.numel()), type_of(c.input.dtype()), op_of(c.reduce),
                                        comm_, native());
        case Kind::all_gather: return api().all_gather(from, to, bytes, kBytes, comm_, native());
        case Kind::broadcast: return api().broadcast(from, to, bytes, kBytes, c.peer, comm_, native());
        case Kind::all_to_all:
        case Kind::barrier:
        case Kind::send:
        case Kind::receive: break;
    }
    throw Error(concat("internal error: ", name_of(c.kind), " as a single call of NCCL"));
}

// The most elements of a rank's piece, in whole words, that fit arrived_ (sum_piece).
int64_t NcclCommunicator::longest_piece(DType type) const {
    const int64_t partial = hosts_.count > 1 ? hosts_.count * size_of(sum_type(type)) : 0;
    const int64_t of_word = kWordBytes / size_of(type);
    return std::max<int64_t>(1, kReductionBytes / (size() * size_of(type) + partial) / of_word) * of_word;
}

// Writes the sum over all ranks of this rank's piece, of type `out`, to y. First, ranks of a host exchange pieces: each
// gets, for every host, the piece of the rank with its own local rank there, and adds. Then ranks with the same local
// rank exchange these sums between hosts, in f32 for 16-bit values: as many bytes as in a ring. A host's ranks are a
// subtree, so the bits are those of a flat sum.
void NcclCommunicator::sum_piece(const Collective& c, const Pieces& piece, int64_t longest, DType out, void* y) {
    const int hosts = hosts_.count, local = hosts_.local, host = rank() / local, local_rank = rank() % local;
    const DType type = c.input.dtype(), partial = hosts > 1 ? sum_type(type) : out;
    const int64_t element = size_of(type), stride = longest * element, partial_stride = longest * size_of(partial);
    std::byte* const arrived = arrived_.view().as<std::byte>();
    std::byte* const sums = arrived + size() * stride;
    const auto of_local_rank = [&](int h, int p) { return piece(h * local + p); };
    grouped(name_of(c.kind), [&] {
        for (int step = 1; step < local; ++step) {
            const int to = (local_rank + step) % local, from = (local_rank + local - step) % local;
            for (int h = 0; h < hosts; ++h) {
                const Piece theirs = of_local_rank(h, to);
                send(theirs.data, theirs.count * element, host * local + to);
                receive(arrived + (from * hosts + h) * stride, of_local_rank(h, local_rank).count * element,
                        host * local + from);
            }
        }
    });
    for (int h = 0; h < hosts; ++h) {
        const Piece own = of_local_rank(h, local_rank);
        tree_sum(side_->stream(), c.reduce, type,
                 {.own = own.data,
                  .arrived = arrived + h * stride,
                  .stride = hosts * stride,
                  .rank = local_rank,
                  .ranks = local},
                 partial, hosts > 1 ? sums + h * partial_stride : y, own.count);
    }
    if (hosts == 1) return;
    const int64_t count = piece(rank()).count, bytes = count * size_of(partial);
    grouped(name_of(c.kind), [&] {
        for (int step = 1; step < hosts; ++step) {
            const int to = (host + step) % hosts, from = (host + hosts - step) % hosts;
            send(sums + to * partial_stride, of_local_rank(to, local_rank).count * size_of(partial),
                 to * local + local_rank);
            receive(arrived + from * partial_stride, bytes, from * local + local_rank);
        }
    });
    tree_sum(side_->stream(), c.reduce, partial,
             {.own = sums + host * partial_stride,
              .arrived = arrived,
              .stride = partial_stride,
              .rank = host,
              .ranks = hosts},
             out, y, count);
}

// Sends this rank's piece to all ranks and receives theirs; a piece passes between two hosts once.
void NcclCommunicator::gather_pieces(const Pieces& piece, int64_t element) {
    const int hosts = hosts_.count, local = hosts_.local, host = rank() / local, local_rank = rank() % local;
    const auto exchange = [&](int of_sent, int to, int of_received, int from) {
        const Piece sent = piece(of_sent), received = piece(of_received);
        send(sent.data, sent.count * element, to);
        receive(received.data, received.count * element, from);
    };
    if (hosts > 1)
        grouped("all_reduce", [&] {
            for (int step = 1; step < hosts; ++step) {
                const int to = (host + step) % hosts * local + local_rank;
                const int from = (host + hosts - step) % hosts * local + local_rank;
                exchange(rank(), to, from, from);
            }
        });
    grouped("all_reduce", [&] {
        for (int step = 1; step < local; ++step) {
            const int to = (local_rank + step) % local, from = (local_rank + local - step) % local;
            for (int h = 0; h < hosts; ++h)
                exchange(h * local + local_rank, host * local + to, h * local + from, host * local + from);
        }
    });
}

void NcclCommunicator::reduce_scatter(const Collective& c) {
    const int64_t part = c.output.numel(), element = size_of(c.input.dtype()), out = size_of(c.output.dtype());
    const int64_t chunk = equal_part(part, longest_piece(c.input.dtype()), element);
    auto* x = c.input.view().as<std::byte>();
    auto* y = c.output.view().as<std::byte>();
    for (int64_t at = 0; at < part; at += chunk) {
        const int64_t count = std::min(chunk, part - at);
        const auto piece = [&](int r) { return Piece{x + (r * part + at) * element, count}; };
        sum_piece(c, piece, chunk, c.output.dtype(), y + at * out);
    }
}

void NcclCommunicator::all_reduce(const Collective& c) {
    const int n = size();
    const int64_t bytes = c.input.bytes();
    if (bytes * n > kSmall) return sum_in_place(c);
    std::byte* arrived = arrived_.view().as<std::byte>();
    void* x = c.output.view().data;
    call("all_reduce", [&] {
        guard_.check(api().all_gather(x, arrived, to_size(bytes), kBytes, comm_, native()), "all_reduce", name());
    });
    tree_sum(side_->stream(), c.reduce, c.input.dtype(),
             {.own = x, .arrived = arrived, .stride = bytes, .rank = rank(), .ranks = n}, c.input.dtype(), x,
             c.input.numel());
}

// Chunk by chunk: each rank sums a piece and sends the sum to all ranks.
void NcclCommunicator::sum_in_place(const Collective& c) {
    const int n = size();
    const DType type = c.input.dtype();
    const int64_t element = size_of(type), total = c.input.numel();
    const int64_t longest = equal_part(ceil_div(total, n), longest_piece(type), element);
    auto* x = c.output.view().as<std::byte>();
    for (int64_t at = 0; at < total; at += longest * n) {
        const auto begin = [&](int r) { return std::min(total, at + longest * r); };
        const auto piece = [&](int r) { return Piece{x + begin(r) * element, begin(r + 1) - begin(r)}; };
        sum_piece(c, piece, longest, type, piece(rank()).data);
        gather_pieces(piece, element);
    }
}

void NcclCommunicator::all_to_all(const Collective& c) {
    const int64_t element = size_of(c.input.dtype());
    const auto* x = c.input.view().as<const std::byte>();
    auto* y = c.output.view().as<std::byte>();
    grouped("all_to_all", [&] {
        for (int r = 0; r < size(); ++r) {  // this rank's own share too
            const int64_t out = c.send_counts[to_size(r)] * element;
            const int64_t in = c.receive_counts[to_size(r)] * element;
            send(x, out, r);
            receive(y, in, r);
            x += out;
            y += in;
        }
    });
}

}  // namespace tutti::comm::nccl
