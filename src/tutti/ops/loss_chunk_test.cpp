#include <gtest/gtest.h>

#include "tutti/ops/ops.h"

namespace tutti::ops {
namespace {

TEST(LossChunk, IsBelowItsBytesInEqualPartsOfWhole64s) {
    const auto rows_of = [](int64_t rows, int64_t row_bytes) { return loss_chunk_rows(rows, row_bytes, 128 << 20); };
    EXPECT_EQ(rows_of(4096, 50257 * 2), 1024);           // 128 MiB are 1335 rows: four chunks
    EXPECT_EQ(rows_of(1024, 50257 * 4), 512);            // 667
    EXPECT_EQ(rows_of(1100, 50257 * 2), 1100);           // fits
    EXPECT_EQ(rows_of(1400, 50257 * 2), 704);            // two halves of 700
    EXPECT_EQ(rows_of(4096, 128256 * 4), 256);           // 261: sixteen chunks
    EXPECT_EQ(rows_of(4096, int64_t{4 << 20} * 4), 64);  // 8 would be 0 whole 64s
    EXPECT_EQ(rows_of(40, 128256 * 4), 40);              // never more than there are
    EXPECT_EQ(rows_of(0, 4), 0);
    EXPECT_EQ(loss_chunk_rows(4096, 128256 * 2, 1 << 30), 4096);  // a GPU's: 4186
}

}  // namespace
}  // namespace tutti::ops
