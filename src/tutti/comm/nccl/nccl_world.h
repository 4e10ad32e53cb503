// comm/nccl/nccl_world.h: a world whose ranks compute on a GPU each: tensors in GPU memory go through NCCL, overlapped
// with compute; tensors in host memory go through the wrapped world.
#pragma once

#include <memory>

#include "tutti/comm/world.h"

namespace tutti::comm {

struct NcclOptions {
    // Sums in the order of tree_reduce.h: the bits of every other backend. False: in NCCL's order, which depends on the
    // machine, and 16-bit values are rounded on the way.
    bool tree = true;
    // Multiprocessors that an operation may take, a CTA on each (ncclConfig_t::maxCTAs); 0: NCCL's own choice.
    int max_ctas = 0;
    double timeout_s = 300;  // of one operation, from when all that it waits for on its own GPU is done
};

// "NCCL 2.28.9"; UsageError when the library is not there, or this build has no CUDA.
std::string nccl_library();

// Collective over `inner`, with one GPU per rank; `inner` and `device` must outlive the world. A thread of the world
// watches operations in flight: when an operation takes too long, NCCL reports an error, or another rank has given up,
// the thread aborts all operations of this rank, and the rank's next wait for the device throws TimedOut, Error or
// Aborted.
std::unique_ptr<World> nccl_world(World& inner, Device& device, const NcclOptions& options);

}  // namespace tutti::comm
