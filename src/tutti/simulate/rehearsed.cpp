#include "tutti/simulate/rehearsed.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tutti/parallel/groups.h"
#include "tutti/simulate/prediction.h"

namespace tutti::simulate {

RehearsedStep rehearse_in_time(const spec::RunSpec& run, const rehearsal::Target& target, int ranks,
                               const MachineProfile& profile, bool with_spans, const std::map<int, double>& slow) {
    const int threads = std::max(1, target.device.threads);
    const KernelProfile& kernels = profile.kernels_of(run.precision.compute, threads);
    RehearsedStep step;
    std::vector<rehearsal::Program> programs;
    for (int rank = 0; rank < ranks; ++rank) {
        rehearsal::Rehearsal rehearsal = rehearsal::rehearse(run, target, ranks, rank);
        programs.push_back(rehearsal.program);
        if (step.traffic.empty()) step.traffic = rehearsal.communication;
        if (rank == 0 || rehearsal.memory.peak() > step.shown.memory.peak()) step.shown = std::move(rehearsal);
    }
    // A kernel is faster while other cores idle, and how long they do follows from the times: a few rounds agree.
    const int cores = std::max(1, profile.cores / threads);
    double others_busy = ranks >= cores ? 1 : (ranks - 1.0) / std::max(1, cores - 1);
    constexpr int kRounds = 4;
    for (int round = 0; round < kRounds; ++round) {
        step.kernels.clear();
        step.communication = step.between = 0;
        const double factor = kernels.alone + (1 - kernels.alone) * others_busy;
        TimelinePrices prices;
        prices.kernel = [&](const rehearsal::KernelCall& call) {
            const double seconds = factor * kernels.seconds(call.kernel, call.work);
            step.kernels[call.kernel] += seconds;
            step.between += kernels.between_kernels;
            return seconds + kernels.between_kernels;
        };
        prices.operation = [&](const comm::Summary& what, const std::vector<int>& members) {
            // With more ranks than cores a partner is seldom on a core when it is needed, however small the group.
            const int waiting = ranks > cores ? ranks : static_cast<int>(members.size());
            const double seconds = profile.operation_seconds(what.kind, waiting, static_cast<double>(what.bytes));
            step.communication += seconds * static_cast<double>(members.size());
            return seconds;
        };
        prices.beside_kernels = run.comm.progress_thread;
        prices.step = kernels.of_step;
        prices.slow = slow;
        step.timeline = lay_out(programs, prices, with_spans && round + 1 == kRounds);
        step.seconds = on_cores(step.timeline, cores);
        const double busy = std::accumulate(step.timeline.busy.begin(), step.timeline.busy.end(), 0.0);
        if (cores > 1) others_busy = std::clamp((busy / step.seconds - 1) / (cores - 1), 0.0, 1.0);
    }
    constexpr double kEightyPercent = 1.2816, kDeviation = 0.08;
    step.high = std::exp(kEightyPercent * kDeviation);
    step.low = 1 / step.high;
    return step;
}

RehearsedStep rehearse_on(const spec::RunSpec& run, const rehearsal::Target& target, int ranks,
                          const hardware::Cluster& cluster, const Physics& physics, bool with_spans,
                          const std::map<int, double>& slow) {
    const MachinePrices price(cluster, physics, run.precision.compute == "f32" ? "fp32" : run.precision.compute);
    RehearsedStep step;
    const std::vector<int> along =
        parallel::make_mesh(run, ranks).group(slow.empty() ? 0 : slow.begin()->first, {mesh::Axis::pp});
    std::vector<rehearsal::Program> programs;
    for (const int rank : along) {
        rehearsal::Rehearsal rehearsal = rehearsal::rehearse(run, target, ranks, rank);
        programs.push_back(rehearsal.program);
        if (step.traffic.empty()) step.traffic = rehearsal.communication;
        if (rank == along.front() || rehearsal.memory.peak() > step.shown.memory.peak())
            step.shown = std::move(rehearsal);
    }
    TimelinePrices prices;
    prices.beside_kernels = true;
    prices.slow = slow;
    prices.kernel = [&](const rehearsal::KernelCall& call) {
        const double seconds = price.kernel(call);
        step.kernels[call.kernel] += seconds;
        return seconds;
    };
    prices.operation = [&](const comm::Summary& what, const std::vector<int>& members) {
        const double seconds = price.operation(what, members);
        step.communication += seconds;
        return seconds;
    };
    step.timeline = lay_out(along, programs, prices, with_spans);
    step.seconds = step.timeline.seconds;
    step.high = std::exp(uncertainty(job_of(run, ranks), cluster));
    step.low = 1 / step.high;
    return step;
}

}  // namespace tutti::simulate
