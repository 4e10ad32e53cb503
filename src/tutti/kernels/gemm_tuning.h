// kernels/gemm_tuning.h: measured choices of algorithms for a GPU's library of matrix products: plain data and its
// file. `tutti bench step --tune` writes the file; a run reads the file ([train] gemm_tuning) and never measures, so
// that two runs, and all ranks of a run, use the same algorithms and get the same bits. An algorithm is valid only for
// the GPU, driver and library with which it was measured.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tutti::kernels {

struct TunedProduct {
    std::string text;                     // "(4096, 768) over 3072 of bf16 to bf16, ...", for readers
    std::array<uint64_t, 8> algorithm{};  // as the library itself wrote it
    int64_t candidate = 0;                // its place in the heuristic's order, from 0
    std::vector<double> seconds;          // of each candidate, the median; NaN: the library refused to run it
};

struct GemmTuning {
    std::string gpu, driver, library;  // "NVIDIA H100 80GB HBM3", "CUDA 13.0", "cuBLASLt 13.1.0"
    // Keyed by everything that the library's choice depends on.
    std::map<std::vector<int64_t>, TunedProduct> products;
    std::map<std::vector<int64_t>, std::string> missed;  // requested products without an entry, with their texts
    // If true, a product without an entry is measured at its first use, which waits for the GPU; else it takes the
    // first algorithm of the heuristic.
    bool measures = false;

    std::string to_json() const;  // the file's text, without the two members above
};

// Throws DataError, naming the file and the place, if the file is not a tuning. Throws UsageError, naming both sides,
// if the file is for another GPU, driver or library than `here`.
GemmTuning read_gemm_tuning(const std::string& path, const GemmTuning& here);

}  // namespace tutti::kernels
