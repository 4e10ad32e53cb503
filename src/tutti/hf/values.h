// hf/values.h: the names of Tutti's parameters in the files of a Hugging Face model, one rule per family, and
// conversion of a tensor to another type or orientation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/dtype.h"
#include "tutti/spec/model_spec.h"

namespace tutti::hf {

struct TensorName {
    std::string name;
    bool transposed = false;  // the file holds (in, out) where Tutti holds (out, in)
};

// The tensors of `parameter` as models/ names it: one, or for the stacked matrices of a layer's experts one per expert.
// gpt2: with "transformer." in front and the four Conv1D matrices of a block transposed; the published gpt2 files lack
// the prefix, so the caller must determine which names apply. llama and its relatives: the same name; Mixtral's experts
// have names of their own.
std::vector<TensorName> tensor_names(const spec::ModelSpec& spec, std::string_view parameter, bool with_prefix = true);

// Tensors of old files that are not weights: attention masks of gpt2, RoPE frequencies.
bool is_legacy_buffer(spec::Family family, std::string_view tensor);

// Weights are stored in f32, bf16 or f16.
bool is_weight_type(DType dtype);

// Numbers of finite values that another type cannot hold.
struct Loss {
    int64_t infinite = 0, zero = 0;  // values that became infinite; values other than 0 that became 0
    bool any() const { return infinite + zero > 0; }
    Loss& operator+=(const Loss& other) {
        infinite += other.infinite;
        zero += other.zero;
        return *this;
    }
};

// Rounds each value to nearest even; equal types copy the bytes. `to` has room for as many values as `from` holds.
Loss convert(DType from_type, std::span<const std::byte> from, DType to_type, std::span<std::byte> to);

float value_at(DType dtype, std::span<const std::byte> values, int64_t index);
// The index of the first NaN or infinity; nullopt: all values are finite.
std::optional<int64_t> first_not_finite(DType dtype, std::span<const std::byte> values);

// (rows, columns) to (columns, rows), for values of `size` bytes.
void transpose(std::span<const std::byte> from, int64_t rows, int64_t columns, int64_t size, std::span<std::byte> to);

}  // namespace tutti::hf
