// parallel/parameter_server.h: the oldest way to train on many ranks (Dean et al. 2012), for study and comparison: all
// ranks send gradients to rank 0, which holds the optimizer and sends weights back. Each worker moves 2P bytes, the
// server 2P for every worker, so parameter servers are not used in practice.
#pragma once

#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/ops/context.h"

namespace tutti::parallel {

class ParameterServer {
  public:
    ParameterServer(ops::Context& ctx, comm::Communicator& ranks) : ctx_(ctx), ranks_(ranks) {}

    bool serves() const { return ranks_.rank() == 0; }

    // Sends f32 gradients to the server, where the sum over the ranks, in the order of an all_reduce, replaces them.
    // One buffer is under way at a time; finish() completes the last. All ranks push the same buffers in the same
    // order.
    void push(const Tensor& gradients);
    void finish();
    // Sends weights from the server to all ranks.
    std::vector<comm::Work> pull(const Tensor& weights);

  private:
    ops::Context& ctx_;
    comm::Communicator& ranks_;
    Tensor pushed_;
    std::vector<Tensor> received_;  // the server's, by worker
    std::vector<comm::Work> messages_;
};

}  // namespace tutti::parallel
