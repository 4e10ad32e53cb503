// A wide MLP, for measuring MFU: `layers` times Linear (D x D, no bias) and ReLU, squared error against a target. The
// features come with the batch, so the first unit only passes them on.
#include <cmath>

#include "tutti/models/model.h"

namespace tutti::models {

using namespace nn;

namespace {

class MlpInput final : public Module {
  public:
    MlpInput() { unit.name = "input"; }
    Var forward(Tape&, const Var&, const Batch& batch) override { return {batch.features, -1}; }
};

class MlpBlock final : public Module {
  public:
    MlpBlock(const spec::ModelSpec& s, int64_t layer) {
        unit.name = concat("layers.", layer);
        // He et al. 2015: ReLU halves the second moment, so 2/D keeps it.
        linear_ = make_linear(unit.name + ".linear", s.width, s.width,
                              {.role = Role::column, .std = std::sqrt(2.0 / static_cast<double>(s.width))});
        own_all(unit, linear_);
    }
    Var forward(Tape& tape, const Var& x, const Batch&) override { return relu(tape, linear_(tape, x)); }

  private:
    Linear linear_;
};

class MlpLoss final : public Module {
  public:
    MlpLoss() { unit.name = "loss"; }
    Var forward(Tape& tape, const Var& x, const Batch& batch) override { return squared_error(tape, x, batch); }
};

}  // namespace

std::vector<std::unique_ptr<Module>> make_mlp(const spec::ModelSpec& s) {
    std::vector<std::unique_ptr<Module>> modules;
    modules.push_back(std::make_unique<MlpInput>());
    for (int64_t layer = 0; layer < s.layers; ++layer) modules.push_back(std::make_unique<MlpBlock>(s, layer));
    modules.push_back(std::make_unique<MlpLoss>());
    return modules;
}

}  // namespace tutti::models
