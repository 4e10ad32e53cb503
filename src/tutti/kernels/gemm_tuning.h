// kernels/gemm_tuning.h: measured choices of algorithms for a GPU's library of matrix products: plain data and its
// file, which `tutti bench step --tune` writes and a run reads ([train] gemm_tuning). An algorithm is valid only for
// the GPU, driver and library with which it was measured.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tutti/kernels/measured_on.h"

namespace tutti::kernels {

struct TunedProduct {
    std::string text;                     // "(4096, 768) over 3072 of bf16 to bf16, ...", for readers
    std::array<uint64_t, 8> algorithm{};  // as the library itself wrote it
    int64_t candidate = 0;                // its place in the heuristic's order, from 0
    std::vector<double> seconds;          // of each candidate, the median; NaN: the library refused to run it
};

struct GemmTuning : MeasuredOn {
    // Keyed by everything that the library's choice depends on.
    std::map<std::vector<int64_t>, TunedProduct> products;
    std::map<std::vector<int64_t>, std::string> missed;  // requested products without an entry, with their texts
    // If true, a product without an entry is measured at its first use, which waits for the GPU; else it takes the
    // first algorithm of the heuristic.
    bool measures = false;

    std::string to_json() const;  // the file's text, without the two members above
};

GemmTuning read_gemm_tuning(const std::string& path, const MeasuredOn& here);  // errors: read_tuning()

}  // namespace tutti::kernels
