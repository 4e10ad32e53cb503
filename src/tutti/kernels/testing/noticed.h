// kernels/testing/noticed.h: how many cases see that a table is wrong. Used by the tests of the cases themselves,
// kernel_cases_test.cpp and expert_cases_test.cpp.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "tutti/kernels/testing/kernel_cases.h"

namespace tutti::kernels {

// Cases of `op`, whose name begins with `dtype`, that the table fails.
inline int64_t noticed(const KernelTable& wrong, const std::string& op, const std::string& dtype) {
    int64_t count = 0;
    for (const Case& c : kernel_cases()) {
        if (c.op != op || c.name.rfind(dtype, 0) != 0) continue;
        const auto expected = c.expected(), actual = c.run(wrong, Place{});
        bool differs = false;
        for (size_t o = 0; o < expected.size(); ++o)
            for (size_t i = 0; i < expected[o].values.size(); ++i) {
                const double want = expected[o].values[i], got = actual[o].values[i];
                const bool equal = want == got || (std::isnan(want) && std::isnan(got));
                differs |= !equal && !(std::abs(want - got) <= expected[o].tolerance[i]);
            }
        count += differs;
    }
    return count;
}

inline void expect_noticed(const KernelTable& wrong, const std::string& op) {
    for (const char* dtype : {"f32", "bf16"}) EXPECT_GT(noticed(wrong, op, dtype), 0) << op << " " << dtype;
}

}  // namespace tutti::kernels
