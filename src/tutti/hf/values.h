// hf/values.h: the bytes of a tensor in another type or turned. Below: base/. Called by load.cpp and export.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tutti/base/dtype.h"

namespace tutti::hf {

// f32, bf16 and f16 are what weights are stored in.
bool is_weight_type(DType dtype);

// Each value rounded to nearest even; equal types copy the bytes. `to` has room for as many values as `from` holds.
void convert(DType from_type, std::span<const std::byte> from, DType to_type, std::span<std::byte> to);

// (rows, columns) to (columns, rows), for values of `size` bytes.
void transpose(std::span<const std::byte> from, int64_t rows, int64_t columns, int64_t size, std::span<std::byte> to);

}  // namespace tutti::hf
