// simulate/step_time.h: the time of a step by closed formulas, at a microsecond per layout: for searches. rehearsed.h
// has the slower and finer prediction.
#pragma once

#include <utility>
#include <vector>

#include "tutti/hardware/cluster.h"
#include "tutti/simulate/job.h"
#include "tutti/simulate/machine_prices.h"

namespace tutti::simulate {

inline constexpr double kStepFixed = 12e-3;  // seconds of a step besides: the norm of gradients, the loss read, logging

// Seconds of a step by kind; they add up to the step.
struct StepTime {
    double products = 0, attention = 0, elementwise = 0, recompute = 0, optimizer = 0;
    double tp = 0, cp = 0, ep = 0, pp = 0, dp = 0;  // exposed communication
    double bubble = 0;                              // of the pipeline
    double offload = 0;                             // exposed copies from and to the memory of the host
    double other = 0;                               // fixed costs
    double total() const {
        return products + attention + elementwise + recompute + optimizer + tp + cp + ep + pp + dp + bubble + offload +
               other;
    }
};

// By kind, for people: {"matrix products", seconds}. They add up to the step.
std::vector<std::pair<const char*, double>> kinds_of(const StepTime& time);

// A layout that has no layout_problem().
StepTime step_time(const Job& job, const hardware::Cluster& cluster, const Physics& physics);

// How long the pipeline of a job fills and drains, in units of pp - 1 passes of a microbatch through a stage: 1 for
// 1f1b, 1/v for v interleaved stages.
double bubble_share(const Job& job);

// --- The same for many layouts of one model ---

// Seconds forward and backward.
struct Cost {
    double forward = 0, backward = 0;
    double sum() const { return forward + backward; }
    Cost& operator+=(const Cost& o) {
        forward += o.forward;
        backward += o.backward;
        return *this;
    }
    friend Cost operator*(double f, Cost c) { return {f * c.forward, f * c.backward}; }
};

// Prices of one layer and one microbatch on one rank.
struct LayerPrice {
    Cost products, attention, elementwise, tp, cp, ep;
};

// Prices of one microbatch: a dense layer, a layer of experts, the head with the loss.
struct PassPrice {
    LayerPrice dense, mixture;
    double head = 0, loss = 0;
};

// Prices jobs that agree in model, sequence length and precision with `job`.
// step(job, pass(job)) is step_time(job) to the bit.
class StepPricer {
  public:
    StepPricer(const Job& job, const hardware::Cluster& cluster, const Physics& physics);

    // Depends on the micro batch, tp, sequence_parallel, tp_overlap, cp, ep, etp, token_drop and recompute
    // alone: jobs that agree in these can share it.
    PassPrice pass(const Job& job) const;
    StepTime step(const Job& job, const PassPrice& pass) const;
    // At most step_time(job).total(), from FLOPs alone. 16- and 32-bit precisions.
    double lower_bound(const Job& job) const;

  private:
    MachinePrices prices_;
};

}  // namespace tutti::simulate
