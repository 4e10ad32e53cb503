// The loss of a vocabulary in three shards, through the functions that a rank calls: equal logits, so that each word
// has the probability 1 / vocab. And what they refuse.
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "tutti/ops/ops.h"

namespace tutti::ops {
namespace {

class LossTest : public ::testing::Test {
  protected:
    static constexpr int64_t kRows = 3, kWidth = 20, kShards = 3, kVocab = 50;  // ten columns are padding
    static constexpr std::array<int32_t, kRows> kTargets = {7, -100, 49};

    Tensor logits() {
        return Tensor::from_host<float>(*device_, {kRows, kWidth}, std::vector<float>(60, 3), Purpose::data);
    }
    Tensor targets() { return Tensor::from_host<int32_t>(*device_, {kRows}, kTargets, Purpose::data); }

    std::unique_ptr<Device> device_ = make_cpu_device(2);
    Context ctx_{*device_, kernels::table_for(*device_, Arithmetic::f32)};
};

TEST_F(LossTest, InShardsIsThatOfTheWhole) {
    std::vector<float> gathered;
    for (int64_t p = 0; p < kShards; ++p) {
        const Tensor partial = cross_entropy_partial(ctx_, logits(), targets(), p * kWidth, kVocab);
        EXPECT_EQ(partial.shape(), (Shape{3, kRows}));
        const std::vector<float> values = partial.to_host<float>();
        gathered.insert(gathered.end(), values.begin(), values.end());
    }
    const Tensor partials = Tensor::from_host<float>(*device_, {kShards, 3, kRows}, gathered, Purpose::data);
    for (int64_t p = 0; p < kShards; ++p) {
        const Tensor shard = logits();
        const Tensor losses = cross_entropy_finish(ctx_, shard, targets(), partials, p * kWidth, kVocab, 2, true);
        // exp and log are good to a few u = 2^-24 relative, of logits and a result of about 4.
        const std::vector<float> of_row = losses.to_host<float>(), gradient = shard.to_host<float>();
        EXPECT_NEAR(of_row[0], std::log(50.0), 16 * 0x1p-24 * 4);
        EXPECT_EQ(of_row[1], 0);
        EXPECT_EQ(of_row[2], of_row[0]);
        for (int64_t n = 0; n < kRows; ++n)
            for (int64_t c = 0; c < kWidth; ++c) {
                const int64_t word = p * kWidth + c;
                const bool counts = n != 1 && word < kVocab;
                EXPECT_NEAR(gradient[static_cast<size_t>(n * kWidth + c)],
                            counts ? 2 * (0.02 - (word == kTargets[static_cast<size_t>(n)] ? 1 : 0)) : 0,
                            16 * 0x1p-24 * 4)
                    << n << " " << word;
            }
    }
}

TEST_F(LossTest, ShapesMustFit) {
    const Tensor few = targets().narrow(0, 0, 2), partial = zeros(ctx_, {3, kRows}, DType::f32);
    EXPECT_THROW(cross_entropy_partial(ctx_, logits(), few, 0, kVocab), Error);
    EXPECT_THROW(cross_entropy_partial(ctx_, logits().narrow(1, 0, 5), targets(), 0, kVocab), Error);
    EXPECT_THROW(cross_entropy_finish(ctx_, logits(), targets(), partial, 0, kVocab, 1, false), Error);
}

}  // namespace
}  // namespace tutti::ops
