// kernels/cuda/attention_cudnn.cpp: attention as a graph of one cuDNN operation, through NVIDIA's cudnn-frontend. The
// library is opened at run time. A graph is built once per shape, strides and mask of a stream, which takes a tenth of
// a second or more, and cached. No other file includes cudnn_frontend.h, which takes 44 s to compile.
#include "tutti/kernels/cuda/attention_cudnn.h"

#include <cudnn_frontend.h>

#include <array>
#include <compare>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "tutti/device/cuda/library.h"
#include "tutti/device/cuda/runtime.h"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // where the front end looks for cuDNN's functions
}

namespace tutti::kernels::cuda {

namespace {

namespace fe = cudnn_frontend;

using Graph = fe::graph::Graph;
using TensorAttributes = fe::graph::Tensor_attributes;
using Lengths = std::array<int64_t, 4>;  // in cuDNN's order: B, H, T, D

// Numbers of the tensors in a graph.
enum Uid : int64_t { kQ = 1, kK, kV, kO, kStats, kDy, kDq, kDk, kDv };

struct Place {
    Lengths sizes{}, strides{};
    auto operator<=>(const Place&) const = default;
};

Place place_of(const View& x) {  // (B, T, H, D)
    return {{x.shape[0], x.shape[2], x.shape[1], x.shape[3]}, {x.stride(0), x.stride(2), x.stride(1), 1}};
}

Place contiguous(const Shape& shape) { return place_of(View(nullptr, DType::bf16, shape)); }

// All that a graph depends on.
struct Problem {
    int gpu = 0;
    void* stream = nullptr;
    Place q, k, v, o, dy, dq, dk, dv;  // the last four of the backward
    Lengths lse_strides{};
    float scale = 1;
    bool backward = false, causal = true, bottom_right = false;
    int64_t window = 0;
    auto operator<=>(const Problem&) const = default;
};

void check_status(fe::error_t status, const char* call, const Problem& p) {
    check<UsageError>(status.is_good(), "cuDNN attention, ", p.backward ? "backward" : "forward",
                      " of q (B, H, Tq, D) (", p.q.sizes[0], ", ", p.q.sizes[1], ", ", p.q.sizes[2], ", ", p.q.sizes[3],
                      ") and ", p.k.sizes[1], " heads of ", p.k.sizes[2], " keys: ", call,
                      " failed: ", status.get_message(),
                      "; without TUTTI_CUDA_ATTENTION=cudnn our own kernels compute it");
}

template <class Attributes>
void set_mask(Attributes& options, const Problem& p) {
    options.set_attn_scale(p.scale);
    options.set_diagonal_alignment(p.bottom_right ? fe::DiagonalAlignment_t::BOTTOM_RIGHT
                                                  : fe::DiagonalAlignment_t::TOP_LEFT);
    if (p.causal) options.set_diagonal_band_right_bound(0);
    if (p.window > 0) options.set_diagonal_band_left_bound(static_cast<int>(p.window));
}

std::vector<int64_t> list(const Lengths& lengths) { return {lengths.begin(), lengths.end()}; }

TensorAttributes attributes(Uid uid, const Place& place) {
    return TensorAttributes().set_uid(uid).set_dim(list(place.sizes)).set_stride(list(place.strides));
}

TensorAttributes stats_attributes(const Problem& p) {
    return attributes(kStats, {{p.q.sizes[0], p.q.sizes[1], p.q.sizes[2], 1}, p.lse_strides})
        .set_data_type(fe::DataType_t::FLOAT);
}

void set_output(const std::shared_ptr<TensorAttributes>& tensor, Uid uid, const Place& place) {
    tensor->set_output(true).set_uid(uid).set_dim(list(place.sizes)).set_stride(list(place.strides));
}

std::shared_ptr<Graph> build(cudnnHandle_t handle, const Problem& p) {
    auto graph = std::make_shared<Graph>();
    graph->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    const auto q = graph->tensor(attributes(kQ, p.q)), k = graph->tensor(attributes(kK, p.k));
    const auto v = graph->tensor(attributes(kV, p.v));
    if (p.backward) {
        auto options = fe::graph::SDPA_backward_attributes().set_name("attention backward");
        options.set_deterministic_algorithm(true);
        set_mask(options, p);
        const auto [dq, dk, dv] =
            graph->sdpa_backward(q, k, v, graph->tensor(attributes(kO, p.o)), graph->tensor(attributes(kDy, p.dy)),
                                 graph->tensor(stats_attributes(p)), options);
        set_output(dq, kDq, p.dq);
        set_output(dk, kDk, p.dk);
        set_output(dv, kDv, p.dv);
    } else {
        auto options = fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(true);
        set_mask(options, p);
        const auto [o, stats] = graph->sdpa(q, k, v, options);
        set_output(o, kO, p.o);
        stats->set_data_type(fe::DataType_t::FLOAT);
        set_output(stats, kStats, {{p.q.sizes[0], p.q.sizes[1], p.q.sizes[2], 1}, p.lse_strides});
    }
    check_status(graph->build(handle, {fe::HeurMode_t::A}), "building the graph", p);
    return graph;
}

// --- cached graphs ---------------------------------------------------------------------------------------------------

struct Built {
    cudnnHandle_t handle = nullptr;
    std::shared_ptr<Graph> graph;
    int64_t workspace_bytes = 0;
};

// One handle and its graphs for each stream of each GPU: a stream belongs to one rank.
Built graph_for(Problem p) {
    static std::mutex mutex;
    static std::map<std::pair<int, void*>, cudnnHandle_t> handles;
    static std::map<Problem, Built> graphs;
    check_cuda(cudaGetDevice(&p.gpu), "cudaGetDevice");
    std::lock_guard lock(mutex);
    Built& built = graphs[p];
    if (built.graph) return built;
    cudnnHandle_t& handle = handles[{p.gpu, p.stream}];
    if (handle == nullptr) {
        const cudnnStatus_t created = fe::detail::create_handle(&handle);
        check(created == CUDNN_STATUS_SUCCESS, "cudnnCreate failed: ", fe::detail::get_error_string(created));
        const cudnnStatus_t set = fe::detail::set_stream(handle, static_cast<cudaStream_t>(p.stream));
        check(set == CUDNN_STATUS_SUCCESS, "cudnnSetStream failed: ", fe::detail::get_error_string(set));
    }
    const std::shared_ptr<Graph> graph = build(handle, p);
    int64_t bytes = 0;
    check_status(graph->get_workspace_size(bytes), "asking for its workspace", p);
    return built = {handle, graph, bytes};
}

// --- the entries of the table ----------------------------------------------------------------------------------------

template <class Attention>
Problem problem_of(const Stream& stream, const Attention& a) {
    const int64_t to_the_last = a.k.shape[1] - a.q.shape[1];
    const bool masked = a.mask.causal || a.mask.window > 0;
    check<UsageError>(a.q.dtype == DType::bf16, "cuDNN attention takes bf16, got ", a.q.dtype,
                      "; without TUTTI_CUDA_ATTENTION=cudnn our own kernels take it");
    check<UsageError>(a.o.dtype == DType::bf16 && a.mask.key_offset == 0,
                      "cuDNN attention gives no f32 parts and knows no key_offset, which parts of ring attention need; "
                      "without TUTTI_CUDA_ATTENTION=cudnn our own kernels compute them");
    check<UsageError>(a.cap == 0,
                      "cuDNN attention has no cap of scores, which [model] score_cap asks for; unset "
                      "TUTTI_CUDA_ATTENTION");
    check<UsageError>(!a.mask.first_key.defined(),
                      "cuDNN attention cannot keep packed documents apart: set data.documents = \"packed\", or unset "
                      "TUTTI_CUDA_ATTENTION");
    check<UsageError>(!masked || a.mask.query_offset == 0 || (a.mask.query_offset == to_the_last && to_the_last > 0),
                      "cuDNN attention places the first query at the first key or the last query at the last one: "
                      "query_offset 0 or ",
                      to_the_last, " for ", a.q.shape[1], " queries and ", a.k.shape[1], " keys, got ",
                      a.mask.query_offset);
    return {.stream = stream.native,
            .q = place_of(a.q),
            .k = place_of(a.k),
            .v = place_of(a.v),
            .o = place_of(a.o),
            .lse_strides = {a.lse.stride(0), a.lse.stride(1), a.lse.stride(2), 1},
            .scale = a.scale,
            .causal = a.mask.causal,
            .bottom_right = masked && a.mask.query_offset != 0,
            .window = a.mask.window};
}

// The workspace for contiguous tensors of these shapes under the causal mask. A graph that needs more, because of its
// strides or its mask, throws when it runs.
int64_t attention_workspace(const Stream& stream, const Shape& q, const Shape& k, bool backward) {
    if (q.numel() == 0) return 0;
    const Place of_q = contiguous(q), of_k = contiguous(k);
    Problem p{.stream = stream.native, .q = of_q, .k = of_k, .v = of_k, .o = of_q, .backward = backward};
    if (backward) p.dy = p.dq = of_q, p.dk = p.dv = of_k;
    p.lse_strides = {q[2] * q[1], q[1], 1, 1};
    return (graph_for(p).workspace_bytes + 3) / 4;
}

void run(const Problem& p, const View& workspace, std::unordered_map<int64_t, void*> pointers) {
    const Built built = graph_for(p);
    check(workspace.numel() * 4 >= built.workspace_bytes, "cuDNN attention needs ", built.workspace_bytes,
          " bytes of workspace for these strides and this mask, and was given ", workspace.numel() * 4,
          "; without TUTTI_CUDA_ATTENTION=cudnn our own kernels compute it");
    check_status(built.graph->execute(built.handle, pointers, workspace.data), "running the graph", p);
}

void attention_forward(const Stream& stream, const AttentionForward& a) {
    if (a.q.numel() == 0) return;
    run(problem_of(stream, a), a.workspace,
        {{kQ, a.q.data}, {kK, a.k.data}, {kV, a.v.data}, {kO, a.o.data}, {kStats, a.lse.data}});
}

void attention_backward(const Stream& stream, const AttentionBackward& a) {
    if (a.q.numel() == 0) return;
    check<UsageError>(
        a.dq.dtype == DType::bf16,
        "cuDNN attention gives gradients in bf16 only; without TUTTI_CUDA_ATTENTION=cudnn our own kernels "
        "give f32 too");
    Problem p = problem_of(stream, a);
    p.backward = true;
    p.dy = place_of(a.dy);
    p.dq = place_of(a.dq);
    p.dk = place_of(a.dk);
    p.dv = place_of(a.dv);
    run(p, a.workspace,
        {{kQ, a.q.data},
         {kK, a.k.data},
         {kV, a.v.data},
         {kO, a.o.data},
         {kStats, a.lse.data},
         {kDy, a.dy.data},
         {kDq, a.dq.data},
         {kDk, a.dk.data},
         {kDv, a.dv.data}});
}

}  // namespace

void use_cudnn_attention(KernelTable& table) {
    static void* library = tutti::cuda::open_library(
        {.what = "TUTTI_CUDA_ATTENTION=cudnn needs NVIDIA's cuDNN 9",
         .file = "libcudnn.so.9",
         .variable = "TUTTI_CUDNN",
         .remedy = "It comes with PyTorch and with the Python package nvidia-cudnn-cu13; name the file in "
                   "TUTTI_CUDNN (and libcudart.so.13 in CUDNN_FRONTEND_CUDART_LIB_NAME where the loader "
                   "does not find it)"});
    fe::cudnn_dlhandle = library;
    table.attention_implementations = [] { return "cudnn"; };
    table.attention_implementation = [](const Stream&, const AttentionForward&) { return "cudnn"; };
    table.attention_workspace = attention_workspace;
    table.attention_forward = attention_forward;
    table.attention_backward = attention_backward;
}

}  // namespace tutti::kernels::cuda
