// 03: a module of one's own. It names the role of each weight and knows nothing of ranks; parallel::apply() cuts the
// weights, and the functions of nn/ communicate as the roles ask.
//   03_own_module
// The block is that of GPT-J and PaLM, attention and MLP side by side: x + Attention(LN(x)) + MLP(LN(x)). Trains the
// same GPT of such blocks on one rank, with tensor parallelism, with FSDP, and with both. The losses must be those of
// one rank within 1e-5, the bound of Tutti in f32.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tutti/comm/threads/thread_world.h"
#include "tutti/models/model.h"
#include "tutti/nn/layers.h"
#include "tutti/optim/optimizer.h"
#include "tutti/parallel/apply.h"
#include "tutti/parallel/data_parallel.h"

using namespace tutti;
using autograd::Role, autograd::Tape, autograd::Var;
constexpr int64_t kWidth = 64, kHidden = 256, kHeadDim = 16, kTokens = 32;
constexpr int kSamples = 4, kSteps = 20;

// x (B, T, C). Column: each rank computes some of the outputs. Row: each rank has some of the inputs, and the products
// of all ranks are summed. Between the two nothing is communicated.
struct ParallelBlock final : nn::Module {
    nn::Norm norm;
    nn::Linear qkv, proj, up, down;

    explicit ParallelBlock(const std::string& name)
        : norm(nn::make_layer_norm(name + ".norm", kWidth, 1e-5)),
          qkv(nn::make_linear(name + ".qkv", kWidth, 3 * kWidth,
                              {.role = Role::column, .sections = 3, .grain = kHeadDim})),  // q | k | v, whole heads
          proj(nn::make_linear(name + ".proj", kWidth, kWidth, {.role = Role::row, .grain = kHeadDim})),
          up(nn::make_linear(name + ".up", kWidth, kHidden, {.role = Role::column})),
          down(nn::make_linear(name + ".down", kHidden, kWidth, {.role = Role::row})) {
        unit.name = name;
        nn::own_all(unit, norm, qkv, proj, up, down);
    }
    Var forward(Tape& tape, const Var& x, const nn::Batch& batch) override {
        const std::vector<Var> in = nn::projections(tape, norm(tape, x), {qkv, up});  // one input, read once
        const Var attention = proj(tape, nn::packed_attention(tape, in[0], kHeadDim, batch, 0));
        return nn::add(tape, nn::add(tape, x, attention), down(tape, nn::relu(tape, in[1])));
    }
};

// The loss of the last step, on tp * dp ranks: dp groups with different samples, of tp ranks each.
double train(int tp, int dp) {
    spec::RunSpec run;
    run.model = {.family = spec::Family::gpt2, .vocab = 256, .width = kWidth, .layers = 2};
    run.parallel.tp = tp;
    double loss = 0;
    comm::run_ranks(tp * dp, {}, [&](comm::World& world) {
        const auto device = make_cpu_device(1);
        ops::Context ctx{*device, kernels::table_for(*device, ComputeType::f32)};
        auto modules = models::make_gpt2(run.model);  // embedding, blocks, head
        for (size_t l = 1; l <= 2; ++l) modules[l] = std::make_unique<ParallelBlock>("block." + std::to_string(l));
        models::Model model(run.model, std::move(modules));

        // Roles become parts of tensors, and data parallelism (ZeRO-3) shards these parts.
        parallel::Groups groups(world, parallel::make_mesh(run, world.size()));
        autograd::TensorParallel spread;
        if (tp > 1) spread.ranks = &groups.over(mesh::kTp);
        parallel::apply(model.parameters(), groups.mesh(), world.rank(), spread);
        parallel::DataParallel data_parallel(ctx, {model.units(model.all())}, groups,
                                             {.zero = parallel::Zero::weights, .compute = DType::f32, .seed = 1234});
        optim::Optimizer optimizer(ctx, data_parallel.parameter_shards(), {});

        const int first = groups.coordinate(mesh::kDp) * kSamples / dp;  // of this rank's samples
        std::vector<int32_t> windows;
        for (int64_t i = first * (kTokens + 1); i < (first + kSamples / dp) * (kTokens + 1); ++i)
            windows.push_back(static_cast<int32_t>(i * i % 97));
        nn::Batch batch = nn::make_batch(*device, windows, kSamples / dp, first);
        batch.grad_scale = 1.0f / (kSamples * kTokens);
        for (int step = 0; step < kSteps; ++step) {
            data_parallel.begin_step(1);
            Tape tape(ctx, true, &data_parallel);
            const Var losses = model.forward(tape, batch);
            tape.backward(losses);
            data_parallel.finish_gradients();
            optimizer.step(1e-3, 1);
            data_parallel.all_gather_weights();
            double sum = 0;
            for (const float of_token : losses.value.to_host<float>()) sum += of_token;
            sum = groups.over(mesh::kDp).sum(sum) / (kSamples * kTokens);
            if (world.rank() == 0) loss = sum;
        }
        data_parallel.wait_for_weights();
    });
    return loss;
}

int main() try {
    const double one = train(1, 1);
    std::printf("one rank        loss %.6f after %d steps\n", one, kSteps);
    for (const auto& [tp, dp] : {std::pair{2, 1}, {4, 1}, {1, 4}, {2, 2}}) {
        const double loss = train(tp, dp), difference = std::abs(loss - one) / one;
        std::printf("tp = %d, dp = %d  loss %.6f, relative difference %.1e\n", tp, dp, loss, difference);
        check(difference <= 1e-5, "tp = ", tp, ", dp = ", dp, ": required: the loss ", one, " of one rank, got ", loss);
    }
} catch (const Error& error) {
    std::fprintf(stderr, "03_own_module: %s\n", error.what());
    return error.exit_code();
}
