// kernels/code_units.h: which NVIDIA GPUs multiply codes of 8 bits with which scales, the one table of it. Products are
// c = a b^T, with the summed dim innermost in both, as cuBLASLt multiplies on every generation.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels {

struct CodeUnit {
    DType divisors;
    int64_t along;                            // values with one divisor along the sum; 0: all of a matrix
    std::vector<int64_t> across_a, across_b;  // rows of a group, of a and of b
    int first, last;                          // compute capability, 10 * major + minor
};

// Whole matrices: Ada and later. 1 x 128 of a, and of b either that or 128 x 128: Hopper alone, and on Blackwell as
// equal E8M0 divisors of 1 x 32 each, which powers of two allow. 1 x 32: Blackwell.
inline const std::vector<CodeUnit>& code_units() {
    static const std::vector<CodeUnit> units = {{DType::f32, 0, {0}, {0}, 89, 999},
                                                {DType::f32, 128, {1}, {1, 128}, 90, 90},
                                                {DType::e8m0, 128, {1}, {1, 128}, 100, 999},
                                                {DType::e8m0, 32, {1}, {1}, 100, 999}};
    return units;
}

// The unit that multiplies a product of codes; null: none does.
inline const CodeUnit* unit_of(const Gemm& g) {
    const auto fits = [](const Scales& s, const CodeUnit& u, const std::vector<int64_t>& across) {
        return s.values.dtype == u.divisors && s.group.columns == u.along &&
               std::find(across.begin(), across.end(), s.group.rows) != across.end();
    };
    if (g.transpose_a || !g.transpose_b || (g.a.dtype == DType::e5m2 && g.b.dtype == DType::e5m2)) return nullptr;
    for (const CodeUnit& u : code_units())
        if (fits(g.a_scales, u, u.across_a) && fits(g.b_scales, u, u.across_b)) return &u;
    return nullptr;
}

// Whether a GPU of this compute capability (Stream::capability) has the unit.
inline bool has_unit(int capability, const CodeUnit& u) {
    return capability == 0 || (capability >= u.first && capability <= u.last);
}

// The form of a recipe's divisors for these products; of a GPU whose capability is not known, that of the first unit.
inline ScaleForm form_of_scales(const Stream& stream, DType divisors, const GroupShape& group) {
    if (group.columns == 0) return {divisors, ScaleLayout::rows};
    const auto& units = code_units();
    const auto unit = std::find_if(units.begin(), units.end(), [&](const CodeUnit& u) {
        return u.along == group.columns && has_unit(stream.capability, u) &&
               (u.divisors == divisors || divisors == DType::f32);
    });
    const DType stored = unit == units.end() ? divisors : unit->divisors;
    const bool rows = group.rows == 1;
    if (stored == DType::f32) return {stored, rows ? ScaleLayout::columns : ScaleLayout::padded_rows};
    if (group.columns == 32) return {stored, ScaleLayout::tiles};
    return {stored, rows ? ScaleLayout::row_tiles : ScaleLayout::block_tiles};
}

// Of the GPUs of a generation (hardware::Cluster::generation); 0: not known.
int capability_of(std::string_view generation);

// "one scale a matrix: compute capability 8.9 and later; ..."
std::string text_of_code_units();

}  // namespace tutti::kernels
