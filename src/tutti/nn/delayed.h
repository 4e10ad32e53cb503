// nn/delayed.h: scales of 8-bit tensors that follow from the largest magnitudes of earlier steps (delayed scaling;
// Micikevicius et al., arXiv:2209.05433). A step casts with the factors that earlier steps left, so that no cast waits
// for a sum over ranks. Factors change once a step, from the maximum over all microbatches and ranks: neither the
// schedule, nor recompute, nor the layout can be seen in them.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/autograd/parameter.h"
#include "tutti/base/float8.h"
#include "tutti/ops/context.h"
#include "tutti/spec/recipe.h"

namespace tutti::comm {
class Communicator;
}

namespace tutti::nn {

// The largest magnitudes of the last steps of one tensor, and the factor that follows from them, as a view of memory.
struct MagnitudeHistory {
    std::span<float> magnitudes;  // the newest last; 0: none yet
    float& factor;                // 0: none yet

    // A magnitude of 0, infinity or NaN changes nothing.
    void add(float magnitude, const Float8& format, bool most_recent, bool power_of_two);
};

class DelayedScales {
  public:
    enum Factor : uint8_t { kX, kW, kDy };  // of a product: its place among the three of a layer

    // `layers`: all quantized layers of the model, in one order on every rank.
    DelayedScales(const spec::Recipe& recipe, const std::vector<autograd::Parameter*>& layers);

    // Allocates what a step reads and writes on the device of `ctx`. Call once.
    void allocate(ops::Context& ctx);

    struct Place {
        Tensor amax;    // (1) i32, the bits of the step's largest magnitude so far
        Tensor factor;  // (1) f32
        bool known;     // the factor; false: no step has seen the tensor
    };
    Place place(const autograd::Parameter& layer, Factor of) const;
    bool recording() const { return recording_; }  // magnitudes count: of the passes of a training step

    // Around the passes of a step; then, after all ranks, and unless the step is skipped, learn().
    void begin_step(ops::Context& ctx);
    void end_step(comm::Communicator& ranks);
    void learn(ops::Context& ctx);

    // Of a checkpoint: "precision.LAYER.amax" (3, H) and "precision.LAYER.scale" (3), f32, of the host.
    struct State {
        std::string name;
        Tensor values;
    };
    std::vector<State> state() const;
    int64_t bytes() const;  // of these

  private:
    spec::Recipe recipe_;
    std::vector<std::string> names_;
    std::map<const autograd::Parameter*, int64_t> places_;
    std::unique_ptr<Device> host_;
    std::vector<Tensor> histories_, scales_;  // by layer: (3, H), (3)
    Tensor amaxes_, factors_;                 // (3 layers) i32, f32, on the device
    bool recording_ = false;
};

}  // namespace tutti::nn
