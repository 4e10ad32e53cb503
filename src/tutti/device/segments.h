// device/segments.h: the free ranges of an allocator's memory. Ranges of any size are cut from larger ones and merge
// with free neighbours when they are returned, so that memory released by one purpose serves every other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace tutti {

class Segments {
  public:
    struct Range {
        std::byte* data;
        int64_t bytes;
    };

    Segments();
    ~Segments();

    // Adds memory from the system as one free range.
    void add(void* data, int64_t bytes);
    // Cuts `bytes` from the first free range that is large enough, in the oldest segment that has one. nullptr: none.
    // First fit: equal steps get equal places, so a run whose steps start with the same blocks in use needs no more
    // memory after the first step, and pages that were never touched stay untouched. Logarithmic in the parts.
    void* take(int64_t bytes);
    void give_back(void* data);
    // Removes and returns the segments without a block in use.
    std::vector<Range> remove_unused();
    // Takes over all segments of `other`, with their blocks in use, as the youngest segments.
    void absorb(Segments& other);

  private:
    struct Part {
        int64_t bytes;
        int64_t segment;  // by age
        bool free;
    };
    using Parts = std::map<std::byte*, Part>;  // the parts of a segment are contiguous

    // Whether `next` follows `part` in the same segment, and both are free.
    bool join(Parts::iterator part, Parts::iterator next) const;
    void merge(Parts::iterator part, Parts::iterator next);

    class Free;  // the free parts by segment and address
    Parts parts_;
    std::unique_ptr<Free> free_;
    int64_t segments_ = 0;
};

// Blocks of 1 MiB and more are kept apart from smaller ones: a small long-lived block would split the space of large
// ones.
struct FreeSpace {
    Segments small, large;

    static bool is_large(int64_t bytes) { return bytes >= 1 << 20; }
    Segments& of(int64_t bytes) { return is_large(bytes) ? large : small; }
};

}  // namespace tutti
