// 01: a tensor and its gradient. A tape records what is computed; its backward walks the records in reverse order.
//   01_tensor_and_gradient
// The function is a classifier of two layers, loss = mean over n of -log softmax(relu(x_n W1^T + b) W2^T)[target_n].
// The gradient of every weight is compared with central differences of the same function in double, in plain loops.
// Prints the loss, the number of weights and the largest difference.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "tutti/autograd/tape.h"
#include "tutti/nn/layers.h"

using namespace tutti;

constexpr int64_t kRows = 5, kIn = 3, kHidden = 8, kClasses = 4;
const std::vector<int32_t> kTargets = {0, 3, 1, 2, 0};

// The same loss in double: x (rows, in), w1 (hidden, in), b (hidden), w2 (classes, hidden).
double plain_loss(const std::vector<double>& x, const std::vector<double>& w1, const std::vector<double>& b,
                  const std::vector<double>& w2) {
    double loss = 0;
    for (int64_t n = 0; n < kRows; ++n) {
        std::vector<double> logits(kClasses, 0);
        for (int64_t j = 0; j < kHidden; ++j) {
            double h = b[j];
            for (int64_t i = 0; i < kIn; ++i) h += x[n * kIn + i] * w1[j * kIn + i];
            for (int64_t c = 0; c < kClasses; ++c) logits[c] += std::max(h, 0.0) * w2[c * kHidden + j];
        }
        double sum = 0;
        for (const double logit : logits) sum += std::exp(logit);
        loss += (std::log(sum) - logits[kTargets[n]]) / kRows;
    }
    return loss;
}

int main() try {
    // A device has memory, a table has the kernels that compute in that memory; a context is both.
    const auto device = make_cpu_device(1);
    ops::Context ctx{*device, kernels::table_for(*device, ComputeType::f32)};

    // Parameters have names. Their initial values depend on seed, name and element, and on nothing else.
    nn::Linear first = nn::make_linear("first", kIn, kHidden, {.std = 0.5, .bias = true});
    nn::Linear second = nn::make_linear("second", kHidden, kClasses, {.std = 0.5});
    const std::vector<autograd::Parameter*> parameters = {&first.weight, &*first.bias, &second.weight};
    for (autograd::Parameter* p : parameters) {
        autograd::materialize(ctx, *p, DType::f32, 1234, true);
        ops::fill(ctx, p->gradient, 0);
    }

    std::vector<float> inputs;
    for (uint64_t i = 0; i < kRows * kIn; ++i) inputs.push_back(normal(random_key(1234, "x"), i));
    const Tensor x = Tensor::from_host<float>(*device, {kRows, kIn}, inputs, Purpose::data);
    nn::Batch batch;
    batch.targets = Tensor::from_host<int32_t>(*device, {kRows}, kTargets, Purpose::data);
    batch.grad_scale = 1.0f / kRows;  // the loss is a mean

    autograd::Tape tape(ctx, true);
    const autograd::Var h = nn::relu(tape, first(tape, {x}));
    const autograd::Var losses = nn::head_loss(tape, h, second.weight, kClasses, batch);
    tape.backward(losses);
    double loss = 0;
    for (const float of_row : losses.value.to_host<float>()) loss += of_row / kRows;

    // Differences of the double twin: with a step of 1e-5 they are good to about 1e-10.
    const std::vector<double> x0(inputs.begin(), inputs.end());
    std::vector<std::vector<double>> w;
    for (const autograd::Parameter* p : parameters) {
        const std::vector<float> values = p->value.to_host<float>();
        w.emplace_back(values.begin(), values.end());
    }
    const auto twin = [&] { return plain_loss(x0, w[0], w[1], w[2]); };
    // f32 rounds by 2^-24 of the largest terms, which are about 1 here; no sum has more than 8 of them, in three
    // layers.
    constexpr double kTolerance = 3 * 8 * 0x1p-24;
    check(std::abs(loss - twin()) < kTolerance, "required: the loss ", twin(), " of the double twin, got ", loss);

    constexpr double kStep = 1e-5;
    double largest = 0;
    size_t count = 0;
    for (size_t p = 0; p < parameters.size(); ++p) {
        const std::vector<float> gradient = parameters[p]->gradient.to_host<float>();
        for (size_t e = 0; e < gradient.size(); ++e, ++count) {
            const double value = w[p][e];
            w[p][e] = value + kStep;
            const double above = twin();
            w[p][e] = value - kStep;
            const double difference = (above - twin()) / (2 * kStep);
            w[p][e] = value;
            largest = std::max(largest, std::abs(gradient[e] - difference));
            check(std::abs(gradient[e] - difference) < kTolerance, parameters[p]->name, "[", e,
                  "]: required: the gradient ", difference, " by differences, got ", gradient[e]);
        }
    }
    std::printf("loss %.6f, gradients of %zu weights, largest difference %.1e\n", loss, count, largest);
} catch (const Error& error) {
    std::fprintf(stderr, "01_tensor_and_gradient: %s\n", error.what());
    return error.exit_code();
}
