#include "tutti/infer/generate.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tutti/base/philox.h"
#include "tutti/base/to_size.h"
#include "tutti/ops/ops.h"

namespace tutti::infer {

namespace {

// A prompt that is being continued.
struct Sequence {
    size_t prompt = 0;             // index
    std::vector<int32_t> context;  // tokens of the prompt and generated ones
    nn::KvCache cache;
    int64_t made = 0;  // generated tokens
};

// Disables sequence parallelism while it lives: each rank has all rows between tensor-parallel products.
class WithoutSequenceParallel {
  public:
    explicit WithoutSequenceParallel(models::Model& model) {
        for (autograd::Parameter* p : model.parameters())
            if (std::exchange(p->tensor_parallel.sequence, false)) parameters_.push_back(p);
    }
    ~WithoutSequenceParallel() {
        for (autograd::Parameter* p : parameters_) p->tensor_parallel.sequence = true;
    }
    WithoutSequenceParallel(const WithoutSequenceParallel&) = delete;
    WithoutSequenceParallel& operator=(const WithoutSequenceParallel&) = delete;

  private:
    std::vector<autograd::Parameter*> parameters_;
};

// A text whose cache has room for `room` tokens, and the keys of the prefix that it shares with `kept`.
Sequence begin_text(size_t prompt, const std::vector<int32_t>& tokens, int64_t layers, int64_t room, KeptText* kept) {
    if (kept) kept->reused = 0;
    if (!kept || !kept->cache || kept->cache->capacity < room) return {prompt, tokens, nn::KvCache(layers, room), 0};
    nn::KvCache cache = std::move(*kept->cache);
    kept->cache.reset();
    const auto most = std::min(kept->tokens.size(), tokens.size() - 1);  // the last token is computed
    size_t same = 0;
    while (same < most && kept->tokens[same] == tokens[same]) ++same;
    // Convolutions and the delta rule only have the state after the last token: a shorter prefix is computed again.
    const auto is_there = [](const auto& states) { return !states.empty(); };
    const bool recurs = std::any_of(cache.convolutions.begin(), cache.convolutions.end(), is_there);
    const auto reused = static_cast<int64_t>(same);
    if (recurs && reused < cache.length) return {prompt, tokens, nn::KvCache(layers, room), 0};
    cache.length = reused;
    kept->reused = cache.length;
    return {prompt, tokens, std::move(cache), 0};
}

void keep(KeptText* kept, Sequence& text) {
    if (!kept) return;
    text.context.resize(to_size(text.cache.length));
    kept->tokens = std::move(text.context);
    kept->cache = std::move(text.cache);
}

// The next token of each text. Texts with one new token form a batch; the others run alone.
std::vector<int32_t> next_tokens(Device& device, std::vector<Sequence>& texts, const kernels::Sample& how,
                                 const NextTokens& next_of) {
    std::vector<int32_t> next(texts.size());
    const auto run = [&](const std::vector<size_t>& which, const std::vector<int32_t>& tokens) {
        std::vector<nn::KvCache*> caches;
        std::vector<int64_t> draws;
        for (const size_t i : which) {
            caches.push_back(&texts[i].cache);
            draws.push_back(texts[i].made);
        }
        const nn::Batch batch = nn::make_continuation(device, tokens, std::move(caches));
        const std::vector<int32_t> sampled = next_of(batch, draws, how);
        for (size_t r = 0; r < which.size(); ++r) next[which[r]] = sampled[r];
        nn::advance(batch);
    };
    std::vector<size_t> together;
    std::vector<int32_t> last;
    for (size_t i = 0; i < texts.size(); ++i) {
        const auto& context = texts[i].context;
        const auto done = static_cast<std::ptrdiff_t>(texts[i].cache.length);
        if (done + 1 == static_cast<std::ptrdiff_t>(context.size())) {
            together.push_back(i);
            last.push_back(context.back());
        } else {
            run({i}, {context.begin() + done, context.end()});
        }
    }
    if (!together.empty()) run(together, last);
    return next;
}

void check_options(const SamplingOptions& o) {
    const auto at_least = [](const char* name, auto value, int64_t least) {
        check<UsageError>(std::cmp_greater_equal(value, least), "generate: ", name, " = ", value, ": must be at least ",
                          least);
    };
    check<UsageError>(o.max_positions >= 2, "generate: a model of ", o.max_positions, " positions cannot generate");
    at_least("max_tokens", o.max_tokens, 1);
    at_least("top_k", o.top_k, 0);
    at_least("vocab", o.vocab, 0);
    at_least("batch", o.batch, 1);
    check<UsageError>(std::isfinite(o.temperature) && o.temperature >= 0, "generate: temperature = ", o.temperature,
                      ": must be a finite number of at least 0");
    check<UsageError>(o.top_p > 0 && o.top_p <= 1, "generate: top_p = ", o.top_p, ": must be in (0, 1]");
}

}  // namespace

std::vector<int32_t> sample_tokens(ops::Context& ctx, const Tensor& logits, const std::vector<int64_t>& draws,
                                   const kernels::Sample& how) {
    const auto draw = Tensor::from_host<int64_t>(ctx.device, {logits.dim(0)}, draws, Purpose::data);
    return ops::sample(ctx, logits, draw, how).to_host<int32_t>();
}

std::vector<Ended> generate(ops::Context& ctx, models::Model& model, const std::vector<std::vector<int32_t>>& prompts,
                            const SamplingOptions& options, const EmitToken& emit, const NextTokens& given,
                            KeptText* kept) {
    check_options(options);
    check(!kept || prompts.size() == 1, "generate: one prompt continues a kept text, got ", prompts.size());
    const NextTokens by_model = [&](const nn::Batch& batch, const std::vector<int64_t>& draws,
                                    const kernels::Sample& how) {
        autograd::Tape tape(ctx, false);
        return sample_tokens(ctx, model.forward(tape, batch).value, draws, how);
    };
    const NextTokens& next_of = given ? given : by_model;
    // A vocabulary may be padded: ids that the tokenizer lacks are never drawn.
    const int64_t vocab = options.vocab > 0 ? std::min(options.vocab, model.spec().vocab) : model.spec().vocab;
    const int64_t longest = options.max_positions;
    for (const auto& prompt : prompts) {
        const auto tokens = static_cast<int64_t>(prompt.size());
        check<UsageError>(tokens > 0, "generate: a prompt is empty; give at least one token");
        check<UsageError>(tokens <= longest, "generate: a prompt has ", tokens, " tokens, the model has ", longest,
                          " positions; shorten the prompt");
        for (const int32_t token : prompt)
            check<UsageError>(token >= 0 && token < vocab, "generate: token ", token,
                              " of a prompt is not in the vocabulary of ", vocab);
    }
    const kernels::Sample how{.key = random_key(options.seed, "sample"),
                              .vocab = vocab,
                              .temperature = static_cast<float>(options.temperature),
                              .top_k = options.top_k,
                              .top_p = options.top_p};
    const WithoutSequenceParallel whole_rows(model);
    std::vector<Ended> ended(prompts.size(), Ended::length);
    std::vector<Sequence> texts;
    for (size_t next = 0; next < prompts.size() || !texts.empty();) {
        for (; texts.size() < options.batch && next < prompts.size(); ++next) {
            const int64_t room =
                std::min(longest, static_cast<int64_t>(prompts[next].size()) + std::min(options.max_tokens, longest));
            texts.push_back(begin_text(next, prompts[next], model.spec().layers, kept ? longest : room, kept));
        }
        for (Sequence& text : texts)
            if (static_cast<int64_t>(text.context.size()) > longest || text.cache.length == longest) {
                text.context.erase(text.context.begin(), text.context.end() - longest / 2);
                text.cache.length = 0;  // positions moved: all keys are recomputed
            }
        const auto tokens = next_tokens(ctx.device, texts, how, next_of);
        std::vector<Sequence> going_on;
        for (size_t i = 0; i < texts.size(); ++i) {
            Sequence& text = texts[i];
            const int32_t token = tokens[i];
            check<DataError>(token >= 0, "generate: the logits of new token ", text.made, " of prompt ", text.prompt,
                             " hold a NaN or an infinity; the model's weights are damaged, or overflow");
            const auto& stops = options.stop_tokens;
            if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
                ended[text.prompt] = Ended::stop_token;
            } else if (!emit(text.prompt, token)) {
                ended[text.prompt] = Ended::stopped;
            } else {
                text.context.push_back(token);
                if (++text.made < options.max_tokens) {
                    going_on.push_back(std::move(text));
                    continue;
                }
            }
            keep(kept, text);
        }
        texts = std::move(going_on);
    }
    return ended;
}

std::vector<float> log_probabilities(ops::Context& ctx, models::Model& model, const std::vector<int32_t>& tokens) {
    check<UsageError>(tokens.size() >= 2, "log-probabilities of a text of ", tokens.size(),
                      " tokens: the first token has none; give two or more");
    const WithoutSequenceParallel whole_rows(model);
    autograd::Tape tape(ctx, false);
    std::vector<float> result = model.forward(tape, nn::make_batch(ctx.device, tokens, 1, 0)).value.to_host<float>();
    for (float& value : result) value = -value;
    return result;
}

}  // namespace tutti::infer
