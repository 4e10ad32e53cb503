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

bool is_rehearsed(const ops::Context& ctx);  // tensors have no values

// The values of x on the host, where they decide no shapes: zeros in a rehearsal.
template <class T>
std::vector<T> on_host(ops::Context& ctx, const Tensor& x) {
    const std::unique_ptr<HostCopy> copy = ctx.device.start_copy_out(x.view().data, x.bytes());
    const auto values = copy->values<T>();
    return {values.begin(), values.end()};
}

// Experts (N, k) that rows chose, on the host, row after row. A rehearsal, whose rows have no values, gets rehearsed
// choices: by `loads` (RoutingContext::rehearsed_loads).
std::vector<int32_t> choices_of(ops::Context& ctx, const Tensor& experts, int64_t all_experts,
                                const std::vector<double>* loads);

// Choices (N, k) of which each expert e has N k loads[e] / sum(loads), rounded; the k of a row differ. UsageError where
// an expert would have more than N: each row chooses an expert once at most.
std::vector<int32_t> choices_by_load(int64_t N, int64_t k, const std::vector<double>& loads);

// Sets the choices (N, k) that exceed spec.capacity_factor, a limit on what an expert takes of a microbatch (Lepikhin
// et al. 2020), to -1 and returns their number; row i is row first_row + i of batch.tokens. All ranks of
// batch.routing.microbatch decide together, so that no layout drops others. Collective over them.
int64_t drop_beyond_capacity(ops::Context& ctx, const spec::MixtureSpec& spec, const Batch& batch,
                             const Tensor& weights, int64_t first_row, std::vector<int32_t>& choices);

// With etp ranks for each expert a row goes to all of them, which return a part of the expert's output each: its copies
// count as further choices. Tensors are i32.
struct Dispatch {
    ops::GroupRows rows;            // of each expert that this rank has
    Tensor sent;                    // (M): which row of x each row is that is sent, in the order of ranks and experts
    Tensor slots;                   // (N, k etp): where the choices of a row are among these; -1: dropped
    std::vector<int64_t> to, from;  // rows for and from each rank; empty where this rank has all experts
    Tensor order, places;           // (R): which arrival each row of the experts is, and back; likewise
};
// choices (N, k) as above, -1 for one that is dropped. Collective over `ranks.ranks`.
Dispatch make_dispatch(ops::Context& ctx, const std::vector<int32_t>& choices, int64_t k, int64_t all_experts,
                       const autograd::ExpertParallel& ranks);

// Rows on their way between ranks.
class Exchange {
  public:
    Exchange() = default;
    // Row after row of x (sum of `to`, C), to each rank its number.
    Exchange(ops::Context& ctx, comm::Communicator& ranks, const Tensor& x, const std::vector<int64_t>& to,
             const std::vector<int64_t>& from);
    // The rows from all ranks, (sum of `from`, C), which must not be read before wait().
    const Tensor& rows() const { return received_; }
    void wait();

  private:
    Tensor sent_, received_;
    comm::Work work_;
};

}  // namespace tutti::nn
