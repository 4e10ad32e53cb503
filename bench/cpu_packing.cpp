// bench/cpu_packing.cpp: how long a weight takes to be packed for products in bf16, beside the product that it is
// packed for, for docs/decisions/0017-own-gemm.md. Pairs in the order that AMX tiles read; packing uses no instruction
// beyond AVX-512, so a machine without AMX measures it as well. Not part of the build:
//   g++ -std=c++20 -O3 -fopenmp -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c -DTUTTI_ISA_AMX_EMULATED -Isrc
//   bench/cpu_packing.cpp build/release/libtutti_{device,base}.a -lfmt
//   ./a.out THREADS TFLOPS
// Of copies of each weight that together exceed the caches, in turn: medians. TFLOPS: the rate of the product.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "array.h"
#include "tutti/kernels/cpu/isa/gemm_pack.h"

using namespace tutti;
using namespace tutti::kernels;
using namespace tutti::kernels::TUTTI_ISA;

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

int main(int count, char** arguments) {
    if (count != 3) return std::fprintf(stderr, "usage: cpu_packing THREADS TFLOPS\n"), 2;
    const Stream stream{std::atoi(arguments[1])};
    const double flops = 1e12 * std::atof(arguments[2]);
    struct Layer {
        int64_t K, N;
    };
    std::printf("W (N, K): ms, GB/s of the weight; packing as a share of the product of 1024 and of 4096 rows\n");
    for (const auto& [K, N] : {Layer{768, 768}, {768, 2304}, {768, 3072}, {3072, 768}, {768, 32000}, {768, 50257}})
        for (const bool forward : {true, false}) {
            std::vector<View> weights;
            for (int64_t bytes = 0; bytes < 128 << 20; bytes += 2 * K * N)
                weights.push_back(array(DType::bf16, {N, K}));
            const View a = array(DType::bf16, {1024, forward ? K : N}), c = array(DType::bf16, {1024, forward ? N : K});
            Gemm g{.a = a, .b = weights[0], .c = c, .transpose_b = forward};
            const GemmPlan plan = gemm_plan(Isa::amx, stream, g);
            const View packed = array(DType::f32, {plan.kept_b});
            std::vector<double> times;
            for (int round = 0; round < 4; ++round)
                for (const View& w : weights) {
                    g.b = w;
                    const double begin = now();
                    pack_b<bf16>(stream, g, plan, {0, plan.N}, {0, plan.words},
                                 Panels<Pair>{packed.as<Pair>(), plan.words});
                    if (round > 0) times.push_back(now() - begin);
                }
            const double seconds = median(times), values = static_cast<double>(K * N);
            const double product = 2 * 1024 * values / flops;
            std::printf("(%5ld, %5ld) %-14s %7.3f ms %5.1f GB/s %5.1f %% %5.1f %%\n", N, K,
                        forward ? "forward" : "input gradient", 1e3 * seconds, 2e-9 * values / seconds,
                        100 * seconds / product, 25 * seconds / product);
            for (const View& w : weights) std::free(w.data);
            for (const View& v : {a, c, packed}) std::free(v.data);
        }
}
