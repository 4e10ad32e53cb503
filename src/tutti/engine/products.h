// engine/products.h: which product rule a layer has, by the recipe of the run and the layer's place: the one place that
// decides (Factories::products).
#pragma once

#include "tutti/models/model.h"
#include "tutti/parallel/groups.h"
#include "tutti/spec/run_spec.h"

namespace tutti::engine {

// Gives the linear layers and experts of the blocks that precision.recipe quantizes their rule; leaves all others.
// Collective over the groups of tp, cp and etp.
void choose_products(models::Model& model, const spec::RunSpec& run, parallel::Groups& groups);

}  // namespace tutti::engine
