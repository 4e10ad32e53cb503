// kernels/testing/equivalence.h: for the tests of all tables: the list of entries, the comparison of two runs of a
// case, and whether the cases detect a wrong table.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <ranges>
#include <string>
#include <vector>

#include "tutti/kernels/testing/kernel_cases.h"

namespace tutti::kernels {

inline const std::vector<const char*> kOps = {"fill",
                                              "cast",
                                              "copy",
                                              "add",
                                              "accumulate",
                                              "scale",
                                              "relu_forward",
                                              "relu_backward",
                                              "gelu_forward",
                                              "gelu_backward",
                                              "swiglu_forward",
                                              "swiglu_backward",
                                              "soft_cap",
                                              "normal",
                                              "dropout",
                                              "sums_of_squares",
                                              "exact_sum",
                                              "gemm",
                                              "bias_backward",
                                              "embedding_forward",
                                              "embedding_backward",
                                              "norm_forward",
                                              "norm_backward_input",
                                              "norm_backward_weight",
                                              "short_convolution_forward",
                                              "short_convolution_backward_input",
                                              "short_convolution_backward_before",
                                              "short_convolution_backward_weight",
                                              "short_convolution_state",
                                              "decay_forward",
                                              "decay_backward_input",
                                              "decay_backward_weight",
                                              "delta_rule_forward",
                                              "delta_rule_backward",
                                              "delta_rule_backward_skip",
                                              "rope",
                                              "rope_table",
                                              "sum_heads",
                                              "attention_forward",
                                              "attention_backward",
                                              "attention_merge",
                                              "attention_sinks",
                                              "attention_sinks_backward",
                                              "cross_entropy",
                                              "cross_entropy_partial",
                                              "cross_entropy_finish",
                                              "squared_error",
                                              "sample",
                                              "route",
                                              "route_backward",
                                              "gather_rows",
                                              "combine_rows",
                                              "combine_rows_backward",
                                              "sort_choices",
                                              "accept_choices",
                                              "order_arrivals",
                                              "grouped_gemm",
                                              "balance",
                                              "adamw",
                                              "sgd",
                                              "lion",
                                              "muon_momentum",
                                              "muon_descent",
                                              "amax",
                                              "quantize",
                                              "amax_of_run",
                                              "quantize_run",
                                              "dequantize"};

inline std::vector<Case> cases_of(const std::string& op) {
    std::vector<Case> found;
    for (Case& c : kernel_cases())
        if (c.op == op) found.push_back(std::move(c));
    return found;
}

// The first element out of tolerance, as text; empty when there is none.
inline std::string first_difference(const std::vector<Output>& expected, const std::vector<Output>& actual) {
    if (expected.size() != actual.size()) return "another number of outputs";
    for (size_t o = 0; o < expected.size(); ++o) {
        const auto& [name, values, tolerance] = expected[o];
        for (size_t i = 0; i < values.size(); ++i) {
            const double want = values[i], got = actual[o].values[i];
            if (want == got || (std::isnan(want) && std::isnan(got))) continue;
            if (!(std::abs(want - got) <= tolerance[i]))
                return concat(name, "[", i, "] of ", values.size(), ": expected ", want, " +- ", tolerance[i], ", got ",
                              got, ", off by ", std::abs(want - got) / tolerance[i], " tolerances");
        }
    }
    return "";
}

inline bool same_bits(const std::vector<Output>& a, const std::vector<Output>& b) {
    for (size_t o = 0; o < a.size(); ++o)
        for (size_t i = 0; i < a[o].values.size(); ++i)
            if (std::bit_cast<uint64_t>(a[o].values[i]) != std::bit_cast<uint64_t>(b[o].values[i])) return false;
    return true;
}

// Checks that a case writes every result, leaves its inputs intact and has tolerances that can detect a wrong value: at
// most 0.2 of the value plus the root mean square of the output (at least 0.001, as inputs are of order one, for
// results that cancel to 0). Outputs of fewer than 32 elements have no typical size and are exempt.
inline void expect_sound(const Case& c, const std::vector<Output>& expected) {
    ASSERT_GE(expected.size(), 2u);
    EXPECT_EQ(expected.back().values.at(0), 0) << expected.back().name;
    for (const Output& output : expected) {
        ASSERT_EQ(output.values.size(), output.tolerance.size());
        double typical = 0;
        for (const double v : output.values)
            if (std::isfinite(v)) typical += v * v / static_cast<double>(output.values.size());
        typical = std::max(std::sqrt(typical), 0.001);
        for (size_t i = 0; i < output.values.size(); ++i) {
            ASSERT_GE(output.tolerance[i], 0) << output.name << "[" << i << "]";
            if (output.values.size() >= 32) {
                const double size = std::isfinite(output.values[i]) ? std::abs(output.values[i]) : 0;
                ASSERT_LE(output.tolerance[i], 0.2 * (size + typical)) << output.name << "[" << i << "]";
            }
            if (c.op != "cast" && !c.name.ends_with("a NaN")) {  // casts have a NaN among their inputs
                ASSERT_FALSE(std::isnan(output.values[i])) << output.name << "[" << i << "]";
            }
        }
    }
}

// Whether the table fails a case of `op` with a name that begins with `dtype`. Stops at the first failure, and begins
// with the last case: the lists of the slow kernels end with their small shapes.
inline bool noticed(const KernelTable& wrong, const std::string& op, const std::string& dtype) {
    const std::vector<Case> cases = kernel_cases();
    for (const Case& c : cases | std::views::reverse) {
        if (c.op != op || c.name.rfind(dtype, 0) != 0) continue;
        if (!first_difference(c.expected(), c.run(wrong, Place{})).empty()) return true;
    }
    return false;
}

inline void expect_noticed(const KernelTable& wrong, const std::string& op) {
    for (const char* dtype : {"f32", "bf16", "f16"}) EXPECT_TRUE(noticed(wrong, op, dtype)) << op << " " << dtype;
}

}  // namespace tutti::kernels
