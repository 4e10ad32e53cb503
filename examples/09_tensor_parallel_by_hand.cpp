// 09: tensor parallelism by hand: Megatron-LM's MLP (Shoeybi et al. 2019, figure 3a), swapped into a GPT.
//   09_tensor_parallel_by_hand
// The first matrix is cut by columns, the second by rows; the activation between them needs no communication. Trains
// the same GPT on one rank, on two and on four. The losses must be those of one rank within 1e-5.
#include <cmath>
#include <cstdio>
#include <numeric>

#include "tutti/comm/threads/thread_world.h"
#include "tutti/mesh/mesh.h"
#include "tutti/models/model.h"
#include "tutti/nn/collectives.h"
#include "tutti/nn/layers.h"
#include "tutti/optim/optimizer.h"

using namespace tutti;
using autograd::Parameter, autograd::Tape, autograd::Var;
constexpr int64_t kWidth = 64, kHidden = 256, kHeadDim = 16;

// This rank's part of a weight (out, in): an equal share of `dim`. Initial values are those of the whole matrix.
void cut(Parameter& weight, int dim, const comm::Communicator& ranks) {
    constexpr auto kAxis = mesh::Axis::tp_part;
    const mesh::Mesh mesh({{kAxis, ranks.size()}});
    weight.local = mesh::part_of(mesh, ranks.rank(), weight.shape, {{.axes = kAxis, .dim = dim}}, weight.name);
}

struct ColumnParallelLinear {  // y_r = x W_r^T: every rank reads x and computes some columns of y
    nn::Linear linear;
    Var operator()(Tape& tape, const Var& x, comm::Communicator& ranks) {
        return linear(tape, nn::copy_to_region(tape, x, ranks));
    }
};

struct RowParallelLinear {  // y = sum_r x_r W_r^T: a rank has some columns of x, and its product is a partial sum
    nn::Linear linear;
    Var operator()(Tape& tape, const Var& x, comm::Communicator& ranks) {
        return nn::reduce_from_region(tape, linear(tape, x), ranks);
    }
};

// x (B, T, C): x += Attention(LN(x)); x += MLP(LN(x))
struct Block final : nn::Module {
    std::string name;
    comm::Communicator& ranks;
    nn::Norm norm_1 = nn::make_layer_norm(name + ".norm_1", kWidth, 1e-5);
    nn::Norm norm_2 = nn::make_layer_norm(name + ".norm_2", kWidth, 1e-5);
    nn::Linear qkv = nn::make_linear(name + ".qkv", kWidth, 3 * kWidth, {});
    nn::Linear proj = nn::make_linear(name + ".proj", kWidth, kWidth, {});
    ColumnParallelLinear up{nn::make_linear(name + ".up", kWidth, kHidden, {})};
    RowParallelLinear down{nn::make_linear(name + ".down", kHidden, kWidth, {})};

    Block(const std::string& block, comm::Communicator& tp) : name(block), ranks(tp) {
        cut(up.linear.weight, 0, tp);
        cut(down.linear.weight, 1, tp);
        unit.name = name;
        nn::own_all(unit, norm_1, qkv, proj, norm_2, up.linear, down.linear);
    }
    Var forward(Tape& tape, const Var& x, const nn::Batch& batch) override {
        const Var a = nn::packed_attention(tape, qkv(tape, norm_1(tape, x)), kHeadDim, batch, 0);
        const Var h = nn::add(tape, x, proj(tape, a));
        return nn::add(tape, h, down(tape, nn::relu(tape, up(tape, norm_2(tape, h), ranks)), ranks));
    }
};

// The loss after 20 steps on one batch.
double train(int ranks) {
    double loss = 0;
    comm::run_ranks(ranks, {}, [&](comm::World& world) {
        const auto tp = world.everyone("tp");
        const auto device = make_cpu_device(1);
        ops::Context ctx{*device, kernels::table_for(*device, ComputeType::f32)};
        spec::ModelSpec gpt{.family = spec::Family::gpt2, .vocab = 256, .width = kWidth, .layers = 2};
        auto modules = models::make_gpt2(gpt);  // embedding, blocks, head
        for (size_t l = 1; l <= 2; ++l) modules[l] = std::make_unique<Block>("block." + std::to_string(l), *tp);
        models::Model model(gpt, std::move(modules));
        models::materialize(ctx, model, DType::f32, 1234, true);
        optim::Optimizer optimizer(ctx, optim::whole_shards(model.parameters()), {});

        std::vector<int32_t> text;  // four windows of 32 tokens and the next one
        for (int i = 0; i < 4 * 33; ++i) text.push_back(i * i % 97);
        nn::Batch batch = nn::make_batch(*device, text, 4, 0);
        batch.grad_scale = 1.0f / (4 * 32);
        for (int step = 0; step < 20; ++step) {
            for (Parameter* p : model.parameters()) ops::fill(ctx, p->gradient, 0);
            Tape tape(ctx, true);
            const Var losses = model.forward(tape, batch);
            tape.backward(losses);
            optimizer.step(1e-3, 1);
            const std::vector<float> terms = losses.value.to_host<float>();
            if (world.rank() == 0) loss = std::accumulate(terms.begin(), terms.end(), 0.0) / (4 * 32);
        }
    });
    return loss;
}

int main() try {
    const double one = train(1);
    std::printf("1 rank:  loss %.6f\n", one);
    for (const int ranks : {2, 4}) {
        const double loss = train(ranks), difference = std::abs(loss - one) / one;
        std::printf("%d ranks: loss %.6f, relative difference %.1e\n", ranks, loss, difference);
        check(difference <= 1e-5, ranks, " ranks: required: the loss ", one, " of one rank, got ", loss);
    }
} catch (const Error& error) {
    std::fprintf(stderr, "09_tensor_parallel_by_hand: %s\n", error.what());
    return error.exit_code();
}
