#include "tutti/parallel/whole_matrices.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "tutti/base/to_size.h"
#include "tutti/ops/ops.h"
#include "tutti/parallel/apply.h"

namespace tutti::parallel {

using mesh::Axes;
using mesh::Axis;
using mesh::Block;
using mesh::HeldBlock;
using optim::Piece;

namespace {

// The ranks that hold a model's stages together.
comm::Communicator& holders(Groups& groups) {
    Axes several;
    for (const Axes axes : {mesh::kTp, mesh::kCp, Axes(Axis::dp_shard)})
        if (groups.mesh().size(axes) > 1) several = several | axes;
    return groups.over(several.empty() ? Axes(Axis::dp_shard) : several);
}

// The rectangle `block` of values that hold `all`.
Tensor rectangle(const Tensor& values, const Block& all, const Block& block) {
    Tensor x = values.reshape(all.sizes);
    for (int d = 0; d < all.sizes.rank(); ++d) x = x.narrow(d, block.offset[d] - all.offset[d], block.sizes[d]);
    return x;
}

// Of Newton-Schulz iterations on an m x n matrix, m <= n: products of m x n by n x m, and of m x m.
double cost_of(const Block& block) {
    const auto columns = static_cast<double>(block.sizes[-1]), rows = static_cast<double>(block.numel()) / columns;
    const double m = std::min(rows, columns), n = std::max(rows, columns);
    return m * m * (2 * n + m);
}

}  // namespace

WholeMatrices::WholeMatrices(ops::Context& ctx, Groups& groups, std::vector<ShardedParameter> parameters,
                             int64_t wave_values)
    : ctx_(ctx), groups_(groups), ranks_(holders(groups)), parameters_(std::move(parameters)) {
    for (const ShardedParameter& p : parameters_)
        for (const Block& block : p.matrices) matrices_.push_back({&p, block});
    assign_owners(wave_values);
}

// The longest first, each to the rank with the least so far. All ranks come to the same result: it follows from global
// shapes, names and the size of the group.
void WholeMatrices::assign_owners(int64_t wave_values) {
    std::stable_sort(matrices_.begin(), matrices_.end(), [](const Matrix& a, const Matrix& b) {
        const double costs[] = {cost_of(a.block), cost_of(b.block)};
        return costs[0] != costs[1] ? costs[0] > costs[1] : a.of->parameter->name < b.of->parameter->name;
    });
    struct Load {
        double cost = 0;
        int64_t values = 0;  // of the newest wave
        size_t wave = 0;
    };
    std::vector<Load> loads(to_size(ranks_.size()));
    for (Matrix& m : matrices_) {
        const auto least =
            std::min_element(loads.begin(), loads.end(), [](const Load& a, const Load& b) { return a.cost < b.cost; });
        if (least->values > 0 && least->values + m.block.numel() > wave_values) {
            ++least->wave;
            least->values = 0;
        }
        least->values += m.block.numel();
        least->cost += cost_of(m.block);
        m.owner = static_cast<int>(least - loads.begin());
        m.wave = least->wave;
        waves_ = std::max(waves_, m.wave + 1);
    }
    std::stable_sort(matrices_.begin(), matrices_.end(), [](const Matrix& a, const Matrix& b) {
        return std::pair(a.wave, a.owner) < std::pair(b.wave, b.owner);
    });
}

// --- who holds what --------------------------------------------------------------------------------------------------

std::vector<HeldBlock> WholeMatrices::blocks_of(const ShardedParameter& p, int rank) const {
    const int of_world = ranks_.ranks()[to_size(rank)];
    const auto [begin, end] = p.flat->range_of(p.index, groups_.mesh().coordinate(of_world, p.cut));
    return mesh::blocks_of_range(part_of(*p.parameter, groups_.mesh(), of_world), begin, end);
}

// Of equal copies, the owner takes its own, or one whose rank depends on the owner, so that no rank sends all.
bool WholeMatrices::is_source(const Matrix& matrix, int rank) const {
    const ShardedParameter& p = *matrix.of;
    const int of_world = ranks_.ranks()[to_size(rank)], owner = ranks_.ranks()[to_size(matrix.owner)];
    const std::vector<int> copies =
        groups_.mesh().group(of_world, p.parameter->copies - p.cut - Axes(Axis::dp_replicate));
    if (std::find(copies.begin(), copies.end(), owner) != copies.end()) return of_world == owner;
    return of_world == copies[to_size(matrix.owner) % copies.size()];
}

void WholeMatrices::add_slices(std::vector<Slice>& slices, const Matrix& matrix, int holder, int peer) const {
    const bool source = is_source(matrix, holder);
    for (const HeldBlock& held : blocks_of(*matrix.of, holder)) {
        const Block both = mesh::intersection(held.block, matrix.block);
        if (both.numel() > 0) slices.push_back({&matrix, peer, held, both, source});
    }
}

std::span<const WholeMatrices::Matrix> WholeMatrices::of_wave(size_t wave) const {
    const auto of = std::ranges::equal_range(matrices_, wave, {}, &Matrix::wave);
    return {of.begin(), of.end()};
}

std::span<const WholeMatrices::Matrix> WholeMatrices::own(size_t wave) const {
    const auto own = std::ranges::equal_range(of_wave(wave), ranks_.rank(), {}, &Matrix::owner);
    return {own.begin(), own.end()};
}

std::vector<WholeMatrices::Slice> WholeMatrices::held(size_t wave) const {
    std::vector<Slice> slices;
    for (const Matrix& m : of_wave(wave)) add_slices(slices, m, ranks_.rank(), m.owner);
    return slices;
}

std::vector<WholeMatrices::Slice> WholeMatrices::owned(size_t wave) const {
    std::vector<Slice> slices;
    for (int holder = 0; holder < ranks_.size(); ++holder)
        for (const Matrix& m : own(wave)) add_slices(slices, m, holder, holder);
    return slices;
}

// --- exchanges -------------------------------------------------------------------------------------------------------

WholeMatrices::Exchange WholeMatrices::begin(DType type, const std::vector<Slice>& leaving, const Place& from,
                                             std::vector<Slice> arriving) {
    std::vector<int64_t> to(to_size(ranks_.size())), of(to.size());
    int64_t sent = 0, received = 0;
    for (const Slice& slice : leaving) to[to_size(slice.peer)] += slice.block.numel();
    for (const Slice& slice : arriving) of[to_size(slice.peer)] += slice.block.numel();
    for (size_t r = 0; r < to.size(); ++r) {
        sent += to[r];
        received += of[r];
    }
    Exchange exchange{.sent = ops::empty(ctx_, {sent}, type, Purpose::communication),
                      .received = ops::empty(ctx_, {received}, type, Purpose::communication),
                      .arriving = std::move(arriving)};
    int64_t at = 0;
    for (const Slice& slice : leaving) {
        const int64_t n = slice.block.numel();
        ops::copy(ctx_, from(slice), exchange.sent.narrow(0, at, n).reshape(slice.block.sizes));
        at += n;
    }
    exchange.work = ranks_.all_to_all(exchange.sent, to, exchange.received, of);
    return exchange;
}

void WholeMatrices::finish(Exchange& exchange, const Place& to) {
    exchange.work.wait();
    int64_t at = 0;
    for (const Slice& slice : exchange.arriving) {
        const int64_t n = slice.block.numel();
        ops::copy(ctx_, exchange.received.narrow(0, at, n).reshape(slice.block.sizes), to(slice));
        at += n;
    }
    exchange = {};
}

void WholeMatrices::transform(std::span<const Piece> pieces, std::span<const Tensor> values, DType type,
                              const Transform& transform) {
    std::unordered_map<const autograd::Parameter*, Tensor> values_of;
    for (size_t i = 0; i < pieces.size(); ++i) {
        check(values[i].dtype() == type && values[i].numel() == pieces[i].gradient.numel(),
              pieces[i].shard.parameter->name, ": whole matrices from ", values[i].numel(), " values in ",
              values[i].dtype(), "; required ", pieces[i].gradient.numel(), " in ", type);
        values_of[pieces[i].shard.parameter] = values[i];
    }
    std::unordered_map<const Matrix*, Tensor> whole;  // of the wave in hand
    const Place in_piece = [&](const Slice& s) {
        const HeldBlock& held = s.held;
        return rectangle(values_of.at(s.matrix->of->parameter).narrow(0, held.begin, held.block.numel()), held.block,
                         s.block);
    };
    const Place in_whole = [&](const Slice& s) { return rectangle(whole.at(s.matrix), s.matrix->block, s.block); };
    const auto gather = [&](size_t wave) {
        std::vector<Slice> leaving = held(wave), arriving = owned(wave);
        for (std::vector<Slice>* slices : {&leaving, &arriving})
            std::erase_if(*slices, [](const Slice& s) { return !s.source; });
        return begin(type, leaving, in_piece, std::move(arriving));
    };

    Exchange gathered = waves_ > 0 ? gather(0) : Exchange(), returned;
    for (size_t wave = 0; wave < waves_; ++wave) {
        Exchange next = wave + 1 < waves_ ? gather(wave + 1) : Exchange();
        for (const Matrix& m : own(wave)) whole[&m] = ops::empty(ctx_, m.block.sizes, type, Purpose::workspace);
        finish(gathered, in_whole);
        std::vector<Tensor> matrices;
        for (const Matrix& m : own(wave)) {
            const int64_t columns = m.block.sizes[-1];
            matrices.push_back(whole.at(&m).reshape({m.block.numel() / columns, columns}));
        }
        if (!matrices.empty()) transform(matrices);
        finish(returned, in_piece);
        returned = begin(type, owned(wave), in_whole, held(wave));
        whole.clear();
        gathered = std::move(next);
    }
    finish(returned, in_piece);
}

}  // namespace tutti::parallel
