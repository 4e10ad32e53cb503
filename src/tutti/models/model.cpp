#include "tutti/models/model.h"

#include <algorithm>

namespace tutti::models {

using nn::Batch;
using nn::Tape;
using nn::Var;

Model::Model(spec::ModelSpec spec, std::vector<std::unique_ptr<Module>> modules)
    : spec_(std::move(spec)), modules_(std::move(modules)) {
    for (const auto& module : modules_)
        for (autograd::Parameter* p : module->unit.parameters)
            if (std::find(parameters_.begin(), parameters_.end(), p) == parameters_.end()) parameters_.push_back(p);
}

std::vector<autograd::Unit*> Model::units() {
    std::vector<autograd::Unit*> units;
    for (const auto& module : modules_) units.push_back(&module->unit);
    return units;
}

autograd::Parameter& Model::parameter(const std::string& name) const {
    for (autograd::Parameter* p : parameters_)
        if (p->name == name) return *p;
    throw Error(concat("the model has no parameter ", name));
}

namespace {
Var run(Module& module, Tape& tape, const Var& x, const Batch& batch) {
    return tape.unit(module.unit, x, [&](const Var& in) { return module.forward(tape, in, batch); });
}
}  // namespace

Var Model::forward(Tape& tape, const Batch& batch, int64_t segment) {
    const size_t blocks_end = modules_.size() - 1;
    Var x = run(*modules_.front(), tape, {}, batch);
    for (size_t begin = 1; begin < blocks_end;) {
        const size_t end = std::min(blocks_end, begin + static_cast<size_t>(std::max<int64_t>(segment, 1)));
        const auto blocks = [this, begin, end, batch](Tape& t, const Var& in) {
            Var h = in;
            for (size_t i = begin; i < end; ++i) h = run(*modules_[i], t, h, batch);
            return h;
        };
        x = segment > 0 ? tape.recompute(x, blocks) : blocks(tape, x);
        begin = end;
    }
    return run(*modules_.back(), tape, x, batch);
}

Model make_model(ops::Context& ctx, const spec::ModelSpec& spec, int64_t max_positions) {
    switch (spec.family) {
        case spec::Family::gpt2: return {spec, make_gpt2(spec)};
        case spec::Family::llama: return {spec, make_llama(ctx, spec, max_positions)};
        case spec::Family::mlp: return {spec, make_mlp(spec)};
    }
    throw Error("unknown model family");
}

void materialize(ops::Context& ctx, Model& model, DType compute, uint64_t seed, bool train) {
    for (autograd::Parameter* p : model.parameters()) autograd::materialize(ctx, *p, compute, seed, train);
}

void allocate(ops::Context& ctx, Model& model, DType compute, bool train) {
    for (autograd::Parameter* p : model.parameters()) autograd::allocate(ctx, *p, compute, train);
}

nn::KvCache make_cache(ops::Context& ctx, const Model& model, int64_t max_tokens, DType compute) {
    nn::KvCache cache;
    const spec::ModelSpec& s = model.spec();
    for (int64_t l = 0; l < s.layers; ++l)
        for (auto* side : {&cache.keys, &cache.values})
            side->push_back(ops::empty(ctx, {1, max_tokens, s.kv_heads, s.head_dim}, compute));
    return cache;
}

}  // namespace tutti::models
