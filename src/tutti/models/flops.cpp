#include "tutti/models/flops.h"

#include <algorithm>

#include "tutti/spec/layers.h"

namespace tutti::models {

using autograd::Parameter;
using autograd::Role;
using autograd::Unit;

namespace {

// The values of a parameter that one token uses.
int64_t values_for_token(const Model& model, const Parameter& p) {
    const int64_t values = p.shape.numel();
    return p.of_experts() ? values / p.shape[0] * model.spec().moe.top_k : values;
}

template <class Values>
int64_t counted(const Model& model, Values values) {
    int64_t count = 0;
    for (const Parameter* p : model.parameters())
        if (p->training != autograd::Training::counted) count += values(*p);
    return count;
}

// Without the causal mask: all s keys, or the band |i - j| < W, which is 2 W - W^2 / s of them on average.
double keys_per_query(int64_t window, int64_t seq_len) {
    const auto s = static_cast<double>(seq_len), W = static_cast<double>(window);
    return window == 0 || window >= seq_len ? s : 2 * W - W * W / s;
}

TokenFlops operator+(const TokenFlops& a, const TokenFlops& b) {
    return {a.matmul + b.matmul, a.full_attention + b.full_attention};
}

// Of modules [begin, end).
TokenFlops forward_of(const Model& model, size_t begin, size_t end, int64_t seq_len) {
    check(seq_len > 0, "FLOPs per token: seq_len must be positive, got ", seq_len);
    TokenFlops flops;
    for (size_t i = begin; i < end; ++i) flops = flops + forward_flops(model, model.modules()[i]->unit, seq_len);
    return flops;
}

}  // namespace

int64_t parameter_count(const Model& model) {
    return counted(model, [](const Parameter& p) { return p.shape.numel(); });
}

int64_t parameter_count(const spec::ModelSpec& spec) { return parameter_count(outline(spec)); }

int64_t active_parameter_count(const Model& model) {
    return counted(model, [&](const Parameter& p) { return values_for_token(model, p); });
}

double product_flops(const Model& model, const Unit& unit, const Parameter& p) {
    const bool is_head = std::ranges::find(unit.gradients_in_forward, &p) != unit.gradients_in_forward.end();
    const bool looked_up = (p.role == Role::vocabulary || p.role == Role::position) && !is_head;
    const auto times = static_cast<double>(is_head && p.role == Role::vocabulary ? 1 + model.spec().mtp_depth : 1);
    return p.multiplies() && !looked_up ? 2 * times * static_cast<double>(values_for_token(model, p)) : 0;
}

TokenFlops forward_flops(const Model& model, const Unit& unit, int64_t seq_len) {
    TokenFlops flops;
    for (const Parameter* p : unit.parameters) flops.matmul += product_flops(model, unit, *p);
    flops.matmul += unit.state_flops;
    for (const autograd::AttentionSize& a : unit.attention)
        flops.full_attention += 4 * keys_per_query(a.window, seq_len) * static_cast<double>(a.width);
    return flops;
}

TokenFlops forward_flops(const Model& model, int64_t seq_len) {
    return forward_of(model, 0, model.modules().size(), seq_len);
}

TokenFlops model_flops(const Model& model, int64_t seq_len) {
    const TokenFlops forward = forward_flops(model, seq_len);
    return {3 * forward.matmul, 3 * forward.full_attention};
}

TokenFlops hardware_flops(const Model& model, int64_t seq_len, const std::string& recompute_policy) {
    const TokenFlops flops = model_flops(model, seq_len);
    const size_t modules = model.modules().size();
    if (spec::recompute_of(recompute_policy, model.spec().layers).segment == 0) return flops;
    return flops + forward_of(model, 1, modules - 1, seq_len);
}

ModelCounts counts_of(const Model& model, int64_t seq_len, const std::string& recompute_policy) {
    return {parameter_count(model), active_parameter_count(model), model_flops(model, seq_len),
            hardware_flops(model, seq_len, recompute_policy)};
}

double mfu(double flops_per_token, double tokens_per_s, double peak_flops) {
    check(peak_flops > 0, "MFU: the peak must be positive FLOP/s, got ", peak_flops);
    return flops_per_token * tokens_per_s / peak_flops;
}

}  // namespace tutti::models
