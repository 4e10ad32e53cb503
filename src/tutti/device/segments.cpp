#include "tutti/device/segments.h"

#include <algorithm>
#include <iterator>

#include "tutti/base/error.h"

namespace tutti {

void Segments::add(void* data, int64_t bytes) {
    auto* const begin = static_cast<std::byte*>(data);
    parts_[begin] = {.bytes = bytes, .segment = segments_, .free = true};
    free_[{segments_, begin}] = bytes;
    ++segments_;
}

void* Segments::take(int64_t bytes) {
    const auto found =
        std::find_if(free_.begin(), free_.end(), [&](const auto& range) { return range.second >= bytes; });
    if (found == free_.end()) return nullptr;
    const auto [segment, data] = found->first;
    free_.erase(found);
    Part& part = parts_.at(data);
    part.free = false;
    if (const int64_t rest = part.bytes - bytes; rest > 0) {
        part.bytes = bytes;
        parts_[data + bytes] = {.bytes = rest, .segment = segment, .free = true};
        free_[{segment, data + bytes}] = rest;
    }
    return data;
}

void Segments::give_back(void* data) {
    auto part = parts_.find(static_cast<std::byte*>(data));
    check(part != parts_.end() && !part->second.free, "memory is released that was not allocated");
    part->second.free = true;
    if (const auto next = std::next(part); next != parts_.end() && join(part, next)) merge(part, next);
    if (part != parts_.begin() && join(std::prev(part), part)) {
        part = std::prev(part);
        merge(part, std::next(part));
    }
    free_[{part->second.segment, part->first}] = part->second.bytes;
}

std::vector<Segments::Range> Segments::remove_unused() {
    std::vector<Range> unused;
    for (auto part = parts_.begin(); part != parts_.end();) {
        const auto [data, is] = *part;
        const auto same = [&](auto other) { return other->second.segment == is.segment; };
        const auto next = std::next(part);
        const bool whole = !(part != parts_.begin() && same(std::prev(part))) && !(next != parts_.end() && same(next));
        if (is.free && whole) {
            unused.push_back({data, is.bytes});
            free_.erase({is.segment, data});
            parts_.erase(part);
        }
        part = next;
    }
    return unused;
}

void Segments::absorb(Segments& other) {
    for (auto [data, part] : other.parts_) {
        part.segment += segments_;
        parts_[data] = part;
        if (part.free) free_[{part.segment, data}] = part.bytes;
    }
    segments_ += other.segments_;
    other = {};
}

bool Segments::join(Parts::iterator part, Parts::iterator next) const {
    return part->second.free && next->second.free && part->second.segment == next->second.segment;
}

void Segments::merge(Parts::iterator part, Parts::iterator next) {
    for (const auto& gone : {part, next}) free_.erase({gone->second.segment, gone->first});
    part->second.bytes += next->second.bytes;
    parts_.erase(next);
}

}  // namespace tutti
