// engine/products.h: which product rule a layer has, by the recipe of the run and the layer's place: the one place that
// decides (Factories::products).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/models/model.h"
#include "tutti/nn/delayed.h"
#include "tutti/nn/lost_values.h"
#include "tutti/parallel/groups.h"
#include "tutti/spec/run_spec.h"

namespace tutti::engine {

// Gives the linear layers and experts of the blocks that precision.recipe quantizes their rule; leaves all others.
// Collective over the groups of tp, cp and etp.
void choose_products(models::Model& model, const spec::RunSpec& run, parallel::Groups& groups);

// The groups of several ranks that give a tensor one scale. Makes no group after choose_products().
std::vector<comm::Communicator*> ranks_of_scales(const spec::RunSpec& run, parallel::Groups& groups);

// UsageError, with what to set, where the device's kernels would have to multiply codes and do not multiply these.
void check_products(const spec::RunSpec& run, ops::Context& ctx);

// The half of it that no layout changes: whether the device's kernels multiply codes of this recipe.
void check_code_units(const spec::RunSpec& run, ops::Context& ctx);

// A sentence where a rehearsal takes for granted that they do, since it does not know the device's compute capability;
// else "".
std::string assumed_products(const spec::RunSpec& run, const ops::Context& ctx);

// The scales of earlier steps that the rules of these layers share; null: no rule has any. The same of what casts lose.
std::shared_ptr<nn::DelayedScales> delayed_scales_of(const models::Model& model);
std::shared_ptr<nn::LostValues> lost_values_of(const models::Model& model);

}  // namespace tutti::engine
