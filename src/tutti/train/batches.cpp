#include "tutti/train/batches.h"

#include <algorithm>

#include "tutti/ops/ops.h"

namespace tutti::train {

namespace {

class TokenBatches final : public Batches {
  public:
    TokenBatches(Device& device, data::Sampler sampler, int64_t micro_batch, int64_t global_batch)
        : device_(device), sampler_(std::move(sampler)), micro_batch_(micro_batch), global_batch_(global_batch) {}

    nn::Batch microbatch(int64_t step, int64_t index) override {
        load(step);
        const int64_t window = sampler_.seq_len() + 1;
        const std::span<const int32_t> all(windows_);
        nn::Batch batch = nn::make_batch(
            device_,
            all.subspan(static_cast<size_t>(index * micro_batch_ * window), static_cast<size_t>(micro_batch_ * window)),
            micro_batch_, index * micro_batch_);
        batch.grad_scale = 1.0f / static_cast<float>(terms_);
        return batch;
    }
    int64_t terms(int64_t step) override {
        load(step);
        return terms_;
    }

  private:
    // The whole global batch is read before the first microbatch runs: its gradient needs the number of valid tokens.
    void load(int64_t step) {
        if (step == loaded_) return;
        const int64_t T = sampler_.seq_len();
        windows_.resize(static_cast<size_t>(global_batch_ * (T + 1)));
        terms_ = 0;
        for (int64_t i = 0; i < global_batch_; ++i) {
            const std::span<int32_t> window(windows_.data() + i * (T + 1), static_cast<size_t>(T + 1));
            sampler_.sample(static_cast<uint64_t>((step - 1) * global_batch_ + i), window);
            terms_ += std::count_if(window.begin() + 1, window.end(), [](int32_t target) { return target >= 0; });
        }
        terms_ = std::max<int64_t>(terms_, 1);
        loaded_ = step;
    }

    Device& device_;
    data::Sampler sampler_;
    int64_t micro_batch_, global_batch_;
    int64_t loaded_ = 0, terms_ = 0;
    std::vector<int32_t> windows_;
};

class NoiseBatches final : public Batches {
  public:
    NoiseBatches(ops::Context& ctx, const spec::RunSpec& run)
        : ctx_(ctx),
          seed_(static_cast<uint64_t>(run.train.seed)),
          width_(run.model.width),
          rows_(run.train.micro_batch * run.train.seq_len),
          step_rows_(run.train.global_batch * run.train.seq_len),
          compute_(run.precision.compute == "bf16" ? DType::bf16 : DType::f32) {}

    nn::Batch microbatch(int64_t step, int64_t index) override {
        nn::Batch batch;
        const int64_t first = (step - 1) * step_rows_ + index * rows_;
        batch.features = noise("features", first);
        batch.feature_targets = noise("targets", first);
        batch.grad_scale = 1.0f / static_cast<float>(step_rows_);
        return batch;
    }
    int64_t terms(int64_t) override { return step_rows_; }

  private:
    Tensor noise(const char* purpose, int64_t first_row) {
        const RandomKey key = random_key(seed_, purpose);
        std::vector<float> values(static_cast<size_t>(rows_ * width_));
        for (size_t i = 0; i < values.size(); ++i)
            values[i] = normal(key, static_cast<uint64_t>(first_row * width_) + i);
        const Tensor x = Tensor::from_host<float>(ctx_.device, {rows_, width_}, values, Purpose::data);
        return compute_ == DType::f32 ? x : ops::cast(ctx_, x, compute_, Purpose::data);
    }

    ops::Context& ctx_;
    uint64_t seed_;
    int64_t width_, rows_, step_rows_;
    DType compute_;
};

}  // namespace

std::unique_ptr<Batches> token_batches(Device& device, const data::Sampler& sampler, int64_t micro_batch,
                                       int64_t global_batch) {
    return std::make_unique<TokenBatches>(device, sampler, micro_batch, global_batch);
}

std::unique_ptr<Batches> noise_batches(ops::Context& ctx, const spec::RunSpec& run) {
    return std::make_unique<NoiseBatches>(ctx, run);
}

}  // namespace tutti::train
