#include "tutti/parallel/flat_unit.h"

#include <algorithm>

#include "tutti/ops/ops.h"

namespace tutti::parallel {

using autograd::Parameter;

namespace {

mesh::FlatLayout layout_of(const std::vector<Parameter*>& parameters, int shards) {
    std::vector<int64_t> sizes;
    for (const Parameter* p : parameters) {
        check(p->placement.empty(), p->name, ": flat buffers of tensor-parallel parameters do not exist yet");
        sizes.push_back(p->shape.numel());
    }
    return mesh::flat_layout(sizes, shards);
}

// Elements [begin, begin + n) of the flattened parameter. Rows of 4096, so that all threads draw.
void draw_range(ops::Context& ctx, const Parameter& p, int64_t begin, const Tensor& values, uint64_t seed) {
    if (p.init.std == 0) return ops::fill(ctx, values, static_cast<float>(p.init.value));
    constexpr int64_t kRow = 4096;
    const int64_t whole = values.numel() / kRow * kRow;
    kernels::Normal draw{.key = random_key(seed, p.name), .std = static_cast<float>(p.init.std), .row_step = kRow};
    draw.y = View(values.view().data, DType::f32, {whole / kRow, kRow});
    draw.first = begin;
    ops::normal(ctx, draw);
    draw.y = View(values.view().as<float>() + whole, DType::f32, {1, values.numel() - whole});
    draw.first = begin + whole;
    ops::normal(ctx, draw);
}

}  // namespace

FlatUnit::FlatUnit(ops::Context& ctx, std::vector<Parameter*> parameters, const FlatOptions& options)
    : ctx_(ctx),
      parameters_(std::move(parameters)),
      options_(options),
      layout_(layout_of(parameters_, options.shards)) {
    const DType compute = options_.compute;
    check(compute == DType::f32 || compute == DType::bf16, "parameters compute in f32 or bf16, not in ", compute);
    const int64_t size = layout_.shard_size, first = options_.shard * size;
    if (options_.zero == Zero::weights) {
        weight_shard_ = fresh(size, compute, Purpose::weights);
    } else {
        take_weights();
        weight_shard_ = weights_.narrow(0, first, size);
    }
    masters_ = compute == DType::f32 ? weight_shard_ : fresh(size, DType::f32, Purpose::optimizer);
    draw_masters();
    if (compute != DType::f32) ops::cast_into(ctx_, masters_, weight_shard_);
    if (options_.zero >= Zero::gradients) {
        gradient_shard_ = ops::zeros(ctx_, {size}, DType::f32, Purpose::gradients);
    } else {
        take_gradients();
        gradient_shard_ = gradients_.narrow(0, first, size);
    }
}

// Padding is zero from the start and nothing changes it; without padding all of it is written anyway.
Tensor FlatUnit::fresh(int64_t size, DType dtype, Purpose purpose) const {
    return layout_.padded == layout_.values ? ops::empty(ctx_, {size}, dtype, purpose)
                                            : ops::zeros(ctx_, {size}, dtype, purpose);
}

void FlatUnit::draw_masters() {
    for (const optim::Piece& piece : pieces())
        draw_range(ctx_, *piece.parameter, piece.begin, piece.master, options_.seed);
}

std::vector<optim::Piece> FlatUnit::pieces() const {
    std::vector<optim::Piece> pieces;
    const int64_t first = options_.shard * layout_.shard_size, end = first + layout_.shard_size;
    for (size_t i = 0; i < parameters_.size(); ++i) {
        const int64_t offset = layout_.offsets[i];
        const int64_t from = std::max(first, offset), to = std::min(end, offset + parameters_[i]->shape.numel());
        if (from >= to) continue;
        const auto part = [&](const Tensor& x) {
            return x.defined() ? x.narrow(0, from - first, to - from) : Tensor{};
        };
        pieces.push_back({parameters_[i], from - offset, part(masters_), part(weight_shard_), part(gradient_shard_)});
    }
    return pieces;
}

void FlatUnit::take_weights() {
    const bool leased = options_.zero == Zero::weights;
    weights_ = fresh(layout_.padded, options_.compute, leased ? Purpose::communication : Purpose::weights);
    for (size_t i = 0; i < parameters_.size(); ++i) {
        Parameter& p = *parameters_[i];
        p.value = weights_.narrow(0, layout_.offsets[i], p.shape.numel()).reshape(p.shape);
    }
}

void FlatUnit::drop_weights() {
    weights_ = {};
    for (Parameter* p : parameters_) p->value = {};
}

void FlatUnit::take_gradients() {
    const bool leased = options_.zero >= Zero::gradients;
    gradients_ = ops::zeros(ctx_, {layout_.padded}, DType::f32, leased ? Purpose::communication : Purpose::gradients);
    for (size_t i = 0; i < parameters_.size(); ++i) {
        Parameter& p = *parameters_[i];
        p.gradient = gradients_.narrow(0, layout_.offsets[i], p.shape.numel()).reshape(p.shape);
    }
}

void FlatUnit::drop_gradients() {
    gradients_ = {};
    for (Parameter* p : parameters_) p->gradient = {};
}

void FlatUnit::zero_gradients() {
    if (gradients_.defined()) ops::fill(ctx_, gradients_, 0);
}

}  // namespace tutti::parallel
