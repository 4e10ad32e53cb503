// kernels/cpu/rope_table.cpp: the cosines and sines of rotary embedding, the same for all instruction sets: those of
// the C library, in double. Filled once per model. Called by: table.cpp.
#include <algorithm>
#include <cmath>

#include "tutti/device/cpu/parallel.h"
#include "tutti/kernels/cpu/fill.h"

namespace tutti::kernels {

namespace {

constexpr int64_t kAngles = 512;  // worth a thread: some 20 us

void rope_table(const Stream& stream, View frequencies, double amplitude, View cosines, View sines) {
    const int64_t half = cosines.shape[1];
    const auto* const frequency = frequencies.as<const double>();
    parallel_for(stream, cosines.shape[0], kAngles / std::max<int64_t>(half, 1) + 1, [&](int64_t begin, int64_t end) {
        for (int64_t p = begin; p < end; ++p) {
            float *const cosine = cosines.as<float>() + p * cosines.stride(0), *const sine = sines.as<float>() +
                                                                                             p * sines.stride(0);
            for (int64_t k = 0; k < half; ++k) {
                const double angle = static_cast<double>(p) * frequency[k];
                cosine[k] = static_cast<float>(amplitude * std::cos(angle));
                sine[k] = static_cast<float>(amplitude * std::sin(angle));
            }
        }
    });
}

}  // namespace

void fill_rope_table(KernelTable& table) { table.rope_table = rope_table; }

}  // namespace tutti::kernels
