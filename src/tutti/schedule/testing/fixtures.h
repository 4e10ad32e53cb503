// schedule/testing/fixtures.h: schedules with all their actions, made by another implementation of the same papers
// (PyTorch's generators and lowering where PyTorch has them).
#pragma once

#include <string>
#include <vector>

#include "tutti/schedule/generators.h"

namespace tutti::schedule {

struct Fixture {
    std::string kind;
    Dimensions dimensions;
    std::string compute_only, lowered;  // CSV
};
const std::vector<Fixture>& fixtures();

}  // namespace tutti::schedule
