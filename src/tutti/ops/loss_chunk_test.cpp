#include "tutti/ops/loss_chunk.h"

#include <gtest/gtest.h>

namespace tutti::ops {
namespace {

TEST(LossChunk, IsBelow128MiBInEqualPartsOfWhole64s) {
    EXPECT_EQ(loss_chunk_rows(4096, 50257 * 2), 1024);           // 128 MiB are 1335 rows: four chunks
    EXPECT_EQ(loss_chunk_rows(1024, 50257 * 4), 512);            // 667
    EXPECT_EQ(loss_chunk_rows(1100, 50257 * 2), 1100);           // fits
    EXPECT_EQ(loss_chunk_rows(1400, 50257 * 2), 704);            // two halves of 700
    EXPECT_EQ(loss_chunk_rows(4096, 128256 * 4), 256);           // 261: sixteen chunks
    EXPECT_EQ(loss_chunk_rows(4096, int64_t{4 << 20} * 4), 64);  // 8 would be 0 whole 64s
    EXPECT_EQ(loss_chunk_rows(40, 128256 * 4), 40);              // never more than there are
    EXPECT_EQ(loss_chunk_rows(0, 4), 0);
}

}  // namespace
}  // namespace tutti::ops
