// kernels/cuda/attention.cu: which kernels compute attention, and what the backward needs first. Below: attention.h.
#include <string>

#include "tutti/kernels/cuda/attention.h"
#include "tutti/kernels/cuda/attention_cudnn.h"
#include "tutti/kernels/cuda/fill.h"
#include "tutti/kernels/cuda/team.h"

namespace tutti::kernels::cuda {

namespace {

// Whether every row of each view can be copied in words of 16 bytes: what cp.async and ldmatrix need.
template <class... Views>
bool suits_tensor_cores(const Views&... views) {
    return ((views.dtype == DType::bf16 && views.shape[3] % kPack<bf16> == 0 && Heads<bf16>(views).aligned()) && ...);
}

// D_i = dO_i.O_i, a warp per row (b, h, i).
template <class T>
__global__ void __launch_bounds__(Team<1>::kBlockThreads)
    delta_kernel(AttentionShape s, Heads<const T> dy, Heads<const T> o, float* delta) {
    const int64_t row = Team<1>::row();
    if (row >= static_cast<int64_t>(s.B) * s.H * s.Tq) return;
    const int i = static_cast<int>(row % s.Tq), h = static_cast<int>(row / s.Tq % s.H);
    const int b = static_cast<int>(row / s.Tq / s.H);
    const T *left = dy.at(b, i, h), *right = o.at(b, i, h);
    float sum = 0;
    for (int d = Team<1>::rank(); d < s.D; d += kWarp) sum += load_one(left + d) * load_one(right + d);
    sum = warp_sum(sum);
    if (Team<1>::rank() == 0) delta[row] = sum;
}

// The backward keeps D_i of each query row.
int64_t attention_workspace(const Stream&, const Shape& q, const Shape&, bool backward) {
    return backward ? q[0] * q[1] * q[2] : 0;
}

void attention_forward(const Stream& stream, const AttentionForward& a) {
    if (a.q.numel() == 0) return;
    if (suits_tensor_cores(a.q, a.k, a.v, a.o))
        attention_forward_tensor(stream, a);
    else
        attention_forward_plain(stream, a);
}

void attention_backward(const Stream& stream, const AttentionBackward& a) {
    const AttentionShape s(a);
    if (a.q.numel() > 0)
        with_activation(a.q.dtype, [&](auto type) {
            using T = decltype(type);
            launch(delta_kernel<T>, grid_of_rows<Team<1>>(int64_t{s.B} * s.H * s.Tq), stream, s, Heads<const T>(a.dy),
                   Heads<const T>(a.o), a.workspace.as<float>());
        });
    if (suits_tensor_cores(a.q, a.k, a.v, a.dy, a.dq, a.dk, a.dv))
        attention_backward_tensor(stream, a);
    else
        attention_backward_plain(stream, a);
}

}  // namespace

void fill_attention(KernelTable& table, const char* kernel) {
    const std::string name = kernel == nullptr ? "" : kernel;
    if (name == "cudnn") return use_cudnn_attention(table);
    check<UsageError>(kernel == nullptr, "TUTTI_CUDA_ATTENTION must be cudnn, got \"", name, "\"");
    table.attention_workspace = attention_workspace;
    table.attention_forward = attention_forward;
    table.attention_backward = attention_backward;
}

}  // namespace tutti::kernels::cuda
