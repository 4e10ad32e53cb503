// models/model.h: a model as a list of modules, built from its spec. Models contain no parallelism: their parameters
// name roles. One file for each architecture: gpt2.cpp, llama.cpp, lfm2.cpp, mlp.cpp.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tutti/nn/layers.h"
#include "tutti/spec/layers.h"

namespace tutti::models {

using nn::Module;

class Model {
  public:
    Model(spec::ModelSpec spec, std::vector<std::unique_ptr<Module>> modules);

    const spec::ModelSpec& spec() const { return spec_; }
    // In the order of the forward: embedding, blocks, head.
    std::vector<std::unique_ptr<Module>>& modules() { return modules_; }
    const std::vector<std::unique_ptr<Module>>& modules() const { return modules_; }
    // A run of modules, one after another: all of them, or those of a pipeline stage.
    struct Span {
        size_t begin = 0, end = 0;
    };
    Span all() const { return {0, modules_.size()}; }
    std::vector<autograd::Unit*> units(Span span);  // of the modules
    // Each parameter once (a tied matrix has two users), in the order of first use.
    const std::vector<autograd::Parameter*>& parameters() const { return parameters_; }
    autograd::Parameter& parameter(const std::string& name) const;  // throws Error with the name

    // Losses (N) f32, or logits (B, V) when the batch has no targets. `segment` > 0: every run of that many blocks is
    // recomputed in the backward from its input; the embedding and the head are not.
    nn::Var forward(nn::Tape& tape, const nn::Batch& batch, int64_t segment = 0) {
        return run(tape, {}, batch, all(), segment);
    }
    // The same for a span of modules. x: the result of the module before the span; the first module ignores it.
    // `between`, when set, is called after each module or recomputed run of blocks, where another pass can continue.
    nn::Var run(nn::Tape& tape, const nn::Var& x, const nn::Batch& batch, Span span, int64_t segment = 0,
                const std::function<void()>& between = {});

  private:
    spec::ModelSpec spec_;
    std::vector<std::unique_ptr<Module>> modules_;
    std::vector<autograd::Parameter*> parameters_;
};

// Without memory for parameters: names, shapes, roles and initial distributions only. `max_positions` bounds the RoPE
// table (the longest sequence of the run); 0: no table, the model is only looked at.
Model make_model(ops::Context& ctx, const spec::ModelSpec& spec, int64_t max_positions);

// A model on no device, only to be counted (models/flops.h).
using MakeModel = std::function<Model(ops::Context& ctx, const spec::ModelSpec& spec, int64_t max_positions)>;
Model outline(const spec::ModelSpec& spec, const MakeModel& make = make_model);

// Draws the initial values of all parameters (autograd::materialize).
void materialize(ops::Context& ctx, Model& model, DType compute, uint64_t seed, bool train);

// Freezes the parameters whose name matches `pattern`, as in a shell: "model.layers.0.*". Call it before they get
// memory. UsageError when there is none.
void freeze(Model& model, const std::string& pattern);

// Only their memory: for weights that come from a file.
void allocate(ops::Context& ctx, Model& model, DType compute, bool train);

// Rotary frequencies theta^(-2k/n), k < n/2, of n = rope.dims channels, scaled as the spec says for runs of up to
// `max_positions` tokens, and the factor of their cosines and sines.
std::vector<double> rope_frequencies(const spec::RopeSpec& rope, int64_t max_positions);
double rope_amplitude(const spec::RopeSpec& rope);

// The tables of queries and of keys, which are the same unless queries grow.
struct RopeTables {
    ops::RopeTable queries, keys;
    bool grows = false;
};
// The tables of the layers of one model, which layers with equal rotary positions share.
class RopeOfLayers {
  public:
    RopeOfLayers(ops::Context& ctx, int64_t max_positions) : ctx_(ctx), max_positions_(max_positions) {}
    // Empty without rotary positions.
    RopeTables of(const std::optional<spec::RopeSpec>& rope);

  private:
    ops::Context& ctx_;
    int64_t max_positions_;
    std::vector<std::pair<spec::RopeSpec, RopeTables>> made_;
};

// The architectures.
std::vector<std::unique_ptr<Module>> make_gpt2(const spec::ModelSpec& spec);
std::vector<std::unique_ptr<Module>> make_llama(ops::Context& ctx, const spec::ModelSpec& spec, int64_t max_positions);
std::vector<std::unique_ptr<Module>> make_lfm2(ops::Context& ctx, const spec::ModelSpec& spec, int64_t max_positions);
std::vector<std::unique_ptr<Module>> make_mlp(const spec::ModelSpec& spec);

}  // namespace tutti::models
