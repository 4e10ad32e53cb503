// kernels/cuda/gemm_cublaslt.cpp: the matrix products of the CUDA table. cuBLASLt thinks in columns: a row-major matrix
// is to it the transposed one, so c = op(a) op(b) is asked for as c^T = op(b)^T op(a)^T. Sums are in f32. f32
// products are f32 products, in the table for TF32 (cuda_tf32_table) those that may round their factors.
//
// Which algorithm: the first of the library's heuristic, which knows the GPU and the shape and measures nothing, among
// those that add in a fixed order. It is asked once per shape and kept, so a run repeats bit for bit on the same GPU
// and library. What the library has no algorithm for (odd strides of bf16, say), gemm_plain.cu does; that too depends
// on the shape only, gemm_engine says so, and slow_products lists the shapes.
//
// The library is half a gigabyte, and every CUDA installation has it: it is opened when a device asks for its kernels
// (gemm_engines), not linked, so that the program starts, and plans a run on GPUs, where there is none
// (docs/decisions/0014-cublaslt.md).
//
// Below: cublasLt.h. Called by: table.cpp.
#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <compare>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tutti/device/cuda/library.h"
#include "tutti/device/cuda/runtime.h"
#include "tutti/kernels/cuda/fill.h"
#include "tutti/kernels/epilogue.h"

namespace tutti::kernels::cuda {

namespace {

// --- the library -----------------------------------------------------------------------------------------------------

constexpr const char* kFile = "libcublasLt.so.13";

// Stays open: kernels of it may run until the process ends.
void* open_cublaslt() {
    return tutti::cuda::open_library(
        {.what = "matrix products on a GPU need NVIDIA's cuBLASLt",
         .file = kFile,
         .variable = "TUTTI_CUBLASLT",
         .remedy = "It comes with the CUDA toolkit and with the Python package nvidia-cublas; name the "
                   "file in TUTTI_CUBLASLT. TUTTI_CUDA_GEMM=plain takes our own, slower kernel "
                   "instead"});
}

template <class Function>
void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    check<UsageError>(function != nullptr, kFile, " has no function ", name, ": ", dlerror());
}

class CublasLt {
  public:
    // The file that TUTTI_CUBLASLT names, else libcublasLt.so.13 where the loader looks, in $CUDA_HOME/lib64 and in
    // /usr/local/cuda/lib64. UsageError, with what was tried, when there is none.
    CublasLt();
    CublasLt(const CublasLt&) = delete;
    CublasLt& operator=(const CublasLt&) = delete;

    std::string version() const;  // "cuBLASLt 13.1.0"
    // Of the GPU that is current; made when it is first asked for.
    cublasLtHandle_t handle();

    decltype(&cublasLtCreate) create;
    decltype(&cublasLtGetVersion) get_version;
    decltype(&cublasLtGetStatusString) status_string;
    decltype(&cublasLtMatmulDescCreate) matmul_desc_create;
    decltype(&cublasLtMatmulDescDestroy) matmul_desc_destroy;
    decltype(&cublasLtMatmulDescSetAttribute) matmul_desc_set_attribute;
    decltype(&cublasLtMatrixLayoutCreate) matrix_layout_create;
    decltype(&cublasLtMatrixLayoutDestroy) matrix_layout_destroy;
    decltype(&cublasLtMatmulPreferenceCreate) preference_create;
    decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
    decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set_attribute;
    decltype(&cublasLtMatmulAlgoGetHeuristic) algo_get_heuristic;
    decltype(&cublasLtMatmul) matmul;

  private:
    std::mutex mutex_;
    std::map<int, cublasLtHandle_t> handles_;  // by GPU
};

CublasLt::CublasLt() {
    void* library = open_cublaslt();
    find(library, "cublasLtCreate", create);
    find(library, "cublasLtGetVersion", get_version);
    find(library, "cublasLtGetStatusString", status_string);
    find(library, "cublasLtMatmulDescCreate", matmul_desc_create);
    find(library, "cublasLtMatmulDescDestroy", matmul_desc_destroy);
    find(library, "cublasLtMatmulDescSetAttribute", matmul_desc_set_attribute);
    find(library, "cublasLtMatrixLayoutCreate", matrix_layout_create);
    find(library, "cublasLtMatrixLayoutDestroy", matrix_layout_destroy);
    find(library, "cublasLtMatmulPreferenceCreate", preference_create);
    find(library, "cublasLtMatmulPreferenceDestroy", preference_destroy);
    find(library, "cublasLtMatmulPreferenceSetAttribute", preference_set_attribute);
    find(library, "cublasLtMatmulAlgoGetHeuristic", algo_get_heuristic);
    find(library, "cublasLtMatmul", matmul);
}

// 130100: 13.1.0
std::string CublasLt::version() const {
    const size_t v = get_version();
    return concat("cuBLASLt ", v / 10000, ".", v / 100 % 100, ".", v % 100);
}

cublasLtHandle_t CublasLt::handle() {
    int gpu = 0;
    check_cuda(cudaGetDevice(&gpu), "cudaGetDevice");
    std::lock_guard lock(mutex_);
    cublasLtHandle_t& handle = handles_[gpu];
    if (handle == nullptr) {
        const cublasStatus_t status = create(&handle);
        check(status == CUBLAS_STATUS_SUCCESS, "cublasLtCreate on GPU ", gpu, " failed: ", status_string(status));
    }
    return handle;
}

// As cuBLASLt's own caches, one for all ranks of the process.
CublasLt& library() {
    static CublasLt the_library;
    return the_library;
}

void check_status(cublasStatus_t status, const char* call) {
    check(status == CUBLAS_STATUS_SUCCESS, call, " failed: ", library().status_string(status));
}

// --- a product -------------------------------------------------------------------------------------------------------

cudaDataType_t type_of(DType dtype) {
    switch (dtype) {
        case DType::bf16: return CUDA_R_16BF;
        case DType::f16: return CUDA_R_16F;
        case DType::f32: return CUDA_R_32F;
        default: throw Error(concat("matrix products on a GPU take f32, bf16 or f16, got ", dtype));
    }
}

// Of a row-major matrix; the stride of a single row means nothing.
int64_t row_length(const View& x) { return x.shape[0] == 1 ? x.shape[1] : x.stride(0); }

// 16 bytes are what any of the library's kernels loads at once.
uint32_t alignment(const View& x) {
    const auto address = reinterpret_cast<uintptr_t>(x.data);
    return static_cast<uint32_t>(std::min<uintptr_t>(16, address & (~address + 1)));
}

// What the choice of an algorithm depends on.
struct Problem {
    int gpu = 0;
    int64_t M = 0, N = 0, K = 0;
    std::array<int64_t, 3> row_lengths{};
    std::array<uint32_t, 5> alignments{};  // of a, b, c, bias, x
    DType inputs = DType::f32, output = DType::f32;
    bool transpose_a = false, transpose_b = false, accumulate = false, bias = false, tf32 = false;
    bool gelu_backward = false;
    int64_t workspace_bytes = 0;
    auto operator<=>(const Problem&) const = default;
};

Problem problem_of(const Stream& stream, const Gemm& g, bool tf32) {
    Problem p{.M = g.c.shape[0],
              .N = g.c.shape[1],
              .K = g.transpose_a ? g.a.shape[0] : g.a.shape[1],
              .row_lengths = {row_length(g.a), row_length(g.b), row_length(g.c)},
              .alignments = {alignment(g.a), alignment(g.b), alignment(g.c), alignment(g.bias), alignment(g.x)},
              .inputs = g.a.dtype,
              .output = g.c.dtype,
              .transpose_a = g.transpose_a,
              .transpose_b = g.transpose_b,
              .accumulate = g.accumulate,
              .bias = g.bias.defined(),
              .tf32 = tf32,
              .gelu_backward = g.epilogue == Epilogue::gelu_backward,
              .workspace_bytes = stream.workspace_bytes};
    check_cuda(cudaGetDevice(&p.gpu), "cudaGetDevice");
    return p;
}

// A matrix as the library sees it: its rows are our columns.
class Layout {
  public:
    explicit Layout(const View& x) {
        check_status(library().matrix_layout_create(&layout_, type_of(x.dtype), static_cast<uint64_t>(x.shape[1]),
                                                    static_cast<uint64_t>(x.shape[0]), row_length(x)),
                     "cublasLtMatrixLayoutCreate");
    }
    ~Layout() { library().matrix_layout_destroy(layout_); }
    Layout(const Layout&) = delete;
    Layout& operator=(const Layout&) = delete;
    cublasLtMatrixLayout_t get() const { return layout_; }

  private:
    cublasLtMatrixLayout_t layout_ = nullptr;
};

// c^T = first second: the library's A is our b, its B our a.
class Product {
  public:
    Product(const Gemm& g, bool tf32) : first(g.b), second(g.a), result(g.c) {
        const cublasComputeType_t compute = tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
        check_status(library().matmul_desc_create(&operation_, compute, CUDA_R_32F), "cublasLtMatmulDescCreate");
        set(CUBLASLT_MATMUL_DESC_TRANSA, g.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
        set(CUBLASLT_MATMUL_DESC_TRANSB, g.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
        if (g.epilogue == Epilogue::gelu_backward) {
            set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DGELU);
            set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, static_cast<const void*>(g.x.data));
            set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, row_length(g.x));
            set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, type_of(g.x.dtype));
        }
        if (!g.bias.defined()) return;
        set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
        set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(g.bias.data));
        set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(g.bias.dtype));
    }
    ~Product() { library().matmul_desc_destroy(operation_); }
    Product(const Product&) = delete;
    Product& operator=(const Product&) = delete;
    cublasLtMatmulDesc_t operation() const { return operation_; }

    const Layout first, second, result;

  private:
    template <class T>
    void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
        check_status(library().matmul_desc_set_attribute(operation_, attribute, &value, sizeof value),
                     "cublasLtMatmulDescSetAttribute");
    }
    cublasLtMatmulDesc_t operation_ = nullptr;
};

class Preference {
  public:
    explicit Preference(const Problem& p) {
        check_status(library().preference_create(&preference_), "cublasLtMatmulPreferenceCreate");
        set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(p.workspace_bytes));
        // Parts of K are added in f32 in the workspace, in their order; adding them in place is a race.
        set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, p.alignments[1]);
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p.alignments[0]);
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p.alignments[2]);
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p.alignments[2]);
    }
    ~Preference() { library().preference_destroy(preference_); }
    Preference(const Preference&) = delete;
    Preference& operator=(const Preference&) = delete;
    cublasLtMatmulPreference_t get() const { return preference_; }

  private:
    template <class T>
    void set(cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
        check_status(library().preference_set_attribute(preference_, attribute, &value, sizeof value),
                     "cublasLtMatmulPreferenceSetAttribute");
    }
    cublasLtMatmulPreference_t preference_ = nullptr;
};

// --- its algorithm ---------------------------------------------------------------------------------------------------

// nullopt: the library has none.
using Algorithm = std::optional<cublasLtMatmulAlgo_t>;

Algorithm choose(const Problem& problem, const Product& product) {
    const Preference preference(problem);
    cublasLtMatmulHeuristicResult_t best{};
    int found = 0;
    const cublasStatus_t status =
        library().algo_get_heuristic(library().handle(), product.operation(), product.first.get(), product.second.get(),
                                     product.result.get(), product.result.get(), preference.get(), 1, &best, &found);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return std::nullopt;
    check_status(status, "cublasLtMatmulAlgoGetHeuristic");
    return found > 0 && best.state == CUBLAS_STATUS_SUCCESS ? Algorithm(best.algo) : std::nullopt;
}

// As the library's own caches, shared by the ranks of the process.
class Algorithms {
  public:
    Algorithm of(const Problem& problem, const Product& product) {
        const std::lock_guard lock(mutex_);
        const auto known = chosen_.find(problem);
        return known != chosen_.end() ? known->second
                                      : chosen_.emplace(problem, choose(problem, product)).first->second;
    }
    // The library refused to run what its heuristic had offered.
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

// Whether the library has made it.
template <bool kTf32>
bool multiply(const Stream& stream, const Gemm& g) {
    if (!takes(g)) return false;
    const bool tf32 = kTf32 && g.a.dtype == DType::f32;
    const Product product(g, tf32);
    const Problem problem = problem_of(stream, g, tf32);
    const Algorithm algorithm = algorithms().of(problem, product);
    if (!algorithm) return false;
    const float alpha = 1, beta = g.accumulate ? 1 : 0;
    const cublasStatus_t status =
        library().matmul(library().handle(), product.operation(), &alpha, g.b.data, product.first.get(), g.a.data,
                         product.second.get(), &beta, g.c.data, product.result.get(), g.c.data, product.result.get(),
                         &*algorithm, stream.workspace, static_cast<size_t>(stream.workspace_bytes), native(stream));
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) {
        algorithms().drop(problem);
        return false;
    }
    check(status == CUBLAS_STATUS_SUCCESS, "cublasLtMatmul (", g.c.shape[0], ", ", g.c.shape[1], ") over ",
          g.transpose_a ? g.a.shape[0] : g.a.shape[1], " of ", g.a.dtype, " failed: ", library().status_string(status));
    return true;
}

// Of the epilogues, the library makes GELU's gradient (which is GPT-2's, by tanh), for 16-bit values: in f32 its tanh
// is 5e-6 off. Its GELU would not have the bits of ours, with which recompute makes it again, and it has no SwiGLU.
bool is_fused(const Gemm& g) {
    return g.epilogue == Epilogue::gelu_backward && !g.bias.defined() && g.c.dtype != DType::f32;
}

template <bool kTf32>
void gemm_cublaslt(const Stream& stream, const Gemm& g) {
    if (is_fused(g) && multiply<kTf32>(stream, g)) return;
    const Gemm plain = without_epilogue(g);
    if (!multiply<kTf32>(stream, plain)) gemm_plain<kTf32>(stream, plain);
    apply_epilogue(cuda_table(), stream, g);
}

// Without a GPU, where rehearsals ask: what the library should make.
template <bool kTf32>
const char* engine_of(const Stream& stream, const Gemm& g) {
    const Gemm plain = is_fused(g) ? g : without_epilogue(g);
    if (!takes(plain)) return "own";
    if (int gpus = 0; cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
        cudaGetLastError();
        return "cuBLASLt";
    }
    const bool tf32 = kTf32 && plain.a.dtype == DType::f32;
    return algorithms().of(problem_of(stream, plain, tf32), Product(plain, tf32)) ? "cuBLASLt" : "own";
}

std::vector<std::string> slow_products() {
    std::vector<std::string> texts;
    for (const Problem& p : algorithms().without())
        texts.push_back(concat("(", p.M, ", ", p.N, ") over ", p.K, " of ", p.inputs, " to ", p.output, ", rows of ",
                               p.row_lengths[0], ", ", p.row_lengths[1], " and ", p.row_lengths[2], " values"));
    return texts;
}

}  // namespace

void fill_gemm(KernelTable& table, bool tf32) {
    const char* named = std::getenv("TUTTI_CUDA_GEMM");
    const std::string engine = named != nullptr ? named : "cublaslt";
    check<UsageError>(engine == "cublaslt" || engine == "plain", "TUTTI_CUDA_GEMM must be cublaslt or plain, got \"",
                      engine, "\"");
    if (engine == "plain") {
        fill_gemm_plain(table, tf32);
        return;
    }
    table.gemm = tf32 ? gemm_cublaslt<true> : gemm_cublaslt<false>;
    table.gemm_workspace = [](const Stream&, const Gemm&) -> int64_t { return 0; };  // it has the stream's
    table.gemm_engine = tf32 ? engine_of<true> : engine_of<false>;
    table.slow_products = slow_products;
    table.gemm_engines = [] {
        static const std::string kVersion = library().version();
        return kVersion.c_str();
    };
}

}  // namespace tutti::kernels::cuda
