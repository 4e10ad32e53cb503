// Every kernel that computes attention, by its name, over the list of cases: against the reference, and twice with the
// same bits. What a kernel does not take another one computes, and the run is told. tests/cuda builds this file for a
// GPU and emulated.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <memory_resource>
#include <set>
#include <utility>
#include <vector>

#include "tutti/base/dtype.h"
#include "tutti/base/error.h"
#include "tutti/base/philox.h"
#include "tutti/base/testing/draws.h"
#include "tutti/device/cuda/runtime.h"
#include "tutti/kernels/cuda/block_order.h"
#include "tutti/kernels/cuda/cuda_table.h"
#include "tutti/kernels/testing/cuda_place.h"
#include "tutti/kernels/testing/equivalence.h"

namespace tutti::kernels {
namespace {

// The emulated GPU is one of Hopper.
bool is_hopper() {
    int major = 0;
    check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "cudaDeviceGetAttribute");
    return major == 9;
}

// From the names of the cases: "bf16 B 1 Tq 63 Tk 63 H 2/1 D 80 causal".
bool takes(const std::string& kernel, const std::string& name) {
    if (kernel == "plain") return true;
    const int D = std::stoi(name.substr(name.find(" D ") + 3));
    if (D % 8 != 0) return false;
    return kernel == "tensor" ? name.starts_with("bf16") || name.starts_with("f16")
                              : name.starts_with("bf16") && D <= 128 && name.find(" cap ") == name.npos && is_hopper();
}

// An array of the device.
template <class T>
class Array {
  public:
    Array(DType dtype, const Shape& shape, const std::vector<T>& values)
        : dtype_(dtype), shape_(shape), data_(arrays().take(values.size() * sizeof(T))) {
        arrays().copy_in(data_, reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(T));
    }
    Array(DType dtype, const Shape& shape, T value)
        : Array(dtype, shape, std::vector<T>(static_cast<size_t>(shape.numel()), value)) {}
    Array(Array&& other) noexcept
        : dtype_(other.dtype_), shape_(other.shape_), data_(std::exchange(other.data_, nullptr)) {}
    ~Array() {
        if (data_ != nullptr) arrays().give_back(data_);
    }
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;
    Array& operator=(Array&&) = delete;

    View view() const { return {data_, dtype_, shape_}; }
    std::vector<T> values() const {
        std::vector<T> all(static_cast<size_t>(shape_.numel()));
        arrays().copy_out(reinterpret_cast<std::byte*>(all.data()), data_, all.size() * sizeof(T));
        return all;
    }

  private:
    static DeviceArrays& arrays() { return *cuda_place().arrays; }
    DType dtype_;
    Shape shape_;
    std::byte* data_;
};

Array<float> workspace_of(const Shape& q, const Shape& k, float value) {
    return {DType::f32, Shape{cuda_table().attention_workspace(cuda_place().stream, q, k, true)}, value};
}

class CudaAttention : public ::testing::TestWithParam<const char*> {};

TEST_P(CudaAttention, OfEachKernelAndReference) {
    const KernelTable& table = cuda_table();
    if (GetParam() == std::string("hopper") && !is_hopper()) GTEST_SKIP() << "this GPU has no such kernel";
    int taken = 0;
    for (const char* op : {"attention_forward", "attention_backward"})
        for (const Case& c : cases_of(op)) {
            SCOPED_TRACE(concat(c.op, " ", c.name));
            if (!table.own_value_width && c.name.find(" Dv ") != std::string::npos) continue;  // ops/ widens them
            const PlaceOfAttention by(GetParam());
            const auto first = c.run(table, by.place);
            EXPECT_EQ(by.had_others(), !takes(GetParam(), c.name));
            if (by.had_others()) {
                EXPECT_NE(by.choice.others.begin()->second.find(concat('"', GetParam(), "\" takes ")),
                          std::string::npos)
                    << by.choice.others.begin()->second;
                continue;
            }
            ++taken;
            EXPECT_EQ(first_difference(c.expected(), first), "");
            run_backwards(true);
            EXPECT_TRUE(same_bits(first, c.run(table, by.place))) << "a second run differs";
            for (int seed = 1; seed <= testing::draws(0, 3); ++seed) {
                run_at_random(static_cast<uint64_t>(1000 * seed));
                EXPECT_TRUE(same_bits(first, c.run(table, by.place))) << "differs with seed " << 1000 * seed;
            }
            run_backwards(false);
        }
    EXPECT_GE(taken, 60);
}

INSTANTIATE_TEST_SUITE_P(Kernels, CudaAttention, ::testing::Values("hopper", "tensor", "plain"),
                         [](const auto& kernel) { return kernel.param; });

// Which kernels compute a request is told by name.
TEST(CudaAttention, SaysWhichKernelsComputeARequest) {
    const auto by = [&](const char* kernels, DType dtype, int64_t D, int64_t stride_of_rows = 0) {
        const PlaceOfAttention of(kernels);
        std::pmr::vector<float> values(static_cast<size_t>(4 * (D + 8)), 0, of.place.memory);
        View x(values.data(), dtype, {1, 3, 1, D});
        if (stride_of_rows > 0) x.strides = {3 * stride_of_rows, stride_of_rows, stride_of_rows, 1};
        return std::string(cuda_table().attention_implementation(of.place.stream, {.q = x, .k = x, .v = x, .o = x}));
    };
    const std::string fastest = is_hopper() ? "hopper" : "tensor";
    EXPECT_EQ(by("own", DType::bf16, 64), fastest);
    EXPECT_EQ(by("own", DType::bf16, 256), "tensor");
    EXPECT_EQ(by("own", DType::bf16, 68), "plain");
    EXPECT_EQ(by("own", DType::bf16, 64, 65), "plain");
    EXPECT_EQ(by("own", DType::f32, 64), "plain");
    EXPECT_EQ(by("tensor", DType::bf16, 64), "tensor");
    EXPECT_EQ(by("plain", DType::bf16, 64), "plain");
    EXPECT_EQ(std::string(cuda_table().attention_implementations()),
              fastest == "hopper" ? "hopper, tensor, plain" : "tensor, plain");
}

// A run is told once for each type and head dim, and for what it asked for only.
TEST(CudaAttention, TellsOfRequestsThatTheFirstKernelsDoNotTake) {
    const auto run = [&](const PlaceOfAttention& of, int64_t D) {
        const Place& place = of.place;
        std::pmr::vector<float> values(static_cast<size_t>(2 * D), 1, place.memory), lse(2, 0, place.memory);
        std::pmr::vector<float> o(values.size(), 0, place.memory);
        const Shape shape{1, 2, 1, D};
        const View x(values.data(), DType::f32, shape);
        cuda_table().attention_forward(place.stream, {.q = x,
                                                      .k = x,
                                                      .v = x,
                                                      .o = View(o.data(), DType::f32, shape),
                                                      .lse = View(lse.data(), DType::f32, {1, 1, 2})});
        place.wait();
    };
    const PlaceOfAttention own("own"), plain("plain");
    run(plain, 24);
    EXPECT_FALSE(plain.had_others());
    run(own, 24);
    run(own, 24);
    ASSERT_EQ(own.choice.others.size(), 1U);
    const std::string text = own.choice.others.begin()->second;
    EXPECT_TRUE(
        text.starts_with("attention, forward of q (1, 2, 1, 24) and 1 heads of 2 keys in f32, causal, is "
                         "computed by the kernels \"plain\": "))
        << text;
    run(own, 40);
    EXPECT_EQ(own.choice.others.size(), 2U);
}

// 40 queries and a single key whose scores are 64 * 4 * -4 / 8 = -128: to keys of padding, whose scores are 0, the
// backward would give exp(0 - lse) = exp(128), which is infinite. By hand: all weights are 1, so o is v, dv the sum of
// dy, 40, and dq and dk are 0.
TEST_P(CudaAttention, KeysOfPaddingHaveNoWeight) {
    if (GetParam() == std::string("hopper") && !is_hopper()) GTEST_SKIP() << "another kernel computes it on this GPU";
    const PlaceOfAttention by(GetParam());
    const KernelTable& table = cuda_table();
    const Shape of_queries{1, 40, 1, 64}, of_key{1, 1, 1, 64}, of_lse{1, 1, 40};
    const auto filled = [&](const Shape& shape, float value) {
        return Array<uint16_t>(DType::bf16, shape, bf16_bits(value));
    };
    const auto q = filled(of_queries, 4), k = filled(of_key, -4), v = filled(of_key, 3), o = filled(of_queries, 3);
    const auto dy = filled(of_queries, 1);
    const auto dq = filled(of_queries, NAN), dk = filled(of_key, NAN), dv = filled(of_key, NAN);
    const Array<float> lse(DType::f32, of_lse, -128), workspace = workspace_of(of_queries, of_key, NAN);
    AttentionBackward a{.q = q.view(), .k = k.view(), .v = v.view(), .o = o.view(), .lse = lse.view()};
    a.dy = dy.view(), a.dq = dq.view(), a.dk = dk.view(), a.dv = dv.view();
    a.scale = 0.125f;
    a.workspace = workspace.view();
    table.attention_backward(by.place.stream, a);
    EXPECT_FALSE(by.had_others());
    const auto all_are = [](const Array<uint16_t>& array, float value) {
        const auto values = array.values();
        return std::all_of(values.begin(), values.end(), [value](uint16_t x) { return bf16_value(x) == value; });
    };
    EXPECT_TRUE(all_are(dq, 0));
    EXPECT_TRUE(all_are(dk, 0));
    EXPECT_TRUE(all_are(dv, 40));
}

// One head of 2200 positions, whose 18 blocks of keys add to dq in turns: more blocks than the emulation runs together.
TEST(CudaAttention, SumsInTurnsDoNotDependOnTheOrderOfBlocks) {
    if (!is_hopper()) GTEST_SKIP() << "another kernel computes it on this GPU";
    const KernelTable& table = cuda_table();
    const PlaceOfAttention by("hopper");
    const Stream& stream = by.place.stream;
    const Shape shape{1, 2200, 1, 64};
    using Halves = Array<uint16_t>;
    const auto random = [&](RandomKey key) {
        std::vector<uint16_t> values(static_cast<size_t>(shape.numel()));
        for (size_t i = 0; i < values.size(); ++i) values[i] = bf16_bits(normal(key, i));
        return Halves(DType::bf16, shape, values);
    };
    const Halves q = random(1), k = random(2), v = random(3), dy = random(4), o(DType::bf16, shape, uint16_t{0});
    const Array<float> lse(DType::f32, {1, 1, 2200}, 0.0f);
    AttentionForward forward{.q = q.view(), .k = k.view(), .v = v.view(), .o = o.view(), .scale = 0.125f};
    forward.lse = lse.view();
    table.attention_forward(stream, forward);
    const auto gradients = [&](float in_workspace) {
        const Array<float> workspace = workspace_of(shape, shape, in_workspace);
        const std::array<Halves, 3> results{random(5), random(6), random(7)};
        AttentionBackward a{
            .q = q.view(), .k = k.view(), .v = v.view(), .o = o.view(), .lse = forward.lse, .dy = dy.view()};
        a.dq = results[0].view(), a.dk = results[1].view(), a.dv = results[2].view();
        a.scale = forward.scale;
        a.workspace = workspace.view();
        table.attention_backward(stream, a);
        return std::array{results[0].values(), results[1].values(), results[2].values()};
    };
    // The second finds memory that reads as if the first block of each tile had added already.
    const auto first = gradients(NAN);
    const auto expect_same = [&](const auto& second) {
        for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(first[i] == second[i]) << "of dq, dk, dv number " << i;
    };
    run_backwards(true);
    expect_same(gradients(std::bit_cast<float>(1)));
    for (int seed = 1; seed <= testing::draws(0, 5); ++seed) {
        run_at_random(static_cast<uint64_t>(seed));
        expect_same(gradients(NAN));
    }
    run_backwards(false);
    EXPECT_TRUE(std::all_of(first[0].begin(), first[0].end(), [](uint16_t x) { return std::isfinite(bf16_value(x)); }));
}

// Each tile of each head once, in order; the longest tiles of all heads whose streams fit in the cache begin before any
// other.
TEST(CudaAttention, BlocksBeginWithTheLongestTilesOfManyHeads) {
    using cuda::BlockOrder;
    for (const int sequences : {1, 3})
        for (const int heads : {1, 8, 12})
            for (const int tiles : {1, 5, 32})
                for (const bool last_first : {false, true})
                    for (const int fit : {1, 5, 1000}) {
                        SCOPED_TRACE(concat(sequences, " x ", heads, " heads, ", tiles, " tiles, ", fit, " fit"));
                        const BlockOrder order(sequences, heads, tiles, last_first, BlockOrder::kCacheBytes / fit);
                        const int pairs = sequences * heads, side_by_side = std::min(fit, pairs);
                        ASSERT_EQ(order.blocks(), static_cast<unsigned>(pairs * tiles));
                        std::set<std::array<int, 3>> seen;
                        std::map<int, int> begun;  // tiles of each head
                        for (unsigned block = 0; block < order.blocks(); ++block) {
                            const auto [b, head, tile] = order.at(block);
                            EXPECT_TRUE(b >= 0 && b < sequences && head >= 0 && head < heads && tile >= 0);
                            EXPECT_TRUE(tile < tiles && seen.insert({b, head, tile}).second);
                            const int before = begun[b * heads + head]++;
                            EXPECT_EQ(tile, last_first ? tiles - 1 - before : before);
                            if (block < static_cast<unsigned>(side_by_side)) {
                                EXPECT_EQ(tile, last_first ? tiles - 1 : 0);
                                EXPECT_EQ(b * heads + head, static_cast<int>(block));
                            }
                        }
                    }
    EXPECT_THROW(BlockOrder(1 << 16, 1 << 10, 1 << 10, false, 1), Error);
}

TEST(CudaAttention, AnUnknownNameIsAnError) {
    const PlaceOfAttention by("fast");
    float value = 0;
    const View x(&value, DType::f32, {1, 1, 1, 1});
    try {
        cuda_table().attention_implementation(by.place.stream, {.q = x, .k = x, .v = x, .o = x});
        ADD_FAILURE() << "no error";
    } catch (const UsageError& error) {
        EXPECT_STREQ(
            error.what(),
            "the kernels of attention must be one of own, fastest, cudnn, hopper, tensor, plain; got \"fast\"");
    }
}

}  // namespace
}  // namespace tutti::kernels
