// tests/cuda/cudnn/fake_cudnn.h: what tests set and ask of the fake cuDNN (fake_cudnn.cpp).
#pragma once

#include <cstdint>
#include <string>

namespace tutti::kernels::cuda::fake_cudnn {

void set_missing(bool missing);                // the library is not on this machine
void set_version(const std::string& version);  // "cuDNN 9.15.1" at first
// Of graphs that are built from now on; counted by the emulated clock.
void set_seconds(double forward, double backward);
void set_more_workspace(int64_t bytes);  // than a graph needs
void forget();                           // the runs
int64_t forwards();                      // that were run
int64_t backwards();

}  // namespace tutti::kernels::cuda::fake_cudnn
