#include "tutti/comm/mpi/stream.h"

#include <algorithm>
#include <cstring>

#include "tutti/base/error.h"

namespace tutti::comm::mpi {

namespace {

constexpr auto kHead = static_cast<int64_t>(sizeof(Announcement));

Use head_use(Lane lane) { return lane == Lane::messages ? Use::message : Use::exchange; }
Use data_use(Lane lane) { return lane == Lane::messages ? Use::message_data : Use::exchange_data; }

// Bytes [at, at + n) of a stream in its ring: one or two pieces.
template <class Copy>
void in_ring(std::span<std::byte> ring, uint64_t at, int64_t n, const Copy& copy) {
    const auto size = static_cast<int64_t>(ring.size()), start = static_cast<int64_t>(at % ring.size());
    const int64_t first = std::min(n, size - start);
    copy(ring.data() + start, int64_t{0}, first);
    if (n > first) copy(ring.data(), first, n - first);
}

// A quarter of the ring, or the rest: ranks that share a core would otherwise pass a few bytes at each turn.
bool worth_moving(int64_t n, int64_t rest, std::span<std::byte> ring) {
    return n > 0 && (n == rest || n >= static_cast<int64_t>(ring.size()) / 4);
}

}  // namespace

Outgoing::Outgoing(Group& group, Lane lane, int to, const Announcement& head, const std::byte* data, int64_t bytes)
    : group_(group), lane_(lane), to_(to), head_(head), data_(data), bytes_(bytes) {}

bool Outgoing::advance() {
    if (!group_.is_local(to_)) {
        if (!begun_) {
            const int to = group_.world_rank(to_);
            requests_.push_back(group_.wire.send(&head_, kHead, to, group_.tag(head_use(lane_))));
            if (bytes_ > 0) requests_.push_back(group_.wire.send(data_, bytes_, to, group_.tag(data_use(lane_))));
            begun_ = true;
        }
        return group_.wire.all_done(requests_);
    }
    Channel& channel = group_.channel(lane_ == Lane::exchanges, group_.rank(), to_);
    const auto ring = group_.ring(lane_ == Lane::exchanges, group_.rank(), to_);
    const uint64_t written = channel.written;
    const int64_t room = static_cast<int64_t>(ring.size()) - static_cast<int64_t>(written - channel.read);
    const int64_t n = std::min(room, kHead + bytes_ - sent_);
    if (worth_moving(n, kHead + bytes_ - sent_, ring)) {
        in_ring(ring, written, n, [&](std::byte* place, int64_t from, int64_t count) {
            const int64_t begin = sent_ + from;
            const int64_t of_head = std::clamp<int64_t>(kHead - begin, 0, count);
            if (of_head > 0)
                std::memcpy(place, reinterpret_cast<const std::byte*>(&head_) + begin, static_cast<size_t>(of_head));
            if (count > of_head)
                std::memcpy(place + of_head, data_ + begin + of_head - kHead, static_cast<size_t>(count - of_head));
        });
        sent_ += n;
        channel.written = written + static_cast<uint64_t>(n);
        group_.host.ring();
    }
    return sent_ == kHead + bytes_;
}

Incoming::Incoming(Group& group, Lane lane, int from, uint64_t sequence, DType dtype, int64_t count, std::byte* data)
    : group_(group), lane_(lane), from_(from), sequence_(sequence), dtype_(dtype), count_(count), data_(data) {}

void Incoming::look_at_head() {
    fits_ = head_.group == group_.key && head_.sequence == sequence_ && head_.dtype == dtype_ && head_.count == count_;
    bytes_ = head_.count * size_of(head_.dtype);
    if (fits_) return;
    refused_.resize(static_cast<size_t>(bytes_));
    data_ = refused_.data();
}

bool Incoming::advance() {
    if (!group_.is_local(from_)) {
        const int from = group_.world_rank(from_);
        if (!begun_) requests_ = {group_.wire.receive(&head_, kHead, from, group_.tag(head_use(lane_)))};
        begun_ = true;
        if (!group_.wire.all_done(requests_)) return false;
        if (received_ == 0) {
            received_ = kHead;
            look_at_head();
            if (bytes_ > 0) requests_ = {group_.wire.receive(data_, bytes_, from, group_.tag(data_use(lane_)))};
        }
        return group_.wire.all_done(requests_);
    }
    Channel& channel = group_.channel(lane_ == Lane::exchanges, from_, group_.rank());
    const auto ring = group_.ring(lane_ == Lane::exchanges, from_, group_.rank());
    const auto take = [&](int64_t wanted, std::byte* to) {
        const uint64_t read = channel.read;
        const int64_t n = std::min(wanted, static_cast<int64_t>(channel.written - read));
        if (!worth_moving(n, wanted, ring)) return;
        in_ring(ring, read, n, [&](const std::byte* place, int64_t at, int64_t count) {
            std::memcpy(to + at, place, static_cast<size_t>(count));
        });
        received_ += n;
        channel.read = read + static_cast<uint64_t>(n);
        group_.host.ring();
    };
    if (!head_is_here()) {
        take(kHead - received_, reinterpret_cast<std::byte*>(&head_) + received_);
        if (!head_is_here()) return false;
        look_at_head();
    }
    const int64_t at = received_ - kHead;
    if (at < bytes_) take(bytes_ - at, data_ + at);
    return received_ == kHead + bytes_;
}

void Incoming::check_fit() const {
    if (fits_) return;
    if (lane_ == Lane::exchanges)
        throw Error(concat("all_to_all, operation ", sequence_, " of group ", group_.name, ": rank ", from_, " sends ",
                           head_.count, ' ', head_.dtype, " to rank ", group_.rank(), ", which expects ", count_, ' ',
                           dtype_));
    throw Error(concat("message ", sequence_, " of group ", group_.name, ": receive of ", count_, ' ', dtype_,
                       " from rank ", from_, " does not fit what came: ", head_.summary().text()));
}

}  // namespace tutti::comm::mpi
