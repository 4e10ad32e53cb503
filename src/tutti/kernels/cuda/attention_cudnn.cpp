// kernels/cuda/attention_cudnn.cpp: which requests of attention cuDNN computes, and their graphs, one for each shape,
// strides and mask of a stream.
#include "tutti/kernels/cuda/attention_cudnn.h"

#include <map>
#include <memory>
#include <mutex>

#include "tutti/device/cuda/runtime.h"
#include "tutti/kernels/cuda/cudnn_graph.h"
#include "tutti/kernels/cuda/sizes.h"

namespace tutti::kernels::cuda {

namespace {

CudnnPlace place_of(const View& x) {  // (B, T, H, D)
    return {{x.shape[0], x.shape[2], x.shape[1], x.shape[3]}, {x.stride(0), x.stride(2), x.stride(1), 1}};
}

bool is_masked(const AttentionMask& mask) { return mask.causal || mask.window > 0; }

// "": nothing that a graph could not say.
template <class Attention>
std::string refusal_of_request(const Attention& a) {
    const int64_t to_the_last = a.k.shape[1] - a.q.shape[1];
    if (a.q.dtype != DType::bf16) return concat("cuDNN is asked for bf16 only, not for ", a.q.dtype);
    if (a.o.dtype != DType::bf16) return "cuDNN gives no results in f32, which parts of ring attention need";
    if (a.mask.key_offset != 0) return "cuDNN knows no offset of keys, which parts of ring attention have";
    if (a.cap != 0) return "cuDNN has no cap of scores";
    if (a.mask.first_key.defined()) return "cuDNN keeps no packed documents apart";
    if (a.mask.window > 0 && !a.mask.causal) return "cuDNN has windows under a causal mask only";
    if (is_masked(a.mask) && a.mask.query_offset != 0 && (a.mask.query_offset != to_the_last || to_the_last < 0))
        return concat(
            "cuDNN places the first query at the first key or the last query at the last key, not query 0 at key ",
            a.mask.query_offset, " of ", a.k.shape[1]);
    if (!a.lse.contiguous()) return "cuDNN is asked for contiguous lse only";
    return "";
}

template <class Attention>
CudnnProblem problem_of(const Stream& stream, const Attention& a) {
    CudnnProblem p{.stream = stream.native,
                   .q = place_of(a.q),
                   .k = place_of(a.k),
                   .v = place_of(a.v),
                   .o = place_of(a.o),
                   .scale = a.scale,
                   .causal = a.mask.causal,
                   .bottom_right = is_masked(a.mask) && a.mask.query_offset != 0,
                   .window = a.mask.window};
    check_cuda(cudaGetDevice(&p.gpu), "cudaGetDevice");
    return p;
}

CudnnProblem problem_of(const Stream& stream, const AttentionBackward& a) {
    CudnnProblem p = problem_of<AttentionBackward>(stream, a);
    p.backward = true;
    p.dy = place_of(a.dy), p.dq = place_of(a.dq), p.dk = place_of(a.dk), p.dv = place_of(a.dv);
    return p;
}

struct Built {
    std::unique_ptr<CudnnGraph> graph;  // null: refused
    std::string why;
};

// Shared by the ranks of the process, each with streams of its own.
const Built& graph_for(const CudnnProblem& p, const Shape& q, const Shape& k) {
    static std::mutex mutex;
    static std::map<CudnnProblem, Built> graphs;
    const std::lock_guard lock(mutex);
    const auto [found, is_new] = graphs.try_emplace(p);
    Built& built = found->second;
    if (!is_new) return built;
    built.graph = build_cudnn_graph(p, built.why);
    if (built.graph == nullptr) {
        built.why = concat("cuDNN refuses it: ", built.why);
        return built;
    }
    // A plan is made without cuDNN and counts this bound.
    const int64_t bound = 4 * cudnn_workspace(q, k, p.backward), bytes = built.graph->workspace_bytes();
    if (bytes > bound) {
        built.graph = nullptr;
        built.why = concat("cuDNN asks for ", bytes, " bytes of workspace, more than the ", bound, " of the plan");
    }
    return built;
}

template <class Attention>
std::string refusal(const Stream& stream, const Attention& a) {
    std::string why = refusal_of_request(a);
    return why.empty() ? graph_for(problem_of(stream, a), a.q.shape, a.k.shape).why : why;
}

template <class Attention>
CudnnGraph& graph_of(const Stream& stream, const Attention& a) {
    const std::string why = refusal(stream, a);
    check(why.empty(), why);
    CudnnGraph& graph = *graph_for(problem_of(stream, a), a.q.shape, a.k.shape).graph;
    check(a.workspace.numel() * 4 >= graph.workspace_bytes(), "cuDNN attention needs ", graph.workspace_bytes(),
          " bytes of workspace, got ", a.workspace.numel() * 4, ": allocate KernelTable::attention_workspace values");
    return graph;
}

}  // namespace

std::string cudnn_refusal(const Stream& stream, const AttentionForward& a) { return refusal(stream, a); }

std::string cudnn_refusal(const Stream& stream, const AttentionBackward& a) {
    if (a.dq.dtype != DType::bf16) return "cuDNN gives no gradients in f32";
    if (a.accumulate) return "cuDNN adds to no gradients";
    return refusal(stream, a);
}

void cudnn_forward(const Stream& stream, const AttentionForward& a) {
    graph_of(stream, a).run({.q = a.q.data, .k = a.k.data, .v = a.v.data, .o = a.o.data, .lse = a.lse.data},
                            a.workspace.data);
}

void cudnn_backward(const Stream& stream, const AttentionBackward& a) {
    graph_of(stream, a).run({.q = a.q.data,
                             .k = a.k.data,
                             .v = a.v.data,
                             .o = a.o.data,
                             .lse = a.lse.data,
                             .dy = a.dy.data,
                             .dq = a.dq.data,
                             .dk = a.dk.data,
                             .dv = a.dv.data},
                            a.workspace.data);
}

}  // namespace tutti::kernels::cuda
