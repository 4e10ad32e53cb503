// simulate/fit.h: constants from runs whose time was measured.
#pragma once

#include <string>
#include <vector>

#include "tutti/simulate/constants.h"
#include "tutti/simulate/published.h"

namespace tutti::simulate {

// Errors of predictions, by family.
struct FamilyError {
    std::string family;
    int rows = 0;
    double mean = 0, bias = 0, largest = 0;  // of |predicted / measured - 1|, of its sign, and the greatest
};
std::vector<FamilyError> errors_of(const std::vector<PublishedRun>& runs, const std::vector<double>& predicted);

// The constants that minimise the logarithmic errors, with equal weight for each family and limited influence of any
// row, held near `start` by the spread of each constant (half of it for six rows and fewer). Rows without a measurement
// or with a problem are left out.
Constants fit(const std::vector<PublishedRun>& runs, const Constants& start);

}  // namespace tutti::simulate
