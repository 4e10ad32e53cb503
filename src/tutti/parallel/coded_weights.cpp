#include "tutti/parallel/coded_weights.h"

#include <algorithm>
#include <utility>

#include "tutti/kernels/group_scale.h"
#include "tutti/ops/quantize.h"

namespace tutti::parallel {

using autograd::GatheredCodes;
using autograd::Parameter;
using kernels::KernelTable;

namespace {

// The matrices of a parameter's part: one, or one for each expert.
int64_t matrices_of(const Shape& part) { return part.rank() == 3 ? part[0] : 1; }
Shape matrix_of(const Shape& part) { return {part[-2], part[-1]}; }

kernels::GroupGrid grid_of(const Parameter& p) {
    const Shape matrix = matrix_of(p.part().shape);
    return {p.gathered->group, matrix[0], matrix[1]};
}

}  // namespace

CodedWeights::CodedWeights(ops::Context& ctx, std::vector<Parameter*> parameters, const std::vector<Piece>& pieces,
                           DType type)
    : ctx_(ctx), parameters_(std::move(parameters)), type_(type) {
    std::vector<size_t> first_matrices;
    for (Parameter* p : parameters_) {
        const Shape part = p->part().shape;
        check(part.rank() == 2 || part.rank() == 3, p->name, " of shape ", part,
              ": only matrices are gathered as codes");
        check(p->gathered->format == format(), p->name, ": weights of a unit are gathered in one format");
        first_groups_.push_back(groups_);
        first_matrices.push_back(matrices_.size());
        for (int64_t i = 0; i < matrices_of(part); ++i) {
            matrices_.push_back({p, matrix_of(part), groups_});
            groups_ += grid_of(*p).down() * grid_of(*p).across();
        }
    }
    for (const Piece& piece : pieces) {
        const int64_t size = matrix_of(parameters_[piece.parameter]->part().shape).numel();
        for (int64_t begin = piece.begin; begin < piece.end;) {
            const int64_t matrix = begin / size, end = std::min(piece.end, (matrix + 1) * size);
            runs_.push_back({first_matrices[piece.parameter] + static_cast<size_t>(matrix), begin - matrix * size,
                             end - begin, piece.at + begin - piece.begin});
            begin = end;
        }
    }
}

kernels::QuantizeRun CodedWeights::run_of(const Run& run, const Tensor& shard) const {
    const Matrix& m = matrices_[run.matrix];
    const kernels::GroupGrid grid = grid_of(*m.parameter);
    return {.x = shard.narrow(0, run.at, run.n),
            .first = run.first,
            .matrix = m.shape,
            .group = m.parameter->gathered->group,
            .amaxes = magnitudes_.narrow(0, m.first_group, grid.down() * grid.across())};
}

Tensor CodedWeights::magnitudes_of(size_t parameter) const {
    const int64_t first = first_groups_[parameter];
    const int64_t end = parameter + 1 < first_groups_.size() ? first_groups_[parameter + 1] : groups_;
    return magnitudes_.narrow(0, first, end - first);
}

void CodedWeights::add_magnitudes(const Tensor& shard) const {
    for (const Run& run : runs_) ops::call(ctx_, &KernelTable::amax_of_run, "amax_of_run", run_of(run, shard));
}

void CodedWeights::cast(const Tensor& shard, const Tensor& codes) const {
    for (const Run& run : runs_) {
        const GatheredCodes& how = *matrices_[run.matrix].parameter->gathered;
        kernels::QuantizeRun q = run_of(run, shard);
        q.powers_of_two = how.powers_of_two;
        q.codes = codes.narrow(0, run.at, run.n);
        const Tensor factor = how.given ? how.given().factor : Tensor();
        if (factor.defined()) q.factor = factor;
        ops::call(ctx_, &KernelTable::quantize_run, "quantize_run", q);
    }
}

void CodedWeights::set_codes() const {
    for (size_t i = 0; i < parameters_.size(); ++i) {
        Parameter& p = *parameters_[i];
        const GatheredCodes::Given given = p.gathered->given ? p.gathered->given() : GatheredCodes::Given{};
        const Tensor magnitudes = magnitudes_of(i);
        if (given.amax.defined()) ops::add_largest(ctx_, magnitudes, given.amax);
        const Shape part = p.part().shape;
        p.codes = ops::Operand(p.value);
        p.codes.scales = ops::divisors_of(ctx_, magnitudes, format(), type_, p.gathered->powers_of_two, given.factor)
                             .reshape({matrices_of(part) * grid_of(p).down(), grid_of(p).across()});
        p.codes.coding = {
            .shape = part, .type = type_, .group = p.gathered->group, .powers_of_two = p.gathered->powers_of_two};
        if (part.rank() == 3) p.codes.coding.segments.assign(static_cast<size_t>(part[0]), part[1]);
    }
}

}  // namespace tutti::parallel
