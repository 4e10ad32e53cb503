// nn/routing.h: statistics of the routers in a step: the number of choices of each expert, and the balancing losses
// that make these numbers equal.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "tutti/autograd/tape.h"
#include "tutti/comm/communicator.h"
#include "tutti/nn/batch.h"
#include "tutti/nn/dispatch.h"
#include "tutti/ops/ops.h"
#include "tutti/spec/model_spec.h"

namespace tutti::nn {

// Statistics of one step over all ranks.
struct RoutingSummary {
    int64_t experts = 0;          // E
    std::vector<int64_t> layers;  // indices of the layers with experts
    double mean_load = 0;         // choices of an expert, mean over experts and layers
    std::vector<double> load;     // (layers, E): choices of an expert as a multiple of the mean
    double entropy = 0;           // of a token's router probabilities, in nats: mean over tokens and layers
    double dropped_share = 0;     // dropped choices as a share of all
    double aux_loss = 0;          // balancing and z loss with their factors, as they are added to the loss
};

// The statistics of one rank. The first forward of every router adds to them; recomputation does not.
class RoutingRecord {
  public:
    // `layers`: global indices of the layers with experts. `tokens`: of a step, on all ranks, padding included; the
    // z-loss is a mean over them, which a rank without experts, whose loads are none, has to know too.
    RoutingRecord(ops::Context& ctx, std::vector<int64_t> layers, const spec::MixtureSpec& spec, int64_t tokens);

    // Resets the statistics at the beginning of a step.
    void begin();
    // One router's pass over the rows of this rank. `load` (E): choices of each expert before any are dropped;
    // `entropy` (N) f32.
    void add(int64_t layer, const std::vector<int64_t>& load, int64_t dropped, const Tensor& entropy);
    // Adds a balancing loss that all ranks of a microbatch have computed: only the first of them may call this.
    void add_loss(double loss) { loss_.add(loss); }
    // Adds the z-loss of the rows of this rank, of which log_sum (N) is the ln sum exp of the logits, 0 for padding.
    // `weight`: tokens of the microbatch with its padding as a multiple of those without.
    void add_z_loss(const Tensor& log_sum, double weight);

    // (E): choices of each expert of a layer in the step so far, over all ranks of RoutingContext::step.
    std::vector<double>& step_load(int64_t layer) { return step_load_[layer]; }
    // Of a layer and a microbatch, saved by the forward for passes that recompute it: dshares (S, E), and the values of
    // its RouterNumbers.
    std::vector<float>& dshares(int64_t layer, int64_t microbatch) { return dshares_[{layer, microbatch}]; }
    std::vector<float>& numbers(int64_t layer, int64_t microbatch) { return numbers_[{layer, microbatch}]; }
    // Means over the tokens of a microbatch, summed over the layers that have run.
    struct LayerMeans {
        int64_t layers = 0;
        std::vector<double> load, share;  // (E)
    };
    std::shared_ptr<LayerMeans> means(int64_t microbatch) {
        auto& of = means_[microbatch];
        if (!of) of = std::make_shared<LayerMeans>();
        return of;
    }
    int64_t layers() const { return static_cast<int64_t>(layers_.size()); }
    // The sums of a microbatch as a tensor (2 E + 1) f64: layers, load, share. The stages of a pipeline send the sums
    // so far with the activation, and the sums over all layers with its gradient.
    Tensor means_message(int64_t microbatch);
    Shape means_shape() const { return {2 * experts_ + 1}; }
    // Replaces the sums by those of a message.
    void set_means(int64_t microbatch, const Tensor& message);

    // The statistics of all ranks, when the passes of the step have run. Collective over the world.
    RoutingSummary take(comm::Communicator& world);

  private:
    ops::Context& ctx_;
    std::vector<int64_t> layers_;
    int64_t experts_, top_k_;
    std::map<int64_t, std::vector<int64_t>> load_;  // by layer
    std::map<int64_t, std::vector<double>> step_load_;
    std::map<std::pair<int64_t, int64_t>, std::vector<float>> dshares_, numbers_;
    std::map<int64_t, std::shared_ptr<LayerMeans>> means_;
    int64_t dropped_ = 0;
    ops::Sum entropy_, z_;
    double z_scale_;  // of the z-loss: its factor in the loss of a step, for each token
    ExactSum loss_;
};

// The gradient of a microbatch's balancing losses (kernels::RoutingBackward). S: the number of sequences that are
// balanced separately, or 1.
struct Balancing {
    std::function<Tensor()> dshares;  // returns (S, E) f32; called in the backward; empty: no such loss
    Tensor segments;                  // (N) i32: the sequence of each row; undefined: S is 1
    float z_scale = 0;                // factor of the z loss
};

// The number of sequences that spec.aux_loss balances separately, or 1; 0: it has no balancing loss.
int64_t balanced_segments(const spec::MixtureSpec& spec, const Batch& batch);
// Writes the parts `sums` and `step` of `numbers`, which balance_loads() reads. Row i of `routed` is row first_row + i
// of batch.tokens (B, T). Collective over batch.routing.microbatch and, for aux_loss "global", batch.routing.step.
void sum_loads(ops::Context& ctx, const spec::MixtureSpec& spec, const Batch& batch, const ops::Routed& routed,
               int64_t first_row, const RouterNumbers& numbers);
// The balancing of one router's pass. The first pass records the losses; a recomputation returns the same gradients.
// Empty unless the tape trains. Error when aux_loss is "global" or "all_layers" and the batch has no record.
Balancing balance_loads(const autograd::Tape& tape, const spec::MixtureSpec& spec, int64_t layer, const Batch& batch,
                        const ops::Routed& routed, RouterNumbers& numbers, int64_t first_row);

}  // namespace tutti::nn
