// schedule/bidirectional.cpp: schedules in which microbatches enter a rank from both ends: two replicas of the model,
// or one model folded into a V.
#include <deque>

#include "tutti/base/error.h"
#include "tutti/schedule/generators.h"
#include "tutti/schedule/writer.h"

namespace tutti::schedule {

// Chimera (Li and Hoefler, arXiv 2107.06925), units of p microbatches one after the other. In slots of one F or one B,
// replica d runs F(s, j) of unit u at 2pu + 2j + s and B(s, j) at 2pu + 2j + 2p-1-s; no two of a rank collide.
Schedule chimera(const Dimensions& d) {
    const int p = d.ranks, m = d.microbatches, half = p / 2;
    check<UsageError>(p % 2 == 0, "schedule: chimera needs an even number of ranks, got ", p);
    check<UsageError>(m % p == 0, "schedule: chimera needs a multiple of the ", p, " ranks as microbatches, got ", m);
    Schedule schedule = empty_schedule("chimera", bidirectional_placement(p), 0);
    schedule.microbatches.resize(2);
    for (int k = 0; k < m; ++k) schedule.microbatches[k % p < half ? 0 : 1].push_back(k);
    for (int r = 0; r < p; ++r) {
        std::vector<std::pair<int, Action>> by_slot;
        for (const int replica : {0, 1})
            for (int u = 0; u < m / p; ++u)
                for (int j = 0; j < half; ++j) {
                    const int s = replica == 0 ? r : p - 1 - r;
                    const Work work{replica, s, u * p + replica * half + j};
                    by_slot.emplace_back(2 * p * u + 2 * j + s, action(Op::forward, work));
                    by_slot.emplace_back(2 * p * u + 2 * j + 2 * p - 1 - s, action(Op::backward, work));
                }
        std::sort(by_slot.begin(), by_slot.end(), [](const auto& a, const auto& z) { return a.first < z.first; });
        for (const auto& [slot, a] : by_slot) schedule.programs[static_cast<size_t>(r)].push_back(a);
        schedule.peak_bound.push_back(p);
    }
    return schedule;
}

namespace {

// The eight steps of DualPipe (DeepSeek-V3, arXiv 2412.19437, section 3.2.1; github.com/deepseek-ai/DualPipe) for the
// rank h places from the end where microbatches enter chunk 0; H places make half of the way, and each of the two
// chunks sees n microbatches.
void write_dualpipe(Writer& out, Chunk c0, Chunk c1, int h, int H, int n) {
    std::deque<Work> waiting;  // for their W, first in first out
    const auto I = [&](Chunk& c) {
        waiting.push_back(c.next_backward());
        out.add(Op::backward_input, waiting.back());
    };
    const auto W = [&] {
        out.add(Op::backward_weight, waiting.front());
        waiting.pop_front();
    };
    repeat(2 * (H - h - 1), [&] { out.F(c0); });        // 1
    repeat(h + 1, [&] { out.F(c0), out.F(c1); });       // 2
    repeat(H - h - 1, [&] { I(c1), W(), out.F(c1); });  // 3
    for (int i = 0; i < n - 2 * H + h + 1; ++i) {       // 4
        if (i == 0 && h == H - 1)
            out.F(c0), out.B(c1);  // in the middle the first pair belongs to one microbatch
        else
            out.overlap(c0, c1);
        out.overlap(c1, c0);
    }
    repeat(H - h - 1, [&] { out.B(c1), out.overlap(c1, c0); });  // 5
    bool split = false;                                          // 6: the second half delays W
    for (int i = 0; i < h + 1; ++i) {
        const bool turn = i == (h + 1) / 2;
        if (turn && h % 2 == 1) split = true;
        split ? I(c1) : out.B(c1);
        if (turn && h % 2 == 0) split = true;
        split ? I(c0) : out.B(c0);
    }
    repeat(H - h - 1, [&] { W(), I(c0); });  // 7
    repeat(h + 1, W);                        // 8
}

}  // namespace

// DualPipe: replica 0 enters at rank 0, replica 1 at rank p-1, each with half of the microbatches.
Schedule dualpipe(const Dimensions& d) {
    const int p = d.ranks, m = d.microbatches, half = m / 2;
    check<UsageError>(p % 2 == 0, "schedule: dualpipe needs an even number of ranks, got ", p);
    check<UsageError>(m % 2 == 0 && m >= 2 * p, "schedule: dualpipe needs an even number of microbatches, at least ",
                      2 * p, " for ", p, " ranks, got ", m);
    Schedule schedule = empty_schedule("dualpipe", bidirectional_placement(p), half);
    schedule.microbatches.emplace_back();
    for (int k = half; k < m; ++k) schedule.microbatches[1].push_back(k);
    for (int r = 0; r < p; ++r) {
        Writer out(schedule.programs[static_cast<size_t>(r)]);
        const Chunk down(0, r, 0, half), up(1, p - 1 - r, half, half);
        if (r < p / 2)
            write_dualpipe(out, down, up, r, p / 2, half);
        else
            write_dualpipe(out, up, down, p - 1 - r, p / 2, half);
        schedule.peak_bound.push_back(p + 1);
    }
    return schedule;
}

// DualPipeV, "cut in half" (the same code): the first half of DualPipe's ranks, with one replica in a V.
Schedule dualpipe_v(const Dimensions& d) {
    const int p = d.ranks, m = d.microbatches;
    check<UsageError>(m >= 2 * p, "schedule: dualpipe-v needs at least ", 2 * p, " microbatches for ", p,
                      " ranks, got ", m);
    Schedule schedule = empty_schedule("dualpipe-v", v_placement(p), m);
    for (int r = 0; r < p; ++r) {
        Writer out(schedule.programs[static_cast<size_t>(r)]);
        write_dualpipe(out, Chunk(0, r, 0, m), Chunk(0, 2 * p - 1 - r, 0, m), r, p, m);
        schedule.peak_bound.push_back(2 * p + 1);
    }
    return schedule;
}

}  // namespace tutti::schedule
