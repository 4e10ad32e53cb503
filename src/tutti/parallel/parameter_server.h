// parallel/parameter_server.h: the oldest way to train on many ranks (Dean et al. 2012), for study and comparison: all
// ranks send gradients to rank 0, which holds the optimizer and sends weights back. Each worker moves 2P bytes, the
// server 2P for every worker, so parameter servers are not used in practice.
#pragma once

#include <vector>

#include "tutti/parallel/data_parallel.h"

namespace tutti::parallel {

// For Zero::none and data parallelism alone.
class ParameterServer final : public DataParallel {
  public:
    ParameterServer(ops::Context& ctx, const std::vector<std::vector<autograd::Unit*>>& runs, Groups& groups,
                    const DataParallelOptions& options);

    void finish_gradients() override;
    void all_gather_weights() override;  // sends weights from the server to all ranks

  private:
    // Sends gradients to the server, where the sum over the ranks, in the order of an all_reduce, replaces them. One
    // buffer is under way at a time; finish_sum() completes it. All ranks reach the same buffers in the same order.
    void start_replica_reduction(State& state) override;
    void finish_sum();
    bool serves() const { return ranks_.rank() == 0; }

    ops::Context& ctx_;
    comm::Communicator& ranks_;
    Tensor sent_;
    std::vector<Tensor> received_;  // the server's, by worker
    std::vector<comm::Work> messages_;
};

}  // namespace tutti::parallel
