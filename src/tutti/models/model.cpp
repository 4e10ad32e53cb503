#include "tutti/models/model.h"

#include <fnmatch.h>

#include <algorithm>
#include <unordered_set>

#include "tutti/base/to_size.h"
#include "tutti/device/meta/meta_device.h"

namespace tutti::models {

using nn::Batch;
using nn::Tape;
using nn::Var;

Model::Model(spec::ModelSpec spec, std::vector<std::unique_ptr<Module>> modules)
    : spec_(std::move(spec)), modules_(std::move(modules)) {
    std::unordered_set<const autograd::Parameter*> known;
    for (size_t i = 0; i < modules_.size(); ++i) {
        modules_[i]->unit.place = i;
        for (autograd::Parameter* p : modules_[i]->unit.parameters)
            if (known.insert(p).second) parameters_.push_back(p);
    }
}

std::vector<autograd::Unit*> Model::units(Span span) {
    std::vector<autograd::Unit*> units;
    for (size_t i = span.begin; i < span.end; ++i) units.push_back(&modules_.at(i)->unit);
    return units;
}

autograd::Parameter& Model::parameter(const std::string& name) const {
    for (autograd::Parameter* p : parameters_)
        if (p->name == name) return *p;
    throw Error(concat("the model has no parameter ", name));
}

Var Model::run(Tape& tape, const Var& x, const Batch& batch, Span span, int64_t segment,
               const std::function<void()>& between) {
    const auto modules = [this, batch](Tape& t, Var h, size_t begin, size_t end) {
        for (size_t i = begin; i < end; ++i)
            h = t.unit(modules_[i]->unit, h, [&](const Var& in) { return modules_[i]->forward(t, in, batch); });
        return h;
    };
    const size_t head = modules_.size() - 1;
    Var h = x;
    for (size_t begin = span.begin, end; begin < span.end; begin = end) {
        const bool recomputed = segment > 0 && begin > 0 && begin < head;
        end = recomputed ? std::min({begin + to_size(segment), head, span.end}) : begin + 1;
        h = recomputed ? tape.recompute(h, [=](Tape& t, const Var& in) { return modules(t, in, begin, end); })
                       : modules(tape, h, begin, end);
        if (between) between();
    }
    return h;
}

Model make_model(ops::Context& ctx, const spec::ModelSpec& spec, int64_t max_positions) {
    switch (spec.family) {
        case spec::Family::gpt2: return {spec, make_gpt2(spec)};
        case spec::Family::llama: return {spec, make_llama(ctx, spec, max_positions)};
        case spec::Family::lfm2: return {spec, make_lfm2(ctx, spec, max_positions)};
        case spec::Family::mlp: return {spec, make_mlp(spec)};
    }
    throw Error("unknown model family");
}

void materialize(ops::Context& ctx, Model& model, DType compute, uint64_t seed, bool train) {
    for (autograd::Parameter* p : model.parameters()) autograd::materialize(ctx, *p, compute, seed, train);
}

Model outline(const spec::ModelSpec& spec, const MakeModel& make) {
    const auto device = make_meta_device({});
    const kernels::KernelTable none;
    ops::Context ctx{*device, none};
    return make(ctx, spec, 0);
}

void freeze(Model& model, const std::string& pattern) {
    bool some = false;
    for (autograd::Parameter* p : model.parameters()) {
        if (fnmatch(pattern.c_str(), p->name.c_str(), 0) != 0) continue;
        check(!p->value.defined(), p->name, " has its memory already; freeze it before");
        p->training = autograd::Training::frozen;
        some = true;
    }
    check<UsageError>(some, "freeze: no parameter matches \"", pattern, "\"; the first is ",
                      model.parameters().empty() ? "none" : model.parameters().front()->name);
}

void allocate(ops::Context& ctx, Model& model, DType compute, bool train) {
    for (autograd::Parameter* p : model.parameters()) autograd::allocate(ctx, *p, compute, train);
}

}  // namespace tutti::models
