// nn/dispatch.h: where the rows of a mixture of experts go: which choices a capacity drops, from the rank that has a
// token to the ranks that have its experts, and into the order of experts there. All of it is computed on the device;
// the host gets the counts that decide shapes, once for a layer.
#pragma once

#include <array>
#include <memory>
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

// What the host needs of a router's pass, f32 side by side in the device's memory, so that one copy brings all of it:
// work that is queued between send() and the first values() hides the copy.
class RouterNumbers {
  public:
    enum Part : size_t {
        load,      // (E): choices of each expert
        accepted,  // (E): those that a capacity leaves; none: all
        arriving,  // (P, L): rows from each rank for each expert of this rank
        sums,      // (2 S, E): loads and shares of the experts by sequence, for balancing losses
        step,      // (E): load of the step's other microbatches, likewise
        kParts
    };
    using Counts = ops::ShapingValues::Counts;

    // `shapes`: of the parts; a part without a shape does not exist.
    RouterNumbers(ops::Context& ctx, const std::array<Shape, kParts>& shapes);
    bool has(Part part) const { return parts_[part].defined(); }
    const Tensor& operator[](Part part) const { return parts_[part]; }  // to be written; undefined: none
    void send();                                                        // after the kernels that write the parts
    // The numbers are those of an earlier pass over the same rows: nothing comes from the device or other ranks.
    void know(const std::vector<float>& values);
    bool known() const { return known_; }
    // Of all parts; waits for the copy.
    const std::vector<float>& values();
    std::vector<double> values(Part part);
    Counts counts(Part part);

  private:
    ops::Context& ctx_;
    Tensor all_;
    std::array<Tensor, kParts> parts_;
    std::unique_ptr<PendingHostCopy> copy_;
    bool known_ = false;
    std::vector<float> values_;
};

// The choices (N, k) i32 of routed rows, with -1 for those that exceed spec.capacity_factor, a limit on what an expert
// takes of a microbatch (Lepikhin et al. 2020); row i is row first_row + i of batch.tokens. All ranks of
// batch.routing.microbatch decide together, so that every layout drops the same choices; `most_rows`: of the rank with
// the most. Collective over them.
int64_t capacity_of(const spec::MixtureSpec& spec, const Batch& batch);  // 0: no limit
Tensor drop_beyond_capacity(ops::Context& ctx, const spec::MixtureSpec& spec, const Batch& batch,
                            const ops::Routed& routed, int64_t first_row, int64_t most_rows);

// The destinations of this rank's rows, and the rows that its experts get. When etp ranks divide each expert, a row is
// sent to all of them and each returns a partial output; the copies count as further choices. Tensors are i32.
struct Dispatch {
    Tensor slots;                   // (N, k etp): place of each choice of a row among the rows sent; -1: dropped
    ops::GroupRows rows;            // number of rows of each expert on this rank, padding included
    std::vector<int64_t> to, from;  // rows for and from each rank; empty when this rank has all experts
    // (S): index of arrival of each expert row, -1 for padding; (R): its inverse. Undefined where rows arrive in their
    // order.
    Tensor order, places;
    int64_t sent_rows = 0;                                                                  // M
    int64_t padding() const { return order.defined() ? order.dim(0) - places.dim(0) : 0; }  // S - R
};
// Queues the sort of choices (N, k), -1: dropped, and the exchange of their counts, which are written to `counts` (E)
// and `arriving` (P, L), f32; unless the latter are known. Returns the row of each place to be sent, in the order of
// ranks and then experts, (N k etp), -1 behind the last; and sets d.slots. Collective over `ranks.ranks`.
Tensor sort_for_dispatch(ops::Context& ctx, const Tensor& choices, const autograd::ExpertParallel& ranks,
                         const Tensor& counts, const Tensor& arriving, bool known, Dispatch& d);
// Sets the rest from the values of `counts` on the host, and from `arriving` with its values; where this rank has all
// experts, `arriving` are the counts. The rows of each expert are padded to a multiple of `multiple`. Not collective.
void make_dispatch(ops::Context& ctx, const autograd::ExpertParallel& ranks, const RouterNumbers::Counts& counts,
                   const Tensor& arriving, const RouterNumbers::Counts& arriving_values, int64_t multiple, Dispatch& d);

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
