#include "tutti/kernels/cuda/cublaslt.h"

#include "tutti/device/cuda/library.h"

namespace tutti::kernels::cuda::lt {

namespace {

constexpr const char *kFile = "libcublasLt.so.13", *kOlder = "libcublasLt.so.12";  // of CUDA 13 and of CUDA 12

template <class Function>
void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    tutti::check<UsageError>(function != nullptr, "cuBLASLt has no function ", name, ": ", dlerror());
}

}  // namespace

Library::Library() {
    void* file = tutti::cuda::open_library(
        {.what = "matrix products on a GPU need NVIDIA's cuBLASLt",
         .file = kFile,
         .variable = "TUTTI_CUBLASLT",
         .remedy = "It comes with the CUDA toolkit and with the Python package nvidia-cublas; name the "
                   "file in TUTTI_CUBLASLT. TUTTI_CUDA_GEMM=plain takes our own, slower kernel "
                   "instead",
         .other = kOlder});
    find(file, "cublasLtCreate", api_.create);
    find(file, "cublasLtGetVersion", api_.get_version);
    find(file, "cublasLtGetStatusString", api_.status_string);
    find(file, "cublasLtMatmulDescCreate", api_.operation_create);
    find(file, "cublasLtMatmulDescDestroy", api_.operation_destroy);
    find(file, "cublasLtMatmulDescSetAttribute", api_.operation_set);
    find(file, "cublasLtMatrixLayoutCreate", api_.layout_create);
    find(file, "cublasLtMatrixLayoutDestroy", api_.layout_destroy);
    find(file, "cublasLtMatmulPreferenceCreate", api_.preference_create);
    find(file, "cublasLtMatmulPreferenceDestroy", api_.preference_destroy);
    find(file, "cublasLtMatmulPreferenceSetAttribute", api_.preference_set);
    find(file, "cublasLtMatmulAlgoGetHeuristic", api_.get_heuristic);
    find(file, "cublasLtMatmul", api_.matmul);
}

// 130100 is version 13.1.0.
std::string Library::version() const {
    const size_t v = api_.get_version();
    return concat("cuBLASLt ", v / 10000, ".", v / 100 % 100, ".", v % 100);
}

Handle Library::handle() {
    int gpu = 0;
    check_cuda(cudaGetDevice(&gpu), "cudaGetDevice");
    std::lock_guard lock(mutex_);
    Handle& handle = handles_[gpu];
    if (handle == nullptr) check(api_.create(&handle), "cublasLtCreate");
    return handle;
}

void Library::check(Status status, const char* call) const {
    tutti::check(status == kSuccess, call, " failed: ", api_.status_string(status));
}

Library& library() {
    static Library the_library;
    return the_library;
}

}  // namespace tutti::kernels::cuda::lt
