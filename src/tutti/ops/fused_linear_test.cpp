// Layers side by side against each layer alone, on the reference and every CPU table of this machine: wherever their
// weights lie, computed at once or by blocks of rows. All values are small whole numbers: every sum is exact in every
// type and order, so results have the same bits.
#include "tutti/ops/fused_linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>

#include "tutti/base/to_size.h"
#include "tutti/ops/testing/bits.h"

namespace tutti::ops {
namespace {

using testing::same_bits;
using testing::tables;

class CountsProducts final : public Meter {
  public:
    void after_kernel(Device&, const char* kernel, const kernels::Work&) override {
        products += std::string_view(kernel) == "gemm";
    }
    int products = 0;
};

// -1, 0 and 1 in equal shares. A sum of 1024 products of two of them, which is the longest here, has a standard
// deviation of 21, and whole numbers up to 256 are exact in bf16.
Tensor whole_numbers(Context& ctx, const Shape& shape, DType dtype, RandomKey key) {
    std::vector<float> values(to_size(shape.numel()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(uniform_below(key, i, 3)) - 1;
    return cast(ctx, Tensor::from_host<float>(ctx.device, shape, values, Purpose::data), dtype);
}

// The tensors in one buffer, one behind another; but with a gap before number `apart`.
std::vector<Tensor> in_one_buffer(Context& ctx, const std::vector<Tensor>& parts, size_t apart = 99) {
    constexpr int64_t kGap = 8;
    int64_t size = kGap;
    for (const Tensor& x : parts) size += x.numel();
    const Tensor all = zeros(ctx, {size}, parts[0].dtype());
    std::vector<Tensor> placed;
    int64_t end = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
        if (i == apart) end += kGap;
        placed.push_back(all.narrow(0, end, parts[i].numel()).reshape(parts[i].shape()));
        copy(ctx, parts[i], placed.back());
        end += parts[i].numel();
    }
    return placed;
}

enum class Place : uint8_t { own_memory, one_buffer, first_apart };

std::vector<Tensor> placed(Context& ctx, const std::vector<Tensor>& parts, Place place) {
    if (place == Place::own_memory) return parts;
    return in_one_buffer(ctx, parts, place == Place::one_buffer ? 99 : 1);
}

struct Sizes {
    int64_t rows, inner;
    std::vector<int64_t> outer;
};

// By blocks of rows, when there are products for later.
void finish(Context& ctx, Products& later, int64_t rows) {
    for (int64_t first = 0; first < rows; first += rows / 2)
        for (const Product& product : later) compute_rows(ctx, product, first, std::min(rows / 2, rows - first));
    later.clear();
}

void test(const kernels::KernelTable& table, DType dtype, const Sizes& s, Place place) {
    const auto device = make_cpu_device(2);
    Context ctx{*device, table};
    const Tensor x = whole_numbers(ctx, {s.rows / 4, 4, s.inner}, dtype, 1);
    std::vector<Tensor> w, b, dw, db;
    int64_t N = 0;
    for (const int64_t n : s.outer) {
        const RandomKey key = 10 * w.size();
        w.push_back(whole_numbers(ctx, {n, s.inner}, dtype, key + 2));
        b.push_back(whole_numbers(ctx, {n}, dtype, key + 3));
        dw.push_back(whole_numbers(ctx, {n, s.inner}, DType::f32, key + 4));
        db.push_back(whole_numbers(ctx, {n}, DType::f32, key + 5));
        N += n;
    }
    const Tensor dy = whole_numbers(ctx, {s.rows / 4, 4, N}, dtype, 6);
    w = placed(ctx, w, place), b = placed(ctx, b, place), dw = placed(ctx, dw, place), db = placed(ctx, db, place);
    std::vector<FusedLayer> layers, without_bias;
    for (size_t i = 0; i < w.size(); ++i) {
        layers.push_back({w[i], b[i]});
        without_bias.push_back({w[i]});
    }
    const std::vector<Operand> weights(w.begin(), w.end());
    CountsProducts count;
    ctx.meter = &count;
    const Tensor y = fused_linear(ctx, x, layers), z = fused_linear(ctx, x, without_bias);
    const Tensor dx = fused_linear_backward_input(ctx, dy, weights);
    const Tensor sum = fused_linear_backward_input(ctx, dy, weights, cast(ctx, x, dtype));
    ctx.meter = nullptr;
    const int parts = place == Place::own_memory ? 3 : place == Place::one_buffer ? 1 : 2;
    EXPECT_EQ(count.products, 4 * parts);

    Products later;
    const Tensor y_later = fused_linear(ctx, x, layers, &later);
    finish(ctx, later, s.rows);
    EXPECT_TRUE(same_bits(y, y_later));
    const Tensor sum_later = fused_linear_backward_input(ctx, dy, weights, cast(ctx, x, dtype), &later);
    EXPECT_EQ(later.size(), 1u);
    finish(ctx, later, s.rows);
    EXPECT_TRUE(same_bits(sum, sum_later));

    Tensor alone_dx;
    int64_t first = 0;
    std::vector<FusedGradient> gradients;
    std::vector<Tensor> alone_dw, alone_db;
    for (size_t i = 0; i < w.size(); ++i) {
        const int64_t n = s.outer[i];
        const auto columns = [&](const Tensor& all) { return contiguous(ctx, all.narrow(-1, first, n)); };
        EXPECT_TRUE(same_bits(columns(y), linear(ctx, x, w[i], &b[i])));
        EXPECT_TRUE(same_bits(columns(z), linear(ctx, x, w[i], nullptr)));
        alone_dx = linear_backward_input(ctx, columns(dy), w[i], alone_dx);
        alone_dw.push_back(cast(ctx, dw[i], DType::f32));
        alone_db.push_back(cast(ctx, db[i], DType::f32));
        linear_backward_weight(ctx, columns(dy), x, alone_dw[i]);
        bias_backward(ctx, columns(dy), alone_db[i]);
        gradients.push_back({dw[i], true});
        first += n;
    }
    EXPECT_TRUE(same_bits(dx, alone_dx));
    EXPECT_TRUE(same_bits(sum, add(ctx, x, alone_dx)));
    fused_linear_backward_weight(ctx, dy, x, gradients);
    fused_bias_backward(ctx, dy, db);
    for (size_t i = 0; i < w.size(); ++i) {
        EXPECT_TRUE(same_bits(dw[i], alone_dw[i])) << i;
        EXPECT_TRUE(same_bits(db[i], alone_db[i])) << i;
    }
    // The first terms of some gradients of a buffer overwrite, the others are added.
    gradients[1].accumulate = false;
    fused_linear_backward_weight(ctx, dy, x, gradients);
    for (size_t i = 0; i < w.size(); ++i) {
        first = 0;
        for (size_t before = 0; before < i; ++before) first += s.outer[before];
        const Tensor columns = contiguous(ctx, dy.narrow(-1, first, s.outer[i]));
        linear_backward_weight(ctx, columns, x, alone_dw[i], i != 1);
        EXPECT_TRUE(same_bits(dw[i], alone_dw[i])) << i;
    }
}

TEST(FusedLinear, HasTheBitsOfEachLayerAlone) {
    for (const kernels::KernelTable* table : tables())
        for (const DType dtype : {DType::f32, DType::bf16})
            for (const Place place : {Place::own_memory, Place::one_buffer, Place::first_apart}) {
                SCOPED_TRACE(concat(table->name, " ", dtype, " place ", static_cast<int>(place)));
                test(*table, dtype, {8, 40, {24, 16, 16}}, place);
                if (table != &kernels::reference_table())  // our own products and oneDNN's, wide and narrow
                    test(*table, dtype, {576, 512, {512, 64, 64}}, place);
            }
}

// A weight with a bias beside one without, or biases that do not lie as their weights do, are layers apart.
TEST(FusedLinear, JoinsLayersWhoseBiasesJoin) {
    const auto device = make_cpu_device(1);
    Context ctx{*device, kernels::reference_table()};
    CountsProducts count;
    ctx.meter = &count;
    const auto number = [&](RandomKey key, const Shape& shape) { return whole_numbers(ctx, shape, DType::f32, key); };
    const std::vector<Tensor> w = in_one_buffer(ctx, {number(1, {4, 8}), number(2, {2, 8})});
    const Tensor x = number(3, {3, 8}), b = number(4, {4}), c = number(5, {2});
    const auto products = [&](const std::vector<FusedLayer>& layers) {
        count.products = 0;
        const Tensor y = fused_linear(ctx, x, layers);
        for (size_t i = 0, first = 0; i < 2; first += to_size(w[i].dim(0)), ++i) {
            const Tensor& bias = layers[i].b;
            const Tensor alone = linear(ctx, x, w[i], bias.defined() ? &bias : nullptr);
            const Tensor columns = contiguous(ctx, y.narrow(-1, static_cast<int64_t>(first), w[i].dim(0)));
            EXPECT_TRUE(same_bits(columns, alone));
        }
        return count.products - 2;
    };
    EXPECT_EQ(products({{w[0]}, {w[1]}}), 1);
    EXPECT_EQ(products({{w[0], b}, {w[1]}}), 2);
    EXPECT_EQ(products({{w[0], b}, {w[1], c}}), 2);
    const std::vector<Tensor> biases = in_one_buffer(ctx, {b, c});
    EXPECT_EQ(products({{w[0], biases[0]}, {w[1], biases[1]}}), 1);
}

TEST(FusedLinear, RefusesGradientsOfAnotherWidth) {
    const auto device = make_cpu_device(1);
    Context ctx{*device, kernels::reference_table()};
    const Tensor dy = zeros(ctx, {3, 5}, DType::f32), w = zeros(ctx, {4, 8}, DType::f32);
    try {
        fused_linear_backward_input(ctx, dy, {w});
        FAIL();
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("the layers have 4 outputs, dy (3, 5)"), std::string::npos)
            << error.what();
    }
}

}  // namespace
}  // namespace tutti::ops
