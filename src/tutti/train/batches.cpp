#include "tutti/train/batches.h"

#include <algorithm>

#include "tutti/ops/ops.h"

namespace tutti::train {

namespace {

class TokenBatches final : public Batches {
  public:
    TokenBatches(Device& device, data::Sampler sampler, int64_t micro_batch, int64_t global_batch, Share share)
        : device_(device),
          sampler_(std::move(sampler)),
          micro_batch_(micro_batch),
          global_batch_(global_batch),
          share_(std::move(share)) {}

    nn::Batch microbatch(int64_t step, int64_t index) override {
        load(step);
        const int64_t size = micro_batch_ * (sampler_.seq_len() + 1);
        const std::span<const int32_t> all(windows_);
        nn::Batch batch =
            nn::make_batch(device_, all.subspan(static_cast<size_t>(index * size), static_cast<size_t>(size)),
                           micro_batch_, first_sequence(index));
        batch.grad_scale = 1.0f / static_cast<float>(terms_);
        return batch;
    }
    int64_t terms(int64_t step) override {
        load(step);
        return terms_;
    }

  private:
    int64_t first_sequence(int64_t index) const { return (index * share_.ranks + share_.rank) * micro_batch_; }

    // All of the rank's part is read before its first microbatch runs: the gradient needs the number of valid tokens.
    void load(int64_t step) {
        if (step == loaded_) return;
        const int64_t window = sampler_.seq_len() + 1, microbatches = global_batch_ / (micro_batch_ * share_.ranks);
        windows_.resize(static_cast<size_t>(microbatches * micro_batch_ * window));
        int64_t valid = 0;
        for (int64_t i = 0; i < microbatches * micro_batch_; ++i) {
            const std::span<int32_t> tokens(windows_.data() + i * window, static_cast<size_t>(window));
            const int64_t sequence = first_sequence(i / micro_batch_) + i % micro_batch_;
            sampler_.sample(static_cast<uint64_t>((step - 1) * global_batch_ + sequence), tokens);
            valid += std::count_if(tokens.begin() + 1, tokens.end(), [](int32_t target) { return target >= 0; });
        }
        terms_ = std::max<int64_t>(share_.sum(valid), 1);
        loaded_ = step;
    }

    Device& device_;
    data::Sampler sampler_;
    int64_t micro_batch_, global_batch_;
    Share share_;
    int64_t loaded_ = 0, terms_ = 0;
    std::vector<int32_t> windows_;
};

class NoiseBatches final : public Batches {
  public:
    NoiseBatches(ops::Context& ctx, const spec::RunSpec& run, Share share)
        : ctx_(ctx),
          share_(std::move(share)),
          seed_(static_cast<uint64_t>(run.train.seed)),
          width_(run.model.width),
          rows_(run.train.micro_batch * run.train.seq_len),
          step_rows_(run.train.global_batch * run.train.seq_len),
          compute_(run.precision.compute == "bf16" ? DType::bf16 : DType::f32) {}

    nn::Batch microbatch(int64_t step, int64_t index) override {
        nn::Batch batch;
        const int64_t first = (step - 1) * step_rows_ + (index * share_.ranks + share_.rank) * rows_;
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
    Share share_;
    uint64_t seed_;
    int64_t width_, rows_, step_rows_;
    DType compute_;
};

}  // namespace

std::unique_ptr<Batches> token_batches(Device& device, const data::Sampler& sampler, int64_t micro_batch,
                                       int64_t global_batch, const Share& share) {
    return std::make_unique<TokenBatches>(device, sampler, micro_batch, global_batch, share);
}

std::unique_ptr<Batches> noise_batches(ops::Context& ctx, const spec::RunSpec& run, const Share& share) {
    return std::make_unique<NoiseBatches>(ctx, run, share);
}

}  // namespace tutti::train
