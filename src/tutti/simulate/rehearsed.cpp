#include "tutti/simulate/rehearsed.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tutti::simulate {

RehearsedStep rehearse_in_time(const spec::RunSpec& run, const rehearsal::Target& target, int ranks,
                               const MachineProfile& profile, bool with_spans) {
    const int threads = std::max(1, target.device.threads);
    const KernelProfile& kernels = profile.kernels_of(run.precision.compute, threads);
    RehearsedStep step;
    std::vector<rehearsal::Program> programs;
    for (int rank = 0; rank < ranks; ++rank) {
        rehearsal::Rehearsal rehearsal = rehearsal::rehearse(run, target, ranks, rank);
        programs.push_back(rehearsal.program);
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
        Prices prices;
        prices.kernel = [&](const rehearsal::KernelCall& call) {
            const double seconds = factor * kernels.seconds(call.kernel, call.work);
            step.kernels[call.kernel] += seconds;
            step.between += kernels.between_kernels;
            return seconds + kernels.between_kernels;
        };
        prices.operation = [&](const comm::Summary& what, const std::vector<int>& members) {
            const double seconds =
                profile.operation_seconds(what.kind, static_cast<int>(members.size()), static_cast<double>(what.bytes));
            step.communication += seconds * static_cast<double>(members.size());
            return seconds;
        };
        prices.beside_kernels = run.comm.progress_thread;
        prices.step = kernels.of_step;
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

}  // namespace tutti::simulate
