// kernels/cuda/cudnn_graph.h: a graph of one operation of attention by NVIDIA's cuDNN, as attention_cudnn.cpp asks for
// it. cudnn_graph.cpp implements it through the headers of cudnn-frontend; a build without them compiles
// cudnn_graph_absent.cpp instead, and tests a fake.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <memory>
#include <string>

namespace tutti::kernels::cuda {

// (B, H, T, D), cuDNN's order.
struct CudnnPlace {
    std::array<int64_t, 4> sizes{}, strides{};
    auto operator<=>(const CudnnPlace&) const = default;
};

// All that a graph depends on. bf16; lse in f32 and packed, (B, H, Tq).
struct CudnnProblem {
    int gpu = 0;
    void* stream = nullptr;
    CudnnPlace q, k, v, o, dy, dq, dk, dv;  // the last four of the backward
    float scale = 1;
    bool backward = false, causal = true;
    bool bottom_right = false;  // the last query sees the last key; else the first one the first
    int64_t window = 0;
    auto operator<=>(const CudnnProblem&) const = default;
};

struct CudnnPointers {
    void *q, *k, *v, *o, *lse;
    void *dy = nullptr, *dq = nullptr, *dk = nullptr, *dv = nullptr;
};

class CudnnGraph {
  public:
    virtual ~CudnnGraph() = default;
    virtual int64_t workspace_bytes() const = 0;
    virtual void run(const CudnnPointers& pointers, void* workspace) = 0;  // on the stream of the problem
};

// "cuDNN 9.15.1". Opens the library; UsageError, naming the remedy, where this build or this machine has none.
std::string cudnn_version();
// A tenth of a second or more. Null where cuDNN has no kernel; `why` is then what it said. The backward is the
// deterministic one.
std::unique_ptr<CudnnGraph> build_cudnn_graph(const CudnnProblem& problem, std::string& why);

}  // namespace tutti::kernels::cuda
