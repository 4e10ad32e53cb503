// rehearsal/assumed_values.h: the values that shape the work of a step, as a rehearsal assumes them.
#pragma once

#include <utility>
#include <vector>

#include "tutti/ops/context.h"

namespace tutti::rehearsal {

// Routers choose experts in proportion to given loads, and all ranks of a group do what this rank does.
class AssumedValues final : public ops::ShapingValues {
  public:
    // `loads`: choices of each expert relative to the others; empty: all experts get equally many.
    explicit AssumedValues(std::vector<double> loads) : loads_(std::move(loads)) {}

    bool exist() const override { return false; }
    // Expert e appears N k loads[e] / sum(loads) times, rounded; the k choices of a row differ. UsageError when an
    // expert would appear more than N times, since a row chooses an expert at most once.
    std::vector<int32_t> choices(const Tensor& experts, int64_t all) const override;
    std::vector<int32_t> of_ranks(const Tensor& values, const std::vector<int32_t>& own) const override;

  private:
    std::vector<double> loads_;
};

}  // namespace tutti::rehearsal
