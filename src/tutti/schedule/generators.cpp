// schedule/generators.cpp: the schedules in families (one stage per rank, interleaved, V-shaped, bidirectional), then
// their names and the conditions on their numbers. A generator writes a rank's program pass by pass; each chunk counts
// its own microbatches, so that a generator states only which pass of which chunk comes next.
#include "tutti/schedule/generators.h"

#include <algorithm>
#include <array>
#include <deque>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/base/units.h"
#include "tutti/schedule/schedule.h"
#include "tutti/schedule/walk.h"

namespace tutti::schedule {

namespace {

// A chunk of a rank and the microbatch that each pass takes next.
class Chunk {
  public:
    // `microbatches`: how many from `first` on.
    Chunk(int replica, int stage, int first, int microbatches)
        : replica_(replica), stage_(stage), end_(first + microbatches), f_(first), b_(first), w_(first) {}

    bool has_forward() const { return f_ < end_; }
    bool has_backward() const { return b_ < end_; }
    bool has_weight() const { return w_ < end_; }
    Work next_forward() { return {replica_, stage_, f_++}; }
    Work next_backward() { return {replica_, stage_, b_++}; }
    Work next_weight() { return {replica_, stage_, w_++}; }
    Work at(int microbatch) const { return {replica_, stage_, microbatch}; }

  private:
    int replica_, stage_, end_;
    int f_, b_, w_;
};

class Writer {
  public:
    explicit Writer(Program& program) : program_(program) {}

    void F(Chunk& c) { add(Op::forward, c.next_forward()); }
    void B(Chunk& c) { add(Op::backward, c.next_backward()); }
    void I(Chunk& c) { add(Op::backward_input, c.next_backward()); }
    void W(Chunk& c) { add(Op::backward_weight, c.next_weight()); }
    void add(Op op, const Work& work) { program_.push_back(action(op, work)); }
    // The forward of one chunk and the full backward of another, together.
    void overlap(Chunk& forward, Chunk& backward) {
        Action both = action(Op::overlap, forward.next_forward());
        both.backward = backward.next_backward();
        program_.push_back(both);
    }

  private:
    Program& program_;
};

template <class Step>
void repeat(int times, Step step) {
    for (int i = 0; i < times; ++i) step();
}

// ---- one stage per rank: stage r on rank r ----

// `write(writer, chunk, r)` fills the program of rank r; `peak(r)` bounds the chunks that live at once.
template <class Write, class Peak>
Schedule each_rank(const char* name, const Dimensions& d, Write write, Peak peak) {
    Schedule schedule = empty_schedule(name, loop_placement(d.ranks, 1), d.microbatches);
    for (int r = 0; r < d.ranks; ++r) {
        Writer writer(schedule.programs[to_size(r)]);
        Chunk chunk(0, r, 0, d.microbatches);
        write(writer, chunk, r);
        schedule.peak_bound.push_back(std::min(peak(r), d.microbatches));
    }
    return schedule;
}

}  // namespace

// Model parallelism without pipelining: a microbatch enters when the previous one has left.
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

// PipeDream (Narayanan et al., SOSP 2019): an update behind each backward, with the weights of the forward stashed.
Schedule pipedream(const Dimensions& d) {
    Schedule schedule = one_forward_one_backward(d);
    schedule.name = "pipedream";
    schedule.updates_each = true;
    return schedule;
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

// ---- v stages per rank in a loop: stage s is chunk s / p of rank s mod p ----

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
        for (int c = 0; c < v; ++c) table.insert(table.end(), to_size(std::min(N, m - first)), c);
    return table;
}

std::vector<Chunk> chunks_of(int r, const Dimensions& d) {
    std::vector<Chunk> chunks;
    for (int c = 0; c < d.chunks; ++c) chunks.emplace_back(0, c * d.ranks + r, 0, d.microbatches);
    return chunks;
}

}  // namespace

// Interleaved 1F1B (Narayanan et al., arXiv 2104.04473, section 2.2.2, with N = p); N free as in Llama 3 (arXiv
// 2407.21783, section 3.3.2). With one chunk the warm-up would be twice that of 1F1B without gain, so one chunk gives
// 1F1B.
Schedule interleaved(const Dimensions& d) {
    const int p = d.ranks, v = d.chunks, m = d.microbatches, N = group_size(d), n = m * v;
    if (v == 1) return one_forward_one_backward(d);
    Schedule schedule = empty_schedule("interleaved", loop_placement(p, v), m);
    const std::vector<int> table = chunk_table(v, m, N);
    for (int r = 0; r < p; ++r) {
        Writer out(schedule.programs[to_size(r)]);
        std::vector<Chunk> chunks = chunks_of(r, d);
        auto forward = table.begin(), backward = table.begin();
        const auto F = [&] { out.F(chunks[to_size(*forward++)]); };
        const auto B = [&] { out.B(chunks[to_size(v - 1 - *backward++)]); };

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
        Writer out(schedule.programs[to_size(r)]);
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
        Writer out(schedule.programs[to_size(r)]);
        std::vector<Chunk> chunks = chunks_of(r, d);
        auto forward = table.begin(), backward = table.begin(), weight = table.begin();
        const auto F = [&] { out.F(chunks[to_size(*forward++)]); };
        const auto I = [&] { out.I(chunks[to_size(v - 1 - *backward++)]); };
        const auto W = [&] { out.W(chunks[to_size(v - 1 - *weight++)]); };

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

// ---- two stages per rank in a V: chunk 0 of rank r is stage r, chunk 1 is stage 2p-1-r ----
// The turn at rank p-1 needs no message, and rank 0 has both the embedding and the loss.

// ZB-V (Qi et al., arXiv 2401.10241, section 6; here the closed order for equal times of F, I and W): no bubble with
// 1F1B's memory. Written for at least 2p-1 microbatches; those beyond m are left out.
Schedule zb_v(const Dimensions& d) {
    const int p = d.ranks, m = d.microbatches, n = std::max(m, 2 * p - 1);
    Schedule schedule = empty_schedule("zb-v", v_placement(p), m);
    for (int r = 0; r < p; ++r) {
        Program& program = schedule.programs[to_size(r)];
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
        for (const int slot : {b.F0, b.F1, b.I1, b.I0}) taken[to_size(slot % kInterval)] = true;
        const auto first_free_after = [&](int slot) {
            do ++slot;
            while (taken[to_size(slot % kInterval)]);
            taken[to_size(slot % kInterval)] = true;
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
        for (const auto& [slot, a] : by_slot) schedule.programs[to_size(r)].push_back(a);
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

// ---- microbatches enter from both ends: two replicas of the model, or one model folded into a V ----

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
        for (const auto& [slot, a] : by_slot) schedule.programs[to_size(r)].push_back(a);
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
        Writer out(schedule.programs[to_size(r)]);
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
        Writer out(schedule.programs[to_size(r)]);
        write_dualpipe(out, Chunk(0, r, 0, m), Chunk(0, 2 * p - 1 - r, 0, m), r, p, m);
        schedule.peak_bound.push_back(2 * p + 1);
    }
    return schedule;
}

// ---- the schedules by name, and the conditions on their numbers ----

namespace {

constexpr std::array kKinds = {
    Kind{"naive", 1, false, false, naive, "one microbatch at a time"},
    Kind{"gpipe", 1, false, false, gpipe, "arXiv 1811.06965"},
    Kind{"1f1b", 1, false, false, one_forward_one_backward, "arXiv 2104.04473"},
    Kind{"interleaved", 0, true, false, interleaved, "arXiv 2104.04473, 2407.21783"},
    Kind{"looped-bfs", 0, false, false, looped_bfs, "arXiv 2211.05953"},
    Kind{"zb-h1", 1, false, true, zb_h1, "arXiv 2401.10241"},
    Kind{"zb-h2", 1, false, true, zb_h2, "arXiv 2401.10241"},
    Kind{"interleaved-zb", 0, true, true, interleaved_zb, "torch.distributed.pipelining"},
    Kind{"zb-v", 2, false, true, zb_v, "arXiv 2401.10241"},
    Kind{"v-half", 2, false, true, v_half, "arXiv 2405.15362"},
    Kind{"v-min", 2, false, true, v_min, "arXiv 2405.15362"},
    Kind{"chimera", 1, false, false, chimera, "arXiv 2107.06925"},
    Kind{"dualpipe", 1, false, false, dualpipe, "arXiv 2412.19437"},
    Kind{"dualpipe-v", 2, false, false, dualpipe_v, "github.com/deepseek-ai/DualPipe"},
};

// UsageError when groups of N microbatches deadlock because the last group is short; Megatron-LM demands m % N == 0 or
// >= p.
void check_groups(const Schedule& schedule, const Dimensions& d) {
    if (walk(schedule, [](int, const Action&) {}).empty()) return;
    const int p = d.ranks, m = d.microbatches, asked = d.group_size == 0 ? std::min(p, m) : d.group_size;
    int N = std::min(p, m);
    while (m % N != 0 && m % N < p) ++N;
    throw UsageError(concat("schedule ", schedule.name, " deadlocks with groups of ", asked,
                            " microbatches: the last of ", m, " has ", m % asked, ", and ", p,
                            " ranks need a full one or at least ", p, "; try a group size of ", N,
                            ", or a multiple of ", asked, " microbatches"));
}

}  // namespace

std::span<const Kind> kinds() { return kKinds; }

const Kind* find_kind(std::string_view name) {
    const auto* const kind = std::find_if(kKinds.begin(), kKinds.end(), [&](const Kind& k) { return k.name == name; });
    return kind == kKinds.end() ? nullptr : kind;
}

Schedule generate(std::string_view name, const Dimensions& d) {
    const Kind* const kind = find_kind(name);
    check<UsageError>(kind != nullptr, "schedule: there is no schedule `", name, "`");
    check<UsageError>(d.ranks >= 1 && d.chunks >= 1 && d.microbatches >= 1, "schedule ", name,
                      ": ranks, virtual stages and microbatches must be at least 1, got ", d.ranks, ", ", d.chunks,
                      " and ", d.microbatches);
    check<UsageError>(kind->chunks == 0 || d.chunks == 1 || d.chunks == kind->chunks, "schedule ", name, " has ",
                      counted(kind->chunks, "stage"), " per rank, got ", d.chunks,
                      " virtual stages; leave them out, or try interleaved, looped-bfs or interleaved-zb");
    check<UsageError>(kind->takes_group_size || d.group_size == 0, "schedule ", name,
                      " has no groups of microbatches, got a group size of ", d.group_size,
                      "; interleaved and interleaved-zb have");
    Schedule schedule = kind->generate(d);
    schedule.name = name;
    if (kind->takes_group_size) check_groups(schedule, d);
    return schedule;
}

}  // namespace tutti::schedule
