// spec/recipe.h: what precision.recipe means for the products y = x w^T, dx = dy w and dw = dy^T x of a linear layer:
// the codes of x, w and dy, and the groups of values that share a scale. No other file knows the name of a recipe.
//
// tensor, delayed: as FP8 training began (Micikevicius et al., arXiv:2209.05433; Transformer Engine's current and
// delayed scaling). block: DeepSeek-V3 (arXiv:2412.19437). mxfp8: OCP Microscaling Formats 1.0, with scales rounded up
// (arXiv:2506.08027).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tutti/spec/run_spec.h"

namespace tutti::spec {

// How one of the factors of a product is stored. A group has `along` values along the dim that the product sums over
// and `across` along the other one, counted from the first index of the global tensor; along 0: the whole tensor.
struct Quantity {
    DType format = DType::e4m3;
    DType divisors = DType::f32;  // or e8m0
    int64_t along = 0, across = 0;
    bool operator==(const Quantity&) const = default;
};

// The values of precision.recipe; the first means no recipe.
inline const std::vector<std::string>& recipe_names() {
    static const std::vector<std::string> names = {"none", "tensor", "delayed", "block", "mxfp8"};
    return names;
}

struct Recipe {
    Quantity x, w, dy;
    bool powers_of_two = true;
    // Scales of a step follow from the largest magnitudes of `history` earlier steps, or of the latest.
    bool delayed = false, most_recent = false;
    int64_t history = 0;
    // Of the products: what a rank's part of a matrix must be a multiple of where kernels multiply codes.
    int64_t multiple = 16;

    // Whether the same codes of w serve both of its products, y and dx.
    bool weights_in_one_form() const { return w.along == w.across || w.along == 0; }
};

// Of a validated section; nothing: products in the compute type.
inline std::optional<Recipe> recipe_of(const PrecisionSpec& p) {
    Recipe r;
    r.powers_of_two = p.scales != "f32";
    r.delayed = p.recipe == "delayed";
    r.most_recent = p.amax_of == "most_recent";
    r.history = p.amax_history;
    if (p.recipe == "block") {
        r.x = r.dy = {.along = 128, .across = 1};
        r.w = {.along = 128, .across = 128};
        r.multiple = 128;
    } else if (p.recipe == "mxfp8") {
        r.x = r.w = r.dy = {.divisors = DType::e8m0, .along = 32, .across = 1};
        r.multiple = 32;
    } else if (p.recipe != "tensor" && p.recipe != "delayed") {
        return std::nullopt;
    }
    const bool whole = r.x.along == 0;
    if (p.formats == "hybrid" || (p.formats == "auto" && whole)) r.dy.format = DType::e5m2;
    return r;
}

// Whether gathers bring codes of the layers of the recipe: of weights by ZeRO-3, of sequences by sequence parallelism.
inline bool gathers_codes_of_weights(const PrecisionSpec& p) { return p.gather == "weights" || p.gather == "all"; }
inline bool gathers_codes_of_sequences(const PrecisionSpec& p) { return p.gather == "sequences" || p.gather == "all"; }

// Whether the products of block `i` have the recipe: those of the first and the last blocks stay in the compute type.
inline bool quantizes(const RunSpec& run, int64_t i) {
    const PrecisionSpec& p = run.precision;
    return recipe_of(p).has_value() && i >= p.bf16_first && i < run.model.layers - p.bf16_last;
}

// The reasons, each a sentence with the nearest legal values, for which a run of ranges that hold may not have its
// recipe; and those for which the kernels of a GPU that multiplies codes do not take its shapes.
std::vector<std::string> recipe_problems(const RunSpec& run);
std::vector<std::string> code_product_problems(const RunSpec& run);

}  // namespace tutti::spec
