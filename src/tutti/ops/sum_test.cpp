// Sums of a device against base/exact_sum.h on the host: over several tensors, begun anew, of squares.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tutti/base/philox.h"
#include "tutti/ops/ops.h"

namespace tutti::ops {
namespace {

class SumTest : public ::testing::Test {
  protected:
    Tensor tensor(const std::vector<float>& values) {
        return Tensor::from_host<float>(*device_, {static_cast<int64_t>(values.size())}, values, Purpose::data);
    }
    static std::vector<float> random(int64_t n, const char* purpose) {
        std::vector<float> values;
        for (int64_t i = 0; i < n; ++i)
            values.push_back(
                std::ldexp(tutti::normal(random_key(5, purpose), static_cast<uint64_t>(i)), (i % 80) - 40));
        return values;
    }

    std::unique_ptr<Device> device_ = make_cpu_device(2);
    Context ctx_{*device_, kernels::table_for(*device_, ComputeType::f32)};
};

TEST_F(SumTest, IsExactOverTensorsAndBeginsAnew) {
    Sum sum(ctx_);
    EXPECT_EQ(sum.take().value(), 0);
    ExactSum expected;
    for (const char* part : {"a", "b", "c"}) {
        const std::vector<float> values = random(3000, part);
        for (const float v : values) expected.add(static_cast<double>(v));
        sum.add(tensor(values));
    }
    sum.send();
    sum.add(tensor({1, 2}));  // of the next
    EXPECT_EQ(sum.take().words(), expected.words());
    EXPECT_EQ(sum.take().value(), 3);
    EXPECT_EQ(sum.take().value(), 0);
}

// Small whole numbers: their squares and the sums of blocks are exact.
TEST_F(SumTest, OfSquares) {
    std::vector<float> values(10000);
    double expected = 0;
    for (size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<float>(static_cast<int>(i % 19) - 9);
        expected += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    }
    Sum sum(ctx_);
    sum.add_squares(tensor(values));
    EXPECT_EQ(sum.take().value(), expected);
    values[7] = std::numeric_limits<float>::infinity();
    sum.add_squares(tensor(values));
    EXPECT_FALSE(std::isfinite(sum.take().value()));
}

TEST_F(SumTest, TermsMustBeFloatsInARow) {
    Sum sum(ctx_);
    const Tensor x = tensor(std::vector<float>(12)).reshape({3, 4});
    EXPECT_THROW(sum.add(x.narrow(1, 0, 2)), Error);
    EXPECT_THROW(sum.add(Tensor::empty(*device_, {3}, DType::i32, Purpose::data)), Error);
}

}  // namespace
}  // namespace tutti::ops
