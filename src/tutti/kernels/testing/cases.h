// kernels/testing/cases.h: for the files *_cases.cpp: adding a case, bounds on rounding errors.
#pragma once

#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/testing/unit_roundoff.h"
#include "tutti/kernels/testing/arena.h"
#include "tutti/kernels/testing/kernel_cases.h"

namespace tutti::kernels::cases {

// Tolerances are bounds to first order in u = 2^-24, the unit roundoff of f32, the narrowest type that a kernel may
// compute in. exp, tanh, log, division and root are good to a few u relative.
inline constexpr double u = unit_roundoff(DType::f32);
inline constexpr double kMath = 4 * u;

// A sum of `terms` terms, in any order, is off by at most this times the sum of their sizes: terms u always (Higham,
// Accuracy and Stability of Numerical Algorithms, 2002, section 4.2), 8 sqrt(terms) u but for odds of 2 exp(-8^2 / 2) =
// 3e-14, because the rounding errors do not all have one sign (Higham and Mary 2019, theorem 2.4).
inline double sum_error(int64_t terms) {
    const auto n = static_cast<double>(terms);
    return std::min(n, 8 * std::sqrt(n)) * u;
}

// Values of an input. Products and sums of small integers are exact in f32 in any order, so every table must give the
// same bits and one wrong term in thousands is detected; normal numbers test the rounding.
enum class Numbers : uint8_t { normal, whole };
inline const char* name_of(Numbers kind) { return kind == Numbers::whole ? " whole numbers" : ""; }
View numbers(Arena& arena, Numbers kind, const Shape& shape, DType dtype, const char* purpose);  // whole: -4 .. 4

// Both tables round the result once to its type: u_out |value| each, in opposite directions at worst; half of 2^-24
// each where f16 is subnormal. Below FLT_MIN a table may flush to zero, as the dot products of bf16 do.
inline double rounding(DType t, double value) {
    return 2 * unit_roundoff(t) * std::abs(value) + (t == DType::f16 ? 0x1p-24 : FLT_MIN);
}

// Results that are one correctly rounded f32 operation, so that only a 16-bit type can round twice.
inline double one_operation(DType t, double value) { return t == DType::f32 ? 0 : rounding(t, value); }

inline constexpr std::array<DType, 3> kActivationTypes = {DType::f32, DType::bf16, DType::f16};
// Less than, exactly and more than one vector of either ISA, and enough for two threads.
inline constexpr std::array<int64_t, 11> kLengths = {0, 1, 3, 16, 17, 63, 65, 127, 1000, 4111, 40001};

// An exact value and the largest allowed error of a computed one.
struct Inexact {
    double value, error;
};
// Output of a product with an epilogue; z_at(i) is element i before the epilogue.
void report_product(Arena& arena, const Gemm& g, const std::function<Inexact(int64_t)>& z_at);

template <class Entry, class Run>
void add(std::vector<Case>& all, const char* op, Entry KernelTable::*entry, std::string name, Run run) {
    const auto on = [run](const KernelTable& table, const Place& place, bool with_tolerance) {
        Arena arena(place, with_tolerance);
        run(table, place.stream, arena);
        return arena.finish();
    };
    all.push_back({op, std::move(name),
                   [entry](const KernelTable& t) { return reinterpret_cast<const void*>(t.*entry); },
                   [on](const KernelTable& table, const Place& place) { return on(table, place, false); },
                   [on] { return on(reference_table(), Place{}, true); }});
}

void add_elementwise(std::vector<Case>& all);
void add_reductions(std::vector<Case>& all);
void add_float8(std::vector<Case>& all);
void add_gemm(std::vector<Case>& all);
void add_embedding(std::vector<Case>& all);
void add_norms(std::vector<Case>& all);
void add_short_convolution(std::vector<Case>& all);
void add_delta_rule(std::vector<Case>& all);  // and decay
void add_rope(std::vector<Case>& all);
void add_attention_forward(std::vector<Case>& all);
void add_attention_backward(std::vector<Case>& all);
void add_attention_merge(std::vector<Case>& all);
void add_attention_sinks(std::vector<Case>& all);
// Sequences of training length, for GPUs: each takes the reference seconds, so kernel_cases() does not list them.
void add_long_attention(std::vector<Case>& all);
void add_losses(std::vector<Case>& all);
void add_sampling(std::vector<Case>& all);
void add_routing(std::vector<Case>& all);      // route, route_backward, balance
void add_expert_rows(std::vector<Case>& all);  // gather_rows, combine_rows, combine_rows_backward
void add_choices(std::vector<Case>& all);      // sort_choices, accept_choices, order_arrivals
void add_grouped_gemm(std::vector<Case>& all);
void add_optimizers(std::vector<Case>& all);

}  // namespace tutti::kernels::cases
