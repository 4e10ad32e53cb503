// kernels/gemm_tuning.h: which algorithms a GPU's library of matrix products shall use, because they were measured to
// be the fastest: plain data, and its file. `tutti bench step --tune` makes the file; a run reads the file
// ([train] gemm_tuning) and never measures, so that two runs, and all ranks of a run, take the same algorithms and have
// the same bits. An algorithm means something to the GPU, driver and library only with which it was measured.
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
    // By all that the library's choice depends on.
    std::map<std::vector<int64_t>, TunedProduct> products;
    std::map<std::vector<int64_t>, std::string> missed;  // that were asked for and are not there: their texts
    // Candidates of a product that is not here are timed at its first use, which waits for the GPU; else such a product
    // takes the heuristic's first.
    bool measures = false;

    std::string to_json() const;  // the file: all but the two above
};

// DataError with the file and the place in it when it is no tuning. UsageError, which names both sides, when it is of
// another GPU, driver or library than `here`.
GemmTuning read_gemm_tuning(const std::string& path, const GemmTuning& here);

}  // namespace tutti::kernels
