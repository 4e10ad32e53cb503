// schedule/v_shaped.cpp: schedules with two stages per rank in a V: chunk 0 of rank r is stage r, chunk 1 is stage
// 2p-1-r. The turn at rank p-1 needs no message, and rank 0 has both the embedding and the loss.
#include <array>

#include "tutti/schedule/generators.h"
#include "tutti/schedule/writer.h"

namespace tutti::schedule {

// ZB-V (Qi et al., arXiv 2401.10241, section 6; here the closed order for equal times of F, I and W): no bubble with
// 1F1B's memory. Written for at least 2p-1 microbatches; those beyond m are left out.
Schedule zb_v(const Dimensions& d) {
    const int p = d.ranks, m = d.microbatches, n = std::max(m, 2 * p - 1);
    Schedule schedule = empty_schedule("zb-v", v_placement(p), m);
    for (int r = 0; r < p; ++r) {
        Program& program = schedule.programs[static_cast<size_t>(r)];
        Writer out(program);
        Chunk c0(0, r, 0, n), c1(0, 2 * p - 1 - r, 0, n);
        repeat(2 * (p - r) - 1, [&] { out.F(c0); });
        repeat(r, [&] { out.F(c1), out.F(c0); });
        repeat(p - r, [&] { out.F(c1), out.I(c1), out.W(c1); });
        while (c1.has_forward()) {
            if (c0.has_forward()) out.F(c0);
            out.I(c0), out.W(c0);
            out.F(c1), out.I(c1), out.W(c1);
        }
        repeat(r, [&] { out.I(c0), out.I(c1); });
        repeat(p - r, [&] { out.I(c0), out.W(c0); });
        while (c1.has_weight()) out.W(c1);
        while (c0.has_weight()) out.W(c0);
        std::erase_if(program, [m](const Action& a) { return a.microbatch >= m; });
        schedule.peak_bound.push_back(std::min(2 * p, 2 * m));
    }
    return schedule;
}

namespace {

// When rank r runs F0, F1, I1 and I0 of microbatch 0 (subscript: chunk). Microbatch k runs 6k slots later.
struct Block {
    int F0, F1, I1, I0;
};

// Repeats the building block of each rank and drops the empty slots (Qi et al., arXiv 2405.15362, section 3). Each W
// takes the first slot after its I that is free in the repeated block, chunk 1 first.
template <class BlockOf>
Schedule repeat_blocks(const char* name, const Dimensions& d, BlockOf block_of) {
    constexpr int kInterval = 6;  // F, I and W of two chunks
    const int p = d.ranks, m = d.microbatches;
    Schedule schedule = empty_schedule(name, v_placement(p), m);
    for (int r = 0; r < p; ++r) {
        const Block b = block_of(r);
        std::array<bool, kInterval> taken{};
        for (const int slot : {b.F0, b.F1, b.I1, b.I0}) taken[static_cast<size_t>(slot % kInterval)] = true;
        const auto first_free_after = [&](int slot) {
            do ++slot;
            while (taken[static_cast<size_t>(slot % kInterval)]);
            taken[static_cast<size_t>(slot % kInterval)] = true;
            return slot;
        };
        const int W1 = first_free_after(b.I1), W0 = first_free_after(b.I0);

        const int c0 = r, c1 = 2 * p - 1 - r;
        std::vector<std::pair<int, Action>> by_slot;
        for (int k = 0; k < m; ++k) {
            const auto put = [&](int slot, Op op, int stage) {
                by_slot.emplace_back(slot + kInterval * k, action(op, {0, stage, k}));
            };
            put(b.F0, Op::forward, c0), put(b.F1, Op::forward, c1);
            put(b.I1, Op::backward_input, c1), put(b.I0, Op::backward_input, c0);
            put(W1, Op::backward_weight, c1), put(W0, Op::backward_weight, c0);
        }
        std::sort(by_slot.begin(), by_slot.end(), [](const auto& a, const auto& z) { return a.first < z.first; });
        for (const auto& [slot, a] : by_slot) schedule.programs[static_cast<size_t>(r)].push_back(a);
        // The paper's bound: a chunk that lives for L slots has at most ceil(L / interval) microbatches alive.
        const auto alive = [&](int F, int W) { return std::min((W + 1 - F + kInterval - 1) / kInterval, m); };
        schedule.peak_bound.push_back(alive(b.F0, W0) + alive(b.F1, W1));
    }
    return schedule;
}

}  // namespace

// V-Half (arXiv 2405.15362): about half of 1F1B's activations.
Schedule v_half(const Dimensions& d) {
    const int p = d.ranks, g = p % 2 == 0 ? 3 : 0;
    return repeat_blocks("v-half", d, [=](int r) {
        return Block{2 * r, 3 * p - r - 2, 3 * p + g + 2 * r - 1, 6 * p + g - r - 2};
    });
}

// V-Min (the same paper): about a third of 1F1B's activations, for nearly equal times of F, I and W.
Schedule v_min(const Dimensions& d) {
    const int p = d.ranks, g = p % 3 == 0 ? 2 : 0;
    return repeat_blocks("v-min", d, [=](int r) { return Block{r, 2 * p - r - 1, 2 * p + g + r, 4 * p + g - r - 1}; });
}

}  // namespace tutti::schedule
