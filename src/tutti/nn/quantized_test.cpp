// The rule of layers that multiply codes: every rank of a group quantizes its part of x, w and dy as one rank quantizes
// the whole, and what is saved for the weight gradient has the codes that it would get again.
#include "tutti/nn/quantized.h"

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "tutti/base/float8.h"
#include "tutti/base/philox.h"
#include "tutti/base/to_size.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/kernels/code_units.h"
#include "tutti/nn/layers.h"
#include "tutti/nn/mixture.h"
#include "tutti/ops/quantize.h"

namespace tutti::nn {
namespace {

using ops::GemmRole;
using ops::Operand;

const std::vector<std::string> kRecipes = {"tensor", "block", "mxfp8"};

// Magnitudes over many powers of two, so that parts of a tensor have other scales than the whole.
Tensor spread(ops::Context& ctx, const Shape& shape, const char* name, DType type = DType::bf16) {
    std::vector<float> values(to_size(shape.numel()));
    for (size_t i = 0; i < values.size(); ++i)
        values[i] = std::ldexp(static_cast<float>(normal(random_key(5, name), i)),
                               static_cast<int>(i / to_size(shape[-1]) % 5 + i % to_size(shape[-1]) / 128 * 3) - 4);
    return ops::cast(ctx, Tensor::from_host<float>(ctx.device, shape, values, Purpose::activations), type);
}

struct Codes {
    Shape shape;
    std::vector<uint8_t> codes;   // of the tensor, row by row
    std::vector<float> divisors;  // of each element
    bool operator==(const Codes&) const = default;
};

Codes codes_of(const Operand& q) {
    Codes all{q.shape(), {}, {}};
    const int64_t columns = q.shape()[-1], rows = q.shape().numel() / columns;
    const auto* codes = q.values.view().as<const uint8_t>();
    std::vector<int64_t> segments = q.coding.segments.empty() ? std::vector{rows} : q.coding.segments;
    int64_t first_group = 0, row = 0;
    const int64_t R = q.coding.group.rows, C = q.coding.group.columns, across = q.scales.dim(1);
    for (const int64_t segment : segments) {
        for (int64_t r = 0; r < segment; ++r, ++row)
            for (int64_t c = 0; c < columns; ++c) {
                const int64_t at = (first_group + (R > 0 ? r / R : 0)) * across + (C > 0 ? c / C : 0);
                all.codes.push_back(codes[row * columns + c]);
                all.divisors.push_back(q.scales.dtype() == DType::e8m0
                                           ? e8m0_value(q.scales.view().as<const uint8_t>()[at])
                                           : q.scales.view().as<const float>()[at]);
            }
        first_group += segment == 0 ? 0 : R > 0 ? (segment + R - 1) / R : 1;
    }
    return all;
}

// Rows [r, r + rows) and columns [c, c + columns).
Codes part_of(const Codes& whole, int64_t r, int64_t rows, int64_t c, int64_t columns) {
    Codes part{{rows, columns}, {}, {}};
    for (int64_t i = r; i < r + rows; ++i)
        for (int64_t j = c; j < c + columns; ++j) {
            part.codes.push_back(whole.codes[to_size(i * whole.shape[-1] + j)]);
            part.divisors.push_back(whole.divisors[to_size(i * whole.shape[-1] + j)]);
        }
    return part;
}

Tensor block_of(ops::Context& ctx, const Tensor& x, int64_t r, int64_t rows, int64_t c, int64_t columns) {
    return ops::contiguous(ctx, x.narrow(0, r, rows).narrow(1, c, columns));
}

// Two ranks, each with half of the rows (as along cp) or of the columns (as along tp), cut on the borders of groups.
void expect_parts_of_the_whole(const std::string& recipe, const std::string& scales, bool reduced, bool equal) {
    constexpr int64_t kRows = 256, kColumns = 512;
    const spec::Recipe r = spec::recipe_of({.recipe = recipe, .scales = scales}).value();
    std::mutex mutex;
    int differences = 0;
    comm::run_ranks(2, {.timeout_s = 60}, [&](comm::World& world) {
        const auto device = make_cpu_device(1);
        ops::Context ctx{*device, kernels::cpu_table(kernels::best_isa())};
        const auto group = world.everyone("parts");
        comm::Communicator* const ranks = reduced ? group.get() : nullptr;
        const QuantizedProducts alone(r, {}, false, false), parts(r, {ranks, ranks, ranks}, false, false);
        const Tensor x = spread(ctx, {kRows, kColumns}, "x");
        for (const bool rows : {false, true}) {
            const int64_t first_row = rows ? world.rank() * kRows / 2 : 0, some_rows = rows ? kRows / 2 : kRows;
            const int64_t first = rows ? 0 : world.rank() * kColumns / 2, some = rows ? kColumns : kColumns / 2;
            const Tensor mine = block_of(ctx, x, first_row, some_rows, first, some);
            const auto same = [&](const Operand& whole, const Operand& part) {
                return part_of(codes_of(whole), first_row, some_rows, first, some) == codes_of(part);
            };
            int wrong = 0;
            for (const GemmRole role : {GemmRole::forward, GemmRole::weight_gradient})
                wrong += !same(alone.input(ctx, x, {role}), parts.input(ctx, mine, {role}));
            for (const GemmRole role : {GemmRole::input_gradient, GemmRole::weight_gradient})
                wrong += !same(alone.gradient(ctx, x, {role}), parts.gradient(ctx, mine, {role}));
            Parameter w{.name = "w", .shape = x.shape()}, w_part{.name = "w", .shape = mine.shape()};
            w.value = x, w_part.value = mine;
            for (const GemmRole role : {GemmRole::forward, GemmRole::input_gradient})
                wrong += !same(alone.weight(ctx, w, {role}), parts.weight(ctx, w_part, {role}));
            const std::lock_guard lock(mutex);
            differences += wrong;
        }
    });
    EXPECT_EQ(differences == 0, equal) << recipe << ", scales " << scales << ", reduced " << reduced << ": "
                                       << differences;
}

TEST(QuantizedProducts, OfPartsHaveTheCodesOfTheWhole) {
    for (const std::string& recipe : kRecipes) expect_parts_of_the_whole(recipe, "pow2", true, true);
    expect_parts_of_the_whole("tensor", "f32", true, true);
    // The test notices a largest magnitude that is a rank's own; groups need no communication.
    expect_parts_of_the_whole("tensor", "pow2", false, false);
    expect_parts_of_the_whole("block", "pow2", false, true);
    expect_parts_of_the_whole("mxfp8", "pow2", false, true);
}

// The rows of an expert have the same codes whoever sits beside them; its weights too.
TEST(QuantizedProducts, OfExpertsBeginGroupsAtEachExpert) {
    const auto device = make_cpu_device(1);
    ops::Context ctx{*device, kernels::cpu_table(kernels::best_isa())};
    const ops::GroupRows rows = {130, 0, 31, 200};
    const int64_t all = 361, columns = 96;
    const Tensor x = spread(ctx, {all, columns}, "x"), w = spread(ctx, {4, 160, columns}, "w");
    for (const std::string& recipe : kRecipes) {
        SCOPED_TRACE(recipe);
        const spec::Recipe r = spec::recipe_of({.recipe = recipe}).value();
        const QuantizedProducts rule(r, {}, false, false);
        Parameter stack{.name = "w", .shape = w.shape()};
        stack.value = w;
        for (const GemmRole role : {GemmRole::forward, GemmRole::input_gradient}) {
            const Codes of_stack = codes_of(rule.weight(ctx, stack, {role}));
            for (int64_t e = 0; e < 4; ++e) {
                Parameter one{.name = "w", .shape = {160, columns}};
                one.value = ops::contiguous(ctx, w.narrow(0, e, 1).reshape({160, columns}));
                EXPECT_EQ(part_of(of_stack, e * 160, 160, 0, columns), codes_of(rule.weight(ctx, one, {role}))) << e;
            }
        }
        if (r.x.along == 0) continue;  // one scale for the rows of all experts
        int64_t first = 0;
        for (const int64_t n : rows) {
            if (n == 0) continue;
            const Tensor of_expert = block_of(ctx, x, first, n, 0, columns);
            for (const GemmRole role : {GemmRole::forward, GemmRole::weight_gradient})
                EXPECT_EQ(part_of(codes_of(rule.input(ctx, x, {role, rows})), first, n, 0, columns),
                          codes_of(rule.input(ctx, of_expert, {role})))
                    << first;
            EXPECT_EQ(part_of(codes_of(rule.gradient(ctx, x, {GemmRole::weight_gradient, rows})), first, n, 0, columns),
                      codes_of(rule.gradient(ctx, of_expert, {GemmRole::weight_gradient})))
                << first;
            first += n;
        }
    }
}

// Kernels that multiply codes read each expert's by itself, some of them transposed, with divisors in their order: the
// numbers are those of decoded codes. The scale of a whole tensor is that of the rows of all experts.
TEST(QuantizedProducts, OfExpertsStandForTheSameNumbersWhereKernelsMultiplyThem) {
    const auto device = make_cpu_device(1);
    kernels::KernelTable direct = kernels::cpu_table(kernels::best_isa());
    direct.gemm_of_codes = [](const Stream&, const kernels::Gemm&) { return true; };
    direct.scale_form = [](const Stream&, DType divisors, const kernels::GroupShape& group) {
        return kernels::form_of_scales(Stream{.capability = 90}, divisors, group);
    };
    kernels::KernelTable blackwell = direct;
    blackwell.scale_form = [](const Stream&, DType divisors, const kernels::GroupShape& group) {
        return kernels::form_of_scales(Stream{.capability = 100}, divisors, group);
    };
    ops::Context ctx{*device, kernels::cpu_table(kernels::best_isa())};
    const ops::GroupRows rows = {128, 0, 256, 128};
    const Tensor x = spread(ctx, {512, 384}, "x"), w = spread(ctx, {4, 256, 384}, "w");
    for (const std::string& recipe : kRecipes)
        for (const kernels::KernelTable* table : {&direct, &blackwell}) {
            SCOPED_TRACE(recipe);
            ops::Context of_codes{*device, *table};
            const spec::Recipe r = spec::recipe_of({.recipe = recipe}).value();
            const QuantizedProducts rule(r, {}, false, false), emulates(r, {}, true, false);
            EXPECT_EQ(rule.multiple_of_rows(of_codes), r.multiple);
            EXPECT_EQ(rule.multiple_of_rows(ctx), 1);
            EXPECT_EQ(emulates.multiple_of_rows(of_codes), 1);
            Parameter stack{.name = "w", .shape = w.shape()};
            stack.value = w;
            const auto expect_same = [&](const Operand& direct_codes, const Operand& codes, bool transposed) {
                EXPECT_TRUE(direct_codes.coding.direct && !codes.coding.direct);
                EXPECT_EQ(direct_codes.coding.transposed, transposed);
                EXPECT_EQ(ops::decoded(of_codes, direct_codes).to_floats(), ops::decoded(ctx, codes).to_floats());
                const std::vector<ops::CodedMatrix> matrices = ops::coded_matrices(direct_codes);
                ASSERT_EQ(matrices.size(), 4U);
                for (const size_t e : {size_t{0}, size_t{2}, size_t{3}})
                    EXPECT_EQ(reinterpret_cast<uintptr_t>(matrices[e].codes.data) % 16, 0U) << e;
            };
            for (const GemmRole role : {GemmRole::forward, GemmRole::weight_gradient})
                expect_same(rule.input(of_codes, x, {role, rows}), emulates.input(ctx, x, {role, rows}),
                            role == GemmRole::weight_gradient);
            for (const GemmRole role : {GemmRole::input_gradient, GemmRole::weight_gradient})
                expect_same(rule.gradient(of_codes, x, {role, rows}), emulates.gradient(ctx, x, {role, rows}),
                            role == GemmRole::weight_gradient);
            for (const GemmRole role : {GemmRole::forward, GemmRole::input_gradient})
                expect_same(rule.weight(of_codes, stack, {role, rows}), emulates.weight(ctx, stack, {role, rows}),
                            role == GemmRole::input_gradient);
        }
}

using Values = std::map<std::string, std::vector<float>>;

// The outputs and gradients of an MLP of two projections and one back.
Values mlp_of(ops::Context& ctx, const std::shared_ptr<const ProductRule>& wide,
              const std::shared_ptr<const ProductRule>& narrow, DType type, bool gated, bool selective,
              int microbatches) {
    constexpr int64_t kC = 160, kF = 192;
    std::map<std::string, Parameter> p;
    for (const auto& [name, shape, role, rule] : {std::tuple{"gate", Shape{kF, kC}, Role::column, wide},
                                                  {"up", Shape{kF, kC}, Role::column, wide},
                                                  {"down", Shape{kC, kF}, Role::row, narrow}}) {
        p[name] = {.name = name, .shape = shape, .role = role, .init = {.std = 0.1}, .rule = rule};
        autograd::materialize(ctx, p[name], type, 3, true);
    }
    Values values;
    const ops::KeepForms forms(ctx, microbatches > 1);
    for (int i = 0; i < microbatches; ++i) {
        Tape tape(ctx, true);
        tape.set_selective(selective);
        const Var x = tape.input(spread(ctx, {2, 70, kC}, concat("x", i).c_str(), type));
        const Affine gate{p["gate"], nullptr}, up{p["up"], nullptr}, down{p["down"], nullptr};
        const Var y = gated ? swiglu_mlp(tape, x, gate, up, down) : gelu_mlp(tape, x, up, down);
        tape.backward(y, spread(ctx, y.value.shape(), concat("dy", i).c_str(), type));
        values[concat("y", i)] = y.value.to_floats();
        values[concat("dx", i)] = tape.take_gradient(x).to_floats();
    }
    for (auto& [name, parameter] : p)
        if (gated || name != "gate") values[name] = parameter.gradient.to_host<float>();
    return values;
}

// A rule that saves the tensor and quantizes again, and keeps no forms.
class Requantizes final : public ProductRule {
  public:
    explicit Requantizes(std::shared_ptr<const ProductRule> rule) : rule_(std::move(rule)) {}
    Operand input(ops::Context& ctx, const Tensor& x, const Use& use) const override {
        return rule_->input(ctx, x, use);
    }
    Operand weight(ops::Context& ctx, Parameter& w, const Use& use) const override {
        Parameter copy{.name = w.name, .shape = w.shape, .role = w.role};
        copy.value = w.value;
        Operand made = rule_->weight(ctx, copy, use);
        made.forms = nullptr;
        return made;
    }
    Operand gradient(ops::Context& ctx, const Tensor& dy, const Use& use) const override {
        return rule_->gradient(ctx, dy, use);
    }
    bool converts() const override { return true; }

  private:
    std::shared_ptr<const ProductRule> rule_;
};

TEST(QuantizedProducts, WhatIsSavedAndKeptHasTheBitsOfQuantizingAgain) {
    const auto device = make_cpu_device(2);
    ops::Context ctx{*device, kernels::cpu_table(kernels::best_isa())};
    for (const std::string& recipe : kRecipes)
        for (const DType type : {DType::bf16, DType::f32})
            for (const bool gated : {false, true})
                for (const bool selective : {false, true}) {
                    SCOPED_TRACE(concat(recipe, ", ", type, ", gated ", gated, ", selective ", selective));
                    const spec::Recipe r = spec::recipe_of({.recipe = recipe}).value();
                    const auto wide = std::make_shared<QuantizedProducts>(r, ScaleRanks{}, false, false);
                    const auto narrow = std::make_shared<QuantizedProducts>(r, ScaleRanks{}, false, true);
                    const Values saved = mlp_of(ctx, wide, narrow, type, gated, selective, 2);
                    EXPECT_EQ(saved, mlp_of(ctx, std::make_shared<Requantizes>(wide),
                                            std::make_shared<Requantizes>(narrow), type, gated, false, 2));
                    EXPECT_NE(saved, mlp_of(ctx, nullptr, nullptr, type, gated, selective, 2));
                }
}

// Against products of decoded numbers in double: y = x w^T, dx = dy w and dw = dy^T x, each of its own codes.
TEST(QuantizedProducts, OfALinearLayerMultiplyTheirCodes) {
    const auto device = make_cpu_device(2);
    ops::Context ctx{*device, kernels::cpu_table(kernels::best_isa())};
    constexpr int64_t kM = 150, kK = 144, kN = 136;
    for (const auto& [recipe, scales] :
         {std::pair{"tensor", "pow2"}, {"tensor", "f32"}, {"block", "pow2"}, {"mxfp8", "pow2"}}) {
        SCOPED_TRACE(concat(recipe, " ", scales));
        const spec::Recipe r = spec::recipe_of({.recipe = recipe, .scales = scales}).value();
        const auto rule = std::make_shared<QuantizedProducts>(r, ScaleRanks{}, false, false);
        Parameter w{.name = "w", .shape = {kN, kK}, .role = Role::column, .init = {.std = 0.1}, .rule = rule};
        autograd::materialize(ctx, w, DType::bf16, 3, true);
        Parameter b{.name = "b", .shape = {kN}, .role = Role::column, .init = {.std = 0.3}};
        autograd::materialize(ctx, b, DType::bf16, 4, true);
        const Tensor x = spread(ctx, {kM, kK}, "x"), dy = spread(ctx, {kM, kN}, "dy");
        Tape tape(ctx, true);
        const Var in = tape.input(x);
        const Var y = linear(tape, in, {w, &b});
        tape.backward(y, dy);
        const auto number = [&](const Operand& q) { return ops::decoded(ctx, q, DType::f32).to_host<float>(); };
        const auto near = [&](const Tensor& c, int64_t M, int64_t N, int64_t K, const auto& term, const auto& bias) {
            const std::vector<float> values = c.to_floats();
            for (int64_t i = 0; i < M; ++i)
                for (int64_t j = 0; j < N; ++j) {
                    double sum = bias(j), sizes = std::abs(sum);
                    for (int64_t k = 0; k < K; ++k) sum += term(i, j, k), sizes += std::abs(term(i, j, k));
                    // K f32 additions, a factor more for divisors that are not exact, and one rounding to bf16.
                    ASSERT_NEAR(values[to_size(i * N + j)], sum,
                                static_cast<double>(K + 4) * 0x1p-24 * sizes + 0x1.01p-8 * std::abs(sum))
                        << i << ' ' << j;
                }
        };
        const auto at = [](const std::vector<float>& m, int64_t i, int64_t j, int64_t columns) {
            return static_cast<double>(m[to_size(i * columns + j)]);
        };
        const auto none = [](int64_t) { return 0.0; };
        const auto bias = b.value.to_floats();
        const auto x_f = number(rule->input(ctx, x, {GemmRole::forward})),
                   w_f = number(rule->weight(ctx, w, {GemmRole::forward}));
        near(
            y.value, kM, kN, kK, [&](int64_t i, int64_t j, int64_t k) { return at(x_f, i, k, kK) * at(w_f, j, k, kK); },
            [&](int64_t j) { return double{bias[to_size(j)]}; });
        const auto dy_i = number(rule->gradient(ctx, dy, {GemmRole::input_gradient})),
                   w_i = number(rule->weight(ctx, w, {GemmRole::input_gradient}));
        near(
            tape.take_gradient(in), kM, kK, kN,
            [&](int64_t i, int64_t j, int64_t k) { return at(dy_i, i, k, kN) * at(w_i, k, j, kK); }, none);
        const auto dy_w = number(rule->gradient(ctx, dy, {GemmRole::weight_gradient})),
                   x_w = number(rule->input(ctx, x, {GemmRole::weight_gradient}));
        near(
            w.gradient, kN, kK, kM,
            [&](int64_t i, int64_t j, int64_t k) { return at(dy_w, k, i, kN) * at(x_w, k, j, kK); }, none);
    }
}

// An infinity is not hidden by saturation: the product is not finite, in every recipe.
TEST(QuantizedProducts, KeepInfinitiesVisible) {
    const auto device = make_cpu_device(1);
    ops::Context ctx{*device, kernels::cpu_table(kernels::best_isa())};
    for (const std::string& recipe : kRecipes)
        for (const float bad : {INFINITY, -INFINITY, NAN}) {
            const spec::Recipe r = spec::recipe_of({.recipe = recipe}).value();
            const QuantizedProducts rule(r, {}, false, false);
            std::vector<float> values(64, 1.0f);
            values[5] = bad;
            const Tensor x =
                ops::cast(ctx, Tensor::from_host<float>(*device, {2, 32}, values, Purpose::activations), DType::bf16);
            Parameter w{.name = "w", .shape = {3, 32}};
            w.value = ops::zeros(ctx, {3, 32}, DType::bf16);
            ops::fill(ctx, w.value, 1);
            const Tensor y = ops::linear(ctx, rule.input(ctx, x, {GemmRole::forward}),
                                         rule.weight(ctx, w, {GemmRole::forward}), nullptr);
            for (int i = 0; i < 3; ++i) EXPECT_FALSE(std::isfinite(y.to_floats()[to_size(i)])) << recipe;
        }
}

}  // namespace
}  // namespace tutti::nn
