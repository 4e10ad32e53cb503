// Runs whose microbatches are recorded once and repeated (train.cuda_graphs) against the same runs without: the same to
// the last bit. Linked with emulated kernels, and with those of a GPU.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/cuda/training_runs.h"
#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/device/cuda/cuda_device.h"
#include "tutti/engine/microbatch_graph.h"
#include "tutti/ops/ops.h"

namespace tutti::train {
namespace {

const Settings kGraphs = {"train.cuda_graphs=true"};

class CudaGraphs : public CudaTraining {
  protected:
    void expect_the_same_bits(const Settings& set) {
        const TrainOptions with = options_of("cuda", set + kGraphs), without = options_of("cuda", set);
        train(without);
        train(with);
        EXPECT_EQ(metrics(with).size(), 8U);
        EXPECT_EQ(metrics(with), metrics(without));
        EXPECT_EQ(weights(with), weights(without));
    }
};

// Recorded in the first step, which has four microbatches, or two; or in the second, where a step has one.
TEST_F(CudaGraphs, FourMicrobatchesAStep) { expect_the_same_bits({"precision.compute=bf16", "train.micro_batch=1"}); }
TEST_F(CudaGraphs, FullRecompute) { expect_the_same_bits({"precision.compute=f32", "recompute.policy=full"}); }
TEST_F(CudaGraphs, OneMicrobatchAndSelectiveRecompute) {
    expect_the_same_bits({"train.micro_batch=4", "recompute.policy=selective"});
}
TEST_F(CudaGraphs, Gpt2WithoutZero) { expect_the_same_bits(gpt2_ + Settings{"parallel.zero=0"}); }
// Tokens ahead change from microbatch to microbatch, too.
TEST_F(CudaGraphs, LaterTokens) {
    expect_the_same_bits({"train.micro_batch=1", "model.mtp_depth=2", "model.mtp_weight=0.5"});
}
TEST_F(CudaGraphs, Mlp) {
    expect_the_same_bits(
        {"model.preset=mlp-8192", "model.width=24", "model.layers=2", "data.train=[]", "train.seq_len=4"});
}

TEST_F(CudaGraphs, EvaluationAndCheckpointsInBetweenAndResume) {
    const Settings set = {"checkpoint.every=3", "data.valid_fraction=0.2", "train.eval_every=2"};
    const TrainOptions without = options_of("cuda", set);
    const double eval_loss = train(without).eval_loss;
    TrainOptions with = options_of("cuda", set + kGraphs);
    // Behind step 3: evaluations, which ask too, are those of even steps.
    with.stop_requested = [&] {
        return std::filesystem::exists(with.out + "/metrics.jsonl") && metrics(with).size() >= 3;
    };
    EXPECT_TRUE(train(with).preempted);
    with.stop_requested = [] { return false; };
    EXPECT_EQ(train(with).eval_loss, eval_loss);
    EXPECT_EQ(metrics(with), metrics(without));
    EXPECT_EQ(weights(with), weights(without));
}

// The peak in metrics.jsonl, of a step that records and of one that replays.
TEST_F(CudaGraphs, RehearsedMemoryIsWhatIsCounted) {
    for (const Settings& set : std::vector<Settings>{{}, {"train.micro_batch=4", "precision.compute=f32"}}) {
        const TrainOptions o = options_of("cuda", set + kGraphs);
        train(o);
        const auto totals = Json::parse(read_file(o.out + "/run.json"));
        EXPECT_EQ(totals.at("memory"), totals.at("rehearsed").at("memory"));
        const int64_t peak = totals.at("rehearsed").at("peak_bytes").get<int64_t>();
        const auto peaks =
            logged(o, [](const std::string& line) { return Json::parse(line).at("mem_peak_bytes").get<int64_t>(); });
        EXPECT_EQ(peaks, std::vector<int64_t>(8, peak));
    }
}

class GraphOfABatch : public ::testing::Test {
  protected:
    nn::Batch batch(std::vector<float> values, float grad_scale = 1) {
        nn::Batch b;
        b.features = Tensor::from_host<float>(*device_, {static_cast<int64_t>(values.size())}, values, Purpose::data);
        b.grad_scale = grad_scale;
        return b;
    }
    // sum += grad_scale * sum of the batch
    void run(const nn::Batch& b) {
        graph_.run(b, [&](const nn::Batch& inputs) {
            ++called_;
            const Tensor scaled = ops::cast(ctx_, inputs.features, DType::f32);
            ops::scale(ctx_, scaled, inputs.grad_scale);
            sum_.add(scaled);
        });
    }

    std::unique_ptr<Device> device_ = make_cuda_device(0);
    ops::Context ctx_{*device_, kernels::table_for(*device_, ComputeType::f32)};
    ops::Sum sum_{ctx_};
    engine::MicrobatchGraph graph_{ctx_};
    int called_ = 0;
};

TEST_F(GraphOfABatch, IsRecordedOnceForEachKind) {
    for (int i = 1; i <= 5; ++i) run(batch({static_cast<float>(i), 100}));
    EXPECT_EQ(called_, 2);
    EXPECT_EQ(sum_.take().value(), 515);
    for (int i = 1; i <= 5; ++i) run(batch({static_cast<float>(i)}));  // another shape
    EXPECT_EQ(called_, 4);
    EXPECT_EQ(sum_.take().value(), 15);
    for (int i = 1; i <= 5; ++i) run(batch({static_cast<float>(i)}, 0.5f));  // another number
    EXPECT_EQ(called_, 6);
    EXPECT_EQ(sum_.take().value(), 7.5);
}

// The memory of a recording is not shared: a tensor that is made later keeps its values.
TEST_F(GraphOfABatch, SharesNoMemory) {
    for (int i = 0; i < 2; ++i) run(batch(std::vector<float>(1000, 1)));
    std::vector<Tensor> later;
    for (int i = 0; i < 20; ++i) {
        later.push_back(ops::empty(ctx_, {1000}, DType::f32));
        ops::fill(ctx_, later.back(), static_cast<float>(i));
    }
    run(batch(std::vector<float>(1000, 2)));
    for (size_t i = 0; i < later.size(); ++i)
        EXPECT_EQ(later[i].to_host<float>(), std::vector<float>(1000, static_cast<float>(i)));
    EXPECT_EQ(sum_.take().value(), 4000);
}

TEST_F(GraphOfABatch, WorkThatCannotBeRecordedIsAnError) {
    const Tensor x = ops::zeros(ctx_, {100}, DType::f32);
    const auto error_of = [&](const std::function<void()>& work) {
        try {
            device_->record(work);
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string();
    };
    EXPECT_NE(error_of([&] { x.to_host<float>(); }).find("while work of GPU 0"), std::string::npos);
    EXPECT_NE(error_of([&] { device_->synchronize(); }).find("train.cuda_graphs = false"), std::string::npos);
    EXPECT_NE(error_of([&] { ops::empty(ctx_, {1 << 20}, DType::f32); }).find("capturing"), std::string::npos);
    EXPECT_NE(error_of([&] { throw Error("of the work itself"); }).find("of the work itself"), std::string::npos);
    EXPECT_EQ(x.to_host<float>(), std::vector<float>(100));  // the stream stays usable
}

}  // namespace
}  // namespace tutti::train
