#include "tutti/nn/overlapped.h"

#include <algorithm>
#include <utility>

#include "tutti/base/to_size.h"
#include "tutti/nn/collectives.h"
#include "tutti/nn/product_rule.h"

namespace tutti::nn {

namespace {

using autograd::Role;
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
    : ctx_(ctx), kind_(layer.ranks ? kind : Kind::none), layer_(layer) {}

Tensor RegionEdge::gather(const Tensor& x) {
    if (!layer_.sequence) return x;
    comm::Communicator& ranks = *layer_.ranks;
    if (!in_pieces()) return gather_rows(ctx_, x, ranks);
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
        if (distance > 0) coming_[to_size(distance - 1)].wait();
        for (const ops::Product& product : products)
            ops::compute_rows(ctx_, product, (own + distance) % P * rows, rows);
    }
    coming_.clear();
    comm::wait_all(sent_);
    whole_ = {};
}

Tensor RegionEdge::summing(const MakeOne& make) {
    if (!in_pieces()) return make(nullptr);
    ops::Products products;
    const Tensor y = make(&products);
    if (!y.defined()) return y;
    check(products.size() == 1 && !sum_.defined(), "a sum over ranks of ", products.size(), " products");
    layer_.sequence ? sum_and_scatter_rows(products[0], y) : sum_rows(products[0], y);
    return y;
}

void RegionEdge::sum_at_once(const Tensor& y) {
    check(!sum_.defined(), "two sums over ranks at one edge");
    comm::Communicator& ranks = *layer_.ranks;
    sum_ = layer_.sequence ? ops::empty(ctx_, rows_of(y, ranks.rank(), ranks.size()).shape(), y.dtype()) : y;
    sums_.push_back(layer_.sequence ? ranks.reduce_scatter(y, sum_) : ranks.all_reduce(y));
}

void RegionEdge::sum_rows(const ops::Product& product, const Tensor& y) {
    sum_ = y;
    const Tensor rows = as_matrix(y);
    for_each_piece(rows.dim(0), layer_.pieces, [&](int64_t first, int64_t count) {
        ops::compute_rows(ctx_, product, first, count);
        sums_.push_back(layer_.ranks->all_reduce(rows.narrow(0, first, count)));
    });
}

// A reduce_scatter reads the rows of its destinations one after the other, so the rows of a piece for all destinations
// are computed side by side: in y's memory, or, when the product is added to y, in other memory.
void RegionEdge::sum_and_scatter_rows(const ops::Product& product, const Tensor& y) {
    const int P = layer_.ranks->size();
    const Tensor own = rows_of(y, layer_.ranks->rank(), P);
    sum_ = ops::empty(ctx_, own.shape(), y.dtype());
    const Tensor before = as_matrix(y), result = as_matrix(sum_);
    const Tensor sent = product.gemm.accumulate ? ops::empty(ctx_, before.shape(), y.dtype()) : before;
    const int64_t rows = result.dim(0);
    for_each_piece(rows, layer_.pieces, [&](int64_t first, int64_t count) {
        const Tensor piece = sent.narrow(0, P * first, P * count);
        for (int rank = 0; rank < P; ++rank) {
            const Tensor block = piece.narrow(0, rank * count, count);
            if (product.gemm.accumulate) ops::copy(ctx_, before.narrow(0, rank * rows + first, count), block);
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

Tensor RegionEdge::input_gradient(const MakeOne& make) {
    if (!is_entry()) return reading(make);
    if (in_pieces()) return summing(make);
    Tensor y = make(nullptr);
    if (y.defined()) sum_at_once(y);
    return y;
}

namespace {

// The nodes of the collectives of an edge.
Var enter_overlapped(Tape& tape, const Var& x, const SharedEdge& edge) {
    const Tensor whole = edge->gather(x.value);
    Var y = tape.record("enter_region", {x}, whole, [edge](const Tensor&, Tensors&) { return Tensors{edge->sum()}; });
    if (whole.buffer() == x.value.buffer()) y.recomputable = x.recomputable;
    return y;
}

Var exit_overlapped(Tape& tape, const Var& y, const SharedEdge& edge) {
    return tape.record("leave_region", {y}, edge->sum(),
                       [edge](const Tensor& dy, Tensors&) { return Tensors{edge->gather(dy)}; });
}

}  // namespace

SharedEdge edge_of(Tape& tape, const Parameter& weight) {
    using Kind = RegionEdge::Kind;
    const bool spread =
        weight.role == Role::column || weight.role == Role::key_value || weight.role == Role::head_group;
    const Kind kind = spread ? Kind::entry : weight.role == Role::row ? Kind::exit : Kind::none;
    auto edge = std::make_shared<RegionEdge>(tape.context(), kind, weight.tensor_parallel);
    const ProductRule& rule = rule_of(weight);
    check<UsageError>(!edge->in_pieces() || (!rule.converts() && !rule.adds()), weight.name,
                      ": its product rule needs whole tensors, which products overlapped with their communication do ",
                      "not have; set [parallel] tp_overlap = 1");
    return edge;
}

Var enter_tp_region(Tape& tape, const Var& x, const Parameter& weight, const SharedEdge& edge) {
    const autograd::TensorParallel& layer = weight.tensor_parallel;
    const bool spread = weight.role == Role::column || weight.role == Role::key_value ||
                        weight.role == Role::head_group || weight.role == Role::vocabulary;
    if (layer.ranks == nullptr || !spread) return x;
    if (edge && edge->is_entry()) return enter_overlapped(tape, x, edge);
    return layer.sequence ? gather_from_sequence(tape, x, *layer.ranks) : copy_to_region(tape, x, *layer.ranks);
}

Var enter_tp_region_as_codes(Tape& tape, const Var& x, const Parameter& weight, const SharedEdge& edge,
                             ops::Operand& whole) {
    comm::Communicator& ranks = *weight.tensor_parallel.ranks;
    const ProductRule& rule = rule_of(weight);
    const Use use{ops::GemmRole::forward, {}, &weight};
    whole = all_gather_codes(tape.context(), rule.part(tape.context(), x.value, use), ranks);
    const Tensor codes = whole.values;
    whole = rule.whole(tape.context(), whole, use);
    return tape.record("enter_region", {x}, codes, [edge](const Tensor&, Tensors&) { return Tensors{edge->sum()}; });
}

Var exit_tp_region_as_codes(Tape& tape, const Var& y, const Parameter& weight,
                            const std::shared_ptr<ops::Operand>& dy) {
    comm::Communicator& ranks = *weight.tensor_parallel.ranks;
    return reduce_scatter_to_sequence(tape, y, ranks, [&ctx = tape.context(), &weight, &ranks, dy](const Tensor& part) {
        const Use use{ops::GemmRole::input_gradient, {}, &weight};
        *dy = all_gather_codes(ctx, rule_of(weight).part(ctx, part, use), ranks);
        return std::exchange(dy->values, {});
    });
}

Var exit_tp_region(Tape& tape, Var y, const Parameter& weight, const SharedEdge& edge) {
    const autograd::TensorParallel& layer = weight.tensor_parallel;
    if (layer.ranks == nullptr || (weight.role != Role::row && weight.role != Role::vocabulary)) return y;
    if (edge && edge->in_pieces()) return exit_overlapped(tape, y, edge);
    return layer.sequence ? reduce_scatter_to_sequence(tape, y, *layer.ranks)
                          : reduce_from_region(tape, std::move(y), *layer.ranks);
}

}  // namespace tutti::nn
