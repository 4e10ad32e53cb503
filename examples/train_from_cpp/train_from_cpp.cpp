// examples/train_from_cpp: a C++ program that trains, with no Python and no command line of Tutti: it owns the loop.
//   train_from_cpp TEXT [STEPS]
// Trains a small Llama on the bytes of a text, prints the loss now and then and a few lines of what it learned.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tutti/autograd/tape.h"
#include "tutti/data/data_set.h"
#include "tutti/data/sampler.h"
#include "tutti/engine/batches.h"
#include "tutti/infer/generate.h"
#include "tutti/models/model.h"
#include "tutti/ops/ops.h"
#include "tutti/optim/optimizer.h"
#include "tutti/optim/schedule.h"

namespace {

constexpr int64_t kWindow = 64, kSequences = 8;
constexpr uint64_t kSeed = 1234;

void train(const std::string& text, int64_t steps) {
    // What a rank has: a device, kernels for it, nothing global.
    const auto device = tutti::make_device("auto", 0);
    tutti::ops::Context ctx{*device, tutti::kernels::table_for(*device, tutti::Arithmetic::bf16)};

    // The model: a preset with fewer layers. Weights follow from the seed and the parameters' names.
    tutti::spec::ModelSpec spec = tutti::spec::preset("llama-tiny");
    spec.layers = 2;
    tutti::models::Model model = tutti::models::make_model(ctx, spec, kWindow);
    tutti::models::materialize(ctx, model, tutti::DType::bf16, kSeed, true);
    std::printf("%lld parameters\n", static_cast<long long>(tutti::spec::parameter_count(spec)));

    tutti::spec::DataSpec files;
    files.train = {text};
    const auto data = tutti::data::open(files, spec.vocab, kWindow);
    const auto batches = tutti::engine::token_batches(*device, {data.train, kWindow, kSeed}, kSequences, kSequences);

    tutti::spec::OptimizerSpec recipe;
    recipe.lr = 3e-3;
    recipe.min_lr = 3e-4;
    tutti::optim::Optimizer optimizer(ctx, tutti::optim::whole_pieces(model.parameters()), recipe);

    for (int64_t step = 1; step <= steps; ++step) {
        for (const auto* p : model.parameters()) tutti::ops::fill(ctx, p->gradient, 0);
        tutti::autograd::Tape tape(ctx, true);
        const auto losses = model.forward(tape, batches->microbatch(step, 0));
        tape.backward(losses);
        tutti::ops::Sum squares(ctx);
        for (const auto* p : model.parameters()) squares.add_squares(p->gradient);
        optimizer.step(tutti::optim::learning_rate(recipe, steps, step),
                       tutti::optim::clip_factor(std::sqrt(squares.take().value()), recipe.clip));

        if (step != 1 && step % 20 != 0 && step != steps) continue;
        tutti::ops::Sum loss(ctx);
        loss.add(losses.value);
        std::printf("step %lld loss %.4f\n", static_cast<long long>(step),
                    loss.take().value() / static_cast<double>(batches->terms(step)));
    }

    tutti::infer::generate(ctx, model, {{'\n'}}, {.max_tokens = 120, .max_positions = kWindow},
                           [](size_t, int32_t token) { return std::putchar(token) != EOF; });
    std::putchar('\n');
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: train_from_cpp TEXT [STEPS]\n");
        return 2;
    }
    try {
        train(argv[1], argc > 2 ? std::atoll(argv[2]) : 100);
        return 0;
    } catch (const tutti::Error& error) {
        std::fprintf(stderr, "train_from_cpp: %s\n", error.what());
        return error.exit_code();
    }
}
