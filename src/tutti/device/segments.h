// device/segments.h: which ranges of the memory that an allocator holds are free. Ranges of any size are cut from
// larger ones and grow together again when their neighbours are free, so that what one purpose leaves serves every
// other. Used by memory.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace tutti {

class Segments {
  public:
    struct Range {
        std::byte* data;
        int64_t bytes;
    };

    // Memory as the system gave it, free.
    void add(void* data, int64_t bytes);
    // The first free range that holds `bytes`, in the oldest segment that has one; what is left of it stays free.
    // nullptr: there is none. First fit: steps that ask for the same get the same places, so a run that starts its
    // steps with the same in use needs no more memory after the first; and what was never touched stays so.
    void* take(int64_t bytes);
    void give_back(void* data);
    // Takes out the segments of which nothing is in use.
    std::vector<Range> remove_unused();
    // Takes over all segments of `other`, as younger ones, in use or not.
    void absorb(Segments& other);

  private:
    struct Part {
        int64_t bytes;
        int64_t segment;  // by age
        bool free;
    };
    using Parts = std::map<std::byte*, Part>;  // those of a segment follow each other without gaps

    // Whether `next` follows `part` in the same segment, and both are free.
    bool join(Parts::iterator part, Parts::iterator next) const;
    void merge(Parts::iterator part, Parts::iterator next);

    Parts parts_;
    std::map<std::pair<int64_t, std::byte*>, int64_t> free_;  // bytes, by segment and address
    int64_t segments_ = 0;
};

// Blocks of 1 MiB and more apart from smaller ones: a small one that stays would cut the space of large ones in two.
struct FreeSpace {
    Segments small, large;

    static bool is_large(int64_t bytes) { return bytes >= 1 << 20; }
    Segments& of(int64_t bytes) { return is_large(bytes) ? large : small; }
};

}  // namespace tutti
