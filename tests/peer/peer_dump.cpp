// tests/peer/peer_dump.cpp: runs the library on a small model and writes its results as files that test_models.py
// compares with PyTorch's.
//
//   tutti_peer_dump outputs CONFIG.toml TOKENS OUT [--set K=V]... [--reference]
//   tutti_peer_dump train   CONFIG.toml TOKENS OUT [--set K=V]... [--reference]
//
// The weights are drawn and stirred, or those of the Hugging Face directory that [model] hf names.
//
// TOKENS holds int32 windows of train.seq_len + 1 tokens, one after another; a negative last token is an ignored
// target. `outputs` writes OUT/weights.safetensors, outputs.safetensors (logits of every position, loss) and
// gradients.safetensors. `train` writes the initial weights, runs train.steps updates and prints them as JSON.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>

#include "tutti/checkpoint/safetensors.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/engine/step.h"
#include "tutti/hf/weights.h"
#include "tutti/nn/routing.h"
#include "tutti/ops/ops.h"
#include "tutti/optim/optimizer.h"
#include "tutti/spec/layers.h"
#include "tutti/spec/toml.h"

namespace {

using namespace tutti;

struct Arguments {
    std::string mode, config, tokens, out;
    std::vector<std::string> overrides;
    bool reference = false;
};

Arguments parse_arguments(int argc, char** argv) {
    Arguments a;
    std::vector<std::string> places;
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        if (word == "--reference") {
            a.reference = true;
        } else if (word == "--set") {
            check<UsageError>(i + 1 < argc, "--set needs section.key=value");
            a.overrides.emplace_back(argv[++i]);
        } else {
            places.push_back(word);
        }
    }
    check<UsageError>(places.size() == 4 && (places[0] == "outputs" || places[0] == "train"),
                      "usage: tutti_peer_dump outputs|train CONFIG.toml TOKENS OUT [--set K=V]... [--reference]");
    a.mode = places[0], a.config = places[1], a.tokens = places[2], a.out = places[3];
    return a;
}

std::vector<int32_t> read_tokens(const std::string& path, int64_t window) {
    std::ifstream in(path, std::ios::binary);
    check<DataError>(in.good(), path, ": cannot be opened");
    const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    std::vector<int32_t> tokens(bytes.size() / sizeof(int32_t));
    std::memcpy(tokens.data(), bytes.data(), tokens.size() * sizeof(int32_t));
    check<DataError>(!tokens.empty() && static_cast<int64_t>(tokens.size()) % window == 0, path, ": ", tokens.size(),
                     " tokens are not whole windows of ", window);
    return tokens;
}

// The windows of the file in their order, where the trainer's sampler would shuffle: the peer reads the same file.
class FileBatches final : public engine::Batches {
  public:
    FileBatches(Device& device, std::vector<int32_t> tokens, const spec::TrainSpec& spec)
        : device_(device), tokens_(std::move(tokens)), spec_(spec) {}

    nn::Batch microbatch(int64_t step, int64_t index) override {
        const auto all = of_step(step);
        const auto size = static_cast<size_t>(spec_.micro_batch * (spec_.seq_len + 1));
        nn::Batch batch = nn::make_batch(device_, all.subspan(static_cast<size_t>(index) * size, size),
                                         spec_.micro_batch, index * spec_.micro_batch);
        batch.grad_scale = 1.0f / static_cast<float>(valid_tokens(step));
        return batch;
    }
    int64_t valid_tokens(int64_t step) override { return valid_in(of_step(step)); }
    int64_t valid_tokens_of(int64_t step, int64_t index) override {
        const auto size = static_cast<size_t>(spec_.micro_batch * (spec_.seq_len + 1));
        return valid_in(of_step(step).subspan(static_cast<size_t>(index) * size, size));
    }

  private:
    int64_t valid_in(std::span<const int32_t> windows) const {
        const auto window = static_cast<size_t>(spec_.seq_len + 1);
        int64_t valid = 0;
        for (size_t i = 0; i < windows.size(); ++i) valid += i % window != 0 && windows[i] >= 0;
        return valid;
    }
    std::span<const int32_t> of_step(int64_t step) const {
        const auto size = static_cast<size_t>(spec_.global_batch * (spec_.seq_len + 1));
        check<DataError>(static_cast<size_t>(step) * size <= tokens_.size(), "the tokens end before step ", step);
        return std::span(tokens_).subspan(static_cast<size_t>(step - 1) * size, size);
    }
    Device& device_;
    std::vector<int32_t> tokens_;
    spec::TrainSpec spec_;
};

// Biases start at 0 and norm weights at 1, which would hide a bias that is forgotten or a weight that is swapped.
void stir_vectors(ops::Context& ctx, models::Model& model, uint64_t seed) {
    for (autograd::Parameter* p : model.parameters()) {
        if (p->shape.rank() != 1) continue;
        std::vector<float> values = p->master.to_host<float>();
        const RandomKey key = random_key(seed, "stir." + p->name);
        for (size_t i = 0; i < values.size(); ++i) values[i] += 0.2f * normal(key, i);
        ctx.device.copy_in(p->master.view().data, values.data(), p->master.bytes());
        if (p->value.dtype() != DType::f32) ops::cast_into(ctx, p->master, p->value);
    }
}

// Named host arrays that live until they are written.
class Archive {
  public:
    void add(const std::string& name, const Shape& shape, std::vector<float> values) {
        names_.push_back(name);
        shapes_.emplace_back(shape.begin(), shape.end());
        values_.push_back(std::move(values));
    }
    void write(const std::string& directory, const std::string& name) const {
        std::vector<checkpoint::TensorToWrite> tensors;
        for (size_t i = 0; i < names_.size(); ++i)
            tensors.push_back({names_[i], DType::f32, shapes_[i], std::as_bytes(std::span(values_[i]))});
        checkpoint::PosixFileSystem disk;
        checkpoint::write_file_atomically(disk, directory, checkpoint::safetensors_file(name, std::move(tensors)));
    }

  private:
    std::vector<std::string> names_;
    std::vector<std::vector<int64_t>> shapes_;
    std::vector<std::vector<float>> values_;
};

// As the model reads them: bf16 values when it computes in bf16.
void write_weights(const models::Model& model, const std::string& out) {
    Archive weights;
    for (const autograd::Parameter* p : model.parameters()) weights.add(p->name, p->shape, p->value.to_floats());
    weights.write(out, "weights.safetensors");
}

// Copies the logits (B, V) of position t into all (B, T, V).
void put(const Tensor& logits, int64_t t, int64_t T, std::vector<float>& all) {
    const std::vector<float> rows = logits.to_floats();
    const int64_t B = logits.dim(0), V = logits.dim(1);
    for (int64_t b = 0; b < B; ++b) std::copy_n(rows.begin() + b * V, V, all.begin() + (b * T + t) * V);
}

// Logits (B, T, V) of every position, each from the prompt that ends there. `cached`: token by token through the
// key-value cache, after a first prompt of a third of the sequence; the positions inside it stay 0.
std::vector<float> all_logits(ops::Context& ctx, models::Model& model, std::span<const int32_t> windows, int64_t T,
                              bool cached) {
    const int64_t B = static_cast<int64_t>(windows.size()) / (T + 1), V = model.spec().vocab;
    std::vector<float> all(static_cast<size_t>(B * T * V));
    std::vector<nn::KvCache> caches;
    std::vector<nn::KvCache*> all_caches;
    for (int64_t b = 0; cached && b < B; ++b) caches.emplace_back(model.spec().layers, T);
    for (nn::KvCache& cache : caches) all_caches.push_back(&cache);
    for (int64_t t = cached ? T / 3 : 0; t < T; ++t) {
        const int64_t begin = cached && caches[0].length > 0 ? t : 0;
        std::vector<int32_t> prompt;
        for (int64_t b = 0; b < B; ++b)
            for (int64_t i = begin; i <= t; ++i) prompt.push_back(windows[static_cast<size_t>(b * (T + 1) + i)]);
        const nn::Batch batch =
            cached ? nn::make_continuation(ctx.device, prompt, all_caches) : nn::make_prompt(ctx.device, prompt, B);
        autograd::Tape tape(ctx, false);
        put(model.forward(tape, batch).value, t, T, all);
        nn::advance(batch);
    }
    return all;
}

void dump_outputs(ops::Context& ctx, models::Model& model, const spec::RunSpec& run, std::vector<int32_t> tokens,
                  const std::string& out, comm::World& one_rank) {
    const int64_t T = run.train.seq_len, B = static_cast<int64_t>(tokens.size()) / (T + 1), V = run.model.vocab;
    Archive outputs;
    outputs.add("logits", {B, T, V}, all_logits(ctx, model, tokens, T, false));
    outputs.add("cached_logits", {B, T, V}, all_logits(ctx, model, tokens, T, true));

    spec::TrainSpec one_batch = run.train;
    one_batch.micro_batch = one_batch.global_batch = B;
    FileBatches batches(ctx.device, std::move(tokens), one_batch);
    for (const autograd::Parameter* p : model.parameters()) ops::fill(ctx, p->gradient, 0);
    autograd::Tape tape(ctx, true);
    const int64_t segment = spec::recompute_of(run.recompute.policy, run.model.layers).segment;
    nn::Batch batch = batches.microbatch(1, 0);
    nn::RoutingRecord routing(ctx, spec::layers_with_experts(run.model), run.model.moe, B * T);
    batch.routing.record = &routing;
    const autograd::Var losses = model.forward(tape, batch, segment);
    outputs.add("losses", {B, T}, losses.value.to_floats());
    tape.backward(losses);
    if (run.model.moe.experts > 0) {
        const auto world = one_rank.everyone("world");
        outputs.add("aux_loss", {1}, {static_cast<float>(routing.take(*world).aux_loss)});
    }
    outputs.write(out, "outputs.safetensors");

    Archive gradients;
    for (const autograd::Parameter* p : model.parameters()) gradients.add(p->name, p->shape, p->gradient.to_floats());
    gradients.write(out, "gradients.safetensors");
}

// One rank, from the weights that the model has now.
void dump_training(ops::Context& ctx, models::Model& model, const spec::RunSpec& run, std::vector<int32_t> tokens,
                   comm::World& one_rank) {
    std::map<std::string, std::vector<float>> start;
    for (const autograd::Parameter* p : model.parameters()) start[p->name] = p->master.to_host<float>();
    const auto make_batches = [&](ops::Context& context, const engine::BatchShard&) {
        return std::make_unique<FileBatches>(context.device, std::move(tokens), run.train);
    };
    engine::Engine engine(run, one_rank, engine::machine_of(run, {}, ""), make_batches);
    engine.data_parallel->load_masters([&] {
        // Rows that pad a vocabulary follow the others, and stay 0.
        for (const optim::ParameterShard& p : engine.optimizer.parameter_shards()) {
            const std::vector<float>& values = start.at(p.parameter->name);
            ctx.device.copy_in(p.master.view().data, values.data(),
                               static_cast<int64_t>(values.size() * sizeof(float)));
        }
    });
    std::printf("[");
    for (int64_t step = 1; step <= run.train.steps; ++step) {
        const engine::StepResult r = engine::train_step(engine, step);
        check(!r.skipped, "step ", step, " was skipped: ", r.culprit, " is not finite");
        std::printf("%s\n{\"step\": %lld, \"loss\": %.9g, \"grad_norm\": %.9g, \"lr\": %.17g, \"terms\": %lld}",
                    step > 1 ? "," : "", static_cast<long long>(step), r.loss, r.grad_norm, r.lr,
                    static_cast<long long>(r.valid_tokens));
    }
    std::printf("\n]\n");
}

void dump(const Arguments& a) {
    const spec::RunSpec run = spec::parse_file(a.config, a.overrides);
    const DType compute = spec::compute_dtype(run);
    const auto device = make_cpu_device(static_cast<int>(run.train.threads));
    const kernels::KernelTable& table =
        a.reference ? kernels::reference_table() : kernels::cpu_table(kernels::best_isa());
    ops::Context ctx{*device, table};
    models::Model model = models::make_model(ctx, run.model, run.train.seq_len);
    const auto seed = static_cast<uint64_t>(run.train.seed);
    if (run.model.hf.empty()) {
        models::materialize(ctx, model, compute, seed, true);
        stir_vectors(ctx, model, seed);
    } else {
        models::allocate(ctx, model, compute, true);
        checkpoint::PosixFileSystem disk;
        hf::StoredWeights::in_directory(disk, run.model.hf, model).load(ctx, model);
    }
    write_weights(model, a.out);

    std::vector<int32_t> tokens = read_tokens(a.tokens, run.train.seq_len + 1);
    comm::run_ranks(1, {}, [&](comm::World& world) {
        if (a.mode == "outputs")
            dump_outputs(ctx, model, run, std::move(tokens), a.out, world);
        else
            dump_training(ctx, model, run, std::move(tokens), world);
    });
}

}  // namespace

int main(int argc, char** argv) {
    try {
        dump(parse_arguments(argc, argv));
        return 0;
    } catch (const tutti::Error& e) {
        std::cerr << "tutti_peer_dump: " << e.what() << "\n";
        return e.exit_code();
    }
}
