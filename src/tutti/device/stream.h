// device/stream.h: where a rank's kernels run, and in which order.
#pragma once

#include <cstdint>

namespace tutti {

namespace kernels {
struct GemmTuning;
struct AttentionChoice;
}  // namespace kernels

// How the library of a GPU computes matrix products. Fixed for a run, because the bits of a product depend on it.
struct ProductChoices {
    kernels::GemmTuning* tuning = nullptr;  // nullptr: the algorithms that the library's heuristic ranks first
    // Multiprocessors that products leave to work beside them.
    int spared_by_forward = 0, spared_by_gradients = 0;
};

// The order in which a rank's kernels run. On the CPU work is done when the call returns, and a kernel may use
// `threads` cores; on a GPU `native` is the stream's handle, and calls return before the work is done.
struct Stream {
    int threads = 1;
    void* native = nullptr;
    void* workspace = nullptr;  // device memory for libraries called on this stream, one call at a time
    int64_t workspace_bytes = 0;
    ProductChoices products = {};
    int capability = 0;  // compute capability of an NVIDIA GPU, 10 major + minor; 0: another device, or not known
    kernels::AttentionChoice* attention = nullptr;  // nullptr: our own kernels, the fastest that takes a request
};

}  // namespace tutti
