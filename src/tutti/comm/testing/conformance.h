// comm/testing/conformance.h: the behaviour required of every backend, as a list of checks. Each check is the body of
// one rank and throws on a wrong result, so that it runs in threads and in processes; expected values are computed from
// the ranks' numbers, not by another collective.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tutti/comm/world.h"

namespace tutti::comm::conformance {

struct Check {
    std::string name;
    std::function<void(World&, Device&)> body;  // tensors are in the memory of the device
};

std::vector<Check> checks();

}  // namespace tutti::comm::conformance
