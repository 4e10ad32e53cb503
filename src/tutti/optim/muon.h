// optim/muon.h: the orthogonalisation of Muon (Jordan et al. 2024).
#pragma once

#include <span>
#include <string>

#include "tutti/ops/context.h"

namespace tutti::optim {

// A step x = a x + (b A + c A A) x with A = x xᵀ: an odd polynomial of x's singular values.
struct Quintic {
    double a, b, c;
};
// The steps of a name: simple (Jordan), quintic (five steps of decreasing slope), polar_express (Amsel et al. 2025).
// UsageError for another name.
std::span<const Quintic> newton_schulz(const std::string& name);

// Each x (rows, columns) f32 or bf16, in place: divided by its Frobenius norm, then each step. All singular values come
// near 1; products are of values of x's type, summed in f32, and rounded to it. The host waits once, for all norms.
void orthogonalise(ops::Context& ctx, std::span<const Tensor> matrices, std::span<const Quintic> steps);

}  // namespace tutti::optim
