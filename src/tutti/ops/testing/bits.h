// ops/testing/bits.h: for tests of operations whose results must have the same bits in every table of this machine.
#pragma once

#include <cstring>
#include <vector>

#include "tutti/base/to_size.h"
#include "tutti/ops/ops.h"

namespace tutti::ops::testing {

// The reference, and the CPU table of each instruction set that this machine has.
inline std::vector<const kernels::KernelTable*> tables() {
    std::vector<const kernels::KernelTable*> all = {&kernels::reference_table()};
    for (const auto isa : {kernels::Isa::avx2, kernels::Isa::avx512, kernels::Isa::avx512_bf16, kernels::Isa::amx})
        if (kernels::best_isa() >= isa) all.push_back(&kernels::cpu_table(isa));
    return all;
}

// Normal numbers, the same for a key and a shape.
inline Tensor random(Context& ctx, const Shape& shape, DType dtype, RandomKey key) {
    const Tensor x = empty(ctx, {shape.numel() / shape[-1], shape[-1]}, DType::f32);
    normal(ctx, {.y = x, .key = key, .row_step = shape[-1]});
    return cast(ctx, x.reshape(shape), dtype);
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
    return std::memcmp(a.view().data, b.view().data, to_size(a.bytes())) == 0;
}

}  // namespace tutti::ops::testing
