// parallel/parameter_server.h: the oldest way to train on many ranks (Dean et al. 2012), to learn from and to measure
// against: rank 0 holds the optimizer, everybody sends it gradients, it sends weights back. Each worker moves 2P, the
// server 2P for every worker, which is why it is not used in practice. Below: comm/. Called by data_parallel.cpp.
#pragma once

#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/ops/context.h"

namespace tutti::parallel {

class ParameterServer {
  public:
    ParameterServer(ops::Context& ctx, comm::Communicator& ranks) : ctx_(ctx), ranks_(ranks) {}

    bool serves() const { return ranks_.rank() == 0; }

    // Towards the server, f32: there the sum over the ranks takes their place, added in the order of an all_reduce. One
    // buffer is under way at a time; finish() ends the last. Everybody pushes the same buffers in the same order.
    void push(const Tensor& gradients);
    void finish();
    // From the server to everybody.
    std::vector<comm::Work> pull(const Tensor& weights);

  private:
    ops::Context& ctx_;
    comm::Communicator& ranks_;
    Tensor pushed_;
    std::vector<Tensor> received_;  // the server's, by worker
    std::vector<comm::Work> messages_;
};

}  // namespace tutti::parallel
