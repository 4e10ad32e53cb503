// kernels/cpu/gemm.cpp: the matrix products of the CPU tables: our own (isa/gemm_blocked.cpp) or oneDNN's. The choice
// depends on instruction set, types and shape only, never on a measured time, so that a build gives the same bits every
// time.
//
// There is no cache of primitives here: oneDNN's cache (1024 entries, keyed by shape, layout, attributes and thread
// count) returns one in 1.4 us, and a whole call costs 3.3 us on top of the product. The first call of a shape costs
// 0.3 ms. oneDNN's scratchpad is thread-local inside the library, so ranks that are threads do not share it. Where c is
// small and K large (weight gradients), oneDNN splits K over the threads: bits then depend on their number.
#include <omp.h>

#include <algorithm>
#include <dnnl.hpp>
#include <string>
#include <type_traits>
#include <unordered_map>

#include "tutti/kernels/cpu/fill.h"
#include "tutti/kernels/cpu/gemm_plan.h"
#include "tutti/kernels/epilogue.h"

namespace tutti::kernels {

namespace {

using dnnl::memory;

// oneDNN takes its team size from the OpenMP setting of the calling thread, of which each rank thread has its own.
class TeamSize {
  public:
    explicit TeamSize(int threads) : before_(omp_get_max_threads()) { omp_set_num_threads(threads); }
    ~TeamSize() { omp_set_num_threads(before_); }
    TeamSize(const TeamSize&) = delete;
    TeamSize& operator=(const TeamSize&) = delete;

  private:
    int before_;
};

memory::data_type type_of(const View& x) {
    return x.dtype == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
}

// The matrix op(x) of size (rows, columns). oneDNN derives a layout from the strides, so a dim of size 1, whose stride
// is arbitrary, gets the stride of a compact matrix.
memory::desc matrix(const View& x, int64_t rows, int64_t columns, bool transposed) {
    const int64_t inner = transposed ? rows : columns, outer = transposed ? columns : rows;
    const int64_t stride = outer == 1 ? inner : x.stride(0);
    return {{rows, columns}, type_of(x), transposed ? memory::dims{1, stride} : memory::dims{stride, 1}};
}

// oneDNN 2.x describes an operation by a separate `desc`, 3.x does not: the only difference that matters here.
template <class Matmul = dnnl::matmul>
Matmul make_matmul(const dnnl::engine& engine, const memory::desc& a, const memory::desc& b, const memory::desc& bias,
                   const memory::desc& c, const dnnl::primitive_attr& attributes) {
    using Description = typename Matmul::primitive_desc;
    if constexpr (std::is_constructible_v<Description, dnnl::engine, memory::desc, memory::desc, memory::desc,
                                          memory::desc, dnnl::primitive_attr>)
        return Matmul(Description(engine, a, b, bias, c, attributes));
    else
        return Matmul(Description(typename Matmul::desc(a, b, bias, c), attributes, engine));
}

int64_t depth_of(const Gemm& g) { return g.transpose_a ? g.a.shape[0] : g.a.shape[1]; }

// oneDNN's f32 products with b as it is stored drop to half of their rate where c is wide (from 2304 columns on, most
// of all where their number is a multiple of 512 and no power of two); ours do not. Narrower input gradients are up to
// 1.3 times as fast with ours on Ice Lake, as fast on Zen 4, and 0.9 to 1.0 times on Emerald Rapids, where the order of
// oneDNN's sums depends on the number of rows if rows of c are apart.
bool is_slow_in_onednn(const Gemm& g) { return !g.transpose_b && (!g.transpose_a || g.c.shape[1] >= 2304); }

// The rows up to which a dot product for each element, computed in f32, is faster than oneDNN. Instructions for bf16
// are faster from fewer rows on.
int64_t few_rows(Isa isa, DType type) {
    if (type != DType::bf16 || isa < Isa::avx512_bf16) return kFewRowsOfC;
    return isa == Isa::amx ? 8 : 4;
}
bool has_few_rows(Isa isa, const Gemm& g) {
    return g.transpose_b && !g.transpose_a && whole_rows(g) <= few_rows(isa, g.a.dtype);
}

int64_t shortest_side(const Gemm& g) { return std::min({whole_rows(g), g.c.shape[1], depth_of(g)}); }

// Whether our own implementation computes a product, as measured with `bench/cpu_kernels.cpp gemm`
// (bench/results/gemm_cpu_*.md):
// - f32 on AVX-512: oneDNN, which reaches 85 % of the peak and more, and our own where that is slow. Our own forward
//   products of 512 rows and more are as fast on Zen 4, which leaves them to it, and faster on Intel.
// - f32 with AVX2, and where rows of c are apart (fused projections): our own, as the order of oneDNN's sums depends on
//   the number of rows of c there, and layouts that divide the rows must have equal bits. Weight gradients are
//   oneDNN's: microbatches divide their sums, not rows.
// - bf16 with AVX512_BF16: our own where every side has 512 and more, and c more rows: up to 1.3 times as fast.
//   For smaller products packing costs too much: oneDNN.
// - bf16 on AMX (measured on Emerald Rapids): our own, from 256 on 1.0 to 1.9 times as fast: oneDNN keeps no block of c
//   in the cache, and reaches a fifth to a third of the peak. Its sums of small products depend on the number of rows,
//   so that only weight gradients of less than 256 are left to it.
// - bf16 on AVX2 and on AVX-512 alone: our own, in f32. oneDNN 2.6 has no kernel for the former at all, and takes four
//   times as long on the latter, but for a single row of c where b is not transposed.
// - f16: our own, in f32; oneDNN 2.6 has none.
// - Few rows of c times a transposed b, as in generation: our own, which reads b once, in place: 1.1 to 1.6 times
//   as fast in f32, and several times in bf16 without instructions for it; in bf16 up to 4 rows with AVX512_BF16, up to
//   8 on AMX.
// - Empty products (c, bias or zeros come out): our own, which needs no descriptor for them.
bool is_own(Isa isa, const Gemm& g) {
    const int64_t shortest = shortest_side(g);
    if (shortest == 0 || g.a.dtype == DType::f16 || has_few_rows(isa, g)) return true;
    if (g.a.dtype != DType::bf16) {
        const bool apart = g.c.stride(0) != g.c.shape[1];
        if (isa == Isa::avx2 || apart) return !g.transpose_a;
        const bool forward_on_intel = isa != Isa::avx512_bf16 && g.transpose_b && whole_rows(g) >= 512;
        return shortest >= 256 && (forward_on_intel || is_slow_in_onednn(g));
    }
    switch (isa) {
        case Isa::avx2: return true;
        case Isa::avx512: return whole_rows(g) > 1;
        case Isa::avx512_bf16: return shortest >= 512 && whole_rows(g) > 512;
        case Isa::amx: return shortest >= 256 || !g.transpose_a;
    }
    return false;
}

// On AMX copies of small weights are not worth their memory.
bool keeps_packed(Isa isa, const Gemm& g) { return isa != Isa::amx || shortest_side(g) >= 256; }

template <Isa isa>
void fill(KernelTable& table) {
    table.gemm = [](const Stream& stream, const Gemm& g) {
        if (is_own(isa, g)) return multiply(isa, stream, g);
        gemm_onednn(stream, without_epilogue(g));
        apply_epilogue(cpu_table(isa), stream, g);
    };
    table.gemm_workspace = [](const Stream& stream, const Gemm& g) {
        return is_own(isa, g) ? own_gemm(isa).workspace(stream, g) : 0;
    };
    table.gemm_packed_b = [](const Stream& stream, const Gemm& g) {
        return is_own(isa, g) && keeps_packed(isa, g) ? own_gemm(isa).packed_b(stream, g) : 0;
    };
    table.gemm_implementations = gemm_implementations;
    table.gemm_implementation = [](const Stream&, const Gemm& g) { return is_own(isa, g) ? "own" : "oneDNN"; };
}

}  // namespace

void gemm_onednn(const Stream& stream, const Gemm& g) {
    const int64_t M = g.c.shape[0], N = g.c.shape[1], K = depth_of(g);
    const TeamSize team(stream.threads);
    const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    dnnl::stream queue(engine);

    const memory::desc a = matrix(g.a, M, K, g.transpose_a), b = matrix(g.b, K, N, g.transpose_b);
    const memory::desc c = matrix(g.c, M, N, false);
    const memory::desc bias = g.bias.defined() ? matrix(g.bias, 1, N, false) : memory::desc();
    dnnl::primitive_attr attributes;
    if (g.accumulate) {
        dnnl::post_ops add_old_c;
        add_old_c.append_sum(1.0f);
        attributes.set_post_ops(add_old_c);
    }
    const auto product = make_matmul(engine, a, b, bias, c, attributes);
    std::unordered_map<int, memory> arguments = {{DNNL_ARG_SRC, memory(a, engine, g.a.data)},
                                                 {DNNL_ARG_WEIGHTS, memory(b, engine, g.b.data)},
                                                 {DNNL_ARG_DST, memory(c, engine, g.c.data)}};
    if (g.bias.defined()) arguments.emplace(DNNL_ARG_BIAS, memory(bias, engine, g.bias.data));
    product.execute(queue, arguments);
    queue.wait();
}

void fill_gemm(KernelTable& table, Isa isa) {
    switch (isa) {
        case Isa::avx2: return fill<Isa::avx2>(table);
        case Isa::avx512: return fill<Isa::avx512>(table);
        case Isa::avx512_bf16: return fill<Isa::avx512_bf16>(table);
        case Isa::amx: return fill<Isa::amx>(table);
    }
}

void bound_library(Isa isa) {
    const auto most = [isa] {
        switch (isa) {
            case Isa::avx2: return dnnl::cpu_isa::avx2;
            case Isa::avx512: return dnnl::cpu_isa::avx512_core;
            case Isa::avx512_bf16: return dnnl::cpu_isa::avx512_core_bf16;
            case Isa::amx: break;
        }
        return dnnl::cpu_isa::all;
    }();
    check(dnnl::set_max_cpu_isa(most) == dnnl::status::success,
          "oneDNN was used before TUTTI_CPU_ISA was read, and can no longer be restricted");
}

const char* gemm_implementations() {
    static const std::string name = [] {
        const dnnl_version_t* version = dnnl_version();
        return concat("own, oneDNN ", version->major, ".", version->minor, ".", version->patch);
    }();
    return name.c_str();
}

}  // namespace tutti::kernels
