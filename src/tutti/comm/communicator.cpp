#include "tutti/comm/communicator.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "tutti/base/to_size.h"

namespace tutti::comm {

namespace {

int64_t total(const std::vector<int64_t>& counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

void check_contiguous(const Tensor& x, std::string_view op) {
    check(x.defined(), op, ": required a tensor, got an undefined one");
    check(x.contiguous(), op, ": required a contiguous tensor, got a view with gaps of shape ", x.shape());
}

}  // namespace

void Work::wait() {
    if (operation_) {
        group_->wait(*operation_);
        operation_->release_tensors();
    }
    operation_ = nullptr;
    staging_.copy_to_destination();
}

void wait_all(std::vector<Work>& works) {
    for (Work& work : works) work.wait();
    works.clear();
}

void HostStaging::copy_to_destination() {
    const Tensor from = std::exchange(buffer, {}), to = std::exchange(destination, {});
    if (to.defined()) to.device().copy_in(to.view().data, from.view().data, to.bytes());
}

Communicator::Communicator(std::string name, std::vector<int> ranks, int rank, Progress& progress,
                           FlightRecorder& recorder)
    : name_(std::move(name)),
      ranks_(std::move(ranks)),
      rank_(rank),
      progress_(progress),
      recorder_(recorder),
      group_(recorder.add_group(name_, ranks_)),
      host_(make_cpu_device(1)),
      messages_(ranks_.size()) {}

Work Communicator::begin(Collective collective) {
    check_overlap(collective);
    const Summary summary = collective.summary();
    auto& messages = messages_[to_size(collective.peer)];
    const uint64_t sequence = collective.kind == Kind::send      ? ++messages[0]
                              : collective.kind == Kind::receive ? ++messages[1]
                                                                 : ++sequence_;
    Traffic& traffic = traffic_[to_size(collective.kind)];
    ++traffic.calls;
    traffic.bytes += summary.bytes;
    traffic.sent +=
        collective.kind == Kind::all_to_all
            ? (total(collective.send_counts) - collective.send_counts[to_size(rank_)]) * size_of(summary.dtype)
            : bytes_sent(collective.kind, summary.bytes, size());
    const uint64_t entry = recorder_.start(group_, sequence, summary);
    const TraceScope span(progress_.trace(), {.activity = Activity::begin,
                                              .name = "begin",
                                              .of = name_of(collective.kind),
                                              .group = name_,
                                              .number = sequence});
    HostStaging staging = stage_on_host(collective);
    const double waited = progress_.waited_s();
    std::shared_ptr<Operation> operation = start(std::move(collective), sequence);
    waited_s_ += progress_.waited_s() - waited;  // start() may wait for room
    operation->on_begin = [&recorder = recorder_, entry] { recorder.run(entry); };
    operation->on_complete = [&recorder = recorder_, entry, &of = *operation](bool failed) {
        recorder.finish(entry, failed ? State::failed : State::complete, of.gpu_times());
    };
    progress_.add(operation);
    return {std::move(operation), this, std::move(staging)};
}

// Copies the input, which waits for the kernels that compute it.
HostStaging Communicator::stage_on_host(Collective& c) const {
    const auto on_gpu = [this](const Tensor& x) { return x.defined() && !reaches(x.device()); };
    const Tensor input = c.input, output = c.output;
    if (on_gpu(input)) {
        c.input = Tensor::empty(*host_, input.shape(), input.dtype(), Purpose::communication);
        input.device().copy_out(c.input.view().data, input.view().data, input.bytes());
    }
    if (!on_gpu(output)) return {};
    const bool in_place = input.defined() && input.view().data == output.view().data && input.bytes() == output.bytes();
    c.output = in_place ? c.input : Tensor::empty(*host_, output.shape(), output.dtype(), Purpose::communication);
    return {c.output, output};
}

void Communicator::wait(const Operation& operation) {
    const double waited = progress_.waited_s();
    progress_.wait(operation);
    waited_s_ += progress_.waited_s() - waited;
}

Usage Communicator::usage() const {
    Usage usage{.waited_s = waited_s_};
    for (const Traffic& traffic : traffic_) {
        usage.operations += traffic.calls;
        usage.sent += traffic.sent;
    }
    return usage;
}

Work Communicator::all_reduce(const Tensor& x, Reduce reduce) {
    check_contiguous(x, "all_reduce");
    if (size() == 1) return {};
    return begin({.kind = Kind::all_reduce, .input = x, .output = x, .reduce = reduce});
}

// A part may lie inside the whole tensor only at its own place: elsewhere other ranks may read or write.
void Communicator::check_overlap(const Collective& collective) const {
    const bool gather = collective.kind == Kind::all_gather;
    if (!gather && collective.kind != Kind::reduce_scatter) return;
    const Tensor& part = gather ? collective.input : collective.output;
    const Tensor& whole = gather ? collective.output : collective.input;
    const auto* begin = whole.view().as<const std::byte>();
    const auto* own = part.view().as<const std::byte>();
    const auto before = std::less<>();
    if (before(own, begin) || !before(own, begin + whole.bytes())) return;
    const int64_t required = rank_ * (whole.bytes() / size());
    check(own == begin + required, name_of(collective.kind), " of group ", name_, ": the part of rank ", rank_,
          " lies inside the whole tensor at byte ", own - begin, ", where other ranks read or write; required byte ",
          required, ", or a tensor of its own");
}

bool Communicator::copied_alone(const Tensor& from, const Tensor& to) const {
    if (size() > 1 || from.dtype() != to.dtype() || &from.device() != &to.device()) return false;
    if (from.view().data != to.view().data) from.device().copy(to.view().data, from.view().data, from.bytes());
    return true;
}

Work Communicator::reduce_scatter(const Tensor& x, const Tensor& part) {
    check_contiguous(x, "reduce_scatter");
    check_contiguous(part, "reduce_scatter");
    check(x.numel() == part.numel() * size(), "reduce_scatter over ", size(), " ranks of group ", name_, ": a part of ",
          part.numel(), " elements needs an input of ", part.numel() * size(), ", got ", x.numel());
    check(x.dtype() == part.dtype() || part.dtype() == DType::f32, "reduce_scatter of group ", name_, ": required ",
          x.dtype(), ", the input's type, or f32 for the output, got ", part.dtype());
    if (copied_alone(x, part)) return {};
    return begin({.kind = Kind::reduce_scatter, .input = x, .output = part});
}

Work Communicator::all_gather(const Tensor& part, const Tensor& x) {
    check_contiguous(x, "all_gather");
    check_contiguous(part, "all_gather");
    check(x.numel() == part.numel() * size() && x.dtype() == part.dtype(), "all_gather over ", size(),
          " ranks of group ", name_, ": parts of ", part.numel(), " ", part.dtype(), " need an output of ",
          part.numel() * size(), ", got ", x.numel(), " ", x.dtype());
    if (copied_alone(part, x)) return {};
    return begin({.kind = Kind::all_gather, .input = part, .output = x});
}

Work Communicator::broadcast(const Tensor& x, int root) {
    check_contiguous(x, "broadcast");
    check(root >= 0 && root < size(), "broadcast from rank ", root, ": required a rank of group ", name_, " (0 to ",
          size() - 1, ")");
    return begin({.kind = Kind::broadcast, .input = x, .output = x, .peer = root});
}

Work Communicator::all_to_all(const Tensor& x, std::vector<int64_t> send_counts, const Tensor& y,
                              std::vector<int64_t> receive_counts) {
    check_contiguous(x, "all_to_all");
    check_contiguous(y, "all_to_all");
    const auto n = to_size(size());
    check(send_counts.size() == n && receive_counts.size() == n, "all_to_all: group ", name_, " has ", size(),
          " ranks, got ", send_counts.size(), " and ", receive_counts.size(), " counts");
    check(total(send_counts) == x.numel() && total(receive_counts) == y.numel() && x.dtype() == y.dtype(),
          "all_to_all: counts sum to ", total(send_counts), " and ", total(receive_counts), ", the tensors hold ",
          x.numel(), " ", x.dtype(), " and ", y.numel(), " ", y.dtype());
    if (copied_alone(x, y)) return {};
    return begin({.kind = Kind::all_to_all,
                  .input = x,
                  .output = y,
                  .send_counts = std::move(send_counts),
                  .receive_counts = std::move(receive_counts)});
}

void Communicator::check_peer(int peer, std::string_view what) const {
    check(peer >= 0 && peer < size() && peer != rank_, what, " rank ", peer, ": required a rank of group ", name_,
          " (0 to ", size() - 1, ") other than this rank, ", rank_);
}

Work Communicator::send(const Tensor& x, int to) {
    check_contiguous(x, "send");
    check_peer(to, "send to");
    return begin({.kind = Kind::send, .input = x, .peer = to});
}

Work Communicator::receive(const Tensor& x, int from) {
    check_contiguous(x, "receive");
    check_peer(from, "receive from");
    return begin({.kind = Kind::receive, .output = x, .peer = from});
}

void Communicator::barrier() { begin({.kind = Kind::barrier}).wait(); }

void Communicator::sum(ExactSum& value, std::span<int64_t> counts) {
    std::vector<int64_t> all(value.words().begin(), value.words().end());
    all.insert(all.end(), counts.begin(), counts.end());
    const Tensor x =
        Tensor::from_host<int64_t>(*host_, {static_cast<int64_t>(all.size())}, all, Purpose::communication);
    all_reduce(x).wait();
    all = x.to_host<int64_t>();
    ExactSum::Words words{};
    std::copy_n(all.begin(), words.size(), words.begin());
    std::copy(all.begin() + ExactSum::kWords, all.end(), counts.begin());
    value = ExactSum::of(words);
}

double Communicator::reduced(double value, Reduce reduce) {
    const Tensor x = Tensor::from_host<double>(*host_, {1}, {&value, 1}, Purpose::communication);
    all_reduce(x, reduce).wait();
    return x.to_host<double>()[0];
}

std::vector<std::string> gather_texts(Communicator& ranks, const std::string& text) {
    const auto device = make_cpu_device(1);
    const auto n = static_cast<int64_t>(ranks.size());
    const auto own_length = static_cast<int64_t>(text.size());
    const Tensor length = Tensor::from_host<int64_t>(*device, {1}, {&own_length, 1}, Purpose::communication);
    const Tensor all_lengths = Tensor::empty(*device, {n}, DType::i64, Purpose::communication);
    ranks.all_gather(length, all_lengths).wait();
    const auto lengths = all_lengths.to_host<int64_t>();

    // All parts of an all_gather have one size: that of the longest text.
    const int64_t longest = std::max<int64_t>(1, *std::max_element(lengths.begin(), lengths.end()));
    std::vector<uint8_t> padded(text.begin(), text.end());
    padded.resize(to_size(longest));
    const Tensor part = Tensor::from_host<uint8_t>(*device, {longest}, padded, Purpose::communication);
    const Tensor all = Tensor::empty(*device, {n * longest}, DType::u8, Purpose::communication);
    ranks.all_gather(part, all).wait();

    std::vector<std::string> texts;
    const char* bytes = all.view().as<const char>();
    for (int64_t length_of_one : lengths) {
        texts.emplace_back(bytes, to_size(length_of_one));
        bytes += longest;
    }
    return texts;
}

std::vector<std::string> device_identities(Communicator& ranks, const Device& device) {
    const std::string shared = device.identity();
    return gather_texts(ranks, shared.empty() ? concat("rank ", ranks.rank()) : concat(host_name(), ", ", shared));
}

int ranks_of_device(Communicator& ranks, const Device& device) {
    const auto devices = device_identities(ranks, device);
    const std::string& own = devices[to_size(ranks.rank())];
    return static_cast<int>(std::count(devices.begin(), devices.end(), own));
}

void send_text(Communicator& ranks, const std::string& text, int to) {
    const auto device = make_cpu_device(1);
    const auto length = static_cast<int64_t>(text.size());
    ranks.send(Tensor::from_host<int64_t>(*device, {1}, {&length, 1}, Purpose::communication), to).wait();
    if (length == 0) return;
    const std::span bytes(reinterpret_cast<const uint8_t*>(text.data()), text.size());
    ranks.send(Tensor::from_host<uint8_t>(*device, {length}, bytes, Purpose::communication), to).wait();
}

std::string receive_text(Communicator& ranks, int from) {
    const auto device = make_cpu_device(1);
    const Tensor length = Tensor::empty(*device, {1}, DType::i64, Purpose::communication);
    ranks.receive(length, from).wait();
    const int64_t size = length.to_host<int64_t>()[0];
    if (size == 0) return "";
    const Tensor bytes = Tensor::empty(*device, {size}, DType::u8, Purpose::communication);
    ranks.receive(bytes, from).wait();
    return {bytes.view().as<const char>(), to_size(size)};
}

}  // namespace tutti::comm
