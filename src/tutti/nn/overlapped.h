// nn/overlapped.h: the collectives of nn/collectives.h that stand before and after the layers of tensor parallelism,
// beside the products that they belong to, and with the same bits:
// - all_gather, then product: rows come from each rank in a message, straight to their place, and the rows that are
//   here are multiplied meanwhile, a rank's own first.
// - product, then reduce_scatter or all_reduce: the product is computed in pieces, the rows of each are summed over the
//   ranks while the next piece is computed. Of each destination's rows a piece has an equal part.
#pragma once

#include <memory>

#include "tutti/comm/communicator.h"
#include "tutti/nn/functions.h"

namespace tutti::nn {

// Where values enter or leave a region of layers that ranks share out. It carries what is on its way from the node of
// the collective to the node of the product next to it, in the forward or, the other way round, in the backward.
class RegionEdge {
  public:
    enum class Kind : uint8_t {
        none,   // nothing is overlapped: products are computed at once
        entry,  // forward gather, backward sum: of layers of column role
        exit,   // forward sum, backward gather: of a layer of row role
    };
    RegionEdge(ops::Context& ctx, Kind kind, const autograd::TensorParallel& layer);
    bool overlaps() const { return kind_ != Kind::none; }

    // What make(later) returns, whose products read what gather() returned: computed as its rows arrive.
    template <class Make>
    auto reading(const Make& make) {
        if (!whole_.defined()) return make(nullptr);
        ops::Products products;
        auto result = make(&products);
        compute_as_rows_arrive(products);
        return result;
    }
    // What make(later) returns, of one product: its sum over the ranks is begun, and is what sum() returns. Until then
    // the result itself must not be touched.
    using MakeOne = std::function<Tensor(ops::Products* later)>;
    Tensor summing(const MakeOne& make);
    // The input gradient of a layer at this edge, by whichever of the two it takes; undefined where make() makes none.
    Tensor input_gradient(const MakeOne& make);

    // x (B, T / P, C) to (B, T, C), of which the rows of other ranks are yet to come; without sequence parallelism x.
    Tensor gather(const Tensor& x);
    // (B, T / P, C) of this rank; without sequence parallelism (B, T, C).
    Tensor sum();

  private:
    void compute_as_rows_arrive(const ops::Products& products);
    void sum_rows(const kernels::Gemm& product, const Tensor& y);
    void sum_and_scatter_rows(const kernels::Gemm& product, const Tensor& y);

    ops::Context& ctx_;
    Kind kind_;
    autograd::TensorParallel layer_;
    Tensor whole_;                           // what gather() returned, until it is complete
    std::vector<comm::Work> sent_, coming_;  // coming_: by distance from this rank, from 1
    Tensor sum_;                             // what sum() will return
    std::vector<comm::Work> sums_;           // of pieces
};

// The nodes of the collectives. The products next to them go through reading(), summing() and input_gradient(): of
// several layers behind one entry all forwards, and the input gradient of the first, which is the last in the backward.
Var enter_region(Tape& tape, const Var& x, const std::shared_ptr<RegionEdge>& edge);
Var leave_region(Tape& tape, const Var& y, const std::shared_ptr<RegionEdge>& edge);

}  // namespace tutti::nn
