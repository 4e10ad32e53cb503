// engine/factories.h: the parts of an engine that a program may replace by its own, without a change to Tutti.
// Training, rehearsals and verification take the same factories, so what runs is what was planned.
#pragma once

#include <functional>

#include "tutti/models/model.h"

namespace tutti::engine {

// Every rank calls them with equal arguments, also in rehearsals, where tensors have no values.
struct Factories {
    // The modules of a model, with the name, shape, role and initial values of each parameter, without their memory.
    // `max_positions`: the longest sequence of the run.
    std::function<models::Model(ops::Context&, const spec::ModelSpec&, int64_t max_positions)> model =
        models::make_model;
};

}  // namespace tutti::engine
