// kernels/cuda/cudnn_graph.cpp: graphs of cuDNN through NVIDIA's cudnn-frontend; the library is opened at run time. No
// other file includes cudnn_frontend.h, which takes 44 s to compile.
#include "tutti/kernels/cuda/cudnn_graph.h"

#include <cudnn_frontend.h>

#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

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
using Lengths = std::array<int64_t, 4>;

// Numbers of the tensors in a graph.
enum Uid : int64_t { kQ = 1, kK, kV, kO, kStats, kDy, kDq, kDk, kDv };

template <class Attributes>
void set_mask(Attributes& options, const CudnnProblem& p) {
    options.set_attn_scale(p.scale);
    options.set_diagonal_alignment(p.bottom_right ? fe::DiagonalAlignment_t::BOTTOM_RIGHT
                                                  : fe::DiagonalAlignment_t::TOP_LEFT);
    if (p.causal) options.set_diagonal_band_right_bound(0);
    if (p.window > 0) options.set_diagonal_band_left_bound(static_cast<int>(p.window));
}

std::vector<int64_t> list(const Lengths& lengths) { return {lengths.begin(), lengths.end()}; }

TensorAttributes attributes(Uid uid, const CudnnPlace& place) {
    return TensorAttributes().set_uid(uid).set_dim(list(place.sizes)).set_stride(list(place.strides));
}

CudnnPlace place_of_stats(const CudnnProblem& p) {
    const int64_t B = p.q.sizes[0], H = p.q.sizes[1], Tq = p.q.sizes[2];
    return {{B, H, Tq, 1}, {H * Tq, Tq, 1, 1}};
}

void set_output(const std::shared_ptr<TensorAttributes>& tensor, Uid uid, const CudnnPlace& place) {
    tensor->set_output(true).set_uid(uid).set_dim(list(place.sizes)).set_stride(list(place.strides));
}

std::shared_ptr<Graph> describe(const CudnnProblem& p) {
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
        const auto [dq, dk, dv] = graph->sdpa_backward(
            q, k, v, graph->tensor(attributes(kO, p.o)), graph->tensor(attributes(kDy, p.dy)),
            graph->tensor(attributes(kStats, place_of_stats(p)).set_data_type(fe::DataType_t::FLOAT)), options);
        set_output(dq, kDq, p.dq);
        set_output(dk, kDk, p.dk);
        set_output(dv, kDv, p.dv);
    } else {
        auto options = fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(true);
        set_mask(options, p);
        const auto [o, stats] = graph->sdpa(q, k, v, options);
        set_output(o, kO, p.o);
        stats->set_data_type(fe::DataType_t::FLOAT);
        set_output(stats, kStats, place_of_stats(p));
    }
    return graph;
}

// One for each stream of each GPU: a stream belongs to one rank.
cudnnHandle_t handle_for(int gpu, void* stream) {
    static std::mutex mutex;
    static std::map<std::pair<int, void*>, cudnnHandle_t> handles;
    const std::lock_guard lock(mutex);
    cudnnHandle_t& handle = handles[{gpu, stream}];
    if (handle == nullptr) {
        const cudnnStatus_t created = fe::detail::create_handle(&handle);
        check(created == CUDNN_STATUS_SUCCESS, "cudnnCreate failed: ", fe::detail::get_error_string(created));
        const cudnnStatus_t set = fe::detail::set_stream(handle, static_cast<cudaStream_t>(stream));
        check(set == CUDNN_STATUS_SUCCESS, "cudnnSetStream failed: ", fe::detail::get_error_string(set));
    }
    return handle;
}

class BuiltGraph final : public CudnnGraph {
  public:
    BuiltGraph(cudnnHandle_t handle, std::shared_ptr<Graph> graph, int64_t bytes)
        : handle_(handle), graph_(std::move(graph)), bytes_(bytes) {}
    int64_t workspace_bytes() const override { return bytes_; }
    void run(const CudnnPointers& p, void* workspace) override {
        std::unordered_map<int64_t, void*> pointers = {{kQ, p.q}, {kK, p.k}, {kV, p.v}, {kO, p.o}, {kStats, p.lse}};
        if (p.dy != nullptr) pointers.insert({{kDy, p.dy}, {kDq, p.dq}, {kDk, p.dk}, {kDv, p.dv}});
        fe::error_t status = graph_->execute(handle_, pointers, workspace);
        check(status.is_good(), "cuDNN attention failed to start: ", status.get_message(),
              "; with [train] attention = \"own\" our own kernels compute it");
    }

  private:
    cudnnHandle_t handle_;
    std::shared_ptr<Graph> graph_;
    int64_t bytes_;
};

}  // namespace

std::string cudnn_version() {
    static void* library = tutti::cuda::open_library(
        {.what = "[train] attention = \"cudnn\" needs NVIDIA's cuDNN 9",
         .file = "libcudnn.so.9",
         .variable = "TUTTI_CUDNN",
         .remedy = "It comes with PyTorch and with the Python package nvidia-cudnn-cu13; name the file in "
                   "TUTTI_CUDNN (and libcudart.so.13 in CUDNN_FRONTEND_CUDART_LIB_NAME where the loader "
                   "does not find it)"});
    fe::cudnn_dlhandle = library;
    const size_t version = fe::detail::get_backend_version();  // 91501
    return concat("cuDNN ", version / 10000, '.', version / 100 % 100, '.', version % 100);
}

std::unique_ptr<CudnnGraph> build_cudnn_graph(const CudnnProblem& p, std::string& why) {
    cudnn_version();  // opens the library
    const cudnnHandle_t handle = handle_for(p.gpu, p.stream);
    std::shared_ptr<Graph> graph = describe(p);
    int64_t bytes = 0;
    fe::error_t status = graph->build(handle, {fe::HeurMode_t::A});
    if (status.is_good()) status = graph->get_workspace_size(bytes);
    if (!status.is_good()) {
        why = status.get_message();
        return nullptr;
    }
    return std::make_unique<BuiltGraph>(handle, std::move(graph), bytes);
}

}  // namespace tutti::kernels::cuda
