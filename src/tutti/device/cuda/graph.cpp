#include "tutti/device/cuda/graph.h"

#include <utility>

namespace tutti::cuda {

namespace {

// Ends what it began, also when the work in between throws.
class Capture {
  public:
    // Thread-local: what other ranks of the process and the writer of checkpoints do meanwhile is their own.
    explicit Capture(const Queue& queue) : queue_(queue) {
        check_cuda(cudaStreamBeginCapture(queue.stream(), cudaStreamCaptureModeThreadLocal),
                   "cudaStreamBeginCapture on ", queue.name());
    }
    ~Capture() {
        if (!ended_) cudaStreamEndCapture(queue_.stream(), &graph_);
        if (graph_ != nullptr) cudaGraphDestroy(graph_);
        cudaGetLastError();  // else the next launch would report what failed here
    }
    Capture(const Capture&) = delete;
    Capture& operator=(const Capture&) = delete;
    cudaGraph_t end() {
        ended_ = true;
        check_cuda(cudaStreamEndCapture(queue_.stream(), &graph_), "cudaStreamEndCapture on ", queue_.name());
        return graph_;
    }

  private:
    const Queue& queue_;
    cudaGraph_t graph_ = nullptr;
    bool ended_ = false;
};

class Graph final : public Recording {
  public:
    Graph(std::shared_ptr<Queue> queue, cudaGraph_t captured) : queue_(std::move(queue)) {
        check_cuda(cudaGraphInstantiate(&graph_, captured, 0), "cudaGraphInstantiate on ", queue_->name());
    }
    ~Graph() override {
        cudaStreamSynchronize(queue_->stream());  // it may be running
        cudaGraphExecDestroy(graph_);
    }
    Graph(const Graph&) = delete;
    Graph& operator=(const Graph&) = delete;
    void run() override {
        check_cuda(cudaGraphLaunch(graph_, queue_->stream()), "cudaGraphLaunch on ", queue_->name());
    }

  private:
    std::shared_ptr<Queue> queue_;
    cudaGraphExec_t graph_ = nullptr;
};

}  // namespace

std::unique_ptr<Recording> record(const std::shared_ptr<Queue>& queue, const std::function<void()>& work) {
    Capture capture(*queue);
    work();
    return std::make_unique<Graph>(queue, capture.end());
}

}  // namespace tutti::cuda
