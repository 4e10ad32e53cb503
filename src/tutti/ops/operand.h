// ops/operand.h: what a matrix product multiplies: a tensor, or another form of one, such as rounded or packed values.
#pragma once

#include <cstdint>
#include <utility>

#include "tutti/tensor/tensor.h"

namespace tutti::ops {

// The products of a linear layer y = x w^T, x (rows, in), w (out, in), y (rows, out).
enum class GemmRole : uint8_t {
    forward,          // y = x w^T
    input_gradient,   // dx = dy w
    weight_gradient,  // dw += dy^T x, f32
};

class WeightForms;

struct Operand {
    Operand() = default;
    Operand(Tensor values_, WeightForms* forms_ = nullptr) : values(std::move(values_)), forms(forms_) {}

    Tensor values;
    Tensor scales;                 // factors of groups of values; undefined: the values are the numbers themselves
    WeightForms* forms = nullptr;  // of a weight, where products keep forms of these values; null: they keep none
};

// The values of an operand without scales. Error for one with scales, which no kernel multiplies yet; `op` names the
// product.
const Tensor& numbers(const char* op, const Operand& x);

}  // namespace tutti::ops
