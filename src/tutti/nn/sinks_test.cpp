// Attention with sinks against a twin in double that writes out the softmax with its additional term: outputs, and the
// gradients of queries, keys, values and sinks by finite differences of the twin's loss, on every table of the machine.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tutti/autograd/parameter.h"
#include "tutti/base/philox.h"
#include "tutti/base/to_size.h"
#include "tutti/nn/functions.h"

namespace tutti::nn::sinks_test {
namespace {

constexpr int64_t kB = 2, kT = 7, kH = 4, kKv = 2, kD = 8, kWindow = 3;

using Values = std::map<std::string, std::vector<double>>;

std::vector<double> numbers(const std::string& name, int64_t count) {
    std::vector<double> values;
    for (int64_t i = 0; i < count; ++i)
        values.push_back(static_cast<float>(normal(random_key(8, name), static_cast<uint64_t>(i))));
    return values;
}

Values initial() {
    return {{"q", numbers("q", kB * kT * kH * kD)},
            {"k", numbers("k", kB * kT * kKv * kD)},
            {"v", numbers("v", kB * kT * kKv * kD)},
            {"sinks", numbers("sinks", kH)},
            {"dy", numbers("dy", kB * kT * kH * kD)}};
}

struct Twin {
    std::vector<double> y;  // (B, T, H, D)
    double loss = 0;        // <dy, y>
};

Twin twin(const Values& x, int64_t window) {
    Twin t;
    const auto at = [](int64_t b, int64_t i, int64_t heads, int64_t h) {
        return to_size(((b * kT + i) * heads + h) * kD);
    };
    for (int64_t b = 0; b < kB; ++b)
        for (int64_t i = 0; i < kT; ++i)
            for (int64_t h = 0; h < kH; ++h) {
                std::vector<double> y(kD);
                double sum = std::exp(x.at("sinks")[to_size(h)]);
                for (int64_t j = window > 0 ? std::max<int64_t>(0, i - window + 1) : 0; j <= i; ++j) {
                    double score = 0;
                    const size_t q = at(b, i, kH, h), k = at(b, j, kKv, h / (kH / kKv));
                    for (size_t d = 0; d < kD; ++d) score += x.at("q")[q + d] * x.at("k")[k + d];
                    const double power = std::exp(score / std::sqrt(static_cast<double>(kD)));
                    sum += power;
                    for (size_t d = 0; d < kD; ++d) y[d] += power * x.at("v")[k + d];
                }
                for (size_t d = 0; d < kD; ++d) {
                    t.y.push_back(y[d] / sum);
                    t.loss += t.y.back() * x.at("dy")[at(b, i, kH, h) + d];
                }
            }
    return t;
}

Tensor tensor(Device& device, const Shape& shape, const std::vector<double>& values) {
    return Tensor::from_host<float>(device, shape, std::vector<float>(values.begin(), values.end()),
                                    Purpose::activations);
}

void expect_twin(const kernels::KernelTable& table, int64_t window) {
    const auto device = make_cpu_device(2);
    ops::Context ctx{*device, table};
    const Values x = initial();
    autograd::Parameter sinks{.name = "sinks", .shape = {kH}, .role = autograd::Role::column};
    autograd::allocate(ctx, sinks, DType::f32, true);
    const std::vector<float> values(x.at("sinks").begin(), x.at("sinks").end());
    device->copy_in(sinks.value.view().data, values.data(), sinks.value.bytes());

    Tape tape(ctx, true);
    const Var q = tape.input(tensor(*device, {kB, kT, kH, kD}, x.at("q")));
    const Var k = tape.input(tensor(*device, {kB, kT, kKv, kD}, x.at("k")));
    const Var v = tape.input(tensor(*device, {kB, kT, kKv, kD}, x.at("v")));
    const Var y = attention(tape, q, k, v, {}, 0, {.window = window, .sinks = &sinks});
    const Twin expected = twin(x, window);
    const std::vector<float> found = y.value.to_host<float>();
    for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected.y[i], 2e-6) << table.name << ' ' << i;

    tape.backward(y, tensor(*device, {kB, kT, kH, kD}, x.at("dy")));
    const std::pair<const char*, std::vector<float>> gradients[] = {{"q", tape.take_gradient(q).to_host<float>()},
                                                                    {"k", tape.take_gradient(k).to_host<float>()},
                                                                    {"v", tape.take_gradient(v).to_host<float>()},
                                                                    {"sinks", sinks.gradient.to_host<float>()}};
    for (const auto& [name, gradient] : gradients)
        for (size_t i = 0; i < gradient.size(); ++i) {
            constexpr double kStep = 1e-5;
            Values up = x, down = x;
            up[name][i] += kStep;
            down[name][i] -= kStep;
            const double wanted = (twin(up, window).loss - twin(down, window).loss) / (2 * kStep);
            ASSERT_NEAR(gradient[i], wanted, 2e-5) << table.name << ' ' << name << ' ' << i;
        }
}

TEST(Sinks, AreOneMoreTermOfTheSoftmax) {
    for (const int64_t window : {int64_t{0}, kWindow}) {
        expect_twin(kernels::reference_table(), window);
        for (int isa = 0; isa <= static_cast<int>(kernels::best_isa()); ++isa)
            expect_twin(kernels::cpu_table(static_cast<kernels::Isa>(isa)), window);
    }
}

}  // namespace
}  // namespace tutti::nn::sinks_test
