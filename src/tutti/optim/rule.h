// optim/rule.h: the seam of update rules: what a rule keeps for a parameter, and how its step is made from the pieces
// that a rank updates. The rules of Tutti are in the files beside this one; a program may bring a rule of its own
// (engine/factories.h).
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/autograd/parameter.h"
#include "tutti/spec/run_spec.h"

namespace tutti::optim {

using autograd::Parameter;

// A range of this rank's part of a parameter (Parameter::part(), flattened) that this rank updates. Its tensors are
// one-dimensional, of equal size.
struct ParameterShard {
    Parameter* parameter = nullptr;
    int64_t begin = 0;                  // first element of the range in Parameter::part()
    Tensor master;                      // f32; of a frozen parameter, and with precision.master = "none", its value
    Tensor value;                       // in the compute type; the master itself when it has that type
    const Tensor* gradients = nullptr;  // f32 or bf16; contains the gradient while a step has one
    int64_t gradient_begin = 0;         // first element of the range in `gradients`
    bool owned = true;                  // true on one of the ranks with equal shards, which saves and counts the shard

    std::vector<mesh::HeldBlock> blocks() const;  // of the parameter, with their places in the tensors
    Tensor gradient() const;                      // Error when there is none
    Tensor rounded() const;  // the copy of the master that the model reads; undefined: the model reads the master
};
// Writes the rounded copy, for rules whose kernel does not.
void round_master(ops::Context& ctx, const ParameterShard& shard);
// Parameters with their own memory (autograd::materialize), one shard each.
std::vector<ParameterShard> whole_shards(const std::vector<Parameter*>& parameters);

// A tensor that a rule keeps beside a parameter: zero bytes at first, in checkpoints "optimizer.<name>.<parameter>".
struct StateField {
    std::string name;
    DType dtype = DType::f32;
    // 1: a value for each element. More: a value for each block of so many consecutive elements of the *global*
    // flattened parameter, the last block possibly shorter, so that values do not depend on the layout. Optimizer then
    // refuses layouts that cut inside a block.
    int64_t per = 1;
};

// What a step updates.
struct Piece {
    const ParameterShard& shard;
    Tensor gradient;  // (n) f32 or bf16
    // By field: (n); value b of a field of blocks is that of elements [b per, (b + 1) per) of the piece.
    std::span<const Tensor> state;
    std::span<const mesh::HeldBlock> blocks;  // shard.blocks()
    double weight_decay = 0;
    double lr_scale = 1;  // a factor of the rate; StepNumbers::lr has it, except for a rule of whole matrices
};

// Matrices whose elements several ranks hold, brought together one by one on a rank that owns each.
class WholeMatrices {
  public:
    virtual ~WholeMatrices() = default;
    // values[i] are of pieces[i]: (n), of type `type`. Brings the values of each of UpdateRule::matrices() together on
    // its owner, which calls transform() to rewrite matrices (rows, columns) in place, several at a time, and brings
    // them back into the values of every rank that holds elements of them. Collective over the ranks that hold the
    // model's stages together, also for ranks without pieces.
    using Transform = std::function<void(std::span<const Tensor> matrices)>;
    virtual void transform(std::span<const Piece> pieces, std::span<const Tensor> values, DType type,
                           const Transform& transform) = 0;
};

// The numbers of a step.
struct StepNumbers {
    double lr = 0;
    double grad_scale = 1;                    // gradients are multiplied by it: clip factor / loss scale
    int64_t update = 1;                       // counted from 1
    uint64_t seed = 0;                        // of the run: for stochastic rounding
    DType compute = DType::f32;               // of the weights that the model reads
    double mean_load = 0;                     // of an expert: choices of the step
    WholeMatrices* whole_matrices = nullptr;  // not null for a rule of whole matrices
};

// A rule keeps nothing between steps but its state(), so that a checkpoint under any layout continues the run.
//
// A rehearsal calls step() too, on a device that counts memory and has no values. Everything in a step is therefore an
// op or a kernel of `ctx`, with memory from ops::empty: ops run on every device, and a rehearsal counts what a run
// does. A host loop over values would have nothing to read there; it belongs into a kernel.
class UpdateRule {
  public:
    virtual ~UpdateRule() = default;
    // Whether this rule updates the parameter. AdamW updates what the rule of a run leaves.
    virtual bool updates(const Parameter&) const { return true; }
    // What the rule keeps for the parameter. Read by the optimizer, plans and checkpoints; depends on the global
    // parameter alone.
    virtual std::vector<StateField> state(const Parameter&) const = 0;
    // Whether the step needs whole matrices: StepNumbers::whole_matrices. If not, it works element by element, on
    // whatever pieces there are.
    virtual bool whole_matrices() const { return false; }
    // These matrices, as disjoint blocks of the global parameter: each section of dim 0 (q, k and v of a fused weight),
    // each expert; none for a vector.
    virtual std::vector<mesh::Block> matrices(const Parameter& parameter) const;
    // Updates masters, rounded copies and state of the pieces of all parameters of this rule at once: of those with
    // one rate. A rule of whole matrices is called once, for all rates and on every rank, any other on ranks with
    // pieces.
    virtual void step(ops::Context& ctx, std::span<const Piece> pieces, const StepNumbers& numbers) const = 0;
};

// --- the rules of Tutti ---

// A moment of an update rule: a value of each element, stored as f32, as bf16, or as u8 with the largest magnitude of
// each kernels::kStateBlock elements.
struct MomentType {
    std::string name;
    DType type = DType::f32;
    bool stochastic = false;  // how bf16 is rounded
};
// The moments of a parameter, with the types that the spec chooses: optimizer.m for the first, optimizer.v for the
// second. `beta` is the decay of each: a moment whose increments are lost in nearest rounding is rounded
// stochastically, and so is every second moment. Under u8 small parameters, and tables of words and positions unless
// optimizer.u8_embedding, keep f32.
std::vector<MomentType> moments_of(const spec::OptimizerSpec& spec, const Parameter& parameter,
                                   const std::vector<std::pair<std::string, double>>& name_and_beta);
std::vector<StateField> fields_of(const std::vector<MomentType>& moments);
// The pieces as the kernels read them. Their state is fields_of(moments_of the parameter). A piece with stochastic
// rounding, or with codes, becomes several, each a block of rows of the global tensor.
// `update`: of piece i, OptimizerPiece::update and its factor, for rules that have one; then lr_scale is in that factor
// and in the decay.
std::vector<kernels::OptimizerPiece> kernel_pieces(
    std::span<const Piece> pieces, const StepNumbers& numbers,
    const std::function<std::vector<MomentType>(const Parameter&)>& moments,
    const std::function<std::pair<View, float>(size_t)>& update = nullptr);

// AdamW (Loshchilov and Hutter 2019), SGD with momentum and coupled decay, Lion (Chen et al. 2023), Muon (Jordan et al.
// 2024) for the matrices of layers, and the balance of experts: the bias of an expert with more choices in the step
// than the mean decreases by expert_bias_rate, the bias of the others increases (Wang et al. 2024).
std::unique_ptr<UpdateRule> adamw(const spec::OptimizerSpec& spec);
std::unique_ptr<UpdateRule> sgd(const spec::OptimizerSpec& spec);
std::unique_ptr<UpdateRule> lion(const spec::OptimizerSpec& spec);
std::unique_ptr<UpdateRule> muon(const spec::OptimizerSpec& spec);
std::unique_ptr<UpdateRule> balance(const spec::OptimizerSpec& spec);

}  // namespace tutti::optim
