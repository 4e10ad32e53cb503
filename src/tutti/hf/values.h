// hf/values.h: conversion of the values of a stored tensor to another type or orientation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "tutti/base/dtype.h"

namespace tutti::hf {

// Weights are stored in f32, bf16 or f16.
bool is_weight_type(DType dtype);

// Numbers of finite values that another type cannot hold, and of values that were not finite before.
struct Loss {
    int64_t infinite = 0, zero = 0;  // values that became infinite; values other than 0 that became 0
    int64_t not_finite = 0;
    bool any() const { return infinite + zero + not_finite > 0; }
    Loss& operator+=(const Loss& other) {
        infinite += other.infinite;
        zero += other.zero;
        not_finite += other.not_finite;
        return *this;
    }
};

// Rounds each value to nearest even; equal types copy the bytes. `to` has room for as many values as `from` holds. Does
// not count values that are not finite.
Loss convert(DType from_type, std::span<const std::byte> from, DType to_type, std::span<std::byte> to);

float value_at(DType dtype, std::span<const std::byte> values, int64_t index);
// The index of the first NaN or infinity; nullopt: all values are finite.
std::optional<int64_t> first_not_finite(DType dtype, std::span<const std::byte> values);

int64_t count_not_finite(DType dtype, std::span<const std::byte> values);

// (rows, columns) to (columns, rows), for values of `size` bytes.
void transpose(std::span<const std::byte> from, int64_t rows, int64_t columns, int64_t size, std::span<std::byte> to);

}  // namespace tutti::hf
