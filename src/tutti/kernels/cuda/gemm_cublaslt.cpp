// kernels/cuda/gemm_cublaslt.cpp: the matrix products of the CUDA table. cuBLASLt stores matrices by columns and sees a
// row-major matrix as its transpose, so c = op(a) op(b) is computed as c^T = op(b)^T op(a)^T. Sums are in f32. f32
// products keep f32 factors; those of the table for TF32 (cuda_tf32_table) may round them.
//
// The algorithm is the one that a tuning names (kernels/gemm_tuning.h), else the first of the library's heuristic,
// which depends on GPU and shape and measures nothing; only algorithms that add in a fixed order are allowed. The
// heuristic runs once per shape and its answer is cached, so a run repeats bit for bit on the same GPU and library.
// gemm_plain.cu computes products for which the library has no algorithm (odd strides of bf16, for example); this too
// depends on the shape only. gemm_implementation reports it, and slow_work lists the shapes.
#include <algorithm>
#include <array>
#include <compare>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "tutti/base/ceil_div.h"
#include "tutti/base/environment.h"
#include "tutti/device/cuda/cuda_device.h"
#include "tutti/kernels/code_units.h"
#include "tutti/kernels/cuda/candidates.h"
#include "tutti/kernels/cuda/cublaslt.h"
#include "tutti/kernels/cuda/cuda_table.h"
#include "tutti/kernels/cuda/fill.h"
#include "tutti/kernels/epilogue.h"
#include "tutti/kernels/gemm_tuning.h"
#include "tutti/kernels/scale_layout.h"

namespace tutti::kernels::cuda {

namespace {

using lt::library;

// --- a product -------------------------------------------------------------------------------------------------------

lt::DataType type_of(DType dtype) {
    switch (dtype) {
        case DType::bf16: return lt::kBf16;
        case DType::f16: return lt::kF16;
        case DType::f32: return lt::kF32;
        case DType::e4m3: return lt::kE4m3;
        case DType::e5m2: return lt::kE5m2;
        default: throw Error(concat("matrix products on a GPU take f32, bf16 or f16, got ", dtype));
    }
}

bool has_codes(const Gemm& g) { return size_of(g.a.dtype) == 1; }

lt::ScaleMode mode_of(const Scales& s) {
    switch (s.layout) {
        case ScaleLayout::rows: break;
        case ScaleLayout::columns: return lt::kVec128;
        case ScaleLayout::padded_rows: return lt::kBlock128x128;
        case ScaleLayout::tiles:
        case ScaleLayout::row_tiles:
        case ScaleLayout::block_tiles: return lt::kVec32E8m0;
    }
    return lt::kScalar;
}

// Elements from one row of a row-major matrix to the next; the stride of a single row is arbitrary.
int64_t row_length(const View& x) { return x.shape[0] == 1 ? x.shape[1] : x.stride(0); }

// No kernel of the library loads more than 16 bytes at once.
uint32_t alignment(const View& x) {
    const auto address = reinterpret_cast<uintptr_t>(x.data);
    return static_cast<uint32_t>(std::min<uintptr_t>(16, address & (~address + 1)));
}

// Everything that the choice of an algorithm depends on.
struct Problem {
    int gpu = 0;
    int64_t M = 0, N = 0, K = 0;
    std::array<int64_t, 3> row_lengths{};
    std::array<uint32_t, 5> alignments{};                                 // of a, b, c, bias, x
    DType inputs = DType::f32, second = DType::f32, output = DType::f32;  // of a, b, c
    bool transpose_a = false, transpose_b = false, accumulate = false, bias = false, tf32 = false;
    bool gelu_backward = false;
    std::array<lt::ScaleMode, 2> scales{};  // of a, b
    int64_t workspace_bytes = 0;
    int32_t multiprocessors = 0;  // that it may take; 0: all
    auto operator<=>(const Problem&) const = default;
};

Problem problem_of(const Stream& stream, const Gemm& g, bool tf32) {
    Problem p{.M = g.c.shape[0],
              .N = g.c.shape[1],
              .K = g.transpose_a ? g.a.shape[0] : g.a.shape[1],
              .row_lengths = {row_length(g.a), row_length(g.b), row_length(g.c)},
              .alignments = {alignment(g.a), alignment(g.b), alignment(g.c), alignment(g.bias), alignment(g.x)},
              .inputs = g.a.dtype,
              .second = g.b.dtype,
              .output = g.c.dtype,
              .transpose_a = g.transpose_a,
              .transpose_b = g.transpose_b,
              .accumulate = g.accumulate,
              .bias = g.bias.defined(),
              .tf32 = tf32,
              .gelu_backward = g.epilogue == Epilogue::gelu_backward,
              .scales = {mode_of(g.a_scales), mode_of(g.b_scales)},
              .workspace_bytes = stream.workspace_bytes};
    check_cuda(cudaGetDevice(&p.gpu), "cudaGetDevice");
    const int spared = g.gradient ? stream.products.spared_by_gradients : stream.products.spared_by_forward;
    if (spared == 0) return p;
    check_cuda(cudaDeviceGetAttribute(&p.multiprocessors, cudaDevAttrMultiProcessorCount, p.gpu),
               "cudaDeviceGetAttribute");
    p.multiprocessors -= spared;
    return p;
}

std::string text_of(const Problem& p) {
    return concat("(", p.M, ", ", p.N, ") over ", p.K, " of ", p.inputs,
                  p.second != p.inputs ? concat(" and ", p.second) : "", " to ", p.output, ", rows of ",
                  p.row_lengths[0], ", ", p.row_lengths[1], " and ", p.row_lengths[2], " values",
                  p.multiprocessors > 0 ? concat(", on ", p.multiprocessors, " multiprocessors") : "");
}

// The key of a GemmTuning: all fields but the number of the GPU.
std::vector<int64_t> key_of(const Problem& p) {
    std::vector<int64_t> key = {p.M, p.N, p.K};
    key.insert(key.end(), p.row_lengths.begin(), p.row_lengths.end());
    key.insert(key.end(), p.alignments.begin(), p.alignments.end());
    for (const int64_t x : {int64_t{type_of(p.inputs)}, int64_t{type_of(p.output)}, int64_t{p.transpose_a},
                            int64_t{p.transpose_b}, int64_t{p.accumulate}, int64_t{p.bias}, int64_t{p.tf32},
                            int64_t{p.gelu_backward}, p.workspace_bytes, int64_t{p.multiprocessors}})
        key.push_back(x);
    if (p.second != p.inputs) key.push_back(type_of(p.second));
    for (const lt::ScaleMode mode : p.scales)
        if (mode != lt::kScalar) key.push_back(100 + mode);
    return key;
}

// An object of the library or of the CUDA runtime, destroyed with its owner.
template <class T>
using Owned = std::unique_ptr<std::remove_pointer_t<T>, void (*)(T)>;

// A matrix as the library sees it: its rows are our columns.
Owned<lt::Layout> layout_of(const View& x) {
    lt::Layout layout = nullptr;
    library().check(library()().layout_create(&layout, type_of(x.dtype), static_cast<uint64_t>(x.shape[1]),
                                              static_cast<uint64_t>(x.shape[0]), row_length(x)),
                    "cublasLtMatrixLayoutCreate");
    return {layout, [](lt::Layout l) { library()().layout_destroy(l); }};
}

Owned<lt::Operation> operation_of(const Gemm& g, const Problem& problem) {
    const lt::Compute compute = problem.tf32 ? lt::kCompute32FFastTf32 : lt::kCompute32F;
    lt::Operation operation = nullptr;
    library().check(library()().operation_create(&operation, compute, lt::kF32), "cublasLtMatmulDescCreate");
    Owned<lt::Operation> owned(operation, [](lt::Operation o) { library()().operation_destroy(o); });
    const auto set = [&](lt::OperationAttribute attribute, const auto& value) {
        library().check(library()().operation_set(operation, attribute, &value, sizeof value),
                        "cublasLtMatmulDescSetAttribute");
    };
    if (problem.multiprocessors > 0) set(lt::kSmCountTarget, problem.multiprocessors);
    set(lt::kTransposeA, g.transpose_b ? lt::kT : lt::kN);
    set(lt::kTransposeB, g.transpose_a ? lt::kT : lt::kN);
    if (g.epilogue == Epilogue::gelu_backward) {
        set(lt::kEpilogue, lt::kEpilogueDGelu);
        set(lt::kAuxPointer, static_cast<const void*>(g.x.data));
        set(lt::kAuxRowLength, row_length(g.x));
        set(lt::kAuxType, type_of(g.x.dtype));
    }
    if (has_codes(g)) {
        set(lt::kFirstScale, static_cast<const void*>(g.b_scales.values.data));
        set(lt::kSecondScale, static_cast<const void*>(g.a_scales.values.data));
        set(lt::kFirstScaleMode, problem.scales[1]);
        set(lt::kSecondScaleMode, problem.scales[0]);
    }
    if (g.bias.defined()) {
        set(lt::kEpilogue, lt::kEpilogueBias);
        set(lt::kBiasPointer, static_cast<const void*>(g.bias.data));
        set(lt::kBiasType, type_of(g.bias.dtype));
    }
    return owned;
}

// c^T = first second: the library's A is our b, its B our a.
struct Product {
    Product(const Gemm& g, const Problem& problem)
        : first(layout_of(g.b)), second(layout_of(g.a)), result(layout_of(g.c)), operation(operation_of(g, problem)) {}

    Owned<lt::Layout> first, second, result;
    Owned<lt::Operation> operation;
};

Owned<lt::Preference> preference_of(const Problem& p) {
    lt::Preference preference = nullptr;
    library().check(library()().preference_create(&preference), "cublasLtMatmulPreferenceCreate");
    Owned<lt::Preference> owned(preference, [](lt::Preference o) { library()().preference_destroy(o); });
    const auto set = [&](lt::PreferenceAttribute attribute, const auto& value) {
        library().check(library()().preference_set(preference, attribute, &value, sizeof value),
                        "cublasLtMatmulPreferenceSetAttribute");
    };
    set(lt::kMaxWorkspace, static_cast<uint64_t>(p.workspace_bytes));
    // Parts of K are added in f32 in the workspace, in their order; adding them in place is a race.
    set(lt::kReductionMask, lt::kReduceInComputeType);
    set(lt::kAlignmentA, p.alignments[1]);
    set(lt::kAlignmentB, p.alignments[0]);
    set(lt::kAlignmentC, p.alignments[2]);
    set(lt::kAlignmentD, p.alignments[2]);
    return owned;
}

// --- its algorithm ---------------------------------------------------------------------------------------------------

// nullopt: the library has none.
using Algorithm = std::optional<lt::Algorithm>;

// At most `wanted`, in the order that the library expects of their speed.
std::vector<lt::Algorithm> candidates_of(const Problem& problem, const Product& product, int wanted) {
    const Owned<lt::Preference> preference = preference_of(problem);
    std::vector<lt::Candidate> all(static_cast<size_t>(wanted));
    int found = 0;
    const lt::Status status = library()().get_heuristic(
        library().handle(), product.operation.get(), product.first.get(), product.second.get(), product.result.get(),
        product.result.get(), preference.get(), wanted, all.data(), &found);
    if (status == lt::kNotSupported || status == lt::kInvalidValue) return {};
    library().check(status, "cublasLtMatmulAlgoGetHeuristic");
    std::vector<lt::Algorithm> algorithms;
    for (int i = 0; i < found; ++i)
        if (all[static_cast<size_t>(i)].state == lt::kSuccess)
            algorithms.push_back(all[static_cast<size_t>(i)].algorithm);
    return algorithms;
}

Algorithm choose(const Problem& problem, const Product& product) {
    const std::vector<lt::Algorithm> first = candidates_of(problem, product, 1);
    return first.empty() ? std::nullopt : Algorithm(first.front());
}

// Shared by the ranks of the process, like the library's own caches.
class Algorithms {
  public:
    // `g`: a product of this problem.
    Algorithm of(const Problem& problem, const Gemm& g) {
        const std::lock_guard lock(mutex_);
        const auto known = chosen_.find(problem);
        return known != chosen_.end() ? known->second
                                      : chosen_.emplace(problem, choose(problem, Product(g, problem))).first->second;
    }
    // To be called when the library refuses to run the algorithm that its heuristic offered.
    void drop(const Problem& problem) {
        const std::lock_guard lock(mutex_);
        chosen_[problem] = std::nullopt;
    }
    std::vector<Problem> without() {
        const std::lock_guard lock(mutex_);
        std::vector<Problem> problems;
        for (const auto& [problem, algorithm] : chosen_)
            if (!algorithm) problems.push_back(problem);
        return problems;
    }

  private:
    std::mutex mutex_;
    std::map<Problem, Algorithm> chosen_;
};

Algorithms& algorithms() {
    static Algorithms the_algorithms;
    return the_algorithms;
}

// The library adds a bias of the output's type only.
bool takes(const Gemm& g) {
    const bool empty = g.c.numel() == 0 || g.a.numel() == 0;
    return !empty && (!g.bias.defined() || g.bias.dtype == g.c.dtype);
}

template <bool kTf32>
void gemm_plain(const Stream& stream, const Gemm& g) {
    static const KernelTable kPlain = [] {
        KernelTable table;
        fill_gemm_plain(table, kTf32);
        return table;
    }();
    kPlain.gemm(stream, g);
}

// Computes c, or writes to `result` in its place.
lt::Status start(const Stream& stream, const Gemm& g, const Product& product, const lt::Algorithm& algorithm,
                 void* result) {
    const float alpha = 1, beta = g.accumulate ? 1 : 0;
    return library()().matmul(library().handle(), product.operation.get(), &alpha, g.b.data, product.first.get(),
                              g.a.data, product.second.get(), &beta, result, product.result.get(), result,
                              product.result.get(), &algorithm, stream.workspace,
                              static_cast<size_t>(stream.workspace_bytes), native(stream));
}

bool is_refused(lt::Status status) { return status == lt::kNotSupported || status == lt::kInvalidValue; }

// --- the measurement of a tuning -------------------------------------------------------------------------------------

constexpr int kCandidates = 8;
constexpr double kWorth = 0.99;  // of the first candidate's time: less is the clock's noise

// Zeros in place of c, whose own values repeated additions would destroy.
Owned<void*> make_result(const Stream& stream, const View& c) {
    const auto bytes = static_cast<size_t>(c.shape[0] * row_length(c) * size_of(c.dtype));
    void* data = nullptr;
    check_cuda(cudaMalloc(&data, bytes), "cudaMalloc of ", bytes,
               " bytes for the result of a product that is tuned; tune with a smaller train.micro_batch");
    Owned<void*> owned(data, [](void* d) { cudaFree(d); });
    check_cuda(cudaMemsetAsync(data, 0, bytes, native(stream)), "cudaMemsetAsync");
    return owned;
}

std::vector<double> medians_of(const Stream& stream, const Gemm& g, const Product& product,
                               const std::vector<lt::Algorithm>& candidates) {
    const Owned<void*> result = make_result(stream, g.c);
    return medians_in_turns(stream, candidates.size(), [&](size_t i) {
        const lt::Status status = start(stream, g, product, candidates[i], result.get());
        if (!is_refused(status)) library().check(status, "cublasLtMatmul of a candidate");
        return status == lt::kSuccess;
    });
}

// nullopt: the library has no algorithm, or refuses to run any.
std::optional<TunedProduct> measured(const Stream& stream, const Gemm& g, const Problem& problem,
                                     const Product& product) {
    check_can_time(stream, concat("the product ", text_of(problem)));
    const std::vector<lt::Algorithm> candidates = candidates_of(problem, product, kCandidates);
    if (candidates.empty()) return std::nullopt;
    TunedProduct tuned{.text = text_of(problem), .seconds = medians_of(stream, g, product, candidates)};
    const std::vector<double>& seconds = tuned.seconds;
    size_t best = 0;
    for (size_t i = 1; i < seconds.size(); ++i)  // any time replaces a NaN
        if (!(seconds[best] <= seconds[i]) && seconds[i] > 0) best = i;
    if (seconds[0] > 0 && seconds[best] > kWorth * seconds[0]) best = 0;
    if (!(seconds[best] > 0)) return std::nullopt;
    tuned.candidate = static_cast<int64_t>(best);
    std::copy_n(candidates[best].data, tuned.algorithm.size(), tuned.algorithm.begin());
    return tuned;
}

// nullopt: the tuning has none for it.
Algorithm tuned(GemmTuning& tuning, const Stream& stream, const Gemm& g, const Problem& problem,
                const Product& product) {
    const std::vector<int64_t> key = key_of(problem);
    auto found = tuning.products.find(key);
    if (found == tuning.products.end() && !tuning.missed.contains(key)) {
        const auto now = tuning.measures ? measured(stream, g, problem, product) : std::nullopt;
        if (now)
            found = tuning.products.emplace(key, *now).first;
        else
            tuning.missed.emplace(key, text_of(problem));
    }
    if (found == tuning.products.end()) return std::nullopt;
    lt::Algorithm algorithm{};
    std::copy(found->second.algorithm.begin(), found->second.algorithm.end(), algorithm.data);
    return algorithm;
}

// --- operands --------------------------------------------------------------------------------------------------------

// The rows of a group differ from call to call. Its algorithm is that of the next multiple of so many rows: else each
// number would ask for another one, 30 to 100 us of the host, and no tuning could have them all.
constexpr int64_t kGroupRows = 64;

// g with rows up to the next multiple; only its sizes may be used. Of codes, whose sums of weight gradients lie along
// the columns, rows and columns.
Gemm with_rounded_rows(Gemm g) {
    if (has_codes(g)) {
        const int64_t M = round_up(g.a.shape[0], kGroupRows), K = round_up(g.a.shape[1], kGroupRows);
        g.a = View(g.a.data, g.a.dtype, {M, K});
        g.b = View(g.b.data, g.b.dtype, {g.b.shape[0], K});
        g.c.shape[0] = M;
        return g;
    }
    View& other = g.transpose_a ? g.b : g.c;
    g.a.shape[0] = other.shape[0] = round_up(g.a.shape[0], kGroupRows);
    return g;
}

enum class Rows : uint8_t { exact, rounded };

// Computes the product by the library; returns false if the library has no algorithm for it.
template <bool kTf32>
bool multiply(const Stream& stream, const Gemm& g, Rows rows) {
    if (!takes(g)) return false;
    const Gemm sizes = rows == Rows::rounded ? with_rounded_rows(g) : g;
    const Problem problem = problem_of(stream, sizes, kTf32 && g.a.dtype == DType::f32);
    const Product product(g, problem);
    const auto otherwise = [&] { return rows == Rows::rounded && multiply<kTf32>(stream, g, Rows::exact); };
    Algorithm algorithm;
    if (stream.products.tuning != nullptr) algorithm = tuned(*stream.products.tuning, stream, g, problem, product);
    const bool is_tuned = algorithm.has_value();
    if (!is_tuned) algorithm = algorithms().of(problem, sizes);
    if (!algorithm) return otherwise();
    const lt::Status status = start(stream, g, product, *algorithm, g.c.data);
    if (is_refused(status) && !is_tuned) {
        algorithms().drop(problem);
        return otherwise();
    }
    if (status != lt::kSuccess)
        throw Error(concat("cublasLtMatmul of ", text_of(problem),
                           is_tuned ? ", with the algorithm of [train] gemm_tuning," : "",
                           " failed: ", library()().status_string(status)));
    return true;
}

// The library fuses only GELU's gradient (GPT-2's, by tanh), for 16-bit values: in f32 its tanh is 5e-6 off. The
// library's GELU would not have the bits of our kernel, which recompute uses, and there is no SwiGLU.
bool is_fused(const Gemm& g) {
    return !has_codes(g) && g.epilogue == Epilogue::gelu_backward && !g.bias.defined() && g.c.dtype != DType::f32;
}

template <bool kTf32, Rows kRows = Rows::exact>
void gemm_cublaslt(const Stream& stream, const Gemm& g) {
    const Rows rows = g.rows_vary ? Rows::rounded : kRows;
    if (is_fused(g) && multiply<kTf32>(stream, g, rows)) return;
    const Gemm plain = without_epilogue(g);
    if (!multiply<kTf32>(stream, plain, rows)) {
        check(!has_codes(g) || g.c.numel() == 0, "cuBLASLt has no product ", g.a.shape, " ", g.a.dtype, " times ",
              g.b.shape, " ", g.b.dtype, " of codes; set [precision] emulate = true");
        gemm_plain<kTf32>(stream, plain);
    }
    apply_epilogue(cuda_table(), stream, g);
}

// Whether the stream is one of a GPU of this machine, and not that of a rehearsal of another.
bool is_here(const Stream& stream) {
    if (int gpus = 0; cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
        cudaGetLastError();
        return false;
    }
    int gpu = 0, major = 0, minor = 0;
    check_cuda(cudaGetDevice(&gpu), "cudaGetDevice");
    for (const auto& [of, value] :
         {std::pair{cudaDevAttrComputeCapabilityMajor, &major}, {cudaDevAttrComputeCapabilityMinor, &minor}})
        check_cuda(cudaDeviceGetAttribute(value, of, gpu), "cudaDeviceGetAttribute");
    return stream.capability == 10 * major + minor;
}

// In rehearsals of another machine, returns whether the library is expected to compute it.
bool gemm_of_codes(const Stream& stream, const Gemm& g) {
    const CodeUnit* unit = unit_of(g);
    if (unit == nullptr || !has_unit(stream.capability, *unit)) return false;
    if (!is_here(stream)) return true;
    const Problem problem = problem_of(stream, g, false);
    return algorithms().of(problem, g).has_value();
}

// Without a GPU, as in rehearsals, returns what the library is expected to compute.
template <bool kTf32>
const char* implementation_of(const Stream& stream, const Gemm& g) {
    const Gemm plain = is_fused(g) ? g : without_epilogue(g);
    if (!takes(plain)) return "own";
    if (int gpus = 0; cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
        cudaGetLastError();
        return "cuBLASLt";
    }
    const Problem problem = problem_of(stream, plain, kTf32 && plain.a.dtype == DType::f32);
    return algorithms().of(problem, plain) ? "cuBLASLt" : "own";
}

// The encoding of an algorithm depends on the library alone.
GemmTuning empty_tuning() {
    const auto [gpu, driver] = current_gpu();
    return {{gpu, driver, library().version()}, {}, {}, false};
}

}  // namespace

std::vector<std::string> slow_products() {
    std::vector<std::string> texts;
    for (const Problem& p : algorithms().without())
        texts.push_back(
            concat("the GEMM library has no kernel for this product, and a much slower one computes it: ", text_of(p)));
    return texts;
}

namespace {

bool is_plain_chosen() {
    const std::string implementation = environment_variable("TUTTI_CUDA_GEMM").value_or("cublaslt");
    check<UsageError>(implementation == "cublaslt" || implementation == "plain",
                      "TUTTI_CUDA_GEMM must be cublaslt or plain, got \"", implementation, "\"");
    return implementation == "plain";
}

}  // namespace

void fill_gemm(KernelTable& table, bool tf32) {
    if (is_plain_chosen()) return fill_gemm_plain(table, tf32);
    table.gemm = tf32 ? gemm_cublaslt<true> : gemm_cublaslt<false>;
    table.gemm_workspace = [](const Stream&, const Gemm&) -> int64_t { return 0; };  // it has the stream's
    table.gemm_implementation = tf32 ? implementation_of<true> : implementation_of<false>;
    table.gemm_of_codes = gemm_of_codes;
    table.scale_form = form_of_scales;
    table.gemm_tuning = empty_tuning;
    table.gemm_implementations = [] {
        static const std::string kVersion = library().version();
        return kVersion.c_str();
    };
}

GemmOfGroup gemm_of_group(bool tf32) {
    if (is_plain_chosen()) return tf32 ? gemm_plain<true> : gemm_plain<false>;
    return tf32 ? gemm_cublaslt<true, Rows::rounded> : gemm_cublaslt<false, Rows::rounded>;
}

}  // namespace tutti::kernels::cuda
