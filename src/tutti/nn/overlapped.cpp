#include "tutti/nn/overlapped.h"

#include <algorithm>
#include <utility>

#include "tutti/nn/collectives.h"

namespace tutti::nn {

namespace {

using Tensors = std::vector<Tensor>;

Tensor as_matrix(const Tensor& x) { return x.reshape({x.numel() / x.dim(-1), x.dim(-1)}); }

// visit(first, count) for each of `pieces` of rows, the sizes of which differ by one at most.
template <class Visit>
void for_each_piece(int64_t rows, int64_t pieces, const Visit& visit) {
    pieces = std::min(pieces, rows);
    for (int64_t i = 0; i < pieces; ++i) visit(i * rows / pieces, (i + 1) * rows / pieces - i * rows / pieces);
}

}  // namespace

RegionEdge::RegionEdge(ops::Context& ctx, Kind kind, const autograd::TensorParallel& layer)
    : ctx_(ctx), kind_(layer.ranks && layer.pieces > 1 ? kind : Kind::none), layer_(layer) {}

Tensor RegionEdge::gather(const Tensor& x) {
    if (!layer_.sequence) return x;
    comm::Communicator& ranks = *layer_.ranks;
    const int P = ranks.size(), own = ranks.rank();
    Shape shape = x.shape();
    shape[1] *= P;
    whole_ = ops::empty(ctx_, shape, x.dtype());
    for (int distance = 1; distance < P; ++distance) {
        const int from = (own + distance) % P, to = (own + P - distance) % P;
        sent_.push_back(ranks.send(x, to));
        coming_.push_back(ranks.receive(rows_of(whole_, from, P), from));
    }
    ops::copy(ctx_, x, rows_of(whole_, own, P));
    return whole_;
}

void RegionEdge::compute_as_rows_arrive(const ops::Products& products) {
    const int P = layer_.ranks->size(), own = layer_.ranks->rank();
    const int64_t rows = as_matrix(whole_).dim(0) / P;
    for (int distance = 0; distance < P; ++distance) {
        if (distance > 0) coming_[static_cast<size_t>(distance - 1)].wait();
        for (const kernels::Gemm& product : products)
            ops::compute_rows(ctx_, product, (own + distance) % P * rows, rows);
    }
    coming_.clear();
    comm::wait_all(sent_);
    whole_ = {};
}

Tensor RegionEdge::summing(const MakeOne& make) {
    if (!overlaps()) return make(nullptr);
    ops::Products products;
    const Tensor y = make(&products);
    if (!y.defined()) return y;
    check(products.size() == 1 && !sum_.defined(), "a sum over ranks of ", products.size(), " products");
    layer_.sequence ? sum_and_scatter_rows(products[0], y) : sum_rows(products[0], y);
    return y;
}

void RegionEdge::sum_rows(const kernels::Gemm& product, const Tensor& y) {
    sum_ = y;
    const Tensor rows = as_matrix(y);
    for_each_piece(rows.dim(0), layer_.pieces, [&](int64_t first, int64_t count) {
        ops::compute_rows(ctx_, product, first, count);
        sums_.push_back(layer_.ranks->all_reduce(rows.narrow(0, first, count)));
    });
}

// A reduce_scatter reads the rows of its destinations one after the other, so the rows of a piece for all destinations
// are computed side by side: in y's memory, or, when the product is added to y, in other memory.
void RegionEdge::sum_and_scatter_rows(const kernels::Gemm& product, const Tensor& y) {
    const int P = layer_.ranks->size();
    const Tensor own = rows_of(y, layer_.ranks->rank(), P);
    sum_ = ops::empty(ctx_, own.shape(), y.dtype());
    const Tensor before = as_matrix(y), result = as_matrix(sum_);
    const Tensor sent = product.accumulate ? ops::empty(ctx_, before.shape(), y.dtype()) : before;
    const int64_t rows = result.dim(0);
    for_each_piece(rows, layer_.pieces, [&](int64_t first, int64_t count) {
        const Tensor piece = sent.narrow(0, P * first, P * count);
        for (int rank = 0; rank < P; ++rank) {
            const Tensor block = piece.narrow(0, rank * count, count);
            if (product.accumulate) ops::copy(ctx_, before.narrow(0, rank * rows + first, count), block);
            ops::compute_rows(ctx_, product, rank * rows + first, count, block);
        }
        sums_.push_back(layer_.ranks->reduce_scatter(piece, result.narrow(0, first, count)));
    });
}

Tensor RegionEdge::sum() {
    check(sum_.defined(), "no product began the sum over the ranks of group ", layer_.ranks->name());
    comm::wait_all(sums_);
    return std::exchange(sum_, {});
}

Tensor RegionEdge::input_gradient(const MakeOne& make) { return kind_ == Kind::entry ? summing(make) : reading(make); }

Var enter_region(Tape& tape, const Var& x, const std::shared_ptr<RegionEdge>& edge) {
    const Tensor whole = edge->gather(x.value);
    Var y = tape.record("enter_region", {x}, whole, [edge](const Tensor&, Tensors&) { return Tensors{edge->sum()}; });
    if (whole.buffer() == x.value.buffer()) y.recomputable = x.recomputable;
    return y;
}

Var leave_region(Tape& tape, const Var& y, const std::shared_ptr<RegionEdge>& edge) {
    return tape.record("leave_region", {y}, edge->sum(),
                       [edge](const Tensor& dy, Tensors&) { return Tensors{edge->gather(dy)}; });
}

}  // namespace tutti::nn
