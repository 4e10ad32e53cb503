#include "tutti/nn/layers.h"

namespace tutti::nn {

Linear make_linear(const std::string& name, int64_t in, int64_t out, const LinearOptions& options) {
    Linear layer;
    layer.weight = {.name = name + ".weight",
                    .shape = {out, in},
                    .role = options.role,
                    .init = {.std = options.std},
                    .sections = options.sections,
                    .grain = options.grain};
    if (options.bias)  // a row-parallel bias is added once, after the sum: it is not split
        layer.bias = Parameter{.name = name + ".bias",
                               .shape = {out},
                               .role = options.role == Role::row ? Role::replicated : options.role,
                               .sections = options.sections,
                               .grain = options.role == Role::row ? 1 : options.grain};
    return layer;
}

Embedding make_embedding(const std::string& name, int64_t words, int64_t width, double std, Role role) {
    return {{.name = name + ".weight", .shape = {words, width}, .role = role, .init = {.std = std}}};
}

Norm make_layer_norm(const std::string& name, int64_t width, double eps) {
    Norm layer = make_rms_norm(name, width, eps);
    layer.bias = Parameter{.name = name + ".bias", .shape = {width}, .role = Role::norm};
    return layer;
}

Norm make_rms_norm(const std::string& name, int64_t width, double eps, Role role, float offset) {
    Norm layer;
    layer.weight = {.name = name + ".weight", .shape = {width}, .role = role, .init = {.value = 1 - offset}};
    layer.eps = eps;
    layer.offset = offset;
    return layer;
}

void own(autograd::Unit& unit, WeightAndBias& layer) {
    unit.parameters.push_back(&layer.weight);
    if (layer.bias) unit.parameters.push_back(&*layer.bias);
}

void own_adjacent(autograd::Unit& unit, std::initializer_list<WeightAndBias*> layers) {
    for (WeightAndBias* layer : layers) unit.parameters.push_back(&layer->weight);
    for (WeightAndBias* layer : layers)
        if (layer->bias) unit.parameters.push_back(&*layer->bias);
}

void own(autograd::Unit& unit, Embedding& layer) { unit.parameters.push_back(&layer.weight); }

void own_head(autograd::Unit& unit, Head& head, int64_t vocab, int64_t width, double std, Parameter* tied) {
    head.vocab = vocab;
    if (!tied) head.own = make_linear("lm_head", width, vocab, {.role = Role::vocabulary, .std = std}).weight;
    head.weight = tied ? tied : &head.own;
    unit.parameters.push_back(head.weight);
    unit.gradients_in_forward.push_back(head.weight);
}

ops::RopeTable make_rope_table(ops::Context& ctx, int64_t max_positions, const std::vector<double>& frequencies,
                               double amplitude) {
    if (max_positions == 0) return {};
    const auto half = static_cast<int64_t>(frequencies.size());
    const Tensor on_device = Tensor::from_host<double>(ctx.device, {half}, frequencies, Purpose::workspace);
    return ops::rope_table(ctx, max_positions, on_device, amplitude);
}

}  // namespace tutti::nn
