// train/run_peak.h: the peak FLOP/s of a run, the denominator of MFU and HFU.
#pragma once

#include <string>

#include "tutti/comm/communicator.h"
#include "tutti/device/device.h"

namespace tutti::train {

// The sum of the peaks of the ranks' devices. Ranks that share a GPU, or the cores of a host, count their part of it.
// A process measures a device once; later runs in it begin with that peak.
// The constructor and see() are collective over `ranks`, which must outlive the object.
class RunPeak {
  public:
    RunPeak(comm::Communicator& ranks, Device& device, ComputeType compute_type);

    double flops_per_s() const { return flops_per_s_; }
    std::string origin() const;  // "vdpbf16ps zmm on registers, 2 cores, measured 2 times"

    // The run reached `reached` FLOP/s. A value above 90 % of the peak looks wrong, since another program may have used
    // the cores during the measurement, so the peak is measured again. The peak is never below a reached value.
    void see(double reached);

  private:
    void take(const ArithmeticPeak& peak);  // a measurement of this rank's device

    comm::Communicator& ranks_;
    Device& device_;
    ComputeType compute_type_;
    double part_ = 1;  // this rank's share of the device's peak
    std::string of_device_, shared_;
    double flops_per_s_ = 0;
    int measured_ = 0;
    bool is_reached_ = false;  // the peak is a value that the run reached, above all measurements
};

}  // namespace tutti::train
