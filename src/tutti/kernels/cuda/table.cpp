// kernels/cuda/table.cpp: fills the table for NVIDIA GPUs.
#include "tutti/kernels/cuda/cuda_table.h"
#include "tutti/kernels/cuda/fill.h"
#include "tutti/kernels/cuda/sizes.h"

namespace tutti::kernels {

const KernelTable& cuda_table() {
    static const KernelTable table = [] {
        KernelTable t;
        t.name = "cuda";
        cuda::fill_elementwise(t);
        cuda::fill_random(t);
        cuda::fill_float8(t);
        cuda::fill_reduction(t);
        cuda::fill_embedding(t);
        cuda::fill_norm(t);
        cuda::fill_short_convolution(t);
        cuda::fill_delta_rule(t);
        cuda::fill_optimizer(t);
        cuda::fill_cross_entropy(t);
        cuda::fill_sampling(t);
        cuda::fill_routing(t);
        cuda::fill_expert_rows(t);
        cuda::fill_choices(t);
        cuda::fill_attention(t);
        cuda::fill_gemm(t);
        cuda::fill_grouped_gemm(t);
        t.slow_work = cuda::slow_products;
        cuda::fill_abilities(t);
        return t;
    }();
    return table;
}

const KernelTable& cuda_tf32_table() {
    static const KernelTable table = [] {
        KernelTable t = cuda_table();
        cuda::fill_gemm(t, true);
        cuda::fill_grouped_gemm(t, true);
        return t;
    }();
    return table;
}

}  // namespace tutti::kernels
