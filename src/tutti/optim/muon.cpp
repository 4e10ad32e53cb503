// optim/muon.cpp: Muon (Jordan et al. 2024): the momentum of each matrix is replaced by the nearest orthogonal matrix,
// or nearly, by a Newton-Schulz iteration on the whole matrix. A fused weight (q, k and v) is as many matrices.
#include "tutti/optim/muon.h"

#include <algorithm>
#include <cmath>

#include "tutti/base/error.h"
#include "tutti/ops/ops.h"
#include "tutti/optim/rule.h"

namespace tutti::optim {

namespace {

constexpr Quintic kSimple[] = {{3.4445, -4.7750, 2.0315},
                               {3.4445, -4.7750, 2.0315},
                               {3.4445, -4.7750, 2.0315},
                               {3.4445, -4.7750, 2.0315},
                               {3.4445, -4.7750, 2.0315}};
constexpr Quintic kQuintic[] = {{4.0848, -6.8946, 2.9270},
                                {3.9505, -6.3029, 2.6377},
                                {3.7418, -5.5913, 2.3037},
                                {2.8769, -3.1427, 1.2046},
                                {2.8366, -3.0525, 1.2012}};
// Amsel et al. 2025, "The Polar Express", for singular values from 1e-3 on; the last step is repeated there.
constexpr Quintic kPolarExpress[] = {{8.28721201814563, -23.595886519098837, 17.300387312530933},
                                     {4.107059111542203, -2.9478499167379106, 0.5448431082926601},
                                     {3.9486908534822946, -2.908902115962949, 0.5518191394370137},
                                     {3.3184196573706015, -2.488488024314874, 0.51004894012372},
                                     {2.300652019954817, -1.6689039845747493, 0.4188073119525673},
                                     {1.891301407787398, -1.2679958271945868, 0.37680408948524835},
                                     {1.8750014808534479, -1.2500016453999487, 0.3750001645474248},
                                     {1.875, -1.25, 0.375}};

Tensor product(ops::Context& ctx, const Tensor& a, const Tensor& b, bool transpose_a, bool transpose_b) {
    const Tensor c = ops::empty(ctx, {a.shape()[transpose_a ? 1 : 0], b.shape()[transpose_b ? 0 : 1]}, DType::f32,
                                Purpose::workspace);
    ops::gemm(ctx, {.a = a, .b = b, .c = c, .transpose_a = transpose_a, .transpose_b = transpose_b});
    return c;
}

class Muon final : public UpdateRule {
  public:
    explicit Muon(const spec::OptimizerSpec& spec) : spec_(spec), steps_(newton_schulz(spec.muon_coefficients)) {}

    bool updates(const Parameter& parameter) const override {
        using autograd::Role;
        switch (parameter.role) {
            case Role::column:
            case Role::row:
            case Role::key_value:
            case Role::head_group:
            case Role::router:
            case Role::expert_column:
            case Role::expert_row: return parameter.multiplies();
            default: return false;
        }
    }
    bool whole_matrices() const override { return true; }
    std::vector<StateField> state(const Parameter& parameter) const override { return fields_of(moments(parameter)); }

    void step(ops::Context& ctx, std::span<const Piece> pieces, const StepNumbers& numbers) const override {
        // In f16 the products of small singular values would vanish.
        const DType type = numbers.compute == DType::f32 ? DType::f32 : DType::bf16;
        std::vector<Tensor> updates;
        for (const Piece& piece : pieces)
            updates.push_back(ops::empty(ctx, {piece.gradient.numel()}, type, Purpose::workspace));
        std::vector<kernels::OptimizerPiece> first = kernel_pieces(
            pieces, numbers, [&](const Parameter& p) { return moments(p); },
            [&](size_t piece) {
                return std::pair{updates[piece].view(), scale_of(*pieces[piece].shard.parameter)};
            });
        std::vector<kernels::OptimizerPiece> second = first;
        for (kernels::OptimizerPiece& piece : first) piece.master = piece.value = {};
        for (kernels::OptimizerPiece& piece : second) {
            piece.gradient = {};
            piece.m = {};
        }
        ops::call(ctx, &kernels::KernelTable::muon_momentum, "muon_momentum",
                  kernels::MuonMomentum{.pieces = first,
                                        .momentum = static_cast<float>(spec_.muon_momentum),
                                        .grad_scale = static_cast<float>(numbers.grad_scale)});
        numbers.whole_matrices->transform(
            pieces, updates, type, [&](std::span<const Tensor> matrices) { orthogonalise(ctx, matrices, steps_); });
        ops::call(ctx, &kernels::KernelTable::muon_descent, "muon_descent",
                  kernels::MuonDescent{.pieces = second, .lr = static_cast<float>(numbers.lr)});
    }

  private:
    std::vector<MomentType> moments(const Parameter& parameter) const {
        return moments_of(spec_, parameter, {{"momentum", spec_.muon_momentum}});
    }
    // The root mean square of the update: as AdamW's usual one, or as that of an update that changes each output alike.
    float scale_of(const Parameter& parameter) const {
        const Shape matrix = matrices(parameter).front().sizes;
        const auto rows = static_cast<double>(matrix[-2]), columns = static_cast<double>(matrix[-1]);
        return static_cast<float>(spec_.muon_scale == "shape" ? std::sqrt(std::max(1.0, rows / columns))
                                                              : 0.2 * std::sqrt(std::max(rows, columns)));
    }

    spec::OptimizerSpec spec_;
    std::span<const Quintic> steps_;
};

}  // namespace

std::span<const Quintic> newton_schulz(const std::string& name) {
    if (name == "simple") return kSimple;
    if (name == "quintic") return kQuintic;
    check<UsageError>(name == "polar_express",
                      "optimizer.muon_coefficients must be simple, quintic or polar_express, got \"", name, "\"");
    return kPolarExpress;
}

namespace {

void orthogonalise_one(ops::Context& ctx, const Tensor& x, double norm, std::span<const Quintic> steps) {
    const DType type = x.dtype();
    const bool wide = x.shape()[0] <= x.shape()[1];  // the products are of the shorter side
    const auto rounded = [&](const Tensor& y) {
        return type == DType::f32 ? y : ops::cast(ctx, y, type, Purpose::workspace);
    };
    const Tensor sum = ops::cast(ctx, x, DType::f32, Purpose::workspace);
    ops::scale(ctx, sum, static_cast<float>(1 / (norm + 1e-7)));
    for (const Quintic& q : steps) {
        ops::cast_into(ctx, sum, x);
        const Tensor gram = product(ctx, x, x, !wide, wide), a = rounded(gram);
        const Tensor polynomial = product(ctx, a, a, false, false);
        ops::scale(ctx, polynomial, static_cast<float>(q.c));
        ops::scale(ctx, gram, static_cast<float>(q.b));
        ops::accumulate(ctx, gram, polynomial);
        const Tensor b = rounded(polynomial);
        ops::cast_into(ctx, x, sum);
        ops::scale(ctx, sum, static_cast<float>(q.a));
        ops::accumulate(ctx, wide ? product(ctx, b, x, false, false) : product(ctx, x, b, false, false), sum);
    }
    ops::cast_into(ctx, sum, x);
}

}  // namespace

void orthogonalise(ops::Context& ctx, std::span<const Tensor> matrices, std::span<const Quintic> steps) {
    std::vector<ops::Sum> squares;
    for (const Tensor& x : matrices) {
        squares.emplace_back(ctx).add_squares(x.reshape({x.numel()}));
        squares.back().send();
    }
    for (size_t i = 0; i < matrices.size(); ++i)
        orthogonalise_one(ctx, matrices[i], std::sqrt(squares[i].take().value()), steps);
}

std::unique_ptr<UpdateRule> muon(const spec::OptimizerSpec& spec) { return std::make_unique<Muon>(spec); }

}  // namespace tutti::optim
