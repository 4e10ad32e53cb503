// nn/dispatch.h: where the rows of a mixture of experts go: which choices a capacity drops, from the rank that has a
// token to the ranks that have its experts, and into the order of experts there. Values that decide shapes are copied
// to the host here only.
#pragma once

#include <vector>

#include "tutti/autograd/parameter.h"
#include "tutti/comm/communicator.h"
#include "tutti/nn/batch.h"
#include "tutti/ops/ops.h"
#include "tutti/spec/model_spec.h"

namespace tutti::nn {

// Copies x to the host, for values that decide no shapes (those that do: ops::ShapingValues). In a rehearsal, zeros.
template <class T>
std::vector<T> on_host(ops::Context& ctx, const Tensor& x) {
    const std::unique_ptr<PendingHostCopy> copy = ctx.device.copy_to_host_async(x.view().data, x.bytes());
    const auto values = copy->values<T>();
    return {values.begin(), values.end()};
}

// Sets the choices (N, k) that exceed spec.capacity_factor, a limit on what an expert takes of a microbatch (Lepikhin
// et al. 2020), to -1 and returns their number; row i is row first_row + i of batch.tokens. All ranks of
// batch.routing.microbatch decide together, so that every layout drops the same choices. Collective over them.
int64_t drop_beyond_capacity(ops::Context& ctx, const spec::MixtureSpec& spec, const Batch& batch,
                             const Tensor& weights, int64_t first_row, std::vector<int32_t>& choices);

// The destinations of this rank's rows, and the rows that its experts get. When etp ranks divide each expert, a row is
// sent to all of them and each returns a partial output; the copies count as further choices. Tensors are i32.
struct Dispatch {
    ops::GroupRows rows;            // number of rows of each expert on this rank
    Tensor sent;                    // (M): index in x of each sent row, in the order of ranks and then experts
    Tensor slots;                   // (N, k etp): index in `sent` of each choice of a row; -1: dropped
    std::vector<int64_t> to, from;  // rows for and from each rank; empty when this rank has all experts
    Tensor order, places;           // (R): index of arrival of each expert row, and its inverse; likewise
};
// choices (N, k): expert of each choice, -1 for a dropped one. Collective over `ranks.ranks`.
Dispatch make_dispatch(ops::Context& ctx, const std::vector<int32_t>& choices, int64_t k, int64_t all_experts,
                       const autograd::ExpertParallel& ranks);

// An all_to_all of rows in flight.
class Exchange {
  public:
    Exchange() = default;
    // Starts to send the rows of x (sum of `to`, C): the first to[0] to rank 0, the next to[1] to rank 1, and so on.
    Exchange(ops::Context& ctx, comm::Communicator& ranks, const Tensor& x, const std::vector<int64_t>& to,
             const std::vector<int64_t>& from);
    // The received rows, (sum of `from`, C), by rank. Must not be read before wait().
    const Tensor& rows() const { return received_; }
    void wait();

  private:
    Tensor sent_, received_;
    comm::Work work_;
};

}  // namespace tutti::nn
