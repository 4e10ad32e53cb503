#include "tutti/comm/processes/stream.h"

#include <algorithm>
#include <cstring>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"

namespace tutti::comm::processes {

namespace {

constexpr auto kHead = static_cast<int64_t>(sizeof(Announcement));

Use announcement_use(StreamKind kind) { return kind == StreamKind::messages ? Use::message : Use::all_to_all; }
Use data_use(StreamKind kind) { return kind == StreamKind::messages ? Use::message_data : Use::all_to_all_data; }

// Calls copy(place, offset, count) for bytes [at, at + n) of a stream in its ring: one or two pieces.
template <class Copy>
void in_ring(std::span<std::byte> ring, uint64_t at, int64_t n, const Copy& copy) {
    const auto size = static_cast<int64_t>(ring.size()), start = static_cast<int64_t>(at % ring.size());
    const int64_t first = std::min(n, size - start);
    copy(ring.data() + start, int64_t{0}, first);
    if (n > first) copy(ring.data(), first, n - first);
}

// A quarter of the ring, or the rest: ranks that share a core would otherwise move a few bytes per context switch.
bool worth_moving(int64_t n, int64_t rest, std::span<std::byte> ring) {
    return n > 0 && (n == rest || n >= static_cast<int64_t>(ring.size()) / 4);
}

}  // namespace

Outgoing::Outgoing(ProcessGroup& group, StreamKind kind, int to, const Announcement& announcement,
                   const std::byte* data, int64_t bytes)
    : group_(group), kind_(kind), to_(to), announcement_(announcement), data_(data), bytes_(bytes) {}

bool Outgoing::advance() {
    if (!group_.is_local(to_)) {
        if (!begun_) {
            const int to = group_.world_rank(to_);
            requests_.push_back(group_.wire.send(&announcement_, kHead, to, group_.tag(announcement_use(kind_), to_)));
            if (bytes_ > 0) requests_.push_back(group_.wire.send(data_, bytes_, to, group_.tag(data_use(kind_), to_)));
            begun_ = true;
        }
        return group_.wire.all_done(requests_);
    }
    RingCounters& counters = group_.ring_counters(kind_, group_.rank(), to_);
    const auto ring = group_.ring(kind_, group_.rank(), to_);
    const uint64_t written = counters.written;
    const int64_t room = static_cast<int64_t>(ring.size()) - static_cast<int64_t>(written - counters.read);
    const int64_t n = std::min(room, kHead + bytes_ - sent_);
    if (worth_moving(n, kHead + bytes_ - sent_, ring)) {
        in_ring(ring, written, n, [&](std::byte* place, int64_t from, int64_t count) {
            const int64_t begin = sent_ + from;
            const int64_t of_head = std::clamp<int64_t>(kHead - begin, 0, count);
            if (of_head > 0)
                std::memcpy(place, reinterpret_cast<const std::byte*>(&announcement_) + begin, to_size(of_head));
            if (count > of_head)
                std::memcpy(place + of_head, data_ + begin + of_head - kHead, to_size(count - of_head));
        });
        sent_ += n;
        counters.written = written + static_cast<uint64_t>(n);
        group_.host.notify();
    }
    return sent_ == kHead + bytes_;
}

Incoming::Incoming(ProcessGroup& group, StreamKind kind, int from, uint64_t sequence, DType dtype, int64_t count,
                   std::byte* data)
    : group_(group), kind_(kind), from_(from), sequence_(sequence), dtype_(dtype), count_(count), data_(data) {}

void Incoming::read_announcement() {
    fits_ = announcement_.group == group_.key && announcement_.sequence == sequence_ && announcement_.dtype == dtype_ &&
            announcement_.count == count_;
    bytes_ = announcement_.count * size_of(announcement_.dtype);
    if (fits_) return;
    unexpected_.resize(to_size(bytes_));
    data_ = unexpected_.data();
}

bool Incoming::advance() {
    if (!group_.is_local(from_)) {
        const int from = group_.world_rank(from_);
        if (!begun_)
            requests_ = {group_.wire.receive(&announcement_, kHead, from, group_.tag(announcement_use(kind_), from_))};
        begun_ = true;
        if (!group_.wire.all_done(requests_)) return false;
        if (received_ == 0) {
            received_ = kHead;
            read_announcement();
            if (bytes_ > 0) requests_ = {group_.wire.receive(data_, bytes_, from, group_.tag(data_use(kind_), from_))};
        }
        return group_.wire.all_done(requests_);
    }
    RingCounters& counters = group_.ring_counters(kind_, from_, group_.rank());
    const auto ring = group_.ring(kind_, from_, group_.rank());
    const auto take = [&](int64_t wanted, std::byte* to) {
        const uint64_t read = counters.read;
        const int64_t n = std::min(wanted, static_cast<int64_t>(counters.written - read));
        if (!worth_moving(n, wanted, ring)) return;
        in_ring(ring, read, n, [&](const std::byte* place, int64_t at, int64_t count) {
            std::memcpy(to + at, place, to_size(count));
        });
        received_ += n;
        counters.read = read + static_cast<uint64_t>(n);
        group_.host.notify();
    };
    if (!has_announcement()) {
        take(kHead - received_, reinterpret_cast<std::byte*>(&announcement_) + received_);
        if (!has_announcement()) return false;
        read_announcement();
    }
    const int64_t at = received_ - kHead;
    if (at < bytes_) take(bytes_ - at, data_ + at);
    return received_ == kHead + bytes_;
}

void Incoming::check_fit() const {
    if (fits_) return;
    if (kind_ == StreamKind::all_to_all)
        throw Error(concat("all_to_all, operation ", sequence_, " of group ", group_.name, ": rank ", from_, " sends ",
                           announcement_.count, ' ', announcement_.dtype, " to rank ", group_.rank(),
                           ", which expects ", count_, ' ', dtype_));
    throw Error(concat("message ", sequence_, " of group ", group_.name, ": receive of ", count_, ' ', dtype_,
                       " from rank ", from_, " does not fit the message: ", announcement_.summary().text()));
}

AllToAll::AllToAll(ProcessGroup& group, const Collective& collective, uint64_t sequence) : group_(group) {
    const int64_t element = size_of(collective.input.dtype());
    const auto* from = collective.input.view().as<const std::byte>();
    auto* to = collective.output.view().as<std::byte>();
    const std::byte* own_from = nullptr;
    std::byte* own_to = nullptr;
    for (int r = 0; r < group.topology.ranks(); ++r) {
        const auto i = to_size(r);
        const int64_t sends = collective.send_counts[i], receives = collective.receive_counts[i];
        if (r == group.rank()) {
            own_from = from;
            own_to = to;
        } else {
            Announcement head = Announcement::of(collective, group.key, sequence);
            head.count = sends;
            out_.push_back({r, Outgoing(group, StreamKind::all_to_all, r, head, from, sends * element)});
            in_.push_back(
                {r, Incoming(group, StreamKind::all_to_all, r, sequence, collective.output.dtype(), receives, to)});
        }
        from += sends * element;
        to += receives * element;
    }
    const auto own = to_size(group.rank());
    check(collective.send_counts[own] == collective.receive_counts[own], "all_to_all, operation ", sequence,
          " of group ", group.name, ": rank ", own, " sends itself ", collective.send_counts[own],
          " elements and expects ", collective.receive_counts[own]);
    if (collective.send_counts[own] > 0) std::memcpy(own_to, own_from, to_size(collective.send_counts[own] * element));
}

bool AllToAll::advance() {
    std::erase_if(out_, [](Out& out) { return out.stream.advance(); });
    for (auto in = in_.begin(); in != in_.end();) {
        const auto next = std::next(in);
        if (in->stream.advance()) complete_.splice(complete_.end(), in_, in);
        in = next;
    }
    if (!out_.empty() || !in_.empty()) return false;
    for (const In& in : complete_) in.stream.check_fit();
    return true;
}

std::string AllToAll::waits_for() const {
    std::string text;
    for (const In& in : in_) text += concat(text.empty() ? "" : ", ", group_.name_of(in.from), " to send its share");
    for (const Out& out : out_) text += concat(text.empty() ? "" : ", ", group_.name_of(out.to), " to take its share");
    return text;
}

namespace {

class Send final : public Operation {
  public:
    Send(const std::shared_ptr<ProcessGroup>& group, Collective what, uint64_t number)
        : Operation(std::move(what), group->name, number),
          group_(group),
          stream_(*group, StreamKind::messages, to(), Announcement::of(collective(), group->key, number),
                  collective().input.view().as<const std::byte>(), collective().input.bytes()) {}

    bool advance() override {
        uint64_t& completed = group_->sent[to_size(to())];
        if (completed != sequence() - 1 || !stream_.advance()) return false;
        completed = sequence();
        return true;
    }
    std::string waits_for() const override {
        return concat(group_->name_of(to()), " to receive it", group_->host.last_operation(group_->world_rank(to())));
    }

  private:
    int to() const { return collective().peer; }
    const std::shared_ptr<ProcessGroup> group_;
    Outgoing stream_;
};

class Receive final : public Operation {
  public:
    Receive(const std::shared_ptr<ProcessGroup>& group, Collective what, uint64_t number)
        : Operation(std::move(what), group->name, number),
          group_(group),
          stream_(*group, StreamKind::messages, from(), number, collective().output.dtype(),
                  collective().output.numel(), collective().output.view().as<std::byte>()) {}

    bool advance() override {
        uint64_t& completed = group_->received[to_size(from())];
        if (completed != sequence() - 1 || !stream_.advance()) return false;
        completed = sequence();
        stream_.check_fit();
        return true;
    }
    std::string waits_for() const override {
        return concat(group_->name_of(from()), " to send it", group_->host.last_operation(group_->world_rank(from())));
    }

  private:
    int from() const { return collective().peer; }
    const std::shared_ptr<ProcessGroup> group_;
    Incoming stream_;
};

}  // namespace

std::shared_ptr<Operation> start_message(const std::shared_ptr<ProcessGroup>& group, Collective collective,
                                         uint64_t sequence) {
    if (collective.kind == Kind::send) return std::make_shared<Send>(group, std::move(collective), sequence);
    return std::make_shared<Receive>(group, std::move(collective), sequence);
}

}  // namespace tutti::comm::processes
