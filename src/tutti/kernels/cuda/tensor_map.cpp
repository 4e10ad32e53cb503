#include "tutti/kernels/cuda/tensor_map.h"

namespace tutti::kernels::cuda {

namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode encode_function() {
    static const Encode function = [] {
        constexpr unsigned kSince = 12000;  // the version of CUDA whose signature is used
        void* found = nullptr;
        cudaDriverEntryPointQueryResult result{};
        check_cuda(
            cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, kSince, cudaEnableDefault, &result),
            "cudaGetDriverEntryPointByVersion of cuTensorMapEncodeTiled");
        check(
            result == cudaDriverEntryPointSuccess && found != nullptr,
            "attention on Hopper needs cuTensorMapEncodeTiled, which this driver lacks; update it to one of CUDA 12.0 "
            "or later, or set [train] attention = \"tensor\"");
        return reinterpret_cast<Encode>(found);
    }();
    return function;
}

// Bytes from one element of dim i to the next. With a single element any stride will do.
int64_t stride_of(const View& x, int i) {
    return x.shape[i] == 1 ? 16 : x.stride(i) * static_cast<int64_t>(sizeof(bf16));
}

}  // namespace

bool suits_tensor_map(const View& x) {
    if (x.dtype != DType::bf16 || x.numel() == 0 || x.stride(3) != 1 || reinterpret_cast<uintptr_t>(x.data) % 16 != 0)
        return false;
    for (int i = 0; i < 3; ++i) {
        const int64_t stride = stride_of(x, i);
        if (stride <= 0 || stride % 16 != 0 || stride >= int64_t{1} << 40) return false;
    }
    return true;
}

CUtensorMap tensor_map(const View& x, int rows) {
    const auto dim = [&](int i) { return static_cast<cuuint64_t>(x.shape[i]); };
    const auto stride = [&](int i) { return static_cast<cuuint64_t>(stride_of(x, i)); };
    const cuuint64_t dims[] = {dim(3), dim(1), dim(2), dim(0)}, strides[] = {stride(1), stride(2), stride(0)};
    const cuuint32_t box[] = {64, static_cast<cuuint32_t>(rows), 1, 1}, one[] = {1, 1, 1, 1};
    CUtensorMap map;
    const CUresult status = encode_function()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, x.data, dims, strides, box,
                                              one, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                              CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    check(status == CUDA_SUCCESS, "cuTensorMapEncodeTiled of (", x.shape[0], ", ", x.shape[1], ", ", x.shape[2], ", ",
          x.shape[3], ") with strides of ", strides[2], ", ", strides[0], " and ", strides[1], " bytes failed with ",
          static_cast<int>(status));
    return map;
}

}  // namespace tutti::kernels::cuda
