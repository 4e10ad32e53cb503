// optim/moments.cpp: the types in which moments are stored, and the pieces of kernels.
#include <cstddef>
#include <tuple>

#include "tutti/base/ceil_div.h"
#include "tutti/base/error.h"
#include "tutti/base/stochastic.h"
#include "tutti/optim/rule.h"

namespace tutti::optim {

namespace {

constexpr int64_t kLeastOfCodes = 4096;  // values of a parameter, below which bytes save nothing

DType type_named(const std::string& name, const spec::OptimizerSpec& spec, const Parameter& p) {
    const auto type = dtype_from(name);
    check<UsageError>(type && (*type == DType::f32 || *type == DType::bf16 || *type == DType::u8),
                      "optimizer.m and optimizer.v must be f32, bf16 or u8, got \"", name, "\"");
    const bool table = p.role == autograd::Role::vocabulary || p.role == autograd::Role::position;
    const bool wide = p.shape.numel() < kLeastOfCodes || (table && !spec.u8_embedding);
    return *type == DType::u8 && wide ? DType::f32 : *type;
}

// visit(begin in memory, elements, the elements in the global tensor) for blocks of equally distant rows that make up
// the rectangle.
template <class Visit>
void for_each_grid(const Shape& global, const mesh::HeldBlock& held, Visit visit) {
    int64_t width = 1, distance = 1;  // of a row: its elements; of two rows
    int dim = global.rank() - 1;
    for (bool whole = true; whole && dim >= 0; --dim) {
        width *= held.block.sizes[dim];
        distance *= global[dim];
        whole = held.block.sizes[dim] == global[dim];
    }
    const int64_t rows = dim >= 0 ? held.block.sizes[dim] : 1, elements = rows * width;
    mesh::Block grid = held.block;  // one index of each dim before `dim`
    for (int64_t begin = 0; begin < held.block.numel(); begin += elements) {
        int64_t index = begin / elements;
        for (int d = dim - 1; d >= 0; --d) {
            grid.sizes[d] = 1;
            grid.offset[d] = held.block.offset[d] + index % held.block.sizes[d];
            index /= held.block.sizes[d];
        }
        visit(held.begin + begin, elements,
              kernels::GlobalElements{mesh::flat_begin(global, grid), width, rows > 1 ? distance : width});
    }
}

// Elements [begin, begin + n) of a piece of a kernel.
kernels::OptimizerPiece part_of(const kernels::OptimizerPiece& piece, int64_t begin, int64_t n,
                                const kernels::GlobalElements& elements) {
    kernels::OptimizerPiece p = piece;
    const auto narrow = [](View& x, int64_t first, int64_t count) {
        if (x.defined()) x = View(x.as<std::byte>() + first * size_of(x.dtype), x.dtype, {count});
    };
    for (View* x : {&p.master, &p.gradient, &p.value, &p.m.values, &p.v.values, &p.update}) narrow(*x, begin, n);
    constexpr int64_t kBlock = kernels::kStateBlock;
    for (View* x : {&p.m.largest, &p.v.largest}) narrow(*x, begin / kBlock, ceil_div(n, kBlock));
    p.elements = elements;
    return p;
}

}  // namespace

std::vector<MomentType> moments_of(const spec::OptimizerSpec& spec, const Parameter& parameter,
                                   const std::vector<std::pair<std::string, double>>& name_and_beta) {
    constexpr double kLostInRounding = 1.0 / 256;  // half a unit in the last place of bf16, relative
    std::vector<MomentType> moments;
    for (const auto& [name, beta] : name_and_beta) {
        const bool first = moments.empty();
        moments.push_back(
            {name, type_named(first ? spec.m : spec.v, spec, parameter), !first || 1 - beta <= kLostInRounding});
    }
    return moments;
}

std::vector<StateField> fields_of(const std::vector<MomentType>& moments) {
    std::vector<StateField> fields;
    for (const MomentType& moment : moments) {
        fields.push_back({moment.name, moment.type});
        if (moment.type == DType::u8) fields.push_back({moment.name + "_absmax", DType::f32, kernels::kStateBlock});
    }
    return fields;
}

std::vector<kernels::OptimizerPiece> kernel_pieces(
    std::span<const Piece> pieces, const StepNumbers& numbers,
    const std::function<std::vector<MomentType>(const Parameter&)>& moments,
    const std::function<std::pair<View, float>(size_t)>& update) {
    std::vector<kernels::OptimizerPiece> of_kernel;
    of_kernel.reserve(pieces.size());
    for (size_t i = 0; i < pieces.size(); ++i) {
        const Piece& piece = pieces[i];
        const Parameter& parameter = *piece.shard.parameter;
        const auto key = [&](const std::string& what) {
            return rounding_key(numbers.seed, what, parameter.name, numbers.update);
        };
        kernels::OptimizerPiece whole{.master = piece.shard.master,
                                      .gradient = piece.gradient,
                                      .value = piece.shard.rounded(),
                                      .weight_decay = static_cast<float>(piece.weight_decay)};
        if (update) {
            std::tie(whole.update, whole.update_scale) = update(i);
            whole.update_scale *= static_cast<float>(piece.lr_scale);
            whole.weight_decay *= static_cast<float>(piece.lr_scale);
        }
        if (whole.master.dtype == DType::bf16) whole.master_key = key("");
        bool by_rows = whole.master_key != 0;
        size_t field = 0;
        for (kernels::Moment* place = &whole.m; const MomentType& moment : moments(parameter)) {
            place->values = piece.state[field++];
            if (moment.type == DType::u8) place->largest = piece.state[field++];
            if (moment.type == DType::bf16 && moment.stochastic) place->key = key(moment.name + ".");
            by_rows = by_rows || place->key != 0 || moment.type == DType::u8;  // padding has no largest magnitude
            place = &whole.v;
        }
        if (!by_rows) {
            of_kernel.push_back(whole);
            continue;
        }
        for (const mesh::HeldBlock& held : piece.blocks)
            for_each_grid(parameter.shape, held,
                          [&](int64_t begin, int64_t n, const kernels::GlobalElements& elements) {
                              of_kernel.push_back(part_of(whole, begin, n, elements));
                          });
    }
    return of_kernel;
}

}  // namespace tutti::optim
