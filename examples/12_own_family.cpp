// 12: a family of one's own, from its block to its files.
//   12_own_family TEXT
// The norms of the block stand behind its parts, x + norm(f(x)), as in OLMo 2 (Team OLMo 2024); Tutti has no such
// model. The block is told once, as a module whose parameters name their roles and their tensors in files. Parallelism,
// rehearsal, FLOPs, checkpoints and exports follow: the program trains it under tp 2 x pp 2 x FSDP, with the memory of
// every rank as rehearsed, resumes under another layout, compares both with one rank, and exports it. The block itself
// is compared with loops in double. Prints the differences.
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "tutti/base/units.h"
#include "tutti/checkpoint/store.h"
#include "tutti/comm/launcher.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/engine/step.h"
#include "tutti/hf/export.h"
#include "tutti/models/decoder.h"
#include "tutti/models/flops.h"
#include "tutti/rehearsal/present.h"
#include "tutti/spec/toml.h"
#include "tutti/spec/validate.h"
#include "tutti/train/trainer.h"
#include "tutti/train/verify.h"

using namespace tutti;
using autograd::Role, autograd::Tape, autograd::Var;

// x (B, T, C): h = x + norm(attention(x)); y = h + norm(W_down (silu(W_gate h) * W_up h))
class Block final : public nn::Module {
  public:
    Block(const spec::ModelSpec& s, int64_t layer, ops::RopeTable rope)
        : layer_(layer), head_dim_(s.head_dim), rope_(std::move(rope)) {
        const std::string name = concat("blocks.", layer, "."), in_files = concat("model.layers.", layer, ".");
        const auto linear = [&](const char* ours, const char* theirs, int64_t in, int64_t out, Role role,
                                int64_t grain = 1) {
            nn::Linear l = nn::make_linear(name + ours, in, out, {.role = role, .std = s.init_std, .grain = grain});
            l.weight.stored_as.name = in_files + theirs + ".weight";
            return l;
        };
        const auto norm = [&](const char* ours, const char* theirs) {
            nn::Norm n = nn::make_rms_norm(name + ours, s.width, s.norm_eps);
            n.weight.stored_as.name = in_files + theirs + ".weight";
            return n;
        };
        const int64_t C = s.width, D = s.head_dim, query = s.heads * D, key = s.kv_heads * D;
        q_ = linear("q", "self_attn.q_proj", C, query, Role::column, D);
        k_ = linear("k", "self_attn.k_proj", C, key, Role::key_value, D);
        v_ = linear("v", "self_attn.v_proj", C, key, Role::key_value, D);
        o_ = linear("o", "self_attn.o_proj", query, C, Role::row, D);
        gate_ = linear("gate", "mlp.gate_proj", C, s.ffn, Role::column);
        up_ = linear("up", "mlp.up_proj", C, s.ffn, Role::column);
        down_ = linear("down", "mlp.down_proj", s.ffn, C, Role::row);
        after_attention_ = norm("after_attention", "post_attention_layernorm");
        after_mlp_ = norm("after_mlp", "post_feedforward_layernorm");
        unit.name = concat("blocks.", layer);
        unit.attention = {{.width = query}};
        nn::own_adjacent(unit, {&q_, &k_, &v_});
        own_all(unit, o_, after_attention_);
        nn::own_adjacent(unit, {&gate_, &up_});
        own_all(unit, down_, after_mlp_);
    }

    Var forward(Tape& tape, const Var& x, const nn::Batch& batch) override {
        const std::vector<Var> qkv = nn::projections(tape, x, {q_, k_, v_});
        const auto heads = [&](const Var& y) { return nn::split_heads(tape, y, head_dim_); };
        const auto rotated = [&](const Var& y) { return nn::rope(tape, heads(y), batch.positions, rope_); };
        const Var a = nn::attention(tape, rotated(qkv[0]), rotated(qkv[1]), heads(qkv[2]), batch, layer_);
        const Var h = nn::add(tape, x, after_attention_(tape, o_(tape, nn::join_heads(tape, a))));
        return nn::add(tape, h, after_mlp_(tape, nn::swiglu_mlp(tape, h, gate_, up_, down_)));
    }

  private:
    int64_t layer_, head_dim_;
    ops::RopeTable rope_;
    nn::Linear q_, k_, v_, o_, gate_, up_, down_;
    nn::Norm after_attention_, after_mlp_;
};

// Embedding, blocks, norm and head: everything that Tutti has to be told about the family.
models::Model make_family(ops::Context& ctx, const spec::ModelSpec& s, int64_t max_positions) {
    const ops::RopeTable rope = nn::make_rope_table(
        ctx, max_positions, models::rope_frequencies(*spec::layer(s, 0).attention()->rope, max_positions));
    return {s, models::make_decoder(s, "model.embed_tokens", "model.norm",
                                    [&](int64_t layer) { return std::make_unique<Block>(s, layer, rope); })};
}
const engine::Factories kFactories{.model = make_family};

constexpr const char* kConfig = R"(
    [model]
    width = 32
    layers = 4
    heads = 4
    kv_heads = 2
    head_dim = 8
    ffn = 64
    [train]
    seq_len = 32
    global_batch = 8
    micro_batch = 1
    threads = 1
    [precision]
    compute = "f32"
    [optimizer]
    schedule = "constant"
    warmup_steps = 0
    [checkpoint]
    every = 4
)";

spec::RunSpec run_of(const std::string& text, int64_t steps, int ranks, std::vector<std::string> layout) {
    layout.insert(layout.end(), {"data.train=" + text, concat("train.steps=", steps)});
    spec::RunSpec run = spec::parse_text(kConfig, "12_own_family", layout);
    spec::validate(run, ranks);
    return run;
}

// --- the block in double ---------------------------------------------------------------------------------------------

using Rows = std::vector<std::vector<double>>;  // (T, width)

Rows product(const Rows& x, const autograd::Parameter& w) {  // x w^T
    const std::vector<float> values = w.value.to_floats();
    Rows y(x.size(), std::vector<double>(static_cast<size_t>(w.shape[0])));
    for (size_t t = 0; t < x.size(); ++t)
        for (size_t n = 0; n < y[t].size(); ++n)
            for (size_t k = 0; k < x[t].size(); ++k) y[t][n] += x[t][k] * double(values[n * x[t].size() + k]);
    return y;
}

Rows plus_norm(const Rows& x, const Rows& y, const autograd::Parameter& w, double eps) {  // x + norm(y)
    const std::vector<float> weight = w.value.to_floats();
    Rows sum = x;
    for (size_t t = 0; t < x.size(); ++t) {
        const double squares = std::inner_product(y[t].begin(), y[t].end(), y[t].begin(), 0.0);
        const double scale = 1 / std::sqrt(squares / double(y[t].size()) + eps);
        for (size_t c = 0; c < x[t].size(); ++c) sum[t][c] += y[t][c] * scale * double(weight[c]);
    }
    return sum;
}

void rotate(Rows& x, size_t D, double theta) {
    for (size_t t = 0; t < x.size(); ++t)
        for (size_t head = 0; head < x[t].size(); head += D)
            for (size_t i = 0; i < D / 2; ++i) {
                const double angle = double(t) * std::pow(theta, -2 * double(i) / double(D));
                double &a = x[t][head + i], &b = x[t][head + i + D / 2];
                const double turned = a * std::cos(angle) - b * std::sin(angle);
                b = b * std::cos(angle) + a * std::sin(angle);
                a = turned;
            }
}

Rows attention(const Rows& q, const Rows& k, const Rows& v, size_t D) {  // causal, grouped queries
    Rows y(q.size(), std::vector<double>(q.front().size()));
    const size_t group = q.front().size() / k.front().size();
    for (size_t t = 0; t < q.size(); ++t)
        for (size_t head = 0; head < q[t].size() / D; ++head) {
            const size_t of_query = head * D, of_key = head / group * D;
            std::vector<double> weights;
            for (size_t s = 0; s <= t; ++s) {
                double score = 0;
                for (size_t d = 0; d < D; ++d) score += q[t][of_query + d] * k[s][of_key + d];
                weights.push_back(std::exp(score / std::sqrt(double(D))));
            }
            const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
            for (size_t s = 0; s <= t; ++s)
                for (size_t d = 0; d < D; ++d) y[t][of_query + d] += weights[s] / sum * v[s][of_key + d];
        }
    return y;
}

// The largest difference between the block and the loops above, relative to the largest value.
double difference_of_block(const spec::ModelSpec& s) {
    constexpr int64_t T = 8;
    const auto device = make_cpu_device(1);
    ops::Context ctx{*device, kernels::table_for(*device, ComputeType::f32)};
    models::Model model = make_family(ctx, s, T);
    models::materialize(ctx, model, DType::f32, 7, false);
    const auto parameter = [&](const std::string& name) -> autograd::Parameter& {
        return model.parameter("blocks.1." + name + ".weight");
    };
    Rows x(T, std::vector<double>(static_cast<size_t>(s.width)));
    std::vector<float> values;
    for (size_t t = 0; t < x.size(); ++t)
        for (size_t c = 0; c < x[t].size(); ++c) values.push_back(float(x[t][c] = std::sin(double(3 * t + 5 * c))));
    for (const char* norm : {"after_attention", "after_mlp"})  // initially 1
        device->copy_in(parameter(norm).value.view().data, values.data(), parameter(norm).value.bytes());

    Tape tape(ctx, false);
    const nn::Batch batch = nn::make_batch(*device, std::vector<int32_t>(T + 1), 1, 0);
    const Tensor input = Tensor::from_host<float>(*device, {1, T, s.width}, values, Purpose::data);
    const auto got = model.modules()[2]->forward(tape, {input}, batch).value.to_floats();

    const auto D = static_cast<size_t>(s.head_dim);
    Rows q = product(x, parameter("q")), k = product(x, parameter("k"));
    rotate(q, D, s.rope_theta);
    rotate(k, D, s.rope_theta);
    const Rows a = product(attention(q, k, product(x, parameter("v")), D), parameter("o"));
    const Rows h = plus_norm(x, a, parameter("after_attention"), s.norm_eps);
    Rows z = product(h, parameter("gate"));
    const Rows up = product(h, parameter("up"));
    for (size_t t = 0; t < z.size(); ++t)
        for (size_t f = 0; f < z[t].size(); ++f) z[t][f] *= up[t][f] / (1 + std::exp(-z[t][f]));
    const Rows expected = plus_norm(h, product(z, parameter("down")), parameter("after_mlp"), s.norm_eps);
    double difference = 0, largest = 0;
    for (size_t i = 0; i < got.size(); ++i) {
        const double value = expected[i / x[0].size()][i % x[0].size()];
        difference = std::max(difference, std::abs(double(got[i]) - value));
        largest = std::max(largest, std::abs(value));
    }
    return difference / largest;
}

// --- what follows from it --------------------------------------------------------------------------------------------

void check_memory(const spec::RunSpec& run, int ranks) {
    const data::DataSet data = data::open(run.data, run.model.vocab, run.train.seq_len);
    comm::run_ranks(ranks, engine::world_options(run, ""), [&](comm::World& world) {
        const auto machine = [&] { return engine::machine_of(run, comm::local_rank({}, world.rank(), ranks), ""); };
        const auto rehearsed =
            rehearsal::rehearse(run, rehearsal::target_of(machine()), ranks, world.rank(), kFactories);
        engine::Engine engine(run, world, machine(), engine::training_batches(run, &data), kFactories);
        engine.device->memory().reset_peaks();
        engine::train_step(engine, 1);
        const MemoryByPurpose counted = engine.device->memory().at_peak();
        check(counted == rehearsed.memory.at_peak, "rank ", world.rank(), ": required: memory as rehearsed, ",
              rehearsal::to_json(rehearsed.memory.at_peak), ", counted ", rehearsal::to_json(counted));
        engine.data_parallel->wait_for_weights();
    });
}

train::TrainOutcome trained(const spec::RunSpec& run, const char* out, int ranks) {
    return train::train({.run = run, .out = out, .ranks = ranks, .factories = kFactories});
}

// Exports the newest checkpoint, and returns the number of tensors that come back bit for bit under their names in
// files.
size_t export_and_read(const spec::ModelSpec& s) {
    const auto device = make_cpu_device(1);
    ops::Context ctx{*device, kernels::table_for(*device, ComputeType::f32)};
    models::Model saved = make_family(ctx, s, 1), read = make_family(ctx, s, 1);
    for (models::Model* model : {&saved, &read}) models::allocate(ctx, *model, DType::f32, false);
    checkpoint::PosixFileSystem disk;
    std::filesystem::create_directories("12_exported");
    const auto warn = [](const std::string& text) { throw Error(text); };
    checkpoint::Store store(disk, "12_run/checkpoints", checkpoint::Access::read, warn);
    store.load_newest(
        [&](const checkpoint::CheckpointReader& reader) {
            const auto weights = hf::StoredWeights::in_checkpoint(reader, saved);
            weights.load(ctx, saved);
            hf::Losses losses;
            hf::write_directory(disk, "12_exported", saved, weights, {.config = "{\"model_type\": \"norms_behind\"}\n"},
                                losses);
        },
        checkpoint::OnDamage::stop);
    hf::StoredWeights::in_directory(disk, "12_exported", read).load(ctx, read);
    const auto files = checkpoint::ShardedSafetensors::open(disk, "12_exported");
    check(files.find("model.layers.3.post_feedforward_layernorm.weight") != nullptr,
          "required: the name of a norm in files");
    for (const autograd::Parameter* p : saved.parameters())
        check(p->value.to_floats() == read.parameter(p->name).value.to_floats(), p->name,
              ": required: the bits of the checkpoint");
    return saved.parameters().size();
}

int main(int argc, char** argv) try {
    check<UsageError>(argc == 2, "required: a text to learn; usage: 12_own_family TEXT");
    for (const char* made : {"12_run", "12_one_rank", "12_exported"}) std::filesystem::remove_all(made);
    const std::vector<std::string> fsdp = {"parallel.tp=2", "parallel.pp=2", "parallel.zero=3"};
    const spec::RunSpec four = run_of(argv[1], 4, 8, fsdp);
    const models::Model family = models::outline(four.model, make_family);
    std::printf("%lld parameters, %s a token\n", static_cast<long long>(models::parameter_count(family)),
                format_flops(models::model_flops(family, four.train.seq_len).causal()).c_str());

    const double block = difference_of_block(four.model);
    std::printf("a block and loops in double: largest difference %.1e\n", block);
    check(block < 1e-5, "required: a block equal to the loops within 1e-5");

    check_memory(four, 8);
    const double first = trained(four, "12_run", 8).loss;
    const double resumed = trained(run_of(argv[1], 8, 4, {"parallel.cp=2", "parallel.zero=1"}), "12_run", 4).loss;
    const double one = trained(run_of(argv[1], 8, 1, {}), "12_one_rank", 1).loss,
                 difference = std::abs(resumed / one - 1);
    std::printf("8 ranks, tp 2 x pp 2 x FSDP, memory of each as rehearsed: loss %.5f after 4 steps\n", first);
    std::printf("4 ranks, cp 2 x dp 2, resumed: loss %.5f after 8; one rank %.5f, difference %.1e\n", resumed, one,
                difference);
    check(difference < 1e-5, "required: the loss of one rank within 1e-5");

    const auto verified = train::verify({.run = four, .ranks = 8, .factories = kFactories}).worst();
    std::printf("verify: largest differences: loss %.1e, gradient %.1e, weight %.1e\n", verified.loss_difference,
                verified.gradient_difference, verified.weight_difference);
    check(verified.within(), "required: the same run as one rank");
    std::printf("%zu tensors exported and read again, bit for bit\n", export_and_read(four.model));
} catch (const Error& error) {
    std::fprintf(stderr, "12_own_family: %s\n", error.what());
    return error.exit_code();
}
