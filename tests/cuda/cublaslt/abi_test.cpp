// kernels/cuda/cublaslt.h against cuBLASLt's own header, where there is one: numbers, sizes and places. Compiled only.
#include <cublasLt.h>

#include <cstddef>

#include "tutti/kernels/cuda/cublaslt.h"

namespace tutti::kernels::cuda::lt {

static_assert(int{kSuccess} == CUBLAS_STATUS_SUCCESS && int{kInvalidValue} == CUBLAS_STATUS_INVALID_VALUE);
static_assert(int{kNotSupported} == CUBLAS_STATUS_NOT_SUPPORTED);
static_assert(int{kF32} == CUDA_R_32F && int{kF16} == CUDA_R_16F && int{kBf16} == CUDA_R_16BF);
static_assert(int{kE4m3} == CUDA_R_8F_E4M3 && int{kE5m2} == CUDA_R_8F_E5M2);
static_assert(int{kFirstScale} == CUBLASLT_MATMUL_DESC_A_SCALE_POINTER &&
              int{kSecondScale} == CUBLASLT_MATMUL_DESC_B_SCALE_POINTER);
static_assert(int{kFirstScaleMode} == CUBLASLT_MATMUL_DESC_A_SCALE_MODE &&
              int{kSecondScaleMode} == CUBLASLT_MATMUL_DESC_B_SCALE_MODE &&
              int{kScalar} == CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F &&
              int{kVec32E8m0} == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0 &&
              int{kVec128} == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F &&
              int{kBlock128x128} == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F);
static_assert(int{kCompute32F} == CUBLAS_COMPUTE_32F && int{kCompute32FFastTf32} == CUBLAS_COMPUTE_32F_FAST_TF32);
static_assert(int{kN} == CUBLAS_OP_N && int{kT} == CUBLAS_OP_T);
static_assert(int{kEpilogueBias} == CUBLASLT_EPILOGUE_BIAS && int{kEpilogueDGelu} == CUBLASLT_EPILOGUE_DGELU);
static_assert(int{kTransposeA} == CUBLASLT_MATMUL_DESC_TRANSA && int{kTransposeB} == CUBLASLT_MATMUL_DESC_TRANSB);
static_assert(int{kEpilogue} == CUBLASLT_MATMUL_DESC_EPILOGUE &&
              int{kBiasPointer} == CUBLASLT_MATMUL_DESC_BIAS_POINTER);
static_assert(int{kAuxPointer} == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER);
static_assert(int{kAuxRowLength} == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD);
static_assert(int{kAuxType} == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE);
static_assert(int{kBiasType} == CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE);
static_assert(int{kSmCountTarget} == CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET);
static_assert(int{kMaxWorkspace} == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
static_assert(int{kReductionMask} == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
static_assert(int{kReduceInComputeType} == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
static_assert(int{kAlignmentA} == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
static_assert(int{kAlignmentB} == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
static_assert(int{kAlignmentC} == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
static_assert(int{kAlignmentD} == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t));
static_assert(sizeof(Candidate) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(Candidate, workspace_bytes) == offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
static_assert(offsetof(Candidate, state) == offsetof(cublasLtMatmulHeuristicResult_t, state));
static_assert(offsetof(Candidate, waves) == offsetof(cublasLtMatmulHeuristicResult_t, wavesCount));
static_assert(sizeof(cublasStatus_t) == sizeof(Status) && sizeof(cudaDataType) == sizeof(DataType));
static_assert(sizeof(cublasComputeType_t) == sizeof(Compute));

}  // namespace tutti::kernels::cuda::lt
