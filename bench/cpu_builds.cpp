// bench/cpu_builds.cpp: our own products of two builds of Tutti, call by call in turns, so that a machine whose
// speed changes from second to second still shows their ratio. For bench/results/gemm_cpu_emerald.md. Not part of the
// build. Once for each build, then the program:
//   g++ -std=c++20 -O2 -DBUILD -fPIC -shared -fvisibility=hidden -I$SOURCE/src bench/cpu_builds.cpp
//     $SOURCE/build/release/libtutti_{kernels,device,base}.a -ldnnl -lfmt -fopenmp -Wl,--exclude-libs,ALL -o before.so
//   g++ -std=c++20 -O2 -Isrc bench/cpu_builds.cpp build/release/libtutti_{kernels,device,base}.a -ldnnl -lfmt -fopenmp
//   OMP_WAIT_POLICY=passive ./a.out bf16|f32 THREADS ROWS ./before.so ./after.so
// GFLOP/s of each build and the ratio to the first, 30 % quantiles. Weights come from memory. One thread is timed by
// its own CPU time.
#include "tutti/kernels/cpu/fill.h"
#include "tutti/kernels/kernel_table.h"

#ifdef BUILD
extern "C" [[gnu::visibility("default")]] void product(const tutti::kernels::Gemm& g, int threads) {
    static const tutti::kernels::OwnGemm own = tutti::kernels::own_gemm(tutti::kernels::best_isa());
    own.gemm(tutti::Stream{threads}, g);
}
#else
#include <dlfcn.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "array.h"
#include "tutti/device/cpu/peak.h"

using namespace tutti;
using namespace tutti::kernels;

int main(int count, char** arguments) {
    const auto type = count < 5 ? std::nullopt : dtype_from(arguments[1]);
    if (!type) return std::fprintf(stderr, "usage: cpu_builds bf16|f32 THREADS ROWS BUILD.so...\n"), 2;
    const int threads = std::atoi(arguments[2]);
    const int64_t M = std::atol(arguments[3]);
    const auto now = [&] {
        timespec t;
        clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
        return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
    };
    using Product = void (*)(const Gemm&, int);
    std::vector<Product> products;
    for (int i = 4; i < count; ++i) {
        void* const library = dlopen(arguments[i], RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) return std::fprintf(stderr, "%s\n", dlerror()), 1;
        products.push_back(reinterpret_cast<Product>(dlsym(library, "product")));
    }
    std::printf("peak %.0f GFLOP/s\n", 1e-9 * measure_register_peak(Stream{threads}, *type, 1).flops_per_s);
    const View workspace = array(DType::f32, {64 << 20});
    struct Layer {
        int64_t K, N;
    };
    for (const auto& [K, N] : {Layer{768, 768}, {768, 2048}, {2048, 768}, {768, 3072}, {3072, 768}, {768, 32000}})
        for (const char* const kind : {"forward", "input gradient", "weight gradient"}) {
            const bool of_weight = kind[0] == 'w';
            std::vector<View> weights;
            for (int64_t bytes = 0; bytes < 96 << 20; bytes += 2 * K * N)
                weights.push_back(array(of_weight ? DType::f32 : *type, {N, K}));
            const View x = array(*type, {M, K}), y = array(*type, {M, N});
            std::vector<std::vector<double> > times(products.size());
            size_t call = 0;
            for (int round = 0; round < (N == 32000 ? 24 : M > 1000 ? 48 : 96); ++round)
                for (size_t i = 0; i < products.size(); ++i) {
                    const View& w = weights[call++ % weights.size()];
                    Gemm g{.a = x, .b = w, .c = y, .transpose_b = true};
                    if (kind[0] == 'i') g = {.a = y, .b = w, .c = x};
                    if (of_weight) g = {.a = y, .b = x, .c = w, .transpose_a = true, .accumulate = true};
                    g.workspace = workspace;
                    const double begin = now();
                    products[i](g, threads);
                    if (round > 1) times[i].push_back(now() - begin);
                }
            std::printf("(%5ld, %5ld, %5ld) %-15s", M, K, N, kind);
            double first = 0;
            for (std::vector<double>& t : times) {
                std::sort(t.begin(), t.end());
                const double seconds = t[t.size() * 3 / 10];
                if (first == 0) first = seconds;
                std::printf("  %6.0f (%.2f)", 2e-9 * static_cast<double>(M * K * N) / seconds, first / seconds);
            }
            std::printf("\n");
            for (const View& w : weights) std::free(w.data);
            for (const View& v : {x, y}) std::free(v.data);
        }
}
#endif
