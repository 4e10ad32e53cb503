// nn/module.h: what a model is made of. A model is a list of modules, each one unit: the embedding, the blocks, the
// head. Whatever goes around a forward (recompute, FSDP, pipeline stages) works on this list and knows no architecture.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/nn/functions.h"

namespace tutti::nn {

class Module {
  public:
    virtual ~Module() = default;
    // x (B, T, C) in the compute type; the first module ignores it, the last returns losses or logits.
    virtual Var forward(Tape& tape, const Var& x, const Batch& batch) = 0;
    autograd::Unit unit;  // name and parameters, in the order of use; a tied matrix is in both units that use it
};

}  // namespace tutti::nn
