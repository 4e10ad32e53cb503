#include "tutti/engine/products.h"

#include <array>
#include <memory>

#include "tutti/base/to_size.h"
#include "tutti/kernels/code_units.h"
#include "tutti/mesh/mesh.h"
#include "tutti/nn/quantized.h"
#include "tutti/spec/recipe.h"

namespace tutti::engine {

using autograd::Role;
using mesh::Axes;

namespace {

// Layers whose tensors are cut along the same axes: the axes along which ranks hold parts of x, of dy and of w.
struct Kind {
    Axes x, dy, w;
    bool input_is_saved = false;
    bool of_experts = false;  // tokens of a rank's experts come from many ranks; no rank sees the whole tensor
};
const std::array<Kind, 4> kKinds = {{
    {.x = mesh::kCp, .dy = mesh::kTp | mesh::kCp, .w = mesh::kTp},  // column, key_value, head_group
    {.x = mesh::kTp | mesh::kCp, .dy = mesh::kCp, .w = mesh::kTp, .input_is_saved = true},  // row
    {.w = mesh::Axis::etp, .of_experts = true},                                             // expert_column
    {.w = mesh::Axis::etp, .of_experts = true},                                             // expert_row
}};

// Place in kKinds; -1: the layer keeps the plain rule.
int kind_of(const autograd::Parameter& p) {
    const bool matrix = p.shape.rank() == 2, stack = p.shape.rank() == 3;
    switch (p.role) {
        case Role::column:
        case Role::head_group:
        case Role::key_value: return matrix ? 0 : -1;
        case Role::row: return matrix ? 1 : -1;
        case Role::expert_column: return stack ? 2 : -1;
        case Role::expert_row: return stack ? 3 : -1;
        case Role::replicated:
        case Role::vocabulary:
        case Role::position:
        case Role::norm:
        case Role::every_head:
        case Role::router:
        case Role::expert_bias:
        case Role::expert: return -1;
    }
    return -1;
}

// The ranks that have parts of a tensor cut along `axes` and give it one scale; null: this rank alone.
comm::Communicator* ranks_of_scale(const spec::RunSpec& run, parallel::Groups& groups, Axes axes) {
    const std::optional<spec::Recipe> recipe = spec::recipe_of(run.precision);
    const bool whole_tensors = recipe && recipe->x.along == 0 && run.precision.scale_over == "tensor";
    return whole_tensors && !axes.empty() && groups.mesh().size(axes) > 1 ? &groups.over(axes) : nullptr;
}

}  // namespace

std::vector<comm::Communicator*> ranks_of_scales(const spec::RunSpec& run, parallel::Groups& groups) {
    std::vector<comm::Communicator*> all;
    for (const Kind& kind : kKinds)
        for (const Axes axes : {kind.x, kind.dy, kind.w})
            if (!kind.of_experts || run.model.moe.experts > 0) all.push_back(ranks_of_scale(run, groups, axes));
    std::erase(all, nullptr);
    return all;
}

void choose_products(models::Model& model, const spec::RunSpec& run, parallel::Groups& groups) {
    const std::optional<spec::Recipe> recipe = spec::recipe_of(run.precision);
    if (!recipe) return;
    const auto over = [&](Axes axes) { return ranks_of_scale(run, groups, axes); };
    // The blocks are between the first module, the embedding or the input, and the last, the head or the loss.
    const std::vector<autograd::Unit*> units = model.units(model.all());
    check(static_cast<int64_t>(units.size()) == run.model.layers + 2, "a model of ", run.model.layers, " blocks has ",
          units.size(), " modules; a recipe needs one before and one behind the blocks");
    std::vector<autograd::Parameter*> layers;
    for (int64_t block = 0; block < run.model.layers; ++block)
        for (autograd::Parameter* p : units[to_size(block + 1)]->parameters)
            if (spec::quantizes(run, block) && kind_of(*p) >= 0) layers.push_back(p);
    const auto scales = recipe->delayed ? std::make_shared<nn::DelayedScales>(*recipe, layers) : nullptr;
    const auto lost = std::make_shared<nn::LostValues>();
    const bool of_sequences = spec::gathers_codes_of_sequences(run.precision);
    std::array<std::shared_ptr<const nn::ProductRule>, kKinds.size()> rules;
    for (size_t i = 0; i < kKinds.size(); ++i) {
        const Kind& kind = kKinds[i];
        if (kind.of_experts && run.model.moe.experts == 0) continue;
        nn::ScaleRanks ranks{over(kind.x), over(kind.dy), over(kind.w)};
        ranks.gathers_codes = of_sequences && !kind.of_experts;
        if (ranks.gathers_codes) ranks.part_of_x = ranks.part_of_dy = over(mesh::kTp | mesh::kCp);
        rules[i] = std::make_shared<nn::QuantizedProducts>(*recipe, ranks, run.precision.emulate, kind.input_is_saved,
                                                           scales, lost);
    }
    const bool gathers = spec::gathers_codes_of_weights(run.precision) && run.parallel.zero == 3;
    for (autograd::Parameter* p : layers) {
        const Kind& kind = kKinds[to_size(kind_of(*p))];
        p->rule = rules[to_size(kind_of(*p))];
        if (!gathers) continue;
        p->gathered = {.format = recipe->w.format,
                       .group = {recipe->w.across, recipe->w.along},
                       .powers_of_two = recipe->powers_of_two,
                       .ranks = over(kind.w)};
        if (scales)
            p->gathered->given = [scales, p] {
                const nn::DelayedScales::Place place = scales->place(*p, nn::DelayedScales::kW);
                return autograd::GatheredCodes::Given{scales->recording() ? place.amax : Tensor(),
                                                      place.known ? place.factor : Tensor()};
            };
    }
}

namespace {

bool multiplies_codes(const spec::RunSpec& run, const ops::Context& ctx) {
    return spec::recipe_of(run.precision) && !run.precision.emulate && ctx.kernels.gemm_of_codes != nullptr;
}

}  // namespace

void check_products(const spec::RunSpec& run, ops::Context& ctx) {
    if (!multiplies_codes(run, ctx)) return;
    const std::vector<std::string> problems = spec::code_product_problems(run);
    check<UsageError>(problems.empty(), joined(problems, "\n"));
    check_code_units(run, ctx);
}

std::string assumed_products(const spec::RunSpec& run, const ops::Context& ctx) {
    if (!multiplies_codes(run, ctx) || ctx.device.stream().capability > 0) return "";
    return concat("[precision] recipe = \"", run.precision.recipe, "\": the compute capability of ", ctx.device.name(),
                  " is not known, and its kernels are taken to multiply these codes (", kernels::text_of_code_units(),
                  ")");
}

void check_code_units(const spec::RunSpec& run, ops::Context& ctx) {
    if (!multiplies_codes(run, ctx)) return;
    const std::optional<spec::Recipe> recipe = spec::recipe_of(run.precision);
    // dx = dy w, whose factors may differ in format, and dw = dy^T x; at an address that suits every kernel. Nothing is
    // read.
    constexpr int64_t kSize = 256;
    auto* const nowhere = reinterpret_cast<void*>(kSize);
    const auto codes = [&](const spec::Quantity& q) { return View(nowhere, q.format, {kSize, kSize}); };
    const auto scales = [&](const spec::Quantity& q) {
        const kernels::GroupShape group{q.across, q.along};
        kernels::ScaleForm form{q.divisors};
        if (ctx.kernels.scale_form) form = ctx.kernels.scale_form(ctx.device.stream(), q.divisors, group);
        return kernels::Scales{View(nowhere, form.divisors, {1, 1}), group, form.layout};
    };
    const auto multiplies = [&](const spec::Quantity& b, DType c) {
        const kernels::Gemm probe{.a = codes(recipe->dy),
                                  .b = codes(b),
                                  .c = View(nowhere, c, {kSize, kSize}),
                                  .transpose_b = true,
                                  .gradient = true,
                                  .a_scales = scales(recipe->dy),
                                  .b_scales = scales(b)};
        return ctx.kernels.gemm_of_codes(ctx.device.stream(), probe);
    };
    check<UsageError>(multiplies(recipe->w, spec::compute_dtype(run)) && multiplies(recipe->x, DType::f32),
                      "[precision] recipe = \"", run.precision.recipe, "\": ", ctx.device.name(), " with the ",
                      ctx.kernels.name, " kernels multiplies no such codes (", kernels::text_of_code_units(),
                      "); set [precision] emulate = true, which decodes them before each product: the same values, "
                      "slower");
}

std::shared_ptr<nn::DelayedScales> delayed_scales_of(const models::Model& model) {
    for (const autograd::Parameter* p : model.parameters())
        if (auto scales = nn::rule_of(*p).scales()) return scales;
    return nullptr;
}

std::shared_ptr<nn::LostValues> lost_values_of(const models::Model& model) {
    for (const autograd::Parameter* p : model.parameters())
        if (auto lost = nn::rule_of(*p).lost()) return lost;
    return nullptr;
}

}  // namespace tutti::engine
