// tensor/view.h: a kernel's view of a tensor: pointer, type, sizes, strides. Owns nothing.
#pragma once

#include <array>
#include <cstdint>

#include "tutti/base/dtype.h"
#include "tutti/base/shape.h"
#include "tutti/base/to_size.h"

namespace tutti {

struct View {
    void* data = nullptr;
    DType dtype = DType::f32;
    Shape shape;
    std::array<int64_t, Shape::kMaxDims> strides{};  // in elements

    View() = default;
    View(void* data_, DType dtype_, const Shape& shape_) : data(data_), dtype(dtype_), shape(shape_) {
        int64_t stride = 1;
        for (int i = shape.rank() - 1; i >= 0; --i) {
            strides[to_size(i)] = stride;
            stride *= shape[i];
        }
    }

    bool defined() const { return data != nullptr; }
    int64_t numel() const { return shape.numel(); }
    int64_t stride(int i) const { return strides[to_size(i < 0 ? i + shape.rank() : i)]; }
    bool contiguous() const {
        int64_t expected = 1;
        for (int i = shape.rank() - 1; i >= 0; --i) {
            if (shape[i] != 1 && stride(i) != expected) return false;
            expected *= shape[i];
        }
        return true;
    }
    // A contiguous tensor of any rank as (rows, columns): columns is the innermost dim.
    int64_t columns() const { return shape.rank() == 0 ? 1 : shape[-1]; }
    int64_t rows() const { return columns() == 0 ? 0 : numel() / columns(); }

    template <class T>
    T* as() const {
        return static_cast<T*>(data);
    }
};

}  // namespace tutti
