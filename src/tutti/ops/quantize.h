// ops/quantize.h: tensors as codes of 8 bits with scales, and back (base/float8.h, kernels::Quantize).
#pragma once

#include "tutti/ops/context.h"
#include "tutti/ops/operand.h"

namespace tutti::ops {

// The bits of the largest magnitude of each segment (kernels::KernelTable::amax): (number of segments) i32; 0 for one
// without rows.
Tensor largest_magnitudes(Context& ctx, const Tensor& x, const std::vector<int64_t>& segments);

// Magnitudes of nothing yet: n zeros, and such memory set to zeros again.
Tensor no_magnitudes(Context& ctx, int64_t n, Purpose purpose);
void clear_magnitudes(Context& ctx, const Tensor& magnitudes);
void clear_codes(Context& ctx, const Tensor& codes);  // (n), n a multiple of 4: zeros
// magnitudes (1) = max(magnitudes, x).
void add_magnitudes(Context& ctx, const Tensor& x, const Tensor& magnitudes);
// largest (1) = max(largest, magnitudes).
void add_largest(Context& ctx, const Tensor& magnitudes, const Tensor& largest);

// The divisors, f32, that quantized() writes for groups of a tensor of type `type` with these largest magnitudes.
Tensor divisors_of(Context& ctx, const Tensor& magnitudes, DType format, DType type, bool powers_of_two,
                   const Tensor& factor = {});

// The groups of a matrix of codes as it is stored.
inline kernels::GroupShape stored_group(const Coding& c) {
    return c.transposed ? kernels::GroupShape{c.group.columns, c.group.rows} : c.group;
}

// x, contiguous, as codes of `format` with divisors of type `divisors`, f32 or e8m0, or in the form that kernels read
// of `direct` codes. Shape and type of `coding` are set; `segments` divide the rows. Where a group is a whole segment:
// `amax` i32, one for all segments or one for each, in place of the largest magnitude of the segment; `factor` (1) f32
// in place of the factor that follows from it. `lost`: counts as of kernels::Quantize.
Operand quantized(Context& ctx, const Tensor& x, DType format, DType divisors, Coding coding, Purpose purpose,
                  const Tensor& amax = {}, const Tensor& factor = {}, const Tensor& lost = {});

// The matrices of codes for products of codes, one for each segment: the codes and divisors as they are stored.
struct CodedMatrix {
    View codes;
    kernels::Scales scales;
    bool transposed = false;
};
std::vector<CodedMatrix> coded_matrices(const Operand& x);
// The product with these codes as its factors.
kernels::Gemm product_of_codes(kernels::Gemm g, const CodedMatrix& a, const CodedMatrix& b);

// The tensor that an operand stands for, or its numbers in `type`, f32, in which every divisor times a code is rounded
// once. Without scales: its values.
Tensor decoded(Context& ctx, const Operand& x, DType type);
inline Tensor decoded(Context& ctx, const Operand& x) { return decoded(ctx, x, x.type()); }

}  // namespace tutti::ops
