#include "tutti/parallel/flat_unit.h"

#include <algorithm>
#include <utility>

#include "tutti/ops/ops.h"
#include "tutti/ops/quantize.h"

namespace tutti::parallel {

using autograd::Parameter;

namespace {

FlatLayout layout_of(const std::vector<Parameter*>& parameters, const FlatOptions& options) {
    std::vector<int64_t> sizes;
    for (const Parameter* p : parameters) sizes.push_back(p->part().shape.numel());
    return flat_layout(sizes, options.shards, options.grain);
}

// Points a tensor of every parameter into the flat buffer.
void point_into(const std::vector<Parameter*>& parameters, Tensor Parameter::*tensor, const Tensor& flat,
                const FlatLayout& layout) {
    for (size_t i = 0; i < parameters.size(); ++i) {
        Parameter& p = *parameters[i];
        const Shape shape = p.part().shape;
        p.*tensor = flat.narrow(0, layout.offsets[i], shape.numel()).reshape(shape);
    }
}

// sum += x, rounded once. x, f32, may be overwritten.
void add_rounded(ops::Context& ctx, const Tensor& x, const Tensor& sum) {
    if (sum.dtype() == DType::f32) return ops::accumulate(ctx, x, sum);
    ops::accumulate(ctx, sum, x);
    ops::cast_into(ctx, x, sum);
}

void point_nowhere(const std::vector<Parameter*>& parameters, Tensor Parameter::*tensor) {
    for (Parameter* p : parameters) p->*tensor = {};
}

}  // namespace

FlatUnit::FlatUnit(ops::Context& ctx, std::vector<Parameter*> parameters, const FlatOptions& options)
    : ctx_(ctx), parameters_(std::move(parameters)), options_(options), layout_(layout_of(parameters_, options)) {
    const DType compute = options_.compute;
    check(is_compute_dtype(compute), "parameters compute in f32, bf16 or f16, not in ", compute);
    const int64_t size = layout_.shard_size;
    const bool masters_stay = compute != DType::f32 && options_.masters && !options_.frozen;
    if (options_.zero != Zero::weights) {
        allocate_weights();
        weight_shard_ = weights_.narrow(0, options_.shard * size, size);
    } else if (!masters_stay || options_.masters_device || options_.weights_device) {
        weight_shard_ = fresh(size, compute, Purpose::weights, options_.weights_device);
    }
    masters_ =
        compute == DType::f32 ? weight_shard_ : fresh(size, DType::f32, Purpose::optimizer, options_.masters_device);
    for (const optim::ParameterShard& piece : parameter_shards())
        autograd::draw(ctx_, *piece.parameter, options_.seed, piece.blocks(), piece.master);
    round_masters();
    if (options_.frozen || !options_.masters) masters_ = weight_shard_;
    if (options_.zero != Zero::weights || !parameters_.front()->gathered) return;
    std::vector<CodedWeights::Piece> pieces;
    for (size_t i = 0; i < parameters_.size(); ++i)
        if (const auto [begin, end] = range_of(i, options_.shard); begin < end)
            pieces.push_back({i, begin, end, layout_.offsets[i] + begin - options_.shard * size});
    coded_ = std::make_unique<CodedWeights>(ctx_, parameters_, pieces, compute);
}

// Padding is zero from the start and never changes; without padding the whole buffer is written anyway.
Tensor FlatUnit::fresh(int64_t size, DType dtype, Purpose purpose, Device* offload_device) const {
    Tensor values = Tensor::empty(offload_device ? *offload_device : ctx_.device, {size}, dtype, purpose);
    if (!layout_.gaps.empty()) ops::fill(ctx_, values, 0);
    return values;
}

void FlatUnit::round_masters() {
    if (weight_shard_.defined() && masters_.dtype() != weight_shard_.dtype())
        ops::cast_into(ctx_, masters_, weight_shard_);
}

Tensor FlatUnit::rounded_shard() const {
    if (weight_shard_.defined()) return weight_shard_;
    return ops::cast(ctx_, masters_, options_.compute, Purpose::communication);
}

Tensor FlatUnit::weight_shard() const {
    if (!coded_ && weight_shard_.defined()) return weight_shard_;
    const Tensor shard = weights_.narrow(0, options_.shard * layout_.shard_size, layout_.shard_size);
    if (!coded_) {
        ops::cast_into(ctx_, masters_, shard);
        return shard;
    }
    // Padding is sent too; a shard of several has a multiple of kShardGrain codes.
    if (!layout_.gaps.empty() && options_.shards > 1) ops::clear_codes(ctx_, shard);
    coded_->cast(rounded_shard(), shard);
    return shard;
}

FlatUnit::Range FlatUnit::range_of(size_t i, int shard) const {
    const int64_t first = shard * layout_.shard_size - layout_.offsets[i], n = parameters_[i]->part().shape.numel();
    return {std::clamp<int64_t>(first, 0, n), std::clamp<int64_t>(first + layout_.shard_size, 0, n)};
}

std::vector<optim::ParameterShard> FlatUnit::parameter_shards() const {
    std::vector<optim::ParameterShard> pieces;
    for (size_t i = 0; i < parameters_.size(); ++i) {
        const auto [begin, end] = range_of(i, options_.shard);
        if (begin == end) continue;
        const int64_t at = layout_.offsets[i] + begin - options_.shard * layout_.shard_size, n = end - begin;
        const Tensor& rounded = weight_shard_.defined() ? weight_shard_ : masters_;
        pieces.push_back({parameters_[i], begin, masters_.narrow(0, at, n), rounded.narrow(0, at, n), &gradient_shard_,
                          at, options_.owned});
    }
    return pieces;
}

void FlatUnit::allocate_weights() {
    const bool leased = options_.zero == Zero::weights;  // then a gather writes all weights, including the padding
    const DType type = coded_ ? coded_->format() : options_.compute;
    weights_ = leased ? ops::empty(ctx_, {layout_.padded}, type, Purpose::communication)
                      : fresh(layout_.padded, type, Purpose::weights);
    point_into(parameters_, &Parameter::value, weights_, layout_);
    if (coded_) coded_->set_codes();
}

void FlatUnit::free_weights() {
    weights_ = {};
    point_nowhere(parameters_, &Parameter::value);
    for (Parameter* p : parameters_) p->codes = {};
}

void FlatUnit::allocate_gradients() {
    const bool stored = options_.gradients == DType::f32;
    contribution_ =
        ops::empty(ctx_, {layout_.padded}, DType::f32, stored ? gradients_purpose() : Purpose::communication);
    for (const FlatLayout::Gap& gap : layout_.gaps) ops::fill(ctx_, contribution_.narrow(0, gap.begin, gap.size), 0);
    if (stored) keep_gradients(contribution_);
    point_into(parameters_, &Parameter::gradient, contribution_, layout_);
    for (Parameter* p : parameters_) p->gradient_unset = true;
}

Purpose FlatUnit::gradients_purpose() const {
    return options_.zero >= Zero::gradients ? Purpose::communication : Purpose::gradients;
}

void FlatUnit::keep_gradients(const Tensor& gradients) {
    gradients_ = gradients;
    if (options_.zero < Zero::gradients)
        gradient_shard_ = gradients_.narrow(0, options_.shard * layout_.shard_size, layout_.shard_size);
}

void FlatUnit::zero_gradients() {
    ops::fill(ctx_, gradients_, 0);
    for (Parameter* p : parameters_) p->gradient_unset = false;
}

void FlatUnit::round_gradients() {
    const auto is_unset = [](const Parameter* p) { return p->gradient_unset; };
    if (options_.gradients == DType::f32 || !takes_gradients()) return;
    if (!std::all_of(parameters_.begin(), parameters_.end(), is_unset)) return complete_gradients();
    contribution_ = {};  // the unit added nothing
    point_nowhere(parameters_, &Parameter::gradient);
}

void FlatUnit::complete_gradients() {
    if (!takes_gradients()) return;
    for (Parameter* p : parameters_)
        if (std::exchange(p->gradient_unset, false)) ops::fill(ctx_, p->gradient, 0);
    if (options_.gradients == DType::f32) return;
    if (gradients_.defined()) {
        add_rounded(ctx_, contribution_, gradients_);
    } else {
        keep_gradients(ops::empty(ctx_, {layout_.padded}, options_.gradients, gradients_purpose()));
        ops::cast_into(ctx_, contribution_, gradients_);
    }
    contribution_ = {};
    point_nowhere(parameters_, &Parameter::gradient);
}

void FlatUnit::free_gradients() {
    gradients_ = contribution_ = {};
    point_nowhere(parameters_, &Parameter::gradient);
}

void FlatUnit::allocate_gradient_shard() {
    if (!gradient_shard_.defined())
        gradient_shard_ = ops::empty(ctx_, {layout_.shard_size}, options_.gradients, Purpose::gradients);
}

void FlatUnit::add_to_gradient_shard(const Tensor& x) { add_rounded(ctx_, x, gradient_shard_); }

void FlatUnit::free_gradient_shard() { gradient_shard_ = {}; }

}  // namespace tutti::parallel
