// kernels/measured_on.h: where times of kernels were measured; the times of another GPU, driver or library say nothing.
#pragma once

#include <string>

namespace tutti::kernels {

struct MeasuredOn {
    std::string gpu, driver, library;  // "NVIDIA H100 80GB HBM3", "CUDA 13.0", "cuBLASLt 13.1.0"
    bool operator==(const MeasuredOn&) const = default;
};

}  // namespace tutti::kernels
