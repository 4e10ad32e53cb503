// kernels/cuda/candidates.h: times of several ways to compute one thing.
#pragma once

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "tutti/device/cuda/runtime.h"

namespace tutti::kernels::cuda {

inline void check_can_time(const Stream& stream, const std::string& what) {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    check_cuda(cudaStreamIsCapturing(native(stream), &capture), "cudaStreamIsCapturing");
    check(capture == cudaStreamCaptureStatusNone, what,
          " is first requested while a CUDA graph is recorded, where nothing can be timed; tune with train.cuda_graphs "
          "= false");
}

// The median seconds of each candidate. start(i) queues it on the stream and returns false where it cannot run, which
// gives NaN. Candidates take turns, so that a change of the clock affects all of them; a first round is not counted.
// Waits for the stream.
template <class Start>
std::vector<double> medians_in_turns(const Stream& stream, size_t candidates, const Start& start) {
    constexpr size_t kRounds = 9;
    struct Event {
        Event() { check_cuda(cudaEventCreateWithFlags(&event, cudaEventDefault), "cudaEventCreate"); }
        ~Event() { cudaEventDestroy(event); }
        Event(const Event&) = delete;
        Event& operator=(const Event&) = delete;
        void record(const Stream& on) const { check_cuda(cudaEventRecord(event, native(on)), "cudaEventRecord"); }
        cudaEvent_t event = nullptr;
    };
    std::vector<std::vector<double>> times(candidates);
    for (size_t round = 0; round <= kRounds; ++round)
        for (size_t i = 0; i < candidates; ++i) {
            const Event begin, end;
            begin.record(stream);
            double seconds = std::numeric_limits<double>::quiet_NaN();
            if (start(i)) {
                end.record(stream);
                check_cuda(cudaEventSynchronize(end.event), "a candidate that is timed");
                float milliseconds = 0;
                check_cuda(cudaEventElapsedTime(&milliseconds, begin.event, end.event), "cudaEventElapsedTime");
                seconds = 1e-3 * static_cast<double>(milliseconds);
            }
            if (round > 0) times[i].push_back(seconds);
        }
    std::vector<double> medians;
    for (std::vector<double>& of : times) {
        std::nth_element(of.begin(), of.begin() + kRounds / 2, of.end());
        medians.push_back(of[kRounds / 2]);
    }
    return medians;
}

}  // namespace tutti::kernels::cuda
