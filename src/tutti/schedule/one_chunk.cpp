// schedule/one_chunk.cpp: schedules with one stage per rank: stage r on rank r.
#include "tutti/schedule/generators.h"
#include "tutti/schedule/writer.h"

namespace tutti::schedule {

namespace {

// `write(writer, chunk, r)` fills the program of rank r; `peak(r)` bounds the chunks that live at once.
template <class Write, class Peak>
Schedule each_rank(const char* name, const Dimensions& d, Write write, Peak peak) {
    Schedule schedule = empty_schedule(name, loop_placement(d.ranks, 1), d.microbatches);
    for (int r = 0; r < d.ranks; ++r) {
        Writer writer(schedule.programs[static_cast<size_t>(r)]);
        Chunk chunk(0, r, 0, d.microbatches);
        write(writer, chunk, r);
        schedule.peak_bound.push_back(std::min(peak(r), d.microbatches));
    }
    return schedule;
}

}  // namespace

// Model parallelism without pipelining: a microbatch enters when the one before has left.
Schedule naive(const Dimensions& d) {
    const auto write = [&](Writer& out, Chunk& c, int) { repeat(d.microbatches, [&] { out.F(c), out.B(c); }); };
    return each_rank("naive", d, write, [](int) { return 1; });
}

// GPipe (Huang et al., arXiv 1811.06965): all forwards, then all backwards. The figure of the paper runs the backwards
// in descending order; this is PyTorch's order, which adds gradients as one rank would. Descending: looped_bfs, v = 1.
Schedule gpipe(const Dimensions& d) {
    const int m = d.microbatches;
    const auto write = [&](Writer& out, Chunk& c, int) {
        repeat(m, [&] { out.F(c); });
        repeat(m, [&] { out.B(c); });
    };
    return each_rank("gpipe", d, write, [m](int) { return m; });
}

// PipeDream-Flush, "1F1B" (Narayanan et al., arXiv 2104.04473, section 2.2.1).
Schedule one_forward_one_backward(const Dimensions& d) {
    const int p = d.ranks, m = d.microbatches;
    const auto write = [&](Writer& out, Chunk& c, int r) {
        const int warm_up = std::min(p - 1 - r, m);
        repeat(warm_up, [&] { out.F(c); });
        repeat(m - warm_up, [&] { out.F(c), out.B(c); });
        repeat(warm_up, [&] { out.B(c); });
    };
    return each_rank("1f1b", d, write, [p](int r) { return p - r; });
}

// ZB-H1 (Qi et al., arXiv 2401.10241, section 2.2): 1F1B's memory; rank r delays W by r microbatches.
Schedule zb_h1(const Dimensions& d) {
    const int p = d.ranks, m = d.microbatches;
    const auto write = [&](Writer& out, Chunk& c, int r) {
        repeat(std::min(p - 1 - r, m), [&] { out.F(c); });
        for (int k = 0; k < m; ++k) {
            if (c.has_forward()) out.F(c);
            out.I(c);
            if (k >= r) out.W(c);
        }
        while (c.has_weight()) out.W(c);
    };
    return each_rank("zb-h1", d, write, [p](int) { return p; });
}

// ZB-H2 (the same paper): warm-ups of 2p-1, 2p-3, ..., 1 forwards fill the bubble before the first backward. The paper
// has m >= 2p - 1; with fewer microbatches the warm-ups end early.
Schedule zb_h2(const Dimensions& d) {
    const int p = d.ranks, m = d.microbatches;
    const auto write = [&](Writer& out, Chunk& c, int r) {
        repeat(std::min(2 * (p - 1 - r) + 1, m), [&] { out.F(c); });
        for (int k = 0; k < m; ++k) {
            out.I(c);
            if (k >= 2 * r) out.W(c);
            if (c.has_forward()) out.F(c);
        }
        while (c.has_weight()) out.W(c);
    };
    return each_rank("zb-h2", d, write, [p](int) { return 2 * p - 1; });
}

}  // namespace tutti::schedule
