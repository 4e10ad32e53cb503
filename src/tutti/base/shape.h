// base/shape.h: the sizes of a tensor's dims, outermost first, stored inline.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <ostream>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"

namespace tutti {

class Shape {
  public:
    static constexpr int kMaxDims = 6;

    Shape() = default;
    Shape(std::initializer_list<int64_t> sizes) {
        check(static_cast<int>(sizes.size()) <= kMaxDims, "a shape has at most ", kMaxDims, " dims, got ",
              sizes.size());
        for (int64_t size : sizes) sizes_[to_size(rank_++)] = size;
    }

    int rank() const { return rank_; }
    int64_t numel() const {
        int64_t n = 1;
        for (int i = 0; i < rank_; ++i) n *= sizes_[to_size(i)];
        return n;
    }
    // Negative indices count from the end: shape[-1] is the size of the innermost dim.
    int64_t operator[](int i) const { return sizes_[index(i)]; }
    int64_t& operator[](int i) { return sizes_[index(i)]; }
    void push_back(int64_t size) {
        check(rank_ < kMaxDims, "a shape has at most ", kMaxDims, " dims");
        sizes_[to_size(rank_++)] = size;
    }
    const int64_t* begin() const { return sizes_.data(); }
    const int64_t* end() const { return sizes_.data() + rank_; }
    bool operator==(const Shape&) const = default;

  private:
    size_t index(int i) const {
        const int j = i < 0 ? i + rank_ : i;
        check(j >= 0 && j < rank_, "dim ", i, " of a shape with ", rank_, " dims");
        return to_size(j);
    }
    std::array<int64_t, kMaxDims> sizes_{};
    int rank_ = 0;
};

inline std::ostream& operator<<(std::ostream& out, const Shape& shape) {
    out << '(';
    for (int i = 0; i < shape.rank(); ++i) out << (i ? ", " : "") << shape[i];
    return out << ')';
}

}  // namespace tutti
