#!/usr/bin/env bash
# Asks cuDNN, without a GPU, what it plans for attention on an H100: bench/cudnn_plans.cpp. The kernels that it compiles
# are not run.
#
#   pip install --no-deps --target PACKAGES nvidia-cudnn-cu13 nvidia-cudnn-frontend nvidia-cuda-nvrtc
#   bench/cudnn_plans.sh PACKAGES [CUDNN]      CUDNN: a directory with another libcudnn.so.9 [that of PACKAGES]
#
# Exit code 0: cuDNN takes every graph, within the bound of workspace that a plan counts; 1: not; 2: it could not be asked.
# CUDA_HOME [/usr/local/cuda]: CUDA 13 with its stub of the driver. 20 s to compile, 1 s a graph.
set -eu
[ $# = 1 ] || [ $# = 2 ] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2; exit 2; }
root=$(cd "$(dirname "$0")/.." && pwd)
packages=$(cd "$1" && pwd) cudnn=${2:-$1/nvidia/cudnn/lib} cuda=${CUDA_HOME:-/usr/local/cuda}
stub=$(find -L "$cuda" -path '*/stubs/libcuda.so' | head -1)
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT

# A driver that fails as the stub of CUDA's toolkit does, but loads what cuDNN has compiled; and a runtime with an H100.
{
  nm -D --defined-only "$stub" | awk '$2 == "T" {print $3}' |
    grep -vxE 'cu(LibraryLoadData|LibraryGetKernel|KernelGetFunction|KernelSetAttribute|FuncSetAttribute|LibraryUnload)' |
    sed 's/.*/int &(void) { return 34; }/'
  echo 'static char made[64];'
  for makes in cuLibraryLoadData cuLibraryGetKernel cuKernelGetFunction; do
    echo "int $makes(void** x) { *x = made; return 0; }"
  done
  for does in cuKernelSetAttribute cuFuncSetAttribute cuLibraryUnload; do echo "int $does(void) { return 0; }"; done
} >"$work/driver.c"
cat >"$work/runtime.cpp" <<'CPP'
#include <cuda_runtime_api.h>
#undef cudaGetDeviceProperties
extern "C" {
cudaError_t cudaGetDevice(int* gpu) { return *gpu = 0, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "no GPU"; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
    switch (which) {
        case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
        case cudaDevAttrMultiProcessorCount: *value = 132; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 232448; break;
        default: *value = 0;
    }
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
    *p = {};
    p->major = 9, p->multiProcessorCount = 132, p->sharedMemPerBlockOptin = 232448, p->l2CacheSize = 52428800;
    return cudaSuccess;
}
}
CPP
cc -w -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$work/libcuda.so.1" "$work/driver.c" || exit 2
c++ -w -shared -fPIC -I"$cuda/include" -o "$work/libcudart.so" "$work/runtime.cpp" || exit 2
c++ -std=c++20 -w -DNV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING -DCUDNN_FRONTEND_SKIP_JSON_LIB -isystem "$packages/include" \
  -isystem "$packages/nvidia/cudnn/include" -isystem "$cuda/include" -I"$root/src" -o "$work/plans" "$root/bench/cudnn_plans.cpp" \
  -L"$cuda/lib64" -lcudart_static -ldl -lrt -lpthread || exit 2
LD_LIBRARY_PATH=$cudnn:$packages/nvidia/cu13/lib:$work TUTTI_CUDNN=$cudnn/libcudnn.so.9 \
  CUDNN_FRONTEND_CUDART_LIB_NAME=$work/libcudart.so "$work/plans"
