// kernels/cpu/isa/vector_math.cpp: the functions of simd.h over arrays, for cpu/cpu_test.cpp.
#include "tutti/kernels/cpu/fill.h"
#include "tutti/kernels/cpu/isa/loops.h"

namespace tutti::kernels::TUTTI_ISA {
namespace {

void exp_array(const float* x, float* y, int64_t n) {
    for_vectors(0, n, [=](int64_t i, auto part) { store(exp(load(x + i, part)), y + i, part); });
}

void sigmoid_array(const float* x, float* y, int64_t n) {
    for_vectors(0, n, [=](int64_t i, auto part) { store(sigmoid<float>(load(x + i, part)).value, y + i, part); });
}

void reciprocal_array(const float* x, float* y, int64_t n) {
    for_vectors(0, n, [=](int64_t i, auto part) { store(reciprocal(load(x + i, part)), y + i, part); });
}

void exp2_for_bf16_array(const float* x, float* y, int64_t n) {
    for_vectors(0, n, [=](int64_t i, auto part) { store(exp2_normal<bf16>(load(x + i, part)), y + i, part); });
}

void sigmoid_for_bf16_array(const float* x, float* y, int64_t n) {
    for_vectors(0, n, [=](int64_t i, auto part) { store(sigmoid<bf16>(load(x + i, part)).value, y + i, part); });
}

}  // namespace

VectorMath vector_math() {
    return {exp_array, sigmoid_array, reciprocal_array, exp2_for_bf16_array, sigmoid_for_bf16_array};
}

}  // namespace tutti::kernels::TUTTI_ISA
