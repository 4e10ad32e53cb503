// hf/expert_tensors.h: tensors of files that hold all experts of a layer, and the parameters in them
// (autograd::StoredAs): interleaved rows of gate and up, either orientation, values in MXFP4.
//
// MXFP4 (OCP Microscaling Formats 1.0): blocks of 32 values along the input channels share a scale 2^(s - 127). In
// files of gpt-oss <name>_blocks (E, rows, in / 32, 16) u8 has two values in a byte, the earlier one in the low bits,
// each a sign and a code of 0, 0.5, 1, 1.5, 2, 3, 4 and 6, and <name>_scales (E, rows, in / 32) u8 has s. Every value
// is one of bf16, but for scales that bf16 has not: their values become infinite or, s = 255, NaN.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/autograd/parameter.h"
#include "tutti/checkpoint/safetensors.h"

namespace tutti::hf {

// Whether the experts of the parameter are in one tensor.
bool in_one_tensor(const autograd::Parameter& parameter);

// Where the matrices of a parameter of experts lie in those of the file's tensor: element (r, c) of an expert is that
// of row first_row + r row_step and column c, of `file_rows` rows, or of the transpose. A bias has one column.
struct ExpertLayout {
    int64_t experts = 0, rows = 0, columns = 1;
    int64_t file_rows = 0, first_row = 0, row_step = 1;
    bool transposed = false, bias = false;

    Shape file_shape() const;                                    // of the tensor
    int64_t values() const { return rows * columns; }            // of an expert
    int64_t file_values() const { return file_rows * columns; }  // of an expert in the file
    // The values of an expert, of `size` bytes each, out of those of the file, or into them.
    void take(int64_t size, std::span<const std::byte> file, std::span<std::byte> expert) const;
    void put(int64_t size, std::span<const std::byte> expert, std::span<std::byte> file) const;
};
ExpertLayout expert_layout(const autograd::Parameter& parameter);

// The values of rows of `columns` values, a multiple of 32, as bf16 (n).
void decode_mxfp4(std::span<const std::byte> blocks, std::span<const std::byte> scales, std::span<bf16> values);

// A tensor that a parameter needs.
struct NeededTensor {
    std::string name;
    Shape shape;
    bool bytes = false;  // u8; else a type of weights
};
// The tensors behind `stored`, the name of the parameter's tensor: that tensor, or its blocks and scales where the
// files have them.
std::vector<NeededTensor> needed_tensors(const checkpoint::ShardedSafetensors& files,
                                         const autograd::Parameter& parameter, const std::string& stored);
// The type of the values of these tensors, which the files have.
DType type_of(const checkpoint::ShardedSafetensors& files, const std::vector<NeededTensor>& needed);
// Reads bytes of the parameter's values in this type and in Tutti's order. One expert at a time is in memory, the last
// one until another is asked for.
std::function<void(int64_t offset, std::span<std::byte>)> read_experts(
    std::shared_ptr<const checkpoint::ShardedSafetensors> files, const autograd::Parameter& parameter,
    const std::vector<NeededTensor>& needed);

}  // namespace tutti::hf
