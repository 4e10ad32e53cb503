// simulate/calibrate.h: measures the machine that this process runs on.
#pragma once

#include <functional>
#include <string>

#include "tutti/simulate/profile.h"

namespace tutti::simulate {

// Trains small models of several shapes for a few steps in each compute type and with each number of threads, on as
// many ranks as keep all cores busy, and times every kernel; then times the operations of groups of 2, 4 and 8 threads.
// Takes one to two minutes. `progress` gets the name of each measurement.
MachineProfile calibrate(const std::function<void(const std::string&)>& progress);

}  // namespace tutti::simulate
