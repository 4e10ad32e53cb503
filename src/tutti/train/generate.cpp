#include "tutti/train/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tutti/base/philox.h"

namespace tutti::train {

int32_t sample_token(std::vector<float> logits, const SamplingOptions& options, uint64_t index) {
    check(!logits.empty(), "sample_token: no logits");
    const auto best = std::max_element(logits.begin(), logits.end());
    if (options.temperature <= 0) return static_cast<int32_t>(best - logits.begin());
    const double top = *best;
    std::vector<int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    // Ties go to the lower id, so that the choice does not depend on the sort.
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
        return x != y ? x > y : a < b;
    });
    size_t kept = order.size();
    if (options.top_k > 0) kept = std::min(kept, static_cast<size_t>(options.top_k));
    std::vector<double> weights;
    for (size_t i = 0; i < kept; ++i)
        weights.push_back(std::exp((logits[static_cast<size_t>(order[i])] - top) / options.temperature));
    double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    if (options.top_p < 1) {
        double reached = 0;
        size_t n = 0;
        while (n < weights.size() && reached < options.top_p * total) reached += weights[n++];
        weights.resize(std::max<size_t>(n, 1));
        total = std::accumulate(weights.begin(), weights.end(), 0.0);
    }
    double left = static_cast<double>(uniform(random_key(options.seed, "sample"), index)) * total;
    for (size_t i = 0; i < weights.size(); ++i) {
        left -= weights[i];
        if (left < 0) return order[i];
    }
    return order[weights.size() - 1];
}

namespace {

struct Text {
    size_t prompt = 0;
    std::vector<int32_t> context;
    nn::KvCache cache;
    int64_t made = 0;
};

// Logits of the next token of each, `vocab` of them. Texts of one fresh token go together, the others alone.
std::vector<std::vector<float>> next_logits(ops::Context& ctx, models::Model& model, std::vector<Text>& texts,
                                            int64_t vocab) {
    std::vector<std::vector<float>> logits(texts.size());
    const auto run = [&](const std::vector<size_t>& which, const std::vector<int32_t>& tokens) {
        std::vector<nn::KvCache*> caches;
        for (const size_t i : which) caches.push_back(&texts[i].cache);
        const nn::Batch batch = nn::make_continuation(ctx.device, tokens, std::move(caches));
        autograd::Tape tape(ctx, false);
        const Tensor rows = model.forward(tape, batch).value;
        const auto values = rows.to_floats();
        const auto V = static_cast<std::ptrdiff_t>(rows.dim(1));
        for (size_t r = 0; r < which.size(); ++r) {
            const auto row = values.begin() + static_cast<std::ptrdiff_t>(r) * V;
            logits[which[r]].assign(row, row + vocab);
        }
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
    return logits;
}

}  // namespace

std::vector<Ended> generate(ops::Context& ctx, models::Model& model, DType compute, int64_t max_positions,
                            const std::vector<std::vector<int32_t>>& prompts, const SamplingOptions& options,
                            const EmitToken& emit, size_t batch) {
    // A vocabulary may be padded: ids that the tokenizer does not have are never drawn.
    const int64_t vocab = options.vocab > 0 ? std::min(options.vocab, model.spec().vocab) : model.spec().vocab;
    const int64_t longest = max_positions;
    check<UsageError>(longest >= 2, "generate: a model of ", longest, " positions cannot generate");
    for (const auto& prompt : prompts) {
        check<UsageError>(!prompt.empty(), "generate: a prompt is empty; give at least one token");
        for (const int32_t token : prompt)
            check<UsageError>(token >= 0 && token < vocab, "generate: token ", token,
                              " of a prompt is not in the vocabulary of ", vocab);
    }
    std::vector<Ended> ended(prompts.size(), Ended::length);
    std::vector<Text> texts;
    for (size_t next = 0; next < prompts.size() || !texts.empty();) {
        for (; texts.size() < batch && next < prompts.size(); ++next) {
            const int64_t room = std::min(longest, static_cast<int64_t>(prompts[next].size()) + options.max_tokens);
            texts.push_back({next, prompts[next], models::make_cache(ctx, model, room, compute), 0});
        }
        for (Text& text : texts)
            if (static_cast<int64_t>(text.context.size()) > longest || text.cache.length == longest) {
                text.context.erase(text.context.begin(), text.context.end() - longest / 2);
                text.cache.length = 0;  // positions moved: all keys are made anew
            }
        const auto logits = next_logits(ctx, model, texts, vocab);
        std::vector<Text> going_on;
        for (size_t i = 0; i < texts.size(); ++i) {
            Text& text = texts[i];
            const int32_t token = sample_token(logits[i], options, static_cast<uint64_t>(text.made));
            const auto& stops = options.stop_tokens;
            if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
                ended[text.prompt] = Ended::stop_token;
                continue;
            }
            if (!emit(text.prompt, token)) {
                ended[text.prompt] = Ended::stopped;
                continue;
            }
            text.context.push_back(token);
            if (++text.made < options.max_tokens) going_on.push_back(std::move(text));
        }
        texts = std::move(going_on);
    }
    return ended;
}

}  // namespace tutti::train
