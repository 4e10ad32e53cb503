// nn/overlapped.h: the collectives before and after the layers of tensor parallelism (nn/collectives.h), and their
// overlap with the products next to them. The results have the same bits:
// - all_gather, then product: each rank's rows arrive in a separate message, at their final place; rows that have
//   arrived are multiplied meanwhile, the rank's own first.
// - product, then reduce_scatter or all_reduce: the product is computed in pieces, and the rows of a piece are summed
//   over the ranks while the next piece is computed. A piece has an equal part of each destination's rows.
// With one piece products are computed at once, and one collective overlaps: the sum of an input gradient, with the
// weight gradient of the same layer, unless that is deferred.
#pragma once

#include <memory>

#include "tutti/comm/communicator.h"
#include "tutti/nn/functions.h"

namespace tutti::nn {

// The edge at which values enter or leave a region of tensor-parallel layers. Carries the messages in flight from the
// node of the collective to the node of the product next to it in the forward, and in the opposite direction in the
// backward.
class RegionEdge {
  public:
    enum class Kind : uint8_t {
        none,   // no collective
        entry,  // forward gather, backward sum: of layers of column role
        exit,   // forward sum, backward gather: of a layer of row role
    };
    RegionEdge(ops::Context& ctx, Kind kind, const autograd::TensorParallel& layer);
    bool is_entry() const { return kind_ == Kind::entry; }
    bool in_pieces() const { return kind_ != Kind::none && layer_.pieces > 1; }

    // Returns make(later). The products in `later`, which read the result of gather(), are computed as rows arrive.
    template <class Make>
    auto reading(const Make& make) {
        if (!whole_.defined()) return make(nullptr);
        ops::Products products;
        auto result = make(&products);
        compute_as_rows_arrive(products);
        return result;
    }
    // Returns make(later), of one product, and in pieces starts its sum over the ranks, which sum() returns. The result
    // must not be used before sum().
    using MakeOne = std::function<Tensor(ops::Products* later)>;
    Tensor summing(const MakeOne& make);
    // The input gradient of a layer at this edge: at an entry its sum is started, elsewhere it is made by reading().
    // Undefined when make() returns an undefined tensor.
    Tensor input_gradient(const MakeOne& make);

    // x (B, T / P, C) to (B, T, C), in which with pieces the rows of other ranks are still to arrive; without sequence
    // parallelism x.
    Tensor gather(const Tensor& x);
    // (B, T / P, C) of this rank; without sequence parallelism (B, T, C).
    Tensor sum();

  private:
    void compute_as_rows_arrive(const ops::Products& products);
    void sum_at_once(const Tensor& y);
    void sum_rows(const ops::Product& product, const Tensor& y);
    void sum_and_scatter_rows(const ops::Product& product, const Tensor& y);

    ops::Context& ctx_;
    Kind kind_;
    autograd::TensorParallel layer_;
    Tensor whole_;                           // what gather() returned, until it is complete
    std::vector<comm::Work> sent_, coming_;  // coming_: by distance from this rank, from 1
    Tensor sum_;                             // what sum() will return
    std::vector<comm::Work> sums_;           // of pieces
};

using SharedEdge = std::shared_ptr<RegionEdge>;

// The edge of a layer, or of several layers of one input. UsageError when a product rule excludes an overlap.
SharedEdge edge_of(Tape& tape, const Parameter& weight);
// The input of a layer whose outputs are divided over ranks: gathered, or copied with a sum in the backward. The output
// of a layer whose terms are divided over ranks: their sum. With an edge the products next to them must use reading(),
// summing() and input_gradient(): with several layers behind one entry, all their forwards, and the input gradient of
// the first layer, which the backward computes last and which makes the sum of all of them.
Var enter_tp_region(Tape& tape, const Var& x, const Parameter& weight, const SharedEdge& edge = {});
Var exit_tp_region(Tape& tape, Var y, const Parameter& weight, const SharedEdge& edge = {});

// The same where the rule of the weight gathers codes (ProductRule::gathers_codes). The value of what enters are codes,
// and `whole` becomes their operand; so are the gradients of what leaves, whose scale `dy` gets, without values.
Var enter_tp_region_as_codes(Tape& tape, const Var& x, const Parameter& weight, const SharedEdge& edge,
                             ops::Operand& whole);
Var exit_tp_region_as_codes(Tape& tape, const Var& y, const Parameter& weight, const std::shared_ptr<ops::Operand>& dy);

}  // namespace tutti::nn
