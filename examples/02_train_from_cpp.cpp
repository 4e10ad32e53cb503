// 02: training from C++. The program owns the loop: batch, forward, backward, clipping, update. No command line of
// Tutti.
//   02_train_from_cpp TEXT [STEPS]
// Trains a small Llama on the bytes of a text, prints the loss at intervals and a few bytes that the model writes. The
// last loss must be below the entropy of the text's byte frequencies, the best that a model without context reaches.
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tutti/autograd/tape.h"
#include "tutti/base/read_file.h"
#include "tutti/data/data_set.h"
#include "tutti/data/sampler.h"
#include "tutti/engine/batches.h"
#include "tutti/infer/generate.h"
#include "tutti/kernels/backends.h"
#include "tutti/models/flops.h"
#include "tutti/models/model.h"
#include "tutti/ops/ops.h"
#include "tutti/optim/optimizer.h"
#include "tutti/spec/learning_rate.h"

using namespace tutti;

constexpr int64_t kWindow = 64, kSequences = 8;
constexpr uint64_t kSeed = 1234;

// In nats per byte.
double entropy_of_bytes(const std::string& text) {
    std::array<double, 256> counts{};
    for (const char c : text) counts[static_cast<unsigned char>(c)] += 1;
    double entropy = 0;
    for (const double n : counts)
        if (n > 0) entropy -= n / static_cast<double>(text.size()) * std::log(n / static_cast<double>(text.size()));
    return entropy;
}

// The loss of the last step.
double train(const std::string& text, int64_t steps) {
    // The objects of a rank: a device and its kernels, nothing global.
    const auto device = make_device("auto", 0);
    ops::Context ctx{*device, kernels::table_for(*device, ComputeType::bf16)};

    // The model: a preset with fewer layers. Weights follow from the seed and the parameters' names.
    spec::ModelSpec spec = spec::preset("llama-tiny");
    spec.layers = 2;
    models::Model model = models::make_model(ctx, spec, kWindow);
    models::materialize(ctx, model, DType::bf16, kSeed, true);
    std::printf("%lld parameters\n", static_cast<long long>(models::parameter_count(model)));

    spec::DataSpec files;
    files.train = {text};
    const auto data = data::open(files, spec.vocab, kWindow);
    const auto batches = engine::token_batches(*device, {data.train, kWindow, kSeed}, kSequences, kSequences);

    spec::OptimizerSpec recipe;
    recipe.lr = 3e-3;
    recipe.min_lr = 3e-4;
    optim::Optimizer optimizer(ctx, optim::whole_shards(model.parameters()), recipe);

    double loss = 0;
    for (int64_t step = 1; step <= steps; ++step) {
        for (const auto* p : model.parameters()) ops::fill(ctx, p->gradient, 0);
        autograd::Tape tape(ctx, true);
        const auto losses = model.forward(tape, batches->microbatch(step, 0));
        tape.backward(losses);
        ops::Sum squares(ctx), sum(ctx);
        for (const auto* p : model.parameters()) squares.add_squares(p->gradient);
        sum.add(losses.value);
        optimizer.step(spec::learning_rate(recipe, steps, step),
                       optim::clip_factor(std::sqrt(squares.take().value()), recipe.clip));

        loss = sum.take().value() / static_cast<double>(batches->valid_tokens(step));
        if (step == 1 || step % 20 == 0 || step == steps)
            std::printf("step %lld loss %.4f\n", static_cast<long long>(step), loss);
    }

    infer::generate(ctx, model, {{'\n'}}, {.max_tokens = 120, .max_positions = kWindow},
                    [](size_t, int32_t token) { return std::putchar(token) != EOF; });
    std::putchar('\n');
    return loss;
}

int main(int argc, char** argv) try {
    check<UsageError>(argc >= 2, "required: a text to learn; usage: 02_train_from_cpp TEXT [STEPS]");
    const std::string text = argv[1];
    const double loss = train(text, argc > 2 ? std::atoll(argv[2]) : 100), entropy = entropy_of_bytes(read_file(text));
    check(loss<entropy, "required: a loss below ", entropy, ", the entropy of the text's bytes, got ", loss,
               "; more steps than ", argc> 2
              ? argv[2]
              : "100",
          " may help");
    std::printf("loss %.4f is below %.4f, the entropy of the text's bytes\n", loss, entropy);
} catch (const Error& error) {
    std::fprintf(stderr, "02_train_from_cpp: %s\n", error.what());
    return error.exit_code();
}
