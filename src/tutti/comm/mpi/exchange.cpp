#include "tutti/comm/mpi/exchange.h"

#include <cstring>

namespace tutti::comm::mpi {

Exchange::Exchange(Group& group, const Collective& collective, uint64_t sequence) : group_(group) {
    const int64_t element = size_of(collective.input.dtype());
    const auto* from = collective.input.view().as<const std::byte>();
    auto* to = collective.output.view().as<std::byte>();
    const std::byte* own_from = nullptr;
    std::byte* own_to = nullptr;
    for (int r = 0; r < group.shape.ranks(); ++r) {
        const auto i = static_cast<size_t>(r);
        const int64_t sends = collective.send_counts[i], receives = collective.receive_counts[i];
        if (r == group.rank()) {
            own_from = from;
            own_to = to;
        } else {
            Announcement head = Announcement::of(collective, group.key, sequence);
            head.count = sends;
            out_.push_back({r, Outgoing(group, Lane::exchanges, r, head, from, sends * element)});
            in_.push_back({r, Incoming(group, Lane::exchanges, r, sequence, collective.output.dtype(), receives, to)});
        }
        from += sends * element;
        to += receives * element;
    }
    const auto own = static_cast<size_t>(group.rank());
    check(collective.send_counts[own] == collective.receive_counts[own], "all_to_all, operation ", sequence,
          " of group ", group.name, ": rank ", own, " sends itself ", collective.send_counts[own],
          " elements and expects ", collective.receive_counts[own]);
    if (collective.send_counts[own] > 0)
        std::memcpy(own_to, own_from, static_cast<size_t>(collective.send_counts[own] * element));
}

bool Exchange::advance() {
    std::erase_if(out_, [](Out& out) { return out.stream.advance(); });
    for (auto in = in_.begin(); in != in_.end();) {
        const auto next = std::next(in);
        if (in->stream.advance()) came_.splice(came_.end(), in_, in);
        in = next;
    }
    if (!out_.empty() || !in_.empty()) return false;
    for (const In& in : came_) in.stream.check_fit();
    return true;
}

std::string Exchange::waits_for() const {
    std::string text;
    for (const In& in : in_) text += concat(text.empty() ? "" : ", ", group_.who(in.from), " to send its share");
    for (const Out& out : out_) text += concat(text.empty() ? "" : ", ", group_.who(out.to), " to take its share");
    return text;
}

}  // namespace tutti::comm::mpi
