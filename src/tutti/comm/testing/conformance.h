// comm/testing/conformance.h: what every engine must do, as one list of checks that an engine's test runs. Each is the
// body of one rank and throws when something is wrong, so that it runs in threads and in processes alike; expected
// values are worked out from the ranks' numbers, not by another collective.
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
