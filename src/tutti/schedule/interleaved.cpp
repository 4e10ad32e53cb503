// schedule/interleaved.cpp: schedules with v stages per rank in a loop: stage s is chunk s / p of rank s mod p.
#include "tutti/base/error.h"
#include "tutti/schedule/generators.h"
#include "tutti/schedule/writer.h"

namespace tutti::schedule {

namespace {

int group_size(const Dimensions& d) {
    if (d.group_size == 0) return std::min(d.ranks, d.microbatches);
    check<UsageError>(d.group_size > 0 && d.group_size <= d.microbatches,
                      "schedule: the group size must be between 1 and ", "the ", d.microbatches, " microbatches, got ",
                      d.group_size, "; leave it out for min(ranks, microbatches)");
    return d.group_size;
}

// The order in which forwards take the chunks (Megatron-LM's get_schedule_table): N microbatches go through one chunk,
// then the same ones through the next. Backwards take chunk v-1-c where forwards take c.
std::vector<int> chunk_table(int v, int m, int N) {
    std::vector<int> table;
    for (int first = 0; first < m; first += N)
        for (int c = 0; c < v; ++c) table.insert(table.end(), static_cast<size_t>(std::min(N, m - first)), c);
    return table;
}

std::vector<Chunk> chunks_of(int r, const Dimensions& d) {
    std::vector<Chunk> chunks;
    for (int c = 0; c < d.chunks; ++c) chunks.emplace_back(0, c * d.ranks + r, 0, d.microbatches);
    return chunks;
}

}  // namespace

// Interleaved 1F1B (Narayanan et al., arXiv 2104.04473, section 2.2.2, with N = p); N free as in Llama 3 (arXiv
// 2407.21783, section 3.3.2). With one chunk its warm-up would be twice that of 1F1B for nothing, so that is 1F1B.
Schedule interleaved(const Dimensions& d) {
    const int p = d.ranks, v = d.chunks, m = d.microbatches, N = group_size(d), n = m * v;
    if (v == 1) return one_forward_one_backward(d);
    Schedule schedule = empty_schedule("interleaved", loop_placement(p, v), m);
    const std::vector<int> table = chunk_table(v, m, N);
    for (int r = 0; r < p; ++r) {
        Writer out(schedule.programs[static_cast<size_t>(r)]);
        std::vector<Chunk> chunks = chunks_of(r, d);
        auto forward = table.begin(), backward = table.begin();
        const auto F = [&] { out.F(chunks[static_cast<size_t>(*forward++)]); };
        const auto B = [&] { out.B(chunks[static_cast<size_t>(v - 1 - *backward++)]); };

        const int warm_up = std::min(2 * (p - 1 - r) + (v - 1) * N, n);
        repeat(warm_up, F);
        repeat(n - warm_up, [&] { F(), B(); });
        repeat(warm_up, B);
        schedule.peak_bound.push_back(std::min(warm_up + 1, n));
    }
    return schedule;
}

// Breadth-first (Lamy-Poirier, arXiv 2211.05953): a chunk's weights are needed in two bursts only, which suits FSDP.
Schedule looped_bfs(const Dimensions& d) {
    const int p = d.ranks, v = d.chunks, m = d.microbatches;
    Schedule schedule = empty_schedule("looped-bfs", loop_placement(p, v), m);
    schedule.ascending = m == 1;
    for (int r = 0; r < p; ++r) {
        Writer out(schedule.programs[static_cast<size_t>(r)]);
        for (int c = 0; c < v; ++c)
            for (int k = 0; k < m; ++k) out.add(Op::forward, {0, c * p + r, k});
        for (int c = v - 1; c >= 0; --c)
            for (int k = m - 1; k >= 0; --k) out.add(Op::backward, {0, c * p + r, k});
        schedule.peak_bound.push_back(m * v);
    }
    return schedule;
}

// Interleaved zero bubble (PyTorch's ScheduleInterleavedZeroBubble, "ZB1P"): rank r delays W by r backwards. One chunk:
// ZB-H1.
Schedule interleaved_zb(const Dimensions& d) {
    const int p = d.ranks, v = d.chunks, m = d.microbatches, N = group_size(d), n = m * v;
    Schedule schedule = empty_schedule("interleaved-zb", loop_placement(p, v), m);
    const std::vector<int> table = chunk_table(v, m, N);
    for (int r = 0; r < p; ++r) {
        Writer out(schedule.programs[static_cast<size_t>(r)]);
        std::vector<Chunk> chunks = chunks_of(r, d);
        auto forward = table.begin(), backward = table.begin(), weight = table.begin();
        const auto F = [&] { out.F(chunks[static_cast<size_t>(*forward++)]); };
        const auto I = [&] { out.I(chunks[static_cast<size_t>(v - 1 - *backward++)]); };
        const auto W = [&] { out.W(chunks[static_cast<size_t>(v - 1 - *weight++)]); };

        repeat(std::min((v - 1) * N + p - 1 - r, n), F);
        for (int j = 0; j < n; ++j) {
            if (forward != table.end()) F();
            I();
            if (j >= r) W();
        }
        while (weight != table.end()) W();
        schedule.peak_bound.push_back(std::min((v - 1) * N + p, n));
    }
    return schedule;
}

}  // namespace tutti::schedule
