#include "tutti/engine/batches.h"

#include <algorithm>

#include "tutti/base/to_size.h"
#include "tutti/ops/ops.h"
#include "tutti/spec/families.h"

namespace tutti::engine {

namespace {

class TokenBatches final : public Batches {
  public:
    TokenBatches(Device& device, data::Sampler sampler, int64_t micro_batch, int64_t global_batch, BatchShard share,
                 int64_t end, int64_t depths, int64_t shift)
        : device_(device),
          sampler_(std::move(sampler)),
          micro_batch_(micro_batch),
          global_batch_(global_batch),
          share_(std::move(share)),
          end_(end),
          depths_(depths),
          shift_(shift) {}

    nn::Batch microbatch(int64_t step, int64_t index) override {
        load(step);
        const int64_t first = index * micro_batch_;
        const nn::BatchRows rows{
            .tokens = part(tokens_, first, micro_batch_),
            .targets = part(targets_, first, micro_batch_),
            .first_key = sampler_.respects_documents() ? part(first_key_, first, micro_batch_) : std::span<int32_t>(),
            .lengths = std::span(lengths_).subspan(to_size(first), to_size(micro_batch_)),
            .depths = depths_};
        nn::Batch batch = nn::make_batch(device_, rows, micro_batch_, first_sequence(index), share_.part);
        batch.grad_scale = terms_ > 0 ? 1.0f / static_cast<float>(terms_) : 0;
        return batch;
    }
    int64_t valid_tokens(int64_t step) override {
        load(step);
        return terms_;
    }
    int64_t valid_tokens_of(int64_t step, int64_t index) override {
        load(step);
        return share_.sum(targets_in(part(targets_, index * micro_batch_, micro_batch_)));
    }

  private:
    int64_t first_sequence(int64_t index) const { return (index * share_.ranks + share_.rank) * micro_batch_; }

    // All of the rank's part is read before its first microbatch runs: the gradient needs the number of valid tokens.
    void load(int64_t step) {
        if (step == loaded_) return;
        const int64_t sequences = global_batch_ / share_.ranks;
        for (auto* row : {&tokens_, &targets_, &first_key_}) row->resize(to_size(sequences * sampler_.seq_len()));
        lengths_.resize(to_size(sequences));
        for (int64_t i = 0; i < sequences; ++i) {
            const int64_t sequence = first_sequence(i / micro_batch_) + i % micro_batch_;
            const int64_t sample = (step - 1) * global_batch_ + shift_ + sequence;
            const std::span<int32_t> targets = part(targets_, i, 1);
            lengths_[to_size(i)] = sampler_.rows(static_cast<uint64_t>(std::min(sample, end_ - 1)),
                                                 {part(tokens_, i, 1), targets, part(first_key_, i, 1)});
            if (sample >= end_) std::fill(targets.begin(), targets.end(), -1);
        }
        terms_ = share_.sum(targets_in(targets_));
        loaded_ = step;
    }
    static int64_t targets_in(std::span<const int32_t> targets) {
        return std::count_if(targets.begin(), targets.end(), [](int32_t target) { return target >= 0; });
    }
    // Sequences [first, first + count) of the rank's part.
    std::span<int32_t> part(std::vector<int32_t>& rows, int64_t first, int64_t count) const {
        const int64_t T = sampler_.seq_len();
        return std::span(rows).subspan(to_size(first * T), to_size(count * T));
    }

    Device& device_;
    data::Sampler sampler_;
    int64_t micro_batch_, global_batch_;
    BatchShard share_;
    int64_t end_, depths_, shift_;
    int64_t loaded_ = 0, terms_ = 0;
    std::vector<int32_t> tokens_, targets_, first_key_;  // (sequences of the rank, T)
    std::vector<int64_t> lengths_;                       // (sequences of the rank): tokens before the padding
};

class NoiseBatches final : public Batches {
  public:
    NoiseBatches(ops::Context& ctx, const spec::RunSpec& run, BatchShard share)
        : ctx_(ctx),
          share_(std::move(share)),
          seed_(static_cast<uint64_t>(run.train.seed)),
          width_(run.model.width),
          rows_(run.train.micro_batch * run.train.seq_len),
          step_rows_(run.train.global_batch * run.train.seq_len),
          shift_(run.place.sample_shift * run.train.seq_len),
          compute_(spec::compute_dtype(run)) {}

    nn::Batch microbatch(int64_t step, int64_t index) override {
        nn::Batch batch;
        const int64_t first = (step - 1) * step_rows_ + shift_ + (index * share_.ranks + share_.rank) * rows_;
        batch.features = noise("features", first);
        batch.feature_targets = noise("targets", first);
        batch.grad_scale = 1.0f / static_cast<float>(step_rows_);
        return batch;
    }
    int64_t valid_tokens(int64_t) override { return step_rows_; }
    int64_t valid_tokens_of(int64_t, int64_t) override { return rows_ * share_.ranks; }

  private:
    Tensor noise(const char* purpose, int64_t first_row) {
        const Tensor x = ops::empty(ctx_, {rows_, width_}, DType::f32, Purpose::data);
        ops::normal(ctx_, {.y = x, .key = random_key(seed_, purpose), .first = first_row * width_, .row_step = width_});
        return compute_ == DType::f32 ? x : ops::cast(ctx_, x, compute_, Purpose::data);
    }

    ops::Context& ctx_;
    BatchShard share_;
    uint64_t seed_;
    int64_t width_, rows_, step_rows_, shift_;
    DType compute_;
};

// Microbatches in which every token is a target.
class FullBatches : public Batches {
  public:
    FullBatches(Device& device, const spec::RunSpec& run, BatchShard share)
        : device_(device),
          share_(std::move(share)),
          sequences_(run.train.micro_batch),
          targets_of_rank_(run.train.global_batch / share_.ranks * run.train.seq_len),
          targets_of_microbatch_(run.train.micro_batch * run.train.seq_len) {}

    int64_t valid_tokens(int64_t step) override {
        if (step != counted_) terms_ = std::max<int64_t>(share_.sum(targets_of_rank_), 1);
        counted_ = step;
        return terms_;
    }
    int64_t valid_tokens_of(int64_t, int64_t) override {
        return std::max<int64_t>(share_.sum(targets_of_microbatch_), 1);
    }

  protected:
    Device& device_;
    BatchShard share_;
    int64_t sequences_;

  private:
    int64_t targets_of_rank_, targets_of_microbatch_;
    int64_t counted_ = 0, terms_ = 0;
};

class FixedBatches final : public FullBatches {
  public:
    FixedBatches(Device& device, const spec::RunSpec& run, BatchShard share)
        : FullBatches(device, run, std::move(share)), depths_(run.model.mtp_depth) {
        const auto T = to_size(run.train.seq_len), size = to_size(sequences_) * T;
        std::vector<int32_t> windows(size + to_size(sequences_));
        const RandomKey key = random_key(static_cast<uint64_t>(run.train.seed), "fixed tokens");
        for (size_t i = 0; i < windows.size(); ++i)
            windows[i] = static_cast<int32_t>(uniform_below(key, i, static_cast<uint64_t>(run.model.vocab)));
        for (auto window = windows.begin(); window != windows.end(); window += run.train.seq_len + 1) {
            tokens_.insert(tokens_.end(), window, window + run.train.seq_len);
            targets_.insert(targets_.end(), window + 1, window + run.train.seq_len + 1);
        }
        if (run.data.documents == "respected") first_key_.resize(size);
    }

    nn::Batch microbatch(int64_t step, int64_t index) override {
        const nn::BatchRows rows{.tokens = tokens_, .targets = targets_, .first_key = first_key_, .depths = depths_};
        nn::Batch batch =
            nn::make_batch(device_, rows, sequences_, (index * share_.ranks + share_.rank) * sequences_, share_.part);
        batch.grad_scale = 1.0f / static_cast<float>(valid_tokens(step));
        return batch;
    }

  private:
    int64_t depths_;
    std::vector<int32_t> tokens_, targets_, first_key_;  // (sequences of a microbatch, T)
};

class BlankBatches final : public FullBatches {
  public:
    BlankBatches(Device& device, const spec::RunSpec& run, BatchShard share)
        : FullBatches(device, run, std::move(share)),
          length_(run.train.seq_len),
          depths_(run.model.mtp_depth),
          documents_(run.data.documents == "respected") {}

    nn::Batch microbatch(int64_t step, int64_t) override {
        const nn::SequencePart& part = share_.part;
        const auto blank = [&](int ranks, DType type) {
            return Tensor::empty(device_, {sequences_, length_ / ranks}, type, Purpose::data);
        };
        nn::Batch batch;
        batch.tokens = blank(part.ranks, DType::i32);
        batch.targets = blank(part.ranks, DType::i32);
        for (int64_t k = 0; k < depths_; ++k)
            batch.ahead.push_back({blank(part.ranks, DType::i32), blank(part.ranks, DType::i32)});
        batch.positions = blank(part.ranks, DType::i32);
        batch.row_index = blank(part.ranks, DType::i64);
        if (documents_) batch.first_key = blank(part.ranks / part.ulysses, DType::i32);
        batch.grad_scale = 1.0f / static_cast<float>(valid_tokens(step));
        return batch;
    }

  private:
    int64_t length_, depths_;
    bool documents_;
};

}  // namespace

std::unique_ptr<Batches> token_batches(Device& device, const data::Sampler& sampler, int64_t micro_batch,
                                       int64_t global_batch, const BatchShard& share, int64_t depths, int64_t end,
                                       int64_t shift) {
    return std::make_unique<TokenBatches>(device, sampler, micro_batch, global_batch, share, end, depths, shift);
}

std::unique_ptr<Batches> fixed_batches(ops::Context& ctx, const spec::RunSpec& run, const BatchShard& share) {
    if (!spec::traits_of(run.model).tokens) return noise_batches(ctx, run, share);
    return std::make_unique<FixedBatches>(ctx.device, run, share);
}

std::unique_ptr<Batches> blank_batches(ops::Context& ctx, const spec::RunSpec& run, const BatchShard& share) {
    if (!spec::traits_of(run.model).tokens) return noise_batches(ctx, run, share);
    return std::make_unique<BlankBatches>(ctx.device, run, share);
}

std::unique_ptr<Batches> noise_batches(ops::Context& ctx, const spec::RunSpec& run, const BatchShard& share) {
    return std::make_unique<NoiseBatches>(ctx, run, share);
}

}  // namespace tutti::engine
