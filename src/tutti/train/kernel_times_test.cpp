// The counted FLOPs and bytes of a step's kernels, against the formula for the model, which does not depend on kernels.
#include "tutti/ops/kernel_times.h"

#include <gtest/gtest.h>

#include "tutti/comm/threads/thread_world.h"
#include "tutti/engine/engine.h"
#include "tutti/engine/step.h"
#include "tutti/models/flops.h"
#include "tutti/train/shared_data.h"
#include "tutti/train/testing/small_run.h"

namespace tutti::train {
namespace {

class KernelTimesTest : public SmallRun {
  protected:
    // Times of the second step of a run.
    std::vector<ops::KernelTimes::Row> times_of(const spec::RunSpec& run) {
        Console quiet(nullptr, false, 0);
        const auto data = open_data(run, quiet, false);
        std::vector<ops::KernelTimes::Row> rows;
        comm::run_ranks(1, {}, [&](comm::World& world) {
            engine::Engine engine(run, world, engine::machine_of(run, {}, path("")),
                                  engine::training_batches(run, data ? &*data : nullptr));
            engine::train_step(engine, 1);
            ops::KernelTimes times;
            engine.ctx.meter = &times;
            engine::train_step(engine, 2);
            rows = times.rows();
        });
        return rows;
    }
};

double flops_of(const std::vector<ops::KernelTimes::Row>& rows, const std::string& kernel) {
    double flops = 0;
    for (const auto& row : rows)
        if (row.kernel == kernel) flops += row.work.flops;
    return flops;
}

TEST_F(KernelTimesTest, FlopsAreThoseOfTheModel) {
    for (const std::vector<std::string>& set :
         {std::vector<std::string>{}, {"model.preset=gpt2-124m", "model.kv_heads=2", "model.vocab=256"}}) {
        const spec::RunSpec run = options("run", set).run;
        const auto rows = times_of(run);
        const double T = static_cast<double>(run.train.seq_len);
        const double tokens = static_cast<double>(run.train.global_batch) * T;
        const models::TokenFlops model = models::model_flops(models::outline(run.model), run.train.seq_len);
        EXPECT_DOUBLE_EQ(flops_of(rows, "gemm"), model.matmul * tokens);
        // Forward: two products of (T + 1) / 2 visible keys a query; the formula counts T / 2, and twice that backward,
        // where a kernel that keeps no scores makes five products instead of four.
        const double forward = model.full_attention / 3 * tokens * (T + 1) / (2 * T);
        EXPECT_DOUBLE_EQ(flops_of(rows, "attention_forward"), forward);
        EXPECT_DOUBLE_EQ(flops_of(rows, "attention_backward"), 2.5 * forward);
    }
}

TEST_F(KernelTimesTest, BytesOfTheOptimizerAreThoseOfItsState) {
    const spec::RunSpec run = options("run", {"precision.compute=bf16"}).run;
    double bytes = 0;
    for (const auto& row : times_of(run))
        if (row.kernel == "adamw") bytes += row.work.bytes;
    // Master, m, v read and written, the gradient read, the rounded copy written.
    EXPECT_EQ(bytes, 30.0 * static_cast<double>(models::parameter_count(models::outline(run.model))));
}

TEST(Work, TheFloorIsWhicheverTakesLonger) {
    const kernels::Work work{.flops = 100, .bytes = 40};
    EXPECT_EQ(work.floor_s(10, 10), 10);
    EXPECT_EQ(work.floor_s(1000, 10), 4);
}

TEST(Work, OfAnEmbeddingCountsRowsNotTheMatrix) {
    std::vector<float> matrix(1000 * 8), rows(3 * 8);
    std::vector<int32_t> tokens(3);
    const View m(matrix.data(), DType::f32, {1000, 8}), r(rows.data(), DType::f32, {3, 8});
    const View t(tokens.data(), DType::i32, {3});
    EXPECT_EQ(kernels::work_of_call("embedding_forward", t, m, 0, r).bytes, 3 * 4 + 2 * 96);
    // The gradient of y is read, and three rows of that of the matrix are read and written: both f32.
    EXPECT_EQ(kernels::work_of_call("embedding_backward", t, r, 0, m).bytes, 3 * 4 + 3 * 96);
    const View half(rows.data(), DType::bf16, {3, 8});
    EXPECT_EQ(kernels::work_of_call("embedding_backward", t, half, 0, m).bytes, 3 * 4 + 48 + 2 * 96);
    // More tokens than rows: each row of the matrix once, and all of y.
    const View many(tokens.data(), DType::i32, {1000});
    EXPECT_EQ(kernels::work_of_call("embedding_forward", many, r, 0, m).bytes, 1000 * 4 + 96 + 32000);
    EXPECT_EQ(kernels::work_of_call("embedding_backward", many, m, 0, r).bytes, 1000 * 4 + 32000 + 2 * 96);
    EXPECT_EQ(kernels::work_of_call("add", r, r, r).bytes, 3 * 96);
}

// Three positions name three of five rows of the tables.
TEST(Work, OfAnOperandInPlaceCountsItsReadAndItsWrite) {
    std::vector<float> heads(3 * 2 * 4), table(5 * 2);
    std::vector<int32_t> place(3);
    const View x(heads.data(), DType::f32, {3, 2, 4}), angles(table.data(), DType::f32, {5, 2});
    const View positions(place.data(), DType::i32, {3});
    EXPECT_EQ(kernels::work_of_call("rope", x, positions, angles, angles, false, false).bytes, 2 * 96 + 12 + 2 * 24);
    const View few(table.data(), DType::f32, {2, 2});  // of sequences of two tokens
    EXPECT_EQ(kernels::work_of_call("rope", x, positions, few, few, false, false).bytes, 2 * 96 + 12 + 2 * 16);
    const View half(table.data(), DType::f32, {5, 1});  // of the first two of four channels
    EXPECT_EQ(kernels::work_of_call("rope", x, positions, half, half, false, false).bytes, 96 + 12 + 2 * 12);
    EXPECT_EQ(kernels::work_of_call("soft_cap", x, 30.0F).bytes, 2 * 96);
    EXPECT_EQ(kernels::work_of_call("scale", x, 0.5F).bytes, 2 * 96);
    const View part(heads.data(), DType::bf16, {3, 2, 4}), lse(table.data(), DType::f32, {3, 2});
    EXPECT_EQ(kernels::work_of_call("accumulate", part, x).bytes, 48 + 2 * 96);
    EXPECT_EQ(kernels::work_of_call("attention_merge", x, lse, x, lse).bytes, 3 * (96 + 24));
    EXPECT_EQ(kernels::work_of_call("attention_sinks", x, lse, part).bytes, 2 * (96 + 24) + 48);
}

TEST(Work, OfALossInShardsReadsTheLogitsOnceAndForTheirGradient) {
    std::vector<float> values(3 * 1000);
    const View logits(values.data(), DType::f32, {3, 1000}), targets(values.data(), DType::i32, {3});
    const View losses(values.data(), DType::f32, {3}), partials(values.data(), DType::f32, {2, 3, 3});
    kernels::CrossEntropy loss{
        .logits = logits, .targets = targets, .partials = View(values.data(), DType::f32, {3, 3})};
    EXPECT_EQ(kernels::work_of(loss).bytes, 12000 + 12 + 36);
    loss.losses = losses;
    loss.partials = partials;
    EXPECT_EQ(kernels::work_of(loss).bytes, 12 + 12 + 72);
    loss.gradient = true;
    EXPECT_EQ(kernels::work_of(loss).bytes, 2 * 12000 + 12 + 12 + 72);
}

TEST(Work, OfAttentionCountsWhatTheMaskLeaves) {
    std::vector<float> values(10 * 4);
    const View x(values.data(), DType::f32, {1, 10, 1, 4});
    const auto pairs = [&](const kernels::AttentionMask& mask) {
        return kernels::work_of(kernels::AttentionForward{.q = x, .k = x, .v = x, .mask = mask}).flops / (4 * 4);
    };
    EXPECT_EQ(pairs({.causal = false}), 100);
    EXPECT_EQ(pairs({}), 55);
    EXPECT_EQ(pairs({.window = 3}), 1 + 2 + 8 * 3);
    for (const bool causal : {false, true})
        for (const int64_t query_offset : {0, 4, 30})
            for (const int64_t key_offset : {-3, 0, 4, 25, 100})
                for (const int64_t window : {0, 3, 20}) {
                    int counted = 0;
                    for (int64_t i = query_offset; i < query_offset + 10; ++i)
                        for (int64_t p = key_offset; p < key_offset + 10; ++p)
                            counted += (!causal || p <= i) && (window == 0 || p > i - window);
                    EXPECT_EQ(pairs({causal, query_offset, key_offset, window}), counted)
                        << causal << " " << query_offset << " " << key_offset << " " << window;
                }
}

}  // namespace
}  // namespace tutti::train
