// comm/testing/conformance.h: the behaviour required of every backend, as a list of checks. A check is the body of a
// rank and throws on a wrong result, so it runs in threads and in processes. Expected values are computed from the
// ranks' numbers, not by another collective.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tutti/comm/world.h"

namespace tutti::comm::conformance {

struct Check {
    std::string name;
    std::function<void(World&, Device&)> body;  // for tensors in the memory of the device
};

std::vector<Check> checks();

}  // namespace tutti::comm::conformance
