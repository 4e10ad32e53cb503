// Tolerance between a run on the CUDA device of this program and the run on the CPU; one definition per program.
#pragma once

namespace tutti {

// Relative, for the losses and gradient norms of twenty steps in f32. 0: to the bit, checkpoints too.
double kernel_tolerance();

}  // namespace tutti
