// Orders of divisors beside those that cuBLAS documents, and the GPUs that multiply codes with them.
#include "tutti/kernels/scale_layout.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "tutti/kernels/code_units.h"

namespace tutti::kernels {
namespace {

// cuBLAS 13, "1D and 2D Block Scaling for FP8" and "1D Block Scaling Factors Layout": of a matrix with the summed dim
// innermost, VEC128 has R x ceil(C) divisors, R fastest (and R a multiple of 4); BLK128x128 has ceil(C) rounded up to
// 4, fastest, by R; and VEC32 tiles of 128 x 4, in which divisor (outer, inner) is at (outer % 32) * 16 + (outer / 32)
// * 4 + inner, one row of tiles after the other.
TEST(ScaleLayout, IsThatOfCublas) {
    for (const auto& [R, C] : {std::pair<int64_t, int64_t>{128, 4}, {4, 1}, {260, 9}, {384, 3}, {132, 130}}) {
        const int64_t tiles_across = (C + 3) / 4;
        for (const ScaleLayout layout :
             {ScaleLayout::rows, ScaleLayout::columns, ScaleLayout::padded_rows, ScaleLayout::tiles}) {
            std::set<int64_t> places;
            for (int64_t r = 0; r < R; ++r)
                for (int64_t c = 0; c < C; ++c) {
                    const int64_t place = scale_place(layout, r, c, R, C);
                    places.insert(place);
                    const int64_t outer = r % 128, inner = c % 4;
                    const int64_t expected =
                        layout == ScaleLayout::rows      ? r * C + c
                        : layout == ScaleLayout::columns ? r + R * c
                        : layout == ScaleLayout::padded_rows
                            ? c + tiles_across * 4 * r
                            : (r / 128 * tiles_across + c / 4) * 512 + (outer % 32) * 16 + (outer / 32) * 4 + inner;
                    ASSERT_EQ(place, expected) << static_cast<int>(layout) << ", " << r << ' ' << c;
                }
            EXPECT_EQ(places.size(), static_cast<size_t>(R * C));
            EXPECT_LT(*places.rbegin(), scale_values(layout, R, C));
            EXPECT_EQ(scale_values(layout, R, C) % 4, layout == ScaleLayout::rows ? R * C % 4 : 0);
        }
    }
}

// Equal E8M0 divisors of four groups of 32 stand for one of 128: each of them is where cuBLAS reads it.
TEST(ScaleLayout, OfWiderGroupsFillsThePlacesOfTheNarrowOnes) {
    for (const auto& [layout, rows] : {std::pair{ScaleLayout::row_tiles, int64_t{1}}, {ScaleLayout::block_tiles, 128}})
        for (const auto& [R, C] : {std::pair<int64_t, int64_t>{256, 1}, {384, 5}}) {  // narrow rows, wide columns
            const int64_t size = scale_values(ScaleLayout::tiles, R, 4 * C);
            EXPECT_EQ(scale_values(layout, R / rows, C), size);
            std::vector<int64_t> written(static_cast<size_t>(size), -1);
            for (int64_t r = 0; r < R / rows; ++r)
                for (int64_t c = 0; c < C; ++c)
                    for (int64_t copy = 0; copy < scale_copies(layout); ++copy)
                        written.at(static_cast<size_t>(scale_place(layout, r, c, R / rows, C) + copy)) = r * C + c;
            for (int64_t r = 0; r < R; ++r)
                for (int64_t c = 0; c < 4 * C; ++c)
                    ASSERT_EQ(written[static_cast<size_t>(scale_place(ScaleLayout::tiles, r, c, R, 4 * C))],
                              r / rows * C + c / 4)
                        << r << ' ' << c;
        }
}

TEST(ScaleLayout, HasTheFormOfTheGeneration) {
    const auto form = [](int capability, DType divisors, const GroupShape& group) {
        return form_of_scales(Stream{.capability = capability}, divisors, group);
    };
    const DType f32 = DType::f32, e8 = DType::e8m0;
    for (const int any : {0, 89, 90, 100, 120}) {
        EXPECT_EQ(form(any, f32, {}), (ScaleForm{f32, ScaleLayout::rows}));
        EXPECT_EQ(form(any, e8, {1, 32}), (ScaleForm{e8, ScaleLayout::tiles}));
    }
    for (const int hopper : {0, 90}) {
        EXPECT_EQ(form(hopper, f32, {1, 128}), (ScaleForm{f32, ScaleLayout::columns}));
        EXPECT_EQ(form(hopper, f32, {128, 128}), (ScaleForm{f32, ScaleLayout::padded_rows}));
    }
    EXPECT_EQ(form(100, f32, {1, 128}), (ScaleForm{e8, ScaleLayout::row_tiles}));
    EXPECT_EQ(form(103, f32, {128, 128}), (ScaleForm{e8, ScaleLayout::block_tiles}));
}

Gemm product(DType a, DType b, DType divisors, const GroupShape& of_a, const GroupShape& of_b) {
    static float nowhere;
    Gemm g{.a = View(&nowhere, a, {128, 128}), .b = View(&nowhere, b, {128, 128}), .transpose_b = true};
    g.a_scales = {View(&nowhere, divisors, {1, 1}), of_a};
    g.b_scales = {View(&nowhere, divisors, {1, 1}), of_b};
    return g;
}

TEST(CodeUnits, AreThoseOfTheGenerations) {
    const auto first = [](const Gemm& g) { return unit_of(g) ? unit_of(g)->first : 0; };
    const DType e4 = DType::e4m3, e5 = DType::e5m2, f32 = DType::f32, e8 = DType::e8m0;
    EXPECT_EQ(first(product(e5, e4, f32, {}, {})), 89);
    EXPECT_EQ(first(product(e4, e4, f32, {1, 128}, {128, 128})), 90);  // y, dx
    EXPECT_EQ(first(product(e4, e4, f32, {1, 128}, {1, 128})), 90);    // dw
    EXPECT_EQ(first(product(e4, e4, e8, {1, 32}, {1, 32})), 100);
    EXPECT_EQ(first(product(e4, e4, e8, {1, 128}, {128, 128})), 100);
    EXPECT_EQ(first(product(e4, e4, e8, {1, 128}, {1, 128})), 100);
    EXPECT_EQ(first(product(e5, e5, f32, {}, {})), 0);
    EXPECT_EQ(first(product(e4, e4, f32, {128, 128}, {128, 128})), 0);
    EXPECT_EQ(first(product(e4, e4, f32, {1, 128}, {})), 0);
    EXPECT_EQ(first(product(e4, e4, f32, {1, 32}, {1, 32})), 0);
    Gemm transposed = product(e4, e4, f32, {}, {});
    transposed.transpose_a = true;
    EXPECT_EQ(first(transposed), 0);
    EXPECT_EQ(text_of_code_units(),
              "one scale a matrix: compute capability 8.9 and later; 1 x 128 by f32: compute capability 9.0; "
              "1 x 128 by e8m0: compute capability 10.0 and later; 1 x 32 by e8m0: compute capability 10.0 and later");
    EXPECT_EQ(capability_of("ampere"), 80);
    EXPECT_EQ(capability_of("hopper"), 90);
    EXPECT_EQ(capability_of("tpu"), 0);
}

}  // namespace
}  // namespace tutti::kernels
