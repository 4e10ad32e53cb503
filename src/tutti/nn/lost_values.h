// nn/lost_values.h: how many values the casts of a step to 8 bits lose: those beyond the format's largest number, as
// where delayed scaling casts with the scale of smaller ones, and those that become 0. Each tensor is counted in one of
// its casts: x in that of the forward, also when it is recomputed, and dy in that of the input gradient. Zeros that pad
// the rows of an expert are no values.
#pragma once

#include <array>
#include <cstdint>

#include "tutti/ops/context.h"

namespace tutti::nn {

class LostValues {
  public:
    // Allocates the counts on the device of `ctx`. Call once.
    void allocate(ops::Context& ctx);

    // Around the passes of a step.
    void begin_step(ops::Context& ctx);
    void end_step() { recording_ = false; }

    // Where a cast of n values adds what it loses, i64 (2); undefined outside of the passes of a step.
    Tensor of_cast(int64_t n);

    // Of this rank and the last step: values that saturated, that became 0, and all. Waits for the device.
    std::array<int64_t, 3> counts(const ops::Context& ctx) const;

  private:
    void clear(ops::Context& ctx);

    Tensor lost_;  // (2) i64
    int64_t cast_ = 0;
    bool recording_ = false;
};

}  // namespace tutti::nn
