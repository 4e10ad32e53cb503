#include "tutti/device/arena.h"

#include <algorithm>
#include <iterator>

#include "tutti/base/error.h"

namespace tutti {

int64_t ArenaEnd::place_of(int64_t bytes) const {
    const auto gap = gaps_by_size_.lower_bound({bytes, 0});
    return gap == gaps_by_size_.end() ? length_ : gap->second;
}

int64_t ArenaEnd::take(int64_t bytes) {
    const auto gap = gaps_by_size_.lower_bound({bytes, 0});
    if (gap == gaps_by_size_.end()) return std::exchange(length_, length_ + bytes);
    const auto [size, place] = *gap;
    gaps_by_size_.erase(gap);
    gaps_.erase(place);
    if (size > bytes) {
        gaps_[place + bytes] = size - bytes;
        gaps_by_size_.emplace(size - bytes, place + bytes);
    }
    return place;
}

void ArenaEnd::give_back(int64_t place, int64_t bytes) {
    const auto next = gaps_.lower_bound(place);
    const auto before = next == gaps_.begin() ? gaps_.end() : std::prev(next);
    check(place + bytes <= (next == gaps_.end() ? length_ : next->first) &&
              (before == gaps_.end() || before->first + before->second <= place),
          "memory is released that was not allocated");
    const auto join = [&](auto gap) {
        gaps_by_size_.erase({gap->second, gap->first});
        place = std::min(place, gap->first);
        bytes += gap->second;
        gaps_.erase(gap);
    };
    if (next != gaps_.end() && next->first == place + bytes) join(next);
    if (before != gaps_.end() && before->first + before->second == place) join(before);
    if (place + bytes == length_) {
        length_ = place;
        return;
    }
    gaps_[place] = bytes;
    gaps_by_size_.emplace(bytes, place);
}

int64_t Arena::length_with(int64_t bytes, End end) const {
    const ArenaEnd& side = end == End::first ? first_ : last_;
    return std::max(side.length(), side.place_of(bytes) + bytes) + (end == End::first ? last_ : first_).length();
}

void* Arena::take(int64_t bytes, End end) {
    return begin_ + (end == End::first ? first_.take(bytes) : bytes_ - last_.take(bytes) - bytes);
}

void Arena::give_back(void* data, int64_t bytes, End end) {
    const int64_t place = static_cast<std::byte*>(data) - begin_;
    end == End::first ? first_.give_back(place, bytes) : last_.give_back(bytes_ - place - bytes, bytes);
}

}  // namespace tutti
