// device/arena.h: one range of memory that blocks are cut from at both ends. A place depends on the blocks alone and
// not on the length of the range, so that a rehearsal tells the length that a step needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

namespace tutti {

// The blocks at one end, by their distance from it: the smallest gap that is large enough, of equal ones the nearest to
// the end; the space behind the last block where no gap is. Logarithmic in the gaps.
class ArenaEnd {
  public:
    int64_t place_of(int64_t bytes) const;  // that take() would take
    int64_t take(int64_t bytes);
    void give_back(int64_t place, int64_t bytes);
    int64_t length() const { return length_; }  // up to the last block's end

  private:
    std::map<int64_t, int64_t> gaps_;                     // bytes by place; none touches another one or the last end
    std::set<std::pair<int64_t, int64_t>> gaps_by_size_;  // bytes and place
    int64_t length_ = 0;
};

class Arena {
  public:
    enum class End { first, last };

    Arena(void* begin, int64_t bytes) : begin_(static_cast<std::byte*>(begin)), bytes_(bytes) {}

    // The bytes of the blocks at both ends and of the gaps between them, with a block of `bytes` at `end`.
    int64_t length_with(int64_t bytes, End end) const;
    // Requires length_with() of at most the bytes of the arena.
    void* take(int64_t bytes, End end);
    bool holds(const void* data) const { return data >= begin_ && data < begin_ + bytes_; }
    void give_back(void* data, int64_t bytes, End end);
    std::byte* begin() const { return begin_; }

  private:
    std::byte* begin_;
    int64_t bytes_;
    ArenaEnd first_, last_;
};

}  // namespace tutti
