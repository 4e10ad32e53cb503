// The part of cuda_place.h for the emulation.
#include "tests/cuda/emulation/block.h"
#include "tutti/kernels/testing/cuda_place.h"

namespace tutti::kernels {

void run_backwards(bool backwards) {
    emulation::set_order(backwards ? emulation::Order::backward : emulation::Order::forward);
}
void run_at_random(uint64_t seed) { emulation::set_schedule({emulation::Order::random, seed}); }

}  // namespace tutti::kernels
