#include "tutti/train/evaluation.h"

#include <algorithm>
#include <vector>

#include "tutti/base/ceil_div.h"
#include "tutti/data/sampler.h"
#include "tutti/engine/step.h"
#include "tutti/infer/generate.h"

namespace tutti::train {

std::optional<Evaluation> evaluation_of(engine::Engine& engine, const data::TokenSet& valid,
                                        const std::function<bool()>& stops) {
    const spec::TrainSpec& train = engine.run.train;
    const TraceScope span(engine.trace, {Activity::other, "evaluation"});
    const auto sampler = data::Sampler::in_order(valid, train.seq_len);
    const int64_t all = sampler.samples_per_epoch(), batch = train.global_batch;
    const int64_t windows = train.eval_batches < all / batch ? train.eval_batches * batch : all;
    const int64_t micro = std::min(train.micro_batch, windows);
    const engine::BatchShard share = engine::share_of(engine.groups);
    const auto source = engine::token_batches(*engine.device, sampler, micro, micro * share.ranks, share, 0, windows);
    const auto loss = engine::evaluate(engine, *source, ceil_div(windows, micro), stops);
    if (!loss) return std::nullopt;
    return Evaluation{*loss, windows};
}

std::optional<std::string> sample_of(engine::Engine& engine, const text::Tokenizer& tokenizer,
                                     const std::function<bool()>& stops) {
    const spec::RunSpec& run = engine.run;
    // Token files of another tokenizer: their ids have no text here.
    const bool bytes_of_others = run.data.tokenizer == "bytes" && tokenizer.vocab() != run.model.vocab;
    if (bytes_of_others || tokenizer.vocab() > run.model.vocab) return std::nullopt;
    std::vector<int32_t> made;
    const infer::SamplingOptions options{.max_tokens = run.log.sample_tokens,
                                         .temperature = 0.7,
                                         .seed = static_cast<uint64_t>(run.train.seed),
                                         .vocab = tokenizer.vocab(),
                                         .max_positions = run.train.seq_len};
    const auto emit = [&](size_t, int32_t token) {
        made.push_back(token);
        return !stops();
    };
    // Logits are where the last stage is.
    const auto next = [&](const nn::Batch& batch, const std::vector<int64_t>& draws, const kernels::Sample& how) {
        std::vector<int32_t> tokens(draws.size());
        const auto sample = [&](int64_t, const nn::Batch&, const Tensor& logits) {
            tokens = infer::sample_tokens(engine.ctx, logits, draws, how);
        };
        engine.executor.run(engine.pipeline.forward_program(1), {.training = false,
                                                                 .hooks = *engine.data_parallel,
                                                                 .batch = [&](int64_t) { return batch; },
                                                                 .output = sample,
                                                                 .weights = engine.data_parallel.get()});
        return engine::from_last_stage(engine, tokens);
    };
    infer::generate(engine.ctx, engine.model, {tokenizer.encode("\n")}, options, emit, next);
    return tokenizer.decode(made);
}

}  // namespace tutti::train
