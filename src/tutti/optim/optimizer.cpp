#include "tutti/optim/optimizer.h"

#include <algorithm>
#include <map>
#include <utility>

#include "tutti/base/ceil_div.h"
#include "tutti/base/error.h"
#include "tutti/ops/ops.h"

namespace tutti::optim {

namespace {

// Whether blocks of elements are parts of rows.
bool divides_rows(const StateField& field, const Shape& parameter) {
    return parameter.rank() > 0 && parameter[-1] % field.per == 0;
}

// A field's values as a global tensor: (..., K / per) where blocks divide rows, else flat.
Shape shape_of(const StateField& field, const Shape& parameter) {
    if (!divides_rows(field, parameter)) return {ceil_div(parameter.numel(), field.per)};
    Shape shape = parameter;
    shape[-1] /= field.per;
    return shape;
}

// The blocks of elements of a shard as rectangles of the field's tensor, one behind another in memory.
std::vector<mesh::HeldBlock> blocks_of(const StateField& field, const ParameterShard& shard) {
    const Shape& global = shard.parameter->shape;
    std::vector<mesh::HeldBlock> held = shard.blocks();
    if (field.per == 1) return held;
    const int64_t per = field.per, numel = global.numel();
    const auto blocks = [&](int64_t begin, int64_t end) {
        check<UsageError>(begin % per == 0 && (end % per == 0 || end == numel), shard.parameter->name, ": \"",
                          field.name, "\" of the optimizer has a value for ", per, " elements of ", global,
                          ", and this layout cuts at elements ", begin, " and ", end,
                          "; choose parallel.tp so that each rank has multiples of ", per,
                          ", or another storage of the optimizer, such as optimizer.m and v = \"bf16\"");
        return ceil_div(end - begin, per);
    };
    int64_t at = 0;
    if (divides_rows(field, global)) {
        for (auto& [block, begin] : held) {
            block.sizes[-1] = blocks(block.offset[-1], block.offset[-1] + block.sizes[-1]);
            block.offset[-1] /= per;
            begin = std::exchange(at, at + block.numel());
        }
        return held;
    }
    std::vector<std::pair<int64_t, int64_t>> runs;  // of the flattened parameter
    for (const mesh::HeldBlock& h : held)
        mesh::for_each_run(h.block, mesh::whole_block(global), h.block, [&](int64_t begin, int64_t, int64_t n) {
            if (!runs.empty() && runs.back().second == begin)
                runs.back().second += n;
            else
                runs.emplace_back(begin, begin + n);
        });
    held.clear();
    for (const auto& [begin, end] : runs) {
        const int64_t n = blocks(begin, end);
        held.push_back({{{begin / per}, {n}}, std::exchange(at, at + n)});
    }
    return held;
}

int64_t values_of(const StateField& field, const ParameterShard& shard) {
    if (field.per == 1) return shard.master.numel();  // padding too, as masters have it
    int64_t values = 0;
    for (const mesh::HeldBlock& held : blocks_of(field, shard)) values += held.block.numel();
    return values;
}

}  // namespace

std::vector<ParameterShard> whole_shards(const std::vector<Parameter*>& parameters) {
    std::vector<ParameterShard> shards;
    for (Parameter* p : parameters) {
        const auto flat = [&](const Tensor& x) { return x.reshape({x.numel()}); };
        shards.push_back({p, 0, flat(p->frozen() ? p->value : p->master), flat(p->value), &p->gradient, 0});
    }
    return shards;
}

std::vector<mesh::HeldBlock> ParameterShard::blocks() const {
    return mesh::blocks_of_range(parameter->part(), begin, begin + master.numel());
}

Tensor ParameterShard::gradient() const {
    check(gradients->defined(), parameter->name, ": its gradient is read before a step has computed it");
    return gradients->reshape({gradients->numel()}).narrow(0, gradient_begin, master.numel());
}

Tensor ParameterShard::rounded() const { return value.dtype() == master.dtype() ? Tensor{} : value; }

void round_master(ops::Context& ctx, const ParameterShard& shard) {
    if (const Tensor rounded = shard.rounded(); rounded.defined()) ops::cast_into(ctx, shard.master, rounded);
}

std::vector<mesh::Block> UpdateRule::matrices(const Parameter& p) const {
    std::vector<mesh::Block> matrices;
    if (!p.is_matrix()) return matrices;
    const int64_t count = p.of_experts() ? p.shape[0] : p.sections;
    for (int64_t i = 0; i < count; ++i) {
        mesh::Block& matrix = matrices.emplace_back(mesh::whole_block(p.shape));
        matrix.sizes[0] = p.shape[0] / count;
        matrix.offset[0] = i * matrix.sizes[0];
    }
    return matrices;
}

Optimizer::Optimizer(ops::Context& ctx, std::vector<ParameterShard> shards, Rules rules, Device* offload_device,
                     std::unique_ptr<WholeMatrices> whole_matrices, uint64_t seed, DType compute)
    : ctx_(ctx),
      shards_(std::move(shards)),
      rules_(std::move(rules)),
      whole_matrices_(std::move(whole_matrices)),
      seed_(seed),
      compute_(compute) {
    for (const ParameterShard& shard : shards_) {
        const Parameter& p = *shard.parameter;
        groups_.push_back(rules_.group_of(p));
        blocks_.push_back(shard.blocks());
        if (p.frozen()) {
            state_.emplace_back();
            continue;
        }
        const UpdateRule& rule = rules_.of(p);
        check<UsageError>(whole_matrices_ || !rule.whole_matrices(), p.name,
                          ": its update rule needs whole matrices, which parallel::DataParallel brings together; give "
                          "the optimizer its gather_whole()");
        std::vector<Tensor>& fields = state_.emplace_back();
        for (const StateField& field : rule.state(p)) {
            fields.push_back(Tensor::empty(offload_device ? *offload_device : ctx.device, {values_of(field, shard)},
                                           field.dtype, Purpose::optimizer));
            ops::fill(ctx, fields.back(), 0);
        }
    }
}

void Optimizer::step(double lr, double grad_scale, double mean_load) {
    const StepNumbers numbers{.lr = lr,
                              .grad_scale = grad_scale,
                              .update = ++updates_,
                              .seed = seed_,
                              .compute = compute_,
                              .mean_load = mean_load,
                              .whole_matrices = whole_matrices_.get()};
    const auto is_whole = [&](size_t rule) { return rules_.all()[rule]->whole_matrices(); };
    std::map<std::pair<size_t, double>, std::vector<Piece>> pieces;  // by rule and rate; of whole matrices all rates
    for (size_t rule = 0; whole_matrices_ && rule < rules_.all().size(); ++rule)
        if (is_whole(rule)) pieces[{rule, 1.0}];
    for (size_t i = 0; i < shards_.size(); ++i) {
        if (shards_[i].parameter->frozen()) continue;
        const Rules::Group& group = groups_[i];
        pieces[{group.rule, is_whole(group.rule) ? 1.0 : group.lr_scale}].push_back(
            {shards_[i], shards_[i].gradient(), state_[i], blocks_[i], group.weight_decay, group.lr_scale});
    }
    for (const auto& [rule_and_scale, of_rule] : pieces) {
        StepNumbers scaled = numbers;
        scaled.lr *= rule_and_scale.second;
        rules_.all()[rule_and_scale.first]->step(ctx_, of_rule, scaled);
    }
}

std::vector<StateTensor> Optimizer::state() const {
    std::vector<StateTensor> state;
    for (const ParameterShard& s : shards_)
        state.push_back({s.parameter->name, s.parameter->shape, s.blocks(), s.master, s.owned});
    for (size_t i = 0; i < shards_.size(); ++i) {
        const ParameterShard& s = shards_[i];
        if (s.parameter->frozen()) continue;
        const std::vector<StateField> fields = rules_.of(*s.parameter).state(*s.parameter);
        for (size_t f = 0; f < fields.size(); ++f)
            state.push_back({std::string("optimizer.").append(fields[f].name).append(".").append(s.parameter->name),
                             shape_of(fields[f], s.parameter->shape), blocks_of(fields[f], s), state_[i][f], s.owned});
    }
    return state;
}

double clip_factor(double norm, double clip) { return clip > 0 ? std::min(1.0, clip / (norm + 1e-6)) : 1.0; }

}  // namespace tutti::optim
