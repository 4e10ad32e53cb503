#include "tutti/nn/delayed.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "tutti/base/to_size.h"
#include "tutti/comm/communicator.h"
#include "tutti/ops/ops.h"

namespace tutti::nn {

void MagnitudeHistory::add(float magnitude, const Float8& format, bool most_recent, bool power_of_two) {
    if (!(magnitude > 0) || !std::isfinite(magnitude)) return;
    std::shift_left(magnitudes.begin(), magnitudes.end(), 1);
    magnitudes.back() = magnitude;
    const float largest = most_recent ? magnitude : *std::max_element(magnitudes.begin(), magnitudes.end());
    factor = float8_factor(largest, format, largest_of(DType::bf16), power_of_two);
}

DelayedScales::DelayedScales(const spec::Recipe& recipe, const std::vector<autograd::Parameter*>& layers)
    : recipe_(recipe), host_(make_cpu_device(1)) {
    for (const autograd::Parameter* p : layers) {
        places_.emplace(p, static_cast<int64_t>(names_.size()));
        names_.push_back(p->name);
        const auto zeros = [&](const Shape& shape) {
            return Tensor::from_host<float>(*host_, shape, std::vector<float>(to_size(shape.numel())),
                                            Purpose::optimizer);
        };
        histories_.push_back(zeros({3, recipe.history}));
        scales_.push_back(zeros({3}));
    }
}

void DelayedScales::allocate(ops::Context& ctx) {
    const auto n = static_cast<int64_t>(3 * names_.size());
    amaxes_ = ops::zeros(ctx, {n}, DType::i32, Purpose::optimizer);
    factors_ = ops::zeros(ctx, {n}, DType::f32, Purpose::optimizer);
}

DelayedScales::Place DelayedScales::place(const autograd::Parameter& layer, Factor of) const {
    const int64_t number = places_.at(&layer);
    const bool known = scales_[to_size(number)].view().as<const float>()[of] > 0;
    return {amaxes_.narrow(0, 3 * number + of, 1), factors_.narrow(0, 3 * number + of, 1), known};
}

void DelayedScales::begin_step(ops::Context& ctx) {
    std::vector<float> factors;
    for (const Tensor& of_layer : scales_)
        for (int i = 0; i < 3; ++i) factors.push_back(of_layer.view().as<const float>()[i]);
    ctx.device.copy_in(factors_.view().data, factors.data(), factors_.bytes());
    ops::fill(ctx, amaxes_, 0);
    recording_ = true;
}

void DelayedScales::end_step(comm::Communicator& ranks) {
    recording_ = false;
    if (ranks.size() > 1) ranks.all_reduce(amaxes_, comm::Reduce::max).wait();
}

void DelayedScales::learn(ops::Context& ctx) {
    if (!ctx.values->exist()) return;
    const std::vector<int32_t> amaxes = amaxes_.to_host<int32_t>();
    const std::array<spec::Quantity, 3> factors = {recipe_.x, recipe_.w, recipe_.dy};
    for (size_t layer = 0; layer < names_.size(); ++layer)
        for (size_t i = 0; i < 3; ++i) {
            float* const history = histories_[layer].view().as<float>() + static_cast<int64_t>(i) * recipe_.history;
            MagnitudeHistory{{history, to_size(recipe_.history)}, scales_[layer].view().as<float>()[i]}.add(
                std::bit_cast<float>(amaxes[3 * layer + i]), float8_of(factors[i].format), recipe_.most_recent,
                recipe_.powers_of_two);
        }
}

std::vector<DelayedScales::State> DelayedScales::state() const {
    std::vector<State> all;
    for (size_t i = 0; i < names_.size(); ++i) {
        all.push_back({concat("precision.", names_[i], ".amax"), histories_[i]});
        all.push_back({concat("precision.", names_[i], ".scale"), scales_[i]});
    }
    return all;
}

int64_t DelayedScales::bytes() const {
    int64_t bytes = 0;
    for (const State& s : state()) bytes += s.values.bytes();
    return bytes;
}

}  // namespace tutti::nn
