// bench/cpu_kernels.cpp: rates of the CPU tables' matrix products and attention beside the peak of the same run, for
// bench/results/*_cpu_*.md. Not part of the build:
//   g++ -std=c++20 -O2 -Isrc bench/cpu_kernels.cpp build/release/libtutti_{kernels,device,base}.a -ldnnl -lfmt -fopenmp
//   (a build with CUDA: and -L/usr/local/cuda/lib64 -lcudart_static -ldl -lrt)
//   OMP_WAIT_POLICY=passive ./a.out gemm|packed|grouped|attention THREADS [avx2|avx512|avx512_bf16|amx]
// One thread is timed by its own CPU time, which others on the machine disturb less; more by the clock. Best of 0.3 s;
// products of both makers in turns, from memory (the caches are overwritten in between), and the median of their ratio.
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "array.h"
#include "tutti/device/cpu/peak.h"
#include "tutti/kernels/cpu/fill.h"
#include "tutti/kernels/kernel_table.h"

using namespace tutti;
using namespace tutti::kernels;

namespace {

double seconds(int threads) {
    timespec t;
    clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

template <class Run>
double best_seconds(int threads, Run&& run) {
    double best = 1e9;
    const double end = seconds(threads) + 0.3;
    for (int i = 0; i < 3 || seconds(threads) < end; ++i) {
        const double start = seconds(threads);
        run();
        best = std::min(best, seconds(threads) - start);
    }
    return best;
}

void print_peak(const Stream& stream) {
    for (const DType t : {DType::f32, DType::bf16}) {
        const ArithmeticPeak peak = measure_register_peak(stream, t, 1);
        std::printf("peak, GFLOP/s: %s %.0f, %s\n", t == DType::f32 ? "f32" : "bf16", 1e-9 * peak.flops_per_s,
                    peak.origin.c_str());
    }
}

void bench_gemm(const OwnGemm& own, const Stream& stream) {
    struct Layer {
        int64_t M, K, N;
    };
    std::printf(
        "GFLOP/s, own / oneDNN (%s), times as fast: forward x W^T, input gradient dy W, weight gradient dy^T x summed "
        "into f32\n",
        gemm_implementations());
    std::vector<char> others(64 << 20);
    for (const DType t : {DType::bf16, DType::f32}) {
        if (t == DType::bf16 && best_isa() == Isa::avx2) continue;  // oneDNN multiplies bf16 with AVX-512 alone
        for (const auto& [M, K, N] :
             {Layer{4096, 768, 768}, {4096, 768, 2304}, {4096, 768, 3072}, {4096, 3072, 768}, {1024, 768, 768},
              {1024, 768, 2304},     {1024, 768, 3072}, {1024, 3072, 768}, {256, 768, 50257}, {1024, 768, 50257},
              {2048, 256, 256},      {2048, 256, 704},  {2048, 704, 256},  {2048, 256, 1024}, {2048, 1024, 256},
              {512, 512, 512},       {64, 768, 768},    {32, 768, 768},    {16, 768, 768},    {8, 768, 3072},
              {4, 768, 3072},        {1, 768, 3072},    {1, 3072, 768},    {1, 768, 50257}}) {
            const View x = array(t, {M, K}), w = array(t, {N, K}), y = array(t, {M, N}), dw = array(DType::f32, {N, K});
            const double work = 2e-9 * static_cast<double>(M * N * K);
            const auto rate = [&](Gemm g) {
                const View workspace = array(DType::f32, {own.workspace(stream, g)});
                g.workspace = workspace;
                const auto time = [&](void (*product)(const Stream&, const Gemm&)) {
                    std::memset(others.data(), 1, others.size());
                    const double start = seconds(stream.threads);
                    product(stream, g);
                    return seconds(stream.threads) - start;
                };
                double ours = 1e9, theirs = 1e9, spent = 0;
                std::vector<double> ratios;
                for (int i = 0; i < 7 || spent < 0.6; ++i) {
                    const double mine = time(own.gemm), library = time(gemm_onednn);
                    spent += mine + library;
                    if (i == 0) continue;  // the library compiles
                    ours = std::min(ours, mine);
                    theirs = std::min(theirs, library);
                    ratios.push_back(library / mine);
                }
                std::free(workspace.data);
                std::printf("  %4.0f / %4.0f %5.2f", work / ours, work / theirs, median(ratios));
            };
            std::printf("%-4s (%5ld, %5ld, %5ld)", t == DType::f32 ? "f32" : "bf16", M, K, N);
            rate({.a = x, .b = w, .c = y, .transpose_b = true});
            rate({.a = y, .b = w, .c = x});
            rate({.a = y, .b = x, .c = dw, .transpose_a = true, .accumulate = true});
            std::printf("\n");
            for (const View& v : {x, w, y, dw}) std::free(v.data);
        }
    }
}

// Our own product that packs its b beside the one that finds it packed, in turns, all from memory.
void bench_packed(const OwnGemm& own, const Stream& stream) {
    struct Layer {
        int64_t K, N;
    };
    std::printf(
        "ms: b packed for this product, kept from an earlier one; the first by the second: forward, input gradient\n");
    std::vector<char> others(64 << 20);
    for (const DType t : {DType::bf16, DType::f32})
        for (const int64_t M : {256, 1024, 4096})
            for (const auto& [K, N] : {Layer{768, 768}, {768, 2304}, {768, 3072}, {3072, 768}}) {
                const View x = array(t, {M, K}), w = array(t, {N, K}), y = array(t, {M, N});
                std::printf("%-4s (%5ld, %5ld, %5ld)", t == DType::f32 ? "f32" : "bf16", M, K, N);
                for (Gemm g : {Gemm{.a = x, .b = w, .c = y, .transpose_b = true}, Gemm{.a = y, .b = w, .c = x}}) {
                    const View workspace = array(DType::f32, {own.workspace(stream, g)});
                    g.workspace = workspace;
                    Gemm kept = g;
                    kept.packed_b = array(DType::f32, {own.packed_b(stream, g)});
                    own.gemm(stream, kept);
                    kept.b_is_packed = true;
                    std::vector<double> packs, finds, ratios;
                    const auto time = [&](std::vector<double>& times, const Gemm& product) {
                        std::memset(others.data(), 1, others.size());
                        const double start = seconds(stream.threads);
                        own.gemm(stream, product);
                        times.push_back(1e3 * (seconds(stream.threads) - start));
                    };
                    const double end = seconds(2) + 2;
                    while (seconds(2) < end || ratios.size() < 5) {
                        time(packs, g);
                        time(finds, kept);
                        ratios.push_back(packs.back() / finds.back());
                    }
                    std::printf("  %7.2f %7.2f %6.3f", median(packs), median(finds), median(ratios));
                    for (const View& v : {workspace, kept.packed_b}) std::free(v.data);
                }
                std::printf("\n");
                for (const View& v : {x, w, y}) std::free(v.data);
            }
}

// Shares of M rows that differ as those of experts do: e^(0.7 x), x normal.
std::vector<int64_t> uneven(int64_t M, int64_t E) {
    std::vector<double> share;
    double sum = 0;
    for (int64_t e = 0; e < E; ++e)
        share.push_back(std::exp(0.7 * normal(random_key(1, "loads"), static_cast<uint64_t>(e))));
    for (const double s : share) sum += s;
    std::vector<int64_t> rows;
    int64_t left = M;
    for (const double s : share) rows.push_back(std::min(left, static_cast<int64_t>(s / sum * static_cast<double>(M))));
    for (const int64_t n : rows) left -= n;
    rows.back() += left;
    return rows;
}

// Products of M rows in E groups beside the product of all M rows with one matrix, which has as many operations, in
// turns; both from memory.
void bench_grouped(const KernelTable& table, const Stream& stream) {
    struct Form {
        int64_t M, E, K, N;
    };
    std::printf(
        "GFLOP/s, grouped / one matrix, the former by the latter: forward x W^T, input gradient dy W, weight gradient "
        "dy^T x added to f32\n");
    std::vector<char> others(64 << 20);
    for (const DType t : {DType::bf16, DType::f32})
        for (const auto& [M, E, K, N] : {Form{4096, 1, 2048, 1792},
                                         {4096, 8, 1024, 3584},
                                         {4096, 8, 2048, 1792},
                                         {4096, 32, 1024, 1792},
                                         {4096, 32, 2048, 1792},
                                         {1024, 32, 2048, 1792},
                                         {64, 32, 2048, 1792},
                                         {8192, 32, 512, 512}}) {
            const std::vector<int64_t> rows = uneven(M, E);
            const View x = array(t, {M, K}), w = array(t, {E, N, K}), y = array(t, {M, N});
            const View dw = array(DType::f32, {E, N, K});
            const View first_w(w.data, t, {N, K}), first_dw(dw.data, DType::f32, {N, K});
            const double work = 2e-9 * static_cast<double>(M * N * K);
            const auto compare = [&](const Gemm& dense, const Gemm& all) {
                Gemm one = dense;
                GroupedGemm grouped{all, rows};
                one.workspace = array(DType::f32, {table.gemm_workspace(stream, one)});
                grouped.all.workspace = array(DType::f32, {table.grouped_gemm_workspace(stream, grouped)});
                const auto time = [&](auto&& run) {
                    std::memset(others.data(), 1, others.size());
                    const double start = seconds(stream.threads);
                    run();
                    return seconds(stream.threads) - start;
                };
                std::vector<double> ones, groups, ratios;
                const double end = seconds(2) + 2;
                while (seconds(2) < end || ratios.size() < 5) {
                    ones.push_back(time([&] { table.gemm(stream, one); }));
                    groups.push_back(time([&] { table.grouped_gemm(stream, grouped); }));
                    ratios.push_back(ones.back() / groups.back());
                }
                std::printf("  %4.0f / %4.0f %5.2f", work / median(groups), work / median(ones), median(ratios));
                for (const View& v : {one.workspace, grouped.all.workspace}) std::free(v.data);
            };
            std::printf("%-4s (%4ld in %2ld, %4ld, %4ld)", t == DType::f32 ? "f32" : "bf16", M, E, K, N);
            compare({.a = x, .b = first_w, .c = y, .transpose_b = true}, {.a = x, .b = w, .c = y, .transpose_b = true});
            compare({.a = y, .b = first_w, .c = x}, {.a = y, .b = w, .c = x});
            compare({.a = y, .b = x, .c = first_dw, .transpose_a = true, .accumulate = true},
                    {.a = y, .b = x, .c = dw, .transpose_a = true, .accumulate = true});
            std::printf("\n");
            std::fflush(stdout);
            for (const View& v : {x, w, y, dw}) std::free(v.data);
        }
}

void bench_attention(const KernelTable& table, const Stream& stream) {
    struct Form {
        int64_t B, H, Hkv, Tq, Tk, D;
    };
    std::printf("causal; GFLOP/s of the visible half, forward 2 products, backward 5; ms in brackets\n");
    for (const DType t : {DType::f32, DType::bf16})
        for (const auto& [B, H, Hkv, Tq, Tk, D] : {Form{4, 12, 12, 1024, 1024, 64},
                                                   {1, 12, 12, 4096, 4096, 64},
                                                   {1, 4, 4, 8192, 8192, 128},
                                                   {1, 32, 8, 2048, 2048, 128},
                                                   {8, 8, 8, 256, 256, 32},
                                                   {8, 4, 4, 256, 256, 64},
                                                   {1, 12, 12, 1, 2048, 64}}) {
            const View q = array(t, {B, Tq, H, D}), k = array(t, {B, Tk, Hkv, D}), v = array(t, {B, Tk, Hkv, D});
            const View o = array(t, q.shape), dy = array(t, q.shape), dq = array(t, q.shape);
            const View dk = array(t, k.shape), dv = array(t, k.shape), lse = array(DType::f32, {B, H, Tq});
            const int64_t space = std::max(table.attention_workspace(stream, q.shape, k.shape, false),
                                           table.attention_workspace(stream, q.shape, k.shape, true));
            const View workspace = array(DType::f32, {space});
            const double product = 1e-9 * static_cast<double>(B * H * Tq * (2 * Tk - Tq) * D);
            const AttentionMask mask{.query_offset = Tk - Tq};
            const AttentionForward forward{
                .q = q, .k = k, .v = v, .o = o, .lse = lse, .scale = 0.1f, .mask = mask, .workspace = workspace};
            const AttentionBackward backward{.q = q,
                                             .k = k,
                                             .v = v,
                                             .o = o,
                                             .lse = lse,
                                             .dy = dy,
                                             .dq = dq,
                                             .dk = dk,
                                             .dv = dv,
                                             .scale = 0.1f,
                                             .mask = mask,
                                             .workspace = workspace};
            const double f = best_seconds(stream.threads, [&] { table.attention_forward(stream, forward); });
            const double b = best_seconds(stream.threads, [&] { table.attention_backward(stream, backward); });
            std::printf("%-4s B %ld H %ld/%ld Tq %ld Tk %ld D %ld: forward %.0f (%.2f), backward %.0f (%.2f)\n",
                        t == DType::f32 ? "f32" : "bf16", B, H, Hkv, Tq, Tk, D, 2 * product / f, f * 1e3,
                        5 * product / b, b * 1e3);
            for (const View& x : {q, k, v, o, dy, dq, dk, dv, lse, workspace}) std::free(x.data);
        }
}

}  // namespace

int main(int count, char** arguments) {
    if (count < 3)
        return std::fprintf(stderr,
                            "usage: cpu_kernels gemm|packed|grouped|attention THREADS [avx2|avx512|avx512_bf16|amx]\n"),
               2;
    const Stream stream{std::atoi(arguments[2])};
    const Isa isa = isa_named(count > 3 ? arguments[3] : nullptr);
    bound_library(isa);
    print_peak(stream);
    const KernelTable& table = cpu_table(isa);
    std::printf("%s, threads %d\n", table.name, stream.threads);
    if (std::strcmp(arguments[1], "gemm") == 0)
        bench_gemm(own_gemm(isa), stream);
    else if (std::strcmp(arguments[1], "packed") == 0)
        bench_packed(own_gemm(isa), stream);
    else if (std::strcmp(arguments[1], "grouped") == 0)
        bench_grouped(table, stream);
    else
        bench_attention(table, stream);
}
