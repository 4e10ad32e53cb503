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
    // Expert e has N k loads[e] / sum(loads) choices, rounded. UsageError when an expert would have more than N, since
    // a row chooses an expert at most once.
    Counts loads(Counts counted, int64_t N, int64_t k) const override;
    Counts accepted(Counts counted, const Counts& load, int64_t capacity, int64_t P) const override;
    Counts of_ranks(Counts counted, const Counts& own) const override;

  private:
    std::vector<double> loads_;
};

}  // namespace tutti::rehearsal
