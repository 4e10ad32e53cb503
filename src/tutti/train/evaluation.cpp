#include "tutti/train/evaluation.h"

#include <algorithm>

#include "tutti/base/ceil_div.h"
#include "tutti/data/sampler.h"
#include "tutti/engine/step.h"

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

}  // namespace tutti::train
