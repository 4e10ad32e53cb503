// ops/operand.h: what a matrix product multiplies: a tensor, or another form of one, such as rounded or packed values,
// or codes of 8 bits with scales (ops/quantize.h).
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tutti/kernels/kernel_table.h"
#include "tutti/tensor/tensor.h"

namespace tutti::ops {

// The products of a linear layer y = x w^T, x (rows, in), w (out, in), y (rows, out).
enum class GemmRole : uint8_t {
    forward,          // y = x w^T
    input_gradient,   // dx = dy w
    weight_gradient,  // dw += dy^T x, f32
};

class WeightForms;

// How codes stand for a tensor.
struct Coding {
    Shape shape = {};  // of the tensor; its last dim are the columns of a matrix
    DType type = DType::bf16;
    kernels::GroupShape group = {};
    // Rows of consecutive matrices, each with groups of its own: of a stack of weights, of the rows of experts. Empty:
    // one matrix.
    std::vector<int64_t> segments = {};
    bool powers_of_two = true;  // divisors; then numbers of bf16 hold the products exactly
    // Codes are stored as the transposed matrix (one segment), for kernels that multiply codes; else they are decoded
    // before the product.
    bool transposed = false, direct = false;
    kernels::ScaleLayout layout = kernels::ScaleLayout::rows;  // of the divisors of `direct` codes
};

struct Operand {
    Operand() = default;
    Operand(Tensor values_, WeightForms* forms_ = nullptr) : values(std::move(values_)), forms(forms_) {}

    Tensor values;                 // with scales: codes
    Tensor scales;                 // divisors (kernels::Scales); undefined: the values are the numbers themselves
    WeightForms* forms = nullptr;  // of a weight, where products keep forms of these values; null: they keep none
    Coding coding = {};            // with scales
    // The same tensor for another product, which the first user that needs it makes and all copies of this operand
    // share; null: each makes its own.
    std::shared_ptr<Operand> beside = {};

    bool coded() const { return scales.defined(); }
    const Shape& shape() const { return coded() ? coding.shape : values.shape(); }
    DType type() const { return coded() ? coding.type : values.dtype(); }  // of the numbers
};

// The values of an operand without scales. Error for one with scales; `op` names the product, which takes none.
const Tensor& numbers(const char* op, const Operand& x);

}  // namespace tutti::ops
