// train/run_peak.h: the ceiling of a run's arithmetic, which MFU and HFU are shares of.
#pragma once

#include <string>

#include "tutti/comm/communicator.h"
#include "tutti/device/device.h"

namespace tutti::train {

// The peaks of the ranks' devices together. Ranks that share a GPU, or the cores of a host, have their part of it. The
// constructor and see() are collective over `ranks`, which must outlive the object.
class RunPeak {
  public:
    RunPeak(comm::Communicator& ranks, Device& device, Arithmetic arithmetic);

    double flops_per_s() const { return flops_per_s_; }
    std::string origin() const;  // "vdpbf16ps zmm on registers, 2 cores, measured 2 times"

    // The run made `reached` FLOP/s. Above 90 % of the peak looks wrong, since another program may have had the cores
    // while the peak was measured: it is measured again. What was reached is the least that the peak can be.
    void see(double reached);

  private:
    void measure(double seconds);

    comm::Communicator& ranks_;
    Device& device_;
    Arithmetic arithmetic_;
    double part_ = 1;  // of the device's peak that is this rank's
    std::string of_device_, shared_;
    double flops_per_s_ = 0;
    int measured_ = 0;
    bool is_reached_ = false;  // by the run, and by no measurement
};

}  // namespace tutti::train
