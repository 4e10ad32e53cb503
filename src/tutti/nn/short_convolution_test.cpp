// The short convolution over context-parallel ranks against one rank: the values and the gradient of the projection to
// the bit, that of the taps summed over the ranks; documents and caches.
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "tutti/base/to_size.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/nn/functions.h"
#include "tutti/nn/testing/sequence_share.h"

namespace tutti::nn::short_convolution_test {
namespace {

constexpr int64_t kB = 2, kT = 72, kC = 5, kK = 4;

struct Layer {
    Parameter weight, bias;
};
Layer make_layer(Device& device, DType type) {
    ops::Context ctx{device, kernels::cpu_table(kernels::best_isa())};
    const auto make = [&](const char* name, const Shape& shape) {
        Parameter p{.name = name, .shape = shape};
        const Tensor values = Tensor::from_host<float>(device, shape, numbers(shape.numel(), name), Purpose::weights);
        p.value = ops::cast(ctx, values, type);
        p.gradient = ops::zeros(ctx, shape, DType::f32);
        return p;
    };
    return {make("weight", {kC, 1, kK}), make("bias", {kC})};
}

// By token of the sequences (b T + t): z, and the gradient of p.
struct Outcome {
    std::map<int64_t, std::vector<float>> z, dp;
    std::vector<double> dw = std::vector<double>(kC * kK), dbias = std::vector<double>(kC);
};

// `ulysses` of `ranks` exchange heads for tokens, the others keys.
Outcome run(DType type, int ranks, int ulysses, bool documents) {
    Outcome all;
    std::mutex mutex;
    const std::vector<float> p_whole = numbers(kB * kT * 3 * kC, "p"), dz_whole = numbers(kB * kT * kC, "dz");
    comm::run_ranks(ranks, {.timeout_s = 30}, [&](comm::World& world) {
        const auto device = make_cpu_device(1);
        ops::Context ctx{*device, kernels::cpu_table(kernels::best_isa())};
        const SequenceShare share(*device, world, ulysses, kB, kT, documents ? 7 : kT);
        const auto own = [&](const std::vector<float>& whole, int64_t width) {
            return ops::cast(ctx, share.own(whole, width), type);
        };
        Layer layer = make_layer(*device, type);
        Tape tape(ctx, true);
        const Var p = tape.input(own(p_whole, 3 * kC));
        const Var z = short_convolution(tape, p, {layer.weight, &layer.bias}, share.batch, {});
        tape.backward(z, own(dz_whole, kC));
        const auto values = z.value.to_floats(), gradients = tape.take_gradient(p).to_floats();
        const std::lock_guard lock(mutex);
        for (size_t i = 0; i < share.tokens.size(); ++i) {
            const auto row = [&](const std::vector<float>& of, size_t width) {
                const auto begin = of.begin() + static_cast<std::ptrdiff_t>(i * width);
                return std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(width));
            };
            all.z[share.tokens[i]] = row(values, kC);
            all.dp[share.tokens[i]] = row(gradients, 3 * kC);
        }
        const auto dw = layer.weight.gradient.to_host<float>(), dbias = layer.bias.gradient.to_host<float>();
        for (size_t i = 0; i < dw.size(); ++i) all.dw[i] += dw[i];
        for (size_t i = 0; i < dbias.size(); ++i) all.dbias[i] += dbias[i];
    });
    return all;
}

// kT divides by 2 x 2, 2 x 3 and 2 x 6 chunks, and by their products with 2 and 3: a rank's tokens may end in a chunk.
TEST(ShortConvolution, HasTheBitsOfOneRankHoweverTheSequenceIsSharedOut) {
    for (const DType type : {DType::f32, DType::bf16})
        for (const bool documents : {false, true}) {
            const Outcome one = run(type, 1, 1, documents);
            ASSERT_EQ(one.z.size(), to_size(kB * kT));
            for (const auto& [ranks, ulysses] :
                 {std::pair{2, 1}, {3, 1}, {6, 1}, {2, 2}, {3, 3}, {4, 2}, {6, 3}, {6, 2}}) {
                SCOPED_TRACE(concat(type, ", ", ranks, " ranks, ", ulysses, documents ? ", documents" : ""));
                const Outcome many = run(type, ranks, ulysses, documents);
                EXPECT_EQ(many.z, one.z);
                EXPECT_EQ(many.dp, one.dp);
                for (size_t i = 0; i < one.dw.size(); ++i) EXPECT_NEAR(many.dw[i], one.dw[i], 1e-5 * kB * kT);
                for (size_t i = 0; i < one.dbias.size(); ++i) EXPECT_NEAR(many.dbias[i], one.dbias[i], 1e-5 * kB * kT);
            }
        }
}

TEST(ShortConvolution, NeedsATokenForEachTapBehindARank) {
    try {
        run(DType::f32, 18, 1, false);  // two tokens in a row
        FAIL() << "no error";
    } catch (const UsageError& error) {
        EXPECT_NE(std::string(error.what()).find("a rank has 2 tokens in a row; required: at least 3"),
                  std::string::npos)
            << error.what();
    }
}

// Tokens in pieces of 1, 3, 2, ..., with a cache: the bits of all at once. A cache of length 0 has no state.
TEST(ShortConvolution, ACacheGivesTheBitsOfTheWholeSequence) {
    const auto device = make_cpu_device(1);
    ops::Context ctx{*device, kernels::cpu_table(kernels::best_isa())};
    const std::vector<float> p = numbers(kT * 3 * kC, "p");
    for (const DType type : {DType::f32, DType::bf16}) {
        Layer layer = make_layer(*device, type);
        const auto of = [&](int64_t first, int64_t tokens, std::vector<KvCache*> caches) {
            const std::vector<int32_t> ids(to_size(tokens));
            const Batch batch = caches.empty() ? make_prompt(*device, ids, 1) : make_continuation(*device, ids, caches);
            const std::vector<float> rows(p.begin() + first * 3 * kC, p.begin() + (first + tokens) * 3 * kC);
            const Tensor x = Tensor::from_host<float>(*device, {1, tokens, 3 * kC}, rows, Purpose::data);
            Tape tape(ctx, false);
            const Var z =
                short_convolution(tape, {ops::cast(ctx, x, type)}, {layer.weight, &layer.bias}, batch, {.layer = 1});
            advance(batch);
            return z.value.to_floats();
        };
        const std::vector<float> whole = of(0, kT, {});
        KvCache cache(2, kT);
        for (int again = 0; again < 2; ++again) {
            std::vector<float> pieces;
            cache.length = 0;
            for (int64_t at = 0, size = 1; at < kT; at += size, size = std::min<int64_t>((size + 1) % 4 + 1, kT - at)) {
                const auto piece = of(at, size, {&cache});
                pieces.insert(pieces.end(), piece.begin(), piece.end());
            }
            EXPECT_EQ(pieces, whole) << type;
        }
    }
}

}  // namespace
}  // namespace tutti::nn::short_convolution_test
