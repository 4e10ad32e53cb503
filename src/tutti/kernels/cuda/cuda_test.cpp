// The CUDA table against the reference, over the list of cases; and each case twice, which must give the same bits:
// when emulated, the second time with all threads in the opposite order, and at night in drawn ones. tests/cuda builds
// this file for a GPU and emulated.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <tuple>
#include <vector>

#include "tutti/base/philox.h"
#include "tutti/base/testing/draws.h"
#include "tutti/base/to_size.h"
#include "tutti/kernels/cuda/cuda_table.h"
#include "tutti/kernels/testing/arena.h"
#include "tutti/kernels/testing/cases.h"
#include "tutti/kernels/testing/cuda_place.h"
#include "tutti/kernels/testing/equivalence.h"

namespace tutti::kernels {
namespace {

class CudaEquivalence : public ::testing::TestWithParam<const char*> {};

TEST_P(CudaEquivalence, OfTableAndReference) {
    for (const Case& c : cases_of(GetParam())) {
        SCOPED_TRACE(concat(c.op, " ", c.name));
        if (!cuda_table().own_value_width && c.name.find(" Dv ") != std::string::npos) continue;  // ops/ widens them
        ASSERT_NE(c.entry(cuda_table()), nullptr);
        const auto expected = c.expected(), first = c.run(cuda_table(), cuda_place());
        EXPECT_EQ(first_difference(expected, first), "");
        run_backwards(true);
        EXPECT_TRUE(same_bits(first, c.run(cuda_table(), cuda_place()))) << "a second run differs";
        for (int seed = 1; seed <= testing::draws(0, 3); ++seed) {
            run_at_random(static_cast<uint64_t>(1000 * seed));
            EXPECT_TRUE(same_bits(first, c.run(cuda_table(), cuda_place()))) << "differs with seed " << 1000 * seed;
        }
        run_backwards(false);
    }
}

INSTANTIATE_TEST_SUITE_P(Ops, CudaEquivalence, ::testing::ValuesIn(kOps), [](const auto& op) { return op.param; });

// Half a million choices of one expert, which compared in pairs would take minutes on a GPU too.
TEST(CudaChoices, OfALongMicrobatchAreAccepted) {
    constexpr int64_t A = 1 << 18, k = 2, capacity = 300'001, first = 1000, N = A - 2000;
    for (const uint64_t kinds : {1ull, 8ull, 1ull << 40}) {  // of weights
        SCOPED_TRACE(kinds);
        std::vector<double> rows, weights, order;
        for (int64_t a = 0; a < A; ++a) rows.push_back(static_cast<double>((a * 4099 + 77) % A));
        for (int64_t i = 0; i < A * k; ++i) {
            weights.push_back(static_cast<double>(static_cast<float>(
                static_cast<double>(uniform_below(random_key(3, "weights"), static_cast<uint64_t>(i), kinds)) *
                0x1p-40)));
            order.push_back(static_cast<double>(i));
        }
        std::vector<size_t> taken(weights.size());
        std::iota(taken.begin(), taken.end(), 0);
        std::sort(taken.begin(), taken.end(), [&](size_t i, size_t j) {
            return std::tuple(-weights[i], rows[i / k], i) < std::tuple(-weights[j], rows[j / k], j);
        });
        std::vector<double> expected(static_cast<size_t>(N * k), -1);
        for (size_t place = 0; place < capacity; ++place)
            if (const size_t i = taken[place] - first * k; i < expected.size()) expected[i] = 0;

        cases::Arena arena(cuda_place(), false);
        const AcceptChoices a{.choices = arena.from({A, k}, DType::i32, std::vector<double>(to_size(A * k), 0)),
                              .rows = arena.from({A}, DType::i64, rows),
                              .weights = kinds == 1 ? View() : arena.from({A, k}, DType::f32, weights),
                              .order = arena.from({A * k}, DType::i32, order),
                              .counts = arena.from({1}, DType::f32, {A * k}),
                              .capacity = capacity,
                              .first = first,
                              .accepted = arena.empty({N, k}, DType::i32)};
        arena.start();
        cuda_table().accept_choices(cuda_place().stream, a);
        arena.result("accepted", a.accepted, [](int64_t) { return 0; });
        EXPECT_TRUE(arena.finish().front().values == expected);
    }
}

// K, from the name of a case: "f32 to f32 (M, N, K) nt".
int64_t terms_of(const std::string& name) { return std::stoll(name.substr(name.rfind(", ") + 2)); }

// |error| of a product of factors cut to 10 bits of fraction: 2^-9 of it. The tolerance of a case is sum_error(K + 4)
// of the products' size.
TEST(CudaTf32, RoundsFactorsOfF32ProductsAlone) {
    int rounded = 0;
    for (const Case& c : cases_of("gemm")) {
        SCOPED_TRACE(c.name);
        const auto f32 = c.run(cuda_table(), cuda_place()), tf32 = c.run(cuda_tf32_table(), cuda_place());
        if (!c.name.starts_with("f32")) {
            EXPECT_TRUE(same_bits(f32, tf32));
            continue;
        }
        auto expected = c.expected();
        for (Output& output : expected)
            for (double& t : output.tolerance) t *= 1 + 0x1p-9 / cases::sum_error(terms_of(c.name) + 4);
        EXPECT_EQ(first_difference(expected, tf32), "");
        rounded += !same_bits(f32, tf32);
    }
    EXPECT_GE(rounded, 60);
}

}  // namespace
}  // namespace tutti::kernels
