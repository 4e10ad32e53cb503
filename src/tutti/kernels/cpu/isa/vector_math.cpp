// kernels/cpu/isa/vector_math.cpp: the functions of simd.h over arrays, for cpu/cpu_test.cpp.
#include "tutti/kernels/cpu/fill.h"
#include "tutti/kernels/cpu/isa/loops.h"

namespace tutti::kernels::TUTTI_ISA {

VectorMath vector_math() {
    const auto over_array = []<class Function>(Function) {
        return [](const float* x, float* y, int64_t n) {
            for_vectors(0, n, [=](int64_t i, auto part) { store(Function{}(load(x + i, part)), y + i, part); });
        };
    };
    return {.exp = over_array([](Vec x) { return exp(x); }),
            .exp2 = over_array([](Vec x) { return exp2_bounded(min(broadcast(129.0f), x)); }),
            .sigmoid = over_array([](Vec x) { return sigmoid<float>(x).value; }),
            .reciprocal = over_array([](Vec x) { return reciprocal(x); }),
            .exp2_for_bf16 = over_array([](Vec x) { return exp2_normal<bf16>(x); }),
            .sigmoid_for_bf16 = over_array([](Vec x) { return sigmoid<bf16>(x).value; })};
}

}  // namespace tutti::kernels::TUTTI_ISA
