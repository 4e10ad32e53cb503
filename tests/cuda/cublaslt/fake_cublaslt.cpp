// tests/cuda/cublaslt/fake_cublaslt.cpp: a libcublasLt for the emulated GPU, opened through TUTTI_CUBLASLT as the real
// one is. It has kAlgorithms algorithms, which differ in the order of their sums, so that the bits of a result identify
// the algorithm, and in their time by the emulated clock. Like the real library it is column-major and refuses bf16
// with columns of odd length and dimensions that do not fit. Products of more than kMost multiplications sleep for
// kMostTime and compute nothing: benchmarks time them, try larger ones where they are fast, and read no result. The
// functions fake_cublaslt_* are for tests.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/cuda/emulation/api.h"
#include "tests/cuda/emulation/memory.h"
#include "tutti/base/float8.h"
#include "tutti/kernels/cuda/cublaslt.h"

namespace tutti::kernels::cuda::lt {

struct HandleOpaque {};
struct OperationOpaque {
    Compute compute;
    std::map<int, int64_t> integers;  // by attribute; pointers too
};
struct LayoutOpaque {
    DataType type;
    int64_t rows, columns, length;
};
struct PreferenceOpaque {
    std::map<int, int64_t> integers;
};

}  // namespace tutti::kernels::cuda::lt

using namespace tutti::kernels::cuda::lt;
using tutti::bf16, tutti::f16;

namespace {

constexpr int kAlgorithms = 4;
constexpr int64_t kMost = 1 << 26;
constexpr std::chrono::milliseconds kMostTime(6);
// Times of a product with all multiprocessors, and of one that leaves some free.
constexpr double kSeconds[kAlgorithms] = {0.4, 0.3, 0.1, 0.2}, kSecondsOfFewer[kAlgorithms] = {0.4, 0.1, 0.3, 0.2};
constexpr uint64_t kMagic = 0x6c746c74;

size_t version = 130100;
int refused = -1;  // an algorithm that is offered and does not run
std::mutex mutex;
int64_t asked = 0;                   // times that the heuristic was
std::map<uint64_t, int64_t> runs;    // of each algorithm
std::map<int64_t, int64_t> targets;  // of each number of multiprocessors that was asked for

int64_t integer_at(const void* value, size_t bytes) {
    int64_t result = 0;
    std::memcpy(&result, value, bytes);
    return result;
}

float read(const void* data, DataType type, int64_t i) {
    switch (type) {
        case kBf16: return static_cast<float>(static_cast<const bf16*>(data)[i]);
        case kF16: return static_cast<float>(static_cast<const f16*>(data)[i]);
        case kF32: return static_cast<const float*>(data)[i];
        case kE4m3: return tutti::float8_value(static_cast<const uint8_t*>(data)[i], tutti::kE4m3);
        case kE5m2: return tutti::float8_value(static_cast<const uint8_t*>(data)[i], tutti::kE5m2);
    }
    return NAN;
}

void write(void* data, DataType type, int64_t i, float value) {
    switch (type) {
        case kBf16: static_cast<bf16*>(data)[i] = bf16(value); break;
        case kF16: static_cast<f16*>(data)[i] = f16(value); break;
        case kF32: static_cast<float*>(data)[i] = value; break;
        case kE4m3:
        case kE5m2: break;  // no result has codes
    }
}

float gelu_gradient(double x) {
    const double c = std::sqrt(2 / M_PI), t = std::tanh(c * (x + 0.044715 * x * x * x));
    return static_cast<float>(0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x));
}

struct Product {
    OperationOpaque operation;
    LayoutOpaque a, b, d;
    const void *first, *second;
    void* result;
    float beta;
    uint64_t algorithm;

    int64_t of(OperationAttribute attribute) const {
        const auto found = operation.integers.find(attribute);
        return found == operation.integers.end() ? 0 : found->second;
    }
    bool has_codes() const { return a.type == kE4m3 || a.type == kE5m2; }
    // Two matrices of codes need not have one format, but not both E5M2.
    bool types_fit() const {
        return has_codes() ? (b.type == kE4m3 || (b.type == kE5m2 && a.type == kE4m3)) : a.type == b.type;
    }
    // The factor of element k of row `outer` of a matrix of codes (outers, K), as cuBLAS documents the places of
    // factors in each mode.
    float factor(OperationAttribute of_matrix, OperationAttribute mode, int64_t outer, int64_t k, int64_t outers,
                 int64_t K) const {
        if (!has_codes()) return 1;
        const auto* f32 = reinterpret_cast<const float*>(of(of_matrix));
        const int64_t blocks = (K + 127) / 128, groups = (K + 31) / 32, group = k / 32;
        switch (of(mode)) {
            case kScalar: return *f32;
            case kVec128: return f32[outer + outers * (k / 128)];
            case kBlock128x128: return f32[k / 128 + (blocks + 3) / 4 * 4 * (outer / 128)];
            case kVec32E8m0: {
                const int64_t tile = outer / 128 * ((groups + 3) / 4) + group / 4, row = outer % 128;
                return std::ldexp(1.0f, reinterpret_cast<const uint8_t*>(
                                            of(of_matrix))[512 * tile + row % 32 * 16 + row / 32 * 4 + group % 4] -
                                            127);
            }
        }
        return NAN;
    }
    bool fits() const {
        const bool ta = of(kTransposeA) == kT, tb = of(kTransposeB) == kT;
        return (ta ? a.columns : a.rows) == d.rows && (tb ? b.rows : b.columns) == d.columns &&
               (ta ? a.rows : a.columns) == (tb ? b.columns : b.rows) && types_fit();
    }
    void run() const {
        const tutti::emulation::DeviceAccess access;
        const bool ta = of(kTransposeA) == kT, tb = of(kTransposeB) == kT;
        const int64_t K = ta ? a.rows : a.columns;
        if (d.rows * d.columns * K > kMost) {
            std::this_thread::sleep_for(kMostTime);
            return;
        }
        std::vector<float> x(static_cast<size_t>(d.rows * K)),
            y(static_cast<size_t>(d.columns * K));  // (K, outers) each
        for (int64_t k = 0; k < K; ++k) {
            for (int64_t i = 0; i < d.rows; ++i)
                x[static_cast<size_t>(k * d.rows + i)] = read(first, a.type, ta ? k + i * a.length : i + k * a.length) *
                                                         factor(kFirstScale, kFirstScaleMode, i, k, d.rows, K);
            for (int64_t j = 0; j < d.columns; ++j)
                y[static_cast<size_t>(k * d.columns + j)] =
                    read(second, b.type, tb ? j + k * b.length : k + j * b.length) *
                    factor(kSecondScale, kSecondScaleMode, j, k, d.columns, K);
        }
        const int64_t epilogue = of(kEpilogue);
        const int64_t begin =
            static_cast<int64_t>(algorithm) * K / kAlgorithms;  // each algorithm starts at another place
        std::vector<float> sums(static_cast<size_t>(d.rows));   // of a column, side by side, each in the order of k
        for (int64_t j = 0; j < d.columns; ++j) {
            std::fill(sums.begin(), sums.end(), 0.0f);
            for (int64_t n = 0; n < K; ++n) {
                const int64_t k = begin + n < K ? begin + n : begin + n - K;
                const float* const row = x.data() + k * d.rows;
                const float right = y[static_cast<size_t>(k * d.columns + j)];
                for (int64_t i = 0; i < d.rows; ++i) sums[static_cast<size_t>(i)] += row[i] * right;
            }
            for (int64_t i = 0; i < d.rows; ++i) {
                float sum = sums[static_cast<size_t>(i)];
                const int64_t at = i + j * d.length;
                if (epilogue == kEpilogueBias)
                    sum +=
                        read(reinterpret_cast<const void*>(of(kBiasPointer)), static_cast<DataType>(of(kBiasType)), i);
                if (epilogue == kEpilogueDGelu)
                    sum *= gelu_gradient(read(reinterpret_cast<const void*>(of(kAuxPointer)),
                                              static_cast<DataType>(of(kAuxType)), i + j * of(kAuxRowLength)));
                if (beta != 0) sum += beta * read(result, d.type, at);
                write(result, d.type, at, sum);
            }
        }
    }
};

}  // namespace

extern "C" {

Status cublasLtCreate(Handle* handle) {
    *handle = new HandleOpaque;
    return kSuccess;
}
size_t cublasLtGetVersion() { return version; }
const char* cublasLtGetStatusString(Status status) {
    return status == kNotSupported ? "CUBLAS_STATUS_NOT_SUPPORTED" : "CUBLAS_STATUS_OTHER";
}
Status cublasLtMatmulDescCreate(Operation* operation, Compute compute, DataType) {
    *operation = new OperationOpaque{compute, {}};
    return kSuccess;
}
Status cublasLtMatmulDescDestroy(Operation operation) {
    delete operation;
    return kSuccess;
}
Status cublasLtMatmulDescSetAttribute(Operation operation, OperationAttribute attribute, const void* value,
                                      size_t bytes) {
    if (attribute == kSmCountTarget && bytes != 4) return kInvalidValue;
    operation->integers[attribute] = integer_at(value, bytes);
    return kSuccess;
}
Status cublasLtMatrixLayoutCreate(Layout* layout, DataType type, uint64_t rows, uint64_t columns, int64_t length) {
    *layout = new LayoutOpaque{type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), length};
    return kSuccess;
}
Status cublasLtMatrixLayoutDestroy(Layout layout) {
    delete layout;
    return kSuccess;
}
Status cublasLtMatmulPreferenceCreate(Preference* preference) {
    *preference = new PreferenceOpaque;
    return kSuccess;
}
Status cublasLtMatmulPreferenceDestroy(Preference preference) {
    delete preference;
    return kSuccess;
}
Status cublasLtMatmulPreferenceSetAttribute(Preference preference, PreferenceAttribute attribute, const void* value,
                                            size_t bytes) {
    preference->integers[attribute] = integer_at(value, bytes);
    return kSuccess;
}
Status cublasLtMatmulAlgoGetHeuristic(Handle, Operation operation, Layout a, Layout b, Layout c, Layout d,
                                      Preference preference, int wanted, Candidate* candidates, int* found) {
    *found = 0;
    {
        const std::lock_guard lock(mutex);
        ++asked;
    }
    // An algorithm that adds in place would be a race, and one without bounds on its loads a wrong address.
    if (preference->integers[kReductionMask] != kReduceInComputeType || preference->integers[kAlignmentA] == 0)
        return kInvalidValue;
    if (c->length != d->length) return kInvalidValue;
    // fp8 units take the summed dim innermost, and multiples of 16.
    if (a->type == kE4m3 || a->type == kE5m2) {
        const bool both_e5m2 = a->type == kE5m2 && b->type == kE5m2;
        const bool tn = operation->integers[kTransposeA] == kT && operation->integers[kTransposeB] == kN;
        const auto mode = [&](OperationAttribute of) { return operation->integers[of]; };
        if (mode(kFirstScaleMode) == kBlock128x128 && mode(kSecondScaleMode) == kBlock128x128) return kNotSupported;
        if (both_e5m2 || !tn || a->rows % 16 != 0 || a->columns % 16 != 0 || b->columns % 16 != 0) return kNotSupported;
    }
    for (Layout x : {a, b, d})
        if (x->type == kBf16 && x->length % 2 != 0) return kNotSupported;
    for (; *found < std::min(wanted, kAlgorithms); ++*found) {
        Candidate& candidate = candidates[*found];
        candidate = {};
        candidate.algorithm.data[0] = kMagic;
        candidate.algorithm.data[7] = static_cast<uint64_t>(*found);
    }
    return kSuccess;
}
Status cublasLtMatmul(Handle, Operation operation, const void* alpha, const void* a, Layout layout_a, const void* b,
                      Layout layout_b, const void* beta, const void* c, Layout, void* d, Layout layout_d,
                      const Algorithm* algorithm, void*, size_t, cudaStream_t stream) {
    const uint64_t number = algorithm->data[7];
    const Product product{*operation, *layout_a, *layout_b, *layout_d, a, b, d, *static_cast<const float*>(beta),
                          number};
    if (algorithm->data[0] != kMagic || number >= kAlgorithms || *static_cast<const float*>(alpha) != 1 || c != d ||
        !product.fits())
        return kInvalidValue;
    if (static_cast<int>(number) == refused) return kNotSupported;
    const int64_t target = product.of(kSmCountTarget);
    {
        const std::lock_guard lock(mutex);
        ++runs[number];
        ++targets[target];
    }
    tutti::emulation::enqueue(stream, [product, number, target] {
        product.run();
        tutti::emulation::pass_time(target == 0 ? kSeconds[number] : kSecondsOfFewer[number]);
    });
    return kSuccess;
}

void fake_cublaslt_version(size_t is) { version = is; }
void fake_cublaslt_refuse(int algorithm) { refused = algorithm; }
int64_t fake_cublaslt_asked() {
    const std::lock_guard lock(mutex);
    return asked;
}
int64_t fake_cublaslt_runs(uint64_t algorithm) {
    const std::lock_guard lock(mutex);
    return runs[algorithm];
}
int64_t fake_cublaslt_runs_with(int64_t multiprocessors) {
    const std::lock_guard lock(mutex);
    return targets[multiprocessors];
}
void fake_cublaslt_forget() {
    const std::lock_guard lock(mutex);
    runs.clear();
    targets.clear();
}
}
