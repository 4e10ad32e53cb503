// Rows of experts: a row's result has the same bits in a group of any size, of the reference and of every CPU table of
// this machine; rows that go to experts and come back with the weights of a routing are what they were; and what the
// operations say of operands that do not fit.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/ops/ops.h"
#include "tutti/ops/testing/bits.h"

namespace tutti::ops {
namespace {

using testing::random;
using testing::same_bits;
using testing::tables;

// All experts have one matrix, so that a row may be in any group.
Tensor repeated(Context& ctx, const Tensor& w, int64_t experts) {
    const Tensor all = empty(ctx, {experts, w.dim(0), w.dim(1)}, w.dtype());
    for (int64_t e = 0; e < experts; ++e)
        std::memcpy(all.view().as<std::byte>() + e * w.bytes(), w.view().data, to_size(w.bytes()));
    return all;
}

// Few rows, as in generation; around the numbers at which a table changes the implementation of a product; and many. A
// group of all rows is multiplied by all threads, equal groups by one thread each.
TEST(GroupedProducts, HaveTheSameBitsInGroupsOfAnySize) {
    for (const auto* table : tables())
        for (const int threads : {1, 2})
            for (const DType type : {DType::f32, DType::bf16})
                for (const auto& [M, K] :
                     {std::pair<int64_t, int64_t>{4, 72}, {16, 72}, {40, 72}, {40, 1030}, {530, 72}}) {
                    if (table == &kernels::reference_table() && M * K > 4000) continue;
                    const auto device = make_cpu_device(threads);
                    Context ctx{*device, *table};
                    const Tensor x = random(ctx, {M, K}, type, 1), dy = random(ctx, {M, 96}, type, 2);
                    const Tensor w = repeated(ctx, random(ctx, {96, K}, type, 3), 4);
                    const Tensor gate = random(ctx, {M, 96}, type, 4);
                    const GroupRows one = {0, M, 0, 0};
                    for (const GroupRows& several :
                         {GroupRows{1, M - 3, 0, 2}, GroupRows{M / 4, M / 4, M / 4, M - 3 * (M / 4)}}) {
                        SCOPED_TRACE(concat(table->name, " ", type, ", ", M, " rows, the first expert ", several[0]));
                        EXPECT_TRUE(same_bits(grouped_linear(ctx, x, w, nullptr, one),
                                              grouped_linear(ctx, x, w, nullptr, several)));
                        EXPECT_TRUE(
                            same_bits(grouped_linear_swiglu(ctx, Gate::silu, gate, x, w, nullptr, one, false).y,
                                      grouped_linear_swiglu(ctx, Gate::silu, gate, x, w, nullptr, several, true).y));
                        EXPECT_TRUE(same_bits(grouped_backward_input(ctx, dy, w, one),
                                              grouped_backward_input(ctx, dy, w, several)));
                    }
                }
}

// Each row goes to its experts and comes back k times, with weights whose sum is 1.
TEST(Routing, RowsComeBack) {
    const auto device = make_cpu_device(2);
    Context ctx{*device, kernels::cpu_table(kernels::best_isa())};
    const int64_t N = 50, C = 40, k = 3;
    const Tensor x = random(ctx, {N, C}, DType::f32, 1), logits = random(ctx, {N, 9}, DType::f32, 2);
    const Routed routed = route(ctx, logits, {}, k, {.normalise = true}, true);
    const Tensor places = empty(ctx, {N, k}, DType::i32), from = empty(ctx, {N * k}, DType::i32);
    for (int64_t i = 0; i < N * k; ++i) {
        const auto place = static_cast<int32_t>(i * 7 % (N * k));
        places.view().as<int32_t>()[i] = place;
        from.view().as<int32_t>()[place] = static_cast<int32_t>(i / k);
    }
    const Tensor back = combine_rows(ctx, gather_rows(ctx, x, from), places, routed.weights);
    for (int64_t i = 0; i < N * C; ++i)
        EXPECT_NEAR(back.view().as<float>()[i], x.view().as<float>()[i],
                    1e-6 * (1 + std::abs(x.view().as<float>()[i])));
}

template <class Run>
std::string message_of(Run&& run) {
    try {
        run();
    } catch (const Error& e) {
        return e.what();
    }
    return "no error";
}

TEST(Experts, SayWhatDoesNotFit) {
    const auto device = make_cpu_device(1);
    Context ctx{*device, kernels::cpu_table(kernels::best_isa())};
    const Tensor logits = random(ctx, {5, 12}, DType::f32, 1), x = random(ctx, {5, 8}, DType::f32, 2);
    const Tensor w = random(ctx, {2, 6, 8}, DType::f32, 3);
    const auto says = [](const std::string& part, auto&& run) {
        const std::string message = message_of(run);
        EXPECT_NE(message.find(part), std::string::npos) << message;
    };
    says("13 of 12 experts", [&] { route(ctx, logits, {}, 13, {}, false); });
    says("12 experts in 5 equal groups", [&] { route(ctx, logits, {}, 2, {.groups = 5}, false); });
    says("7 experts of 2 chosen groups", [&] { route(ctx, logits, {}, 7, {.groups = 4, .chosen_groups = 2}, false); });
    says("a group of 3 experts is judged by its best 4",
         [&] { route(ctx, logits, {}, 3, {.groups = 4, .chosen_groups = 2, .group_best = 4}, false); });
    says("the bias must be (12)", [&] { route(ctx, logits, random(ctx, {3}, DType::f32, 4), 2, {}, false); });
    says("the experts have 6 rows together", [&] { grouped_linear(ctx, x, w, nullptr, {2, 4}); });
    says("for each of 2 experts, got 3", [&] { grouped_linear(ctx, x, w, nullptr, {2, 2, 1}); });
    says("w (E, N, K)", [&] { grouped_linear(ctx, random(ctx, {5, 7}, DType::f32, 5), w, nullptr, {2, 3}); });
    says("the gate must be (5, 6)", [&] { grouped_linear_swiglu(ctx, Gate::silu, x, x, w, nullptr, {2, 3}, true); });
    says("rows (M) i32", [&] { gather_rows(ctx, x, x); });
    const Tensor many = empty(ctx, {kernels::kMostChoices + 1, 1}, DType::i32),
                 counts = random(ctx, {12}, DType::f32, 7);
    EXPECT_THROW(sort_choices(ctx, many, counts, 1), SizeError);
    EXPECT_THROW(count_choices(ctx, many, counts), SizeError);
    EXPECT_THROW(order_arrivals(ctx, counts.reshape({3, 4}), 5, 1, kernels::kMostChoices + 1), SizeError);
    says("weights must be", [&] {
        const Tensor rows = empty(ctx, {5, 2}, DType::i32);
        combine_rows(ctx, x, rows, random(ctx, {5, 3}, DType::f32, 6));
    });
}

}  // namespace
}  // namespace tutti::ops
