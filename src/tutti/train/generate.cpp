#include "tutti/train/generate.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tutti/base/philox.h"
#include "tutti/checkpoint/store.h"
#include "tutti/checkpoint/training_state.h"
#include "tutti/spec/toml.h"

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

void generate(ops::Context& ctx, models::Model& model, DType compute, int64_t max_positions,
              const std::vector<int32_t>& prompt, const SamplingOptions& options,
              const std::function<void(int32_t)>& emit) {
    check<UsageError>(!prompt.empty(), "generate: the prompt is empty; give at least one token");
    // A vocabulary may be padded: ids that the tokenizer does not have are never drawn.
    const int64_t vocab = options.vocab > 0 ? std::min(options.vocab, model.spec().vocab) : model.spec().vocab;
    const int64_t longest = max_positions;
    check<UsageError>(longest >= 2, "generate: a model of ", longest, " positions cannot generate");
    for (int32_t token : prompt)
        check<UsageError>(token >= 0 && token < vocab, "generate: token ", token,
                          " of the prompt is not in the vocabulary of ", vocab);
    std::vector<int32_t> context = prompt;
    nn::KvCache cache = models::make_cache(ctx, model, 1, longest, compute);
    for (int64_t made = 0; made < options.max_tokens; ++made) {
        if (static_cast<int64_t>(context.size()) > longest || cache.length == longest) {
            context.erase(context.begin(), context.end() - longest / 2);
            cache.length = 0;  // positions moved: all keys are made anew
        }
        const std::span<const int32_t> fresh = std::span(context).subspan(static_cast<size_t>(cache.length));
        nn::Batch batch = nn::make_prompt(ctx.device, fresh, 1, cache.length);
        batch.cache = &cache;
        autograd::Tape tape(ctx, false);
        const auto logits = model.forward(tape, batch).value.to_floats();
        cache.length += static_cast<int64_t>(fresh.size());
        const int32_t next =
            sample_token({logits.begin(), logits.begin() + vocab}, options, static_cast<uint64_t>(made));
        emit(next);
        context.push_back(next);
    }
}

namespace {

// A run directory, its checkpoints directory, or one checkpoint.
struct Place {
    std::string directory, step_path;  // one of them
};

Place find_checkpoint(const std::string& path) {
    namespace fs = std::filesystem;
    check<DataError>(fs::exists(path), path, " does not exist; give a run directory or a checkpoint");
    if (fs::exists(fs::path(path) / checkpoint::kManifestName)) return {{}, path};
    if (fs::is_directory(fs::path(path) / "checkpoints")) return {(fs::path(path) / "checkpoints").string(), {}};
    return {path, {}};
}

// "bytes", or the copy of the tokenizer that the run of this checkpoint (RUN/checkpoints/STEP) made, or what it named.
std::string find_tokenizer(const std::string& named, const std::string& checkpoint) {
    if (named == "bytes") return named;
    const auto run = std::filesystem::absolute(checkpoint).parent_path().parent_path();
    for (const char* copy : {"tokenizer.json", "tokenizer.model"})
        if (std::filesystem::exists(run / copy)) return (run / copy).string();
    return named;
}

}  // namespace

LoadedModel load_model(const std::string& path, int threads) {
    LoadedModel loaded;
    loaded.device = make_cpu_device(threads);
    loaded.ctx = std::make_unique<ops::Context>(ops::Context{*loaded.device, kernels::cpu_table(kernels::best_isa())});
    const auto load = [&](const checkpoint::CheckpointReader& reader) {
        const auto state = nlohmann::json::parse(reader.manifest().state);
        const spec::RunSpec run = spec::parse_text(state.at("config").get<std::string>(), reader.path());
        check<UsageError>(run.model.family != spec::Family::mlp, reader.path(), ": an mlp generates no text");
        loaded.compute = run.precision.compute == "f32" ? DType::f32 : DType::bf16;
        loaded.tokenizer = find_tokenizer(run.data.tokenizer, reader.path());
        loaded.max_positions = run.train.seq_len;
        loaded.model =
            std::make_unique<models::Model>(models::make_model(*loaded.ctx, run.model, loaded.max_positions));
        std::vector<checkpoint::Piece> pieces;
        for (autograd::Parameter* p : loaded.model->parameters()) {
            p->master = ops::empty(*loaded.ctx, p->shape, DType::f32, Purpose::weights);
            pieces.push_back(checkpoint::whole_piece(p->name, p->master));
        }
        checkpoint::load_pieces(reader, pieces);
        for (autograd::Parameter* p : loaded.model->parameters()) {
            p->value = loaded.compute == DType::f32
                           ? p->master
                           : ops::cast(*loaded.ctx, p->master, loaded.compute, Purpose::weights);
            if (loaded.compute != DType::f32) p->master = {};
        }
        loaded.step = reader.manifest().step;
        loaded.path = reader.path();
    };
    const Place place = find_checkpoint(path);
    checkpoint::PosixFileSystem files;
    const checkpoint::Warn warn = [](const std::string&) {};
    if (!place.step_path.empty()) {
        const std::string parent = std::filesystem::path(place.step_path).parent_path().string();
        checkpoint::Store(files, parent.empty() ? "." : parent, checkpoint::Access::read, warn)
            .load(place.step_path, load);
        return loaded;
    }
    const auto newest = checkpoint::Store(files, place.directory, checkpoint::Access::read, warn)
                            .load_newest(load, checkpoint::OnDamage::fall_back);
    check<DataError>(newest.has_value(), path, " holds no checkpoint");
    return loaded;
}

}  // namespace tutti::train
