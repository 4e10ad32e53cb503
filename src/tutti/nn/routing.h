// nn/routing.h: what the routers of a rank did in a step: how many choices each expert got, and the losses that even
// these out.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "tutti/autograd/tape.h"
#include "tutti/comm/communicator.h"
#include "tutti/nn/batch.h"
#include "tutti/ops/ops.h"
#include "tutti/spec/model_spec.h"

namespace tutti::nn {

// Of all ranks in a step.
struct RoutingSummary {
    int64_t experts = 0;          // E
    std::vector<int64_t> layers;  // that have experts
    std::vector<double> load;     // (layers, E): choices of an expert as a multiple of the mean
    double entropy = 0;           // of a token's shares, in nats: mean over tokens and layers
    double dropped_share = 0;     // of all choices
    double aux_loss = 0;          // what is added to the loss: balancing and z loss with their factors
};

// On one rank, added to by the first forward of every router.
class RoutingRecord {
  public:
    // `layers`: global indices of those that have experts.
    RoutingRecord(ops::Context& ctx, std::vector<int64_t> layers, const spec::MixtureSpec& spec);

    // A step begins.
    void begin();
    // What a router did: choices of each expert before any were dropped, of the rows of this rank.
    void add(int64_t layer, const std::vector<int64_t>& load, int64_t dropped, const Tensor& entropy);
    // A loss that all ranks of the microbatch know: of these the first is to call it.
    void add_loss(double loss) { loss_.add(loss); }
    // scale * sum over rows of log_sum^2, of the rows of this rank
    void add_z_loss(const Tensor& log_sum, double scale);

    // Choices of each expert of a layer in the step so far, on all ranks that take part.
    std::vector<double>& step_load(int64_t layer) { return step_load_[layer]; }
    // dshares (S, E) of a layer and a microbatch, kept from the forward for the passes that recompute it.
    std::vector<float>& dshares(int64_t layer, int64_t microbatch) { return dshares_[{layer, microbatch}]; }
    // Over the layers of a microbatch that have passed: sums of the means over its tokens.
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

    // Of all ranks. Collective over the world; the step's passes are done.
    RoutingSummary take(comm::Communicator& world);

  private:
    ops::Context& ctx_;
    std::vector<int64_t> layers_;
    int64_t experts_, top_k_;
    std::map<int64_t, std::vector<int64_t>> load_;  // by layer
    std::map<int64_t, std::vector<double>> step_load_;
    std::map<std::pair<int64_t, int64_t>, std::vector<float>> dshares_;
    std::map<int64_t, std::shared_ptr<LayerMeans>> means_;
    int64_t dropped_ = 0;
    ops::Sum entropy_, z_;
    double z_scale_ = 0;
    ExactSum loss_;
};

// The gradient that the balancing losses of a microbatch add to the shares of its rows (kernels::RoutingBackward).
struct Balancing {
    std::function<Tensor()> dshares;  // (S, E), made in the backward; empty: no such loss
    Tensor segments;                  // (N) i32; undefined: S is 1
    float z_scale = 0;
};

// Of one router's pass over routed rows, of which row i is row first_row + i of the (B, T) of batch.tokens; `choices`
// (N, k) as of choices_of(). The first pass records the losses; passes that recompute it give what it gave. Nothing
// unless the tape trains. Collective over batch.routing.microbatch and, for the kind global, batch.routing.step.
Balancing balance_loads(const autograd::Tape& tape, const spec::MixtureSpec& spec, int64_t layer, const Batch& batch,
                        const ops::Routed& routed, const std::vector<int32_t>& choices, int64_t first_row);

}  // namespace tutti::nn
