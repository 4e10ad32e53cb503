// engine/factories.h: the parts of an engine that a program may replace by its own, without a change to Tutti.
// Training, rehearsals and verification take the same factories, so what runs is what was planned.
#pragma once

#include <functional>

#include "tutti/engine/products.h"
#include "tutti/models/model.h"
#include "tutti/optim/rules.h"
#include "tutti/parallel/groups.h"
#include "tutti/spec/run_spec.h"

namespace tutti::engine {

// Every rank calls them with equal arguments, also in rehearsals, where tensors have no values.
struct Factories {
    // The modules of a model, with the name, shape, role and initial values of each parameter, without their memory.
    // `max_positions`: the longest sequence of the run; 0: the model is only counted (models::outline).
    models::MakeModel model = models::make_model;
    // Sets Parameter::rule, how products multiply by the parameter (nn/product_rule.h), by layer and run; parts of
    // parameters are applied, memory is not allocated. By default as precision.recipe says.
    std::function<void(models::Model&, const spec::RunSpec&, parallel::Groups&)> products = choose_products;
    // The update rule of a run, which may use the numbers of [optimizer] (optim/rule.h).
    optim::MakeRule update_rule = optim::make_rule;
};

}  // namespace tutti::engine
