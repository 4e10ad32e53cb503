// kernels/cuda/cublaslt.h: declarations of cuBLASLt's functions and constants (cublasLt.h of cuBLAS 13), our own so
// that a build needs no file of cuBLAS and tests can substitute another library (tests/cuda/cublaslt); abi_test.cpp
// there compares them with cublasLt.h. Opened at run time: docs/decisions/0014-cublaslt.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "tutti/device/cuda/runtime.h"

namespace tutti::kernels::cuda::lt {

using Handle = struct HandleOpaque*;
using Operation = struct OperationOpaque*;    // cublasLtMatmulDesc_t
using Layout = struct LayoutOpaque*;          // cublasLtMatrixLayout_t
using Preference = struct PreferenceOpaque*;  // cublasLtMatmulPreference_t

enum Status : int { kSuccess = 0, kInvalidValue = 7, kNotSupported = 15 };
enum DataType : int { kF32 = 0, kF16 = 2, kBf16 = 14, kE4m3 = 28, kE5m2 = 29 };
enum Compute : int { kCompute32F = 68, kCompute32FFastTf32 = 77 };
enum Transpose : int { kN = 0, kT = 1 };
enum Epilogue : int { kEpilogueBias = 4, kEpilogueDGelu = 64 | 128 };
enum OperationAttribute : int {
    kTransposeA = 3,
    kTransposeB = 4,
    kEpilogue = 7,
    kBiasPointer = 8,
    kAuxPointer = 11,
    kAuxRowLength = 12,
    kSmCountTarget = 15,  // int32: the kernel is made for so many multiprocessors
    kFirstScale = 17,     // pointers to the factors of the first and of the second matrix
    kSecondScale = 18,
    kAuxType = 22,
    kBiasType = 26,
    kFirstScaleMode = 31,  // int32: ScaleMode
    kSecondScaleMode = 32,
};
// Of whole matrices, f32; of 32 values along the sum, e8m0; of 128 of them, and of 128 x 128, f32.
enum ScaleMode : int { kScalar = 0, kVec32E8m0 = 2, kVec128 = 4, kBlock128x128 = 5 };
enum PreferenceAttribute : int {
    kMaxWorkspace = 1,
    kReductionMask = 3,
    kAlignmentA = 5,
    kAlignmentB = 6,
    kAlignmentC = 7,
    kAlignmentD = 8,
};
inline constexpr uint32_t kReduceInComputeType = 2;

struct Algorithm {
    uint64_t data[8];  // may be stored and used again with the same version of the library (cublasLt.h)
};
struct Candidate {
    Algorithm algorithm;
    size_t workspace_bytes;
    Status state;
    float waves;
    int reserved[4];
};

struct Api {
    Status (*create)(Handle*);
    size_t (*get_version)();
    const char* (*status_string)(Status);
    Status (*operation_create)(Operation*, Compute, DataType scale);
    Status (*operation_destroy)(Operation);
    Status (*operation_set)(Operation, OperationAttribute, const void* value, size_t bytes);
    Status (*layout_create)(Layout*, DataType, uint64_t rows, uint64_t columns, int64_t column_length);
    Status (*layout_destroy)(Layout);
    Status (*preference_create)(Preference*);
    Status (*preference_destroy)(Preference);
    Status (*preference_set)(Preference, PreferenceAttribute, const void* value, size_t bytes);
    Status (*get_heuristic)(Handle, Operation, Layout a, Layout b, Layout c, Layout d, Preference, int wanted,
                            Candidate* candidates, int* found);
    Status (*matmul)(Handle, Operation, const void* alpha, const void* a, Layout, const void* b, Layout,
                     const void* beta, const void* c, Layout, void* d, Layout, const Algorithm*, void* workspace,
                     size_t workspace_bytes, cudaStream_t);
};

class Library {
  public:
    // The file that TUTTI_CUBLASLT names, else libcublasLt.so.13, then .12, where the loader looks, in $CUDA_HOME/lib64
    // and in /usr/local/cuda/lib64. UsageError, with the tried files, when there is none.
    Library();
    Library(const Library&) = delete;
    Library& operator=(const Library&) = delete;

    const Api& operator()() const { return api_; }
    std::string version() const;  // "cuBLASLt 13.1.0"
    // The handle of the current GPU, created at the first call.
    Handle handle();
    void check(Status status, const char* call) const;

  private:
    Api api_{};
    std::mutex mutex_;
    std::map<int, Handle> handles_;  // by GPU
};

// One for all ranks of the process, like cuBLASLt's caches. Never closed: its kernels may run until the process ends.
Library& library();

}  // namespace tutti::kernels::cuda::lt
