// The timeline of every schedule against closed forms, in exact numbers: times are integers, which are any rational
// times counted in their common denominator. Letters as in the papers: p ranks, v chunks a rank, m microbatches; F, I,
// W of one chunk, B = I + W; c is the latency of a message.
#include "tutti/schedule/timeline.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/schedule/generators.h"
#include "tutti/schedule/lowering.h"
#include "tutti/schedule/schedule.h"

namespace tutti::schedule::timeline_test {
namespace {

using Exact = Times<int64_t>;

Exact times_of(int64_t F, int64_t I, int64_t W, int64_t c = 0) {
    Exact times;
    times.stages = {{F, I, W}};
    times.latency = c;
    return times;
}

Timeline<int64_t> timeline(const std::string& kind, const Dimensions& d, const Exact& times) {
    return simulate(generate(kind, d), times);
}

class Random {
  public:
    int64_t operator()(int64_t low, int64_t high) { return std::uniform_int_distribution(low, high)(engine_); }
    int of(int low, int high) { return static_cast<int>((*this)(low, high)); }

  private:
    std::mt19937 engine_{20240613};
};
constexpr int kTrials = 300;

TEST(ClosedForm, Naive) {
    Random random;
    for (int i = 0; i < kTrials; ++i) {
        const int p = random.of(1, 9), m = random.of(1, 12);
        const int64_t F = random(1, 99), I = random(1, 99), W = random(1, 99), c = random(0, 99);
        EXPECT_EQ(timeline("naive", {p, 1, m}, times_of(F, I, W, c)).makespan,
                  m * p * (F + I + W) + 2 * m * (p - 1) * c);
    }
}

TEST(ClosedForm, GPipe) {
    Random random;
    for (int i = 0; i < kTrials; ++i) {
        const int p = random.of(1, 9), m = random.of(1, 20);
        const int64_t F = random(1, 99), I = random(1, 99), W = random(1, 99), c = random(0, 99);
        EXPECT_EQ(timeline("gpipe", {p, 1, m}, times_of(F, I, W, c)).makespan,
                  (m + p - 1) * (F + I + W) + 2 * (p - 1) * c);
    }
}

TEST(ClosedForm, OneForwardOneBackward) {
    Random random;
    for (int i = 0; i < kTrials; ++i) {
        const int p = random.of(2, 9), m = random.of(p, 40);
        const int64_t F = random(1, 99), I = random(1, 99), W = random(1, 99), c = random(0, 300);
        const int64_t K = 2 * (m + p - 3 - (m - 2) / p);
        EXPECT_EQ(timeline("1f1b", {p, 1, m}, times_of(F, I, W, c)).makespan, (m + p - 1) * (F + I + W) + K * c);
    }
}

// Independent of the group size N without latency; with N = p each trip around the loop shows the latency, with N = m
// only one does.
TEST(ClosedForm, Interleaved) {
    Random random;
    for (int i = 0; i < kTrials; ++i) {
        const int p = random.of(2, 6), v = random.of(2, 4), N = random.of(p, 2 * p), m = N * random.of(1, 4);
        const int64_t f = random(100, 199), b = random(100, 199), w = random(100, 199);
        const int64_t ideal = (m * v + p - 1) * (f + b + w);
        EXPECT_EQ(timeline("interleaved", {p, v, m, N}, times_of(f, b, w)).makespan, ideal);
        const int rounds = p * random.of(1, 4);
        EXPECT_EQ(timeline("interleaved", {p, v, rounds, p}, times_of(f, b, w, 1)).makespan,
                  (rounds * v + p - 1) * (f + b + w) + 2 * (v * p - 1));
        EXPECT_EQ(timeline("interleaved", {p, v, p + 1, p + 1}, times_of(f, b, w, 1)).makespan,
                  ((p + 1) * v + p - 1) * (f + b + w) + 2 * (p - 1));
    }
    EXPECT_EQ(timeline("interleaved", {4, 2, 3}, times_of(1, 1, 1)).makespan, 30);
    EXPECT_EQ(timeline("interleaved", {4, 2, 2}, times_of(1, 1, 1)).makespan, 27);
}

TEST(ClosedForm, LoopedBreadthFirst) {
    Random random;
    for (int i = 0; i < kTrials; ++i) {
        const int p = random.of(2, 6), v = random.of(1, 4), m = random.of(p, 3 * p);
        const int64_t f = random(100, 199), b = random(100, 199), w = random(100, 199);
        EXPECT_EQ(timeline("looped-bfs", {p, v, m}, times_of(f, b, w, 1)).makespan,
                  (m * v + p - 1) * (f + b + w) + 2 * (m > p ? p - 1 : v * p - 1));
    }
}

TEST(ClosedForm, ZeroBubbleH1) {
    Random random;
    for (int i = 0; i < kTrials; ++i) {
        const int p = random.of(2, 8), m = random.of(p + 1, 4 * p), v = random.of(1, 3), rounds = p * random.of(1, 4);
        const int64_t F = random(100, 199), I = random(100, 199), W = random(1, 199);
        const int64_t bubble = (p - 1) * (F + I - std::min({F, I, W}));
        EXPECT_EQ(timeline("zb-h1", {p, 1, m}, times_of(F, I, W)).makespan, m * (F + I + W) + bubble);
        EXPECT_EQ(timeline("interleaved-zb", {p, v, rounds, p}, times_of(F, I, W)).makespan,
                  rounds * v * (F + I + W) + bubble);
        const int64_t T = random(100, 199);
        EXPECT_EQ(timeline("zb-h1", {p, 1, m}, times_of(T, T, T, 1)).makespan, 3 * m * T + (p - 1) * (T + 4));
    }
}

TEST(ClosedForm, ZeroBubbleH2) {
    Random random;
    for (int i = 0; i < kTrials; ++i) {
        const int p = random.of(2, 8), m = random.of(2 * p - 1, 5 * p);
        const int64_t T = random(100, 199), c = random(0, 5);
        const Timeline<int64_t> t = timeline("zb-h2", {p, 1, m}, times_of(T, T, T, c));
        EXPECT_EQ(t.cost, 3 * m * T + (p - 1) * 2 * c);
        EXPECT_EQ(t.makespan, 3 * m * T + (p - 1) * (T + c));
    }
}

TEST(ClosedForm, ZeroBubbleV) {
    Random random;
    for (int i = 0; i < kTrials; ++i) {
        const int p = random.of(2, 8), m = random.of(2 * p - 1, 5 * p);
        const int64_t T = random(100, 199);
        const Timeline<int64_t> t = timeline("zb-v", {p, 1, m}, times_of(T, T, T));
        EXPECT_EQ(t.cost, 6 * m * T);
        EXPECT_EQ(*std::max_element(t.peak_until_w.begin(), t.peak_until_w.end()), 2 * p);
    }
}

TEST(ClosedForm, Chimera) {
    Random random;
    for (int i = 0; i < kTrials; ++i) {
        const int p = 2 * random.of(1, 4), U = random.of(1, 5);
        const int64_t F = 2 * random(50, 99), B = random(F, 2 * F), I = B / 2;
        EXPECT_EQ(timeline("chimera", {p, 1, U * p}, times_of(F, I, B - I)).makespan,
                  (p + 2 * (U - 1)) * F + (2 * p - 2) * U * B);
    }
}

// DualPipe's README: (PP/2 - 1)(F&B + B - 3W) with PP stages; exact for F = I, W <= F, F&B = F + B.
TEST(ClosedForm, DualPipe) {
    Random random;
    for (int i = 0; i < kTrials; ++i) {
        const int p = 2 * random.of(1, 4), m = 2 * random.of(p, 2 * p), q = random.of(1, 6),
                  n = random.of(2 * q, 5 * q);
        const int64_t F = random(50, 99), W = random(1, F), B = F + W;
        EXPECT_EQ(timeline("dualpipe", {p, 1, m}, times_of(F, F, W)).bubble, (p / 2 - 1) * (F + B + B - 3 * W));
        EXPECT_EQ(timeline("dualpipe-v", {q, 1, n}, times_of(F, F, W)).bubble, (q - 1) * (F + B + B - 3 * W));
    }
}

// Values of the table for F = I = W = 1 of a chunk: makespan, bubble of the cost, largest number of live chunks.
// PipeDream's rule, by hand (Narayanan et al., SOSP 2019, section 3.3): the forward of microbatch k on stage r of p has
// seen the updates of all but the p - 1 - r microbatches before it, and its backward takes the same weights.
TEST(PipeDream, VersionsOfWeights) {
    for (const auto& [p, m] : {std::pair(1, 5), {4, 8}, {4, 2}, {5, 17}, {3, 3}}) {
        const Schedule s = pipedream({p, 1, m});
        EXPECT_EQ(s.programs, one_forward_one_backward({p, 1, m}).programs);
        const auto versions = weight_versions(s);
        const auto held = versions_held(s);
        for (int r = 0; r < p; ++r) {
            const Program& program = s.programs[to_size(r)];
            ASSERT_EQ(versions[to_size(r)].size(), program.size());
            for (size_t i = 0; i < program.size(); ++i)
                EXPECT_EQ(versions[to_size(r)][i], std::max(0, program[i].microbatch - (p - 1 - r)))
                    << "p " << p << ", m " << m << ", rank " << r << ", " << to_string(program[i]);
            if (m >= 2 * p) {
                EXPECT_EQ(held[to_size(r)], p - r) << "as many as microbatches in flight";
            }
        }
    }
    // A synchronous schedule has one version.
    EXPECT_EQ(versions_held(one_forward_one_backward({4, 1, 8})), (std::vector<int>(4, 1)));
}

TEST(Table, MakespanCostAndPeak) {
    struct Row {
        const char* kind;
        int v;
        int64_t makespan_4_8, cost_bubble_4_8, peak_4_8, makespan_8_32, peak_8_32;
    };
    const std::vector<Row> rows = {
        {"naive", 1, 96, 72, 1, 768, 1},
        {"gpipe", 1, 33, 9, 8, 117, 32},
        {"1f1b", 1, 33, 9, 4, 117, 8},
        {"interleaved", 2, 57, 9, 11, 213, 23},
        {"interleaved", 4, 105, 9, 19, 405, 39},
        {"looped-bfs", 2, 57, 9, 16, 213, 64},
        {"zb-h1", 1, 27, 3, 4, 103, 8},
        {"zb-h2", 1, 27, 0, 7, 103, 15},
        {"interleaved-zb", 2, 51, 3, 8, 199, 16},
        {"zb-v", 2, 51, 0, 8, 199, 16},
        {"v-half", 2, 60, 12, 6, 218, 10},
        {"v-min", 2, 59, 11, 4, 219, 8},
        {"chimera", 1, 30, 6, 4, 126, 8},
        {"dualpipe", 1, 26, 2, 5, 102, 9},
        {"dualpipe-v", 2, 54, 6, 9, 206, 17},
    };
    const auto largest = [](const std::vector<int>& of_ranks) {
        return *std::max_element(of_ranks.begin(), of_ranks.end());
    };
    for (const Row& row : rows) {
        const Timeline<int64_t> small = timeline(row.kind, {4, row.v, 8}, times_of(1, 1, 1));
        const Timeline<int64_t> large = timeline(row.kind, {8, row.v, 32}, times_of(1, 1, 1));
        EXPECT_EQ(small.makespan, row.makespan_4_8) << row.kind;
        EXPECT_EQ(small.cost - small.busy[0], row.cost_bubble_4_8) << row.kind;
        EXPECT_EQ(largest(small.peak_until_w), row.peak_4_8) << row.kind;
        EXPECT_EQ(large.makespan, row.makespan_8_32) << row.kind;
        EXPECT_EQ(largest(large.peak_until_w), row.peak_8_32) << row.kind;
    }
    EXPECT_EQ(timeline("chimera", {4, 1, 8}, times_of(2, 1, 1)).makespan, 36);
}

TEST(Peaks, OfEachRank) {
    for (const int p : {1, 2, 3, 5, 8})
        for (const int m : {1, 2, 3, 7, 16, 31}) {
            const Exact times = times_of(1, 1, 1);
            const auto one = timeline("1f1b", {p, 1, m}, times), h1 = timeline("zb-h1", {p, 1, m}, times);
            const int N = m < 2 * p ? m : p * (m / p) == m ? p : m;  // any that divides m
            const auto h2 = timeline("zb-h2", {p, 1, m}, times), looped = timeline("interleaved", {p, 3, m, N}, times);
            for (int r = 0; r < p; ++r) {
                const auto i = to_size(r);
                EXPECT_EQ(one.peak_until_w[i], std::min(p - r, m));
                EXPECT_EQ(h1.peak_until_i[i], std::min(p - r, m));
                EXPECT_EQ(h1.peak_until_w[i], std::min(p, m));
                EXPECT_EQ(h2.peak_until_i[i], std::min(2 * (p - 1 - r) + 1, m));
                EXPECT_EQ(h2.peak_until_w[i], std::min(2 * p - 1, m));
                EXPECT_EQ(looped.peak_until_w[i], std::min(2 * (p - 1 - r) + 2 * N + 1, 3 * m));
            }
        }
}

// --- schedules that are each other's special cases -------------------------------------------------------------------

TEST(SameSchedule, OneChunk) {
    for (const int p : {1, 2, 4, 7})
        for (const int m : {1, 3, 8, 20}) {
            EXPECT_EQ(generate("interleaved", {p, 1, m}).programs, generate("1f1b", {p, 1, m}).programs);
            EXPECT_EQ(generate("interleaved-zb", {p, 1, m}).programs, generate("zb-h1", {p, 1, m}).programs);
            EXPECT_EQ(simulate(generate("looped-bfs", {p, 1, m}), times_of(3, 5, 2, 1)).makespan,
                      simulate(generate("gpipe", {p, 1, m}), times_of(3, 5, 2, 1)).makespan);
        }
}

// The first half of DualPipe's ranks is DualPipeV, after renaming: replica 1's stage s is stage S-1-s' of the V.
TEST(SameSchedule, DualPipeCutInHalf) {
    for (const int q : {1, 2, 3, 5})
        for (const int m : {2 * q, 2 * q + 1, 5 * q}) {
            const Schedule whole = generate("dualpipe", {2 * q, 1, 2 * m}), half = generate("dualpipe-v", {q, 1, m});
            const auto renamed = [&](Action a) {
                for (int* k : {a.replica == 1 ? &a.microbatch : nullptr,
                               a.backward.replica == 1 ? &a.backward.microbatch : nullptr})
                    if (k != nullptr) *k -= m;
                a.replica = a.backward.replica = 0;
                return a;
            };
            for (size_t r = 0; r < to_size(q); ++r) {
                Program program;
                for (const Action& a : whole.programs[r]) program.push_back(renamed(a));
                EXPECT_EQ(program, half.programs[r]) << q << ' ' << m << " rank " << r;
            }
        }
}

// --- the timeline itself ---------------------------------------------------------------------------------------------

std::vector<Schedule> all_schedules(int p, int m) {
    std::vector<Schedule> all;
    for (const Kind& kind : kinds()) {
        if ((kind.name == "chimera" && (p % 2 != 0 || m % p != 0)) ||
            (kind.name == "dualpipe" && (p % 2 != 0 || m % 2 != 0)))
            continue;
        if (kind.name.starts_with("dualpipe") && m < 2 * p) continue;
        for (const int v : {1, 2, 3})
            if (kind.chunks == 0 || v == 1)
                all.push_back(generate(kind.name, {p, v, m, kind.takes_group_size ? m : 0}));
    }
    return all;
}

// The start of each action is the longest path to it: one relaxation after the other, without the walk.
int64_t longest_path(const Schedule& s, const Exact& times) {
    std::map<Work, int64_t> forward_end, backward_end;
    std::vector<std::vector<int64_t>> ends;
    for (const Program& program : s.programs) ends.emplace_back(program.size(), 0);
    const auto arrives = [&](std::map<Work, int64_t>& table, const Work& from, int rank) {
        return table[from] + (s.placement.rank_of(from.replica, from.stage) == rank ? 0 : times.latency);
    };
    int64_t makespan = 0;
    for (bool changed = true; changed;) {
        changed = false;
        for (int rank = 0; rank < s.placement.ranks; ++rank) {
            int64_t time = 0;
            const Program& program = s.programs[to_size(rank)];
            for (size_t i = 0; i < program.size(); ++i) {
                int64_t length = 0;
                for (const Action& part : Parts(program[i])) {
                    const StageTimes<int64_t>& of = times.of(part.stage);
                    const Work below{part.replica, part.stage - 1, part.microbatch},
                        above{part.replica, part.stage + 1, part.microbatch};
                    if (part.op == Op::forward) {
                        if (part.stage > 0) time = std::max(time, arrives(forward_end, below, rank));
                        length += of.forward;
                    } else if (part.op == Op::backward_weight) {
                        length += of.backward_weight;
                    } else {
                        if (part.stage + 1 < s.placement.stages)
                            time = std::max(time, arrives(backward_end, above, rank));
                        length += of.backward_input + (part.op == Op::backward ? of.backward_weight : 0);
                    }
                }
                time += length;
                for (const Action& part : Parts(program[i])) {
                    if (part.op == Op::forward) forward_end[part.work()] = time;
                    if (part.op == Op::backward || part.op == Op::backward_input) backward_end[part.work()] = time;
                }
                changed = changed || ends[to_size(rank)][i] != time;
                ends[to_size(rank)][i] = time;
                makespan = std::max(makespan, time);
            }
        }
    }
    return makespan;
}

TEST(TimelineTest, IsTheLongestPath) {
    Random random;
    for (const auto& [p, m] : std::vector<std::pair<int, int>>{{1, 3}, {2, 4}, {3, 7}, {4, 8}, {5, 11}})
        for (const Schedule& s : all_schedules(p, m)) {
            Exact times = times_of(0, 0, 0, random(0, 20));
            times.stages.clear();
            for (int stage = 0; stage < s.placement.stages; ++stage)
                times.stages.push_back({random(1, 99), random(1, 99), random(1, 99)});
            EXPECT_EQ(simulate(s, times).makespan, longest_path(s, times)) << s.name << ' ' << p << ' ' << m;
        }
}

TEST(TimelineTest, HoldsItsPromises) {
    for (const auto& [p, m] : std::vector<std::pair<int, int>>{{1, 2}, {4, 2}, {4, 8}, {6, 12}})
        for (const Schedule& s : all_schedules(p, m)) {
            const Timeline<int64_t> t = simulate(s, times_of(3, 5, 2)), later = simulate(s, times_of(3, 5, 2, 4));
            // All ranks have the same work: m microbatches on v chunks, shared by the replicas.
            for (const int64_t busy : t.busy)
                EXPECT_EQ(busy, 10 * m * s.placement.chunks_per_rank() / s.placement.replicas);
            for (size_t r = 0; r < t.busy.size(); ++r) EXPECT_EQ(t.busy[r] + t.idle[r], t.makespan);
            EXPECT_GE(later.makespan, t.makespan) << s.name;
            EXPECT_EQ(simulate(s, times_of(21, 35, 14)).makespan, 7 * t.makespan) << s.name;
            EXPECT_EQ(simulate(insert_messages(s), times_of(3, 5, 2, 4)).makespan, later.makespan) << s.name;
            Times<double> halves;
            halves.stages = {{1.5, 2.5, 1}};
            halves.latency = 2;
            EXPECT_EQ(simulate(s, halves).makespan, static_cast<double>(later.makespan) / 2) << s.name;
        }
}

TEST(TimelineTest, MessagesShareTheirLink) {
    const Schedule s = generate("gpipe", {2, 1, 4});
    Exact times = times_of(1, 1, 1);
    times.transfer = 5;  // F0 ends at 1; the activations arrive at 6, 11, 16, 21; the gradients at 29, 34, 39, 44
    EXPECT_EQ(simulate(s, times).makespan, 46);
    times.latency = 2;
    EXPECT_EQ(simulate(s, times).makespan, 50);
}

TEST(TimelineTest, AnOverlapTakesItsOwnTime) {
    const Schedule s = generate("dualpipe-v", {2, 1, 8});
    Exact times = times_of(2, 2, 2);
    const int64_t serial = simulate(s, times).makespan;
    times.overlap = 5;
    const Timeline<int64_t> t = simulate(s, times);
    EXPECT_LT(t.makespan, serial);
    for (const Span<int64_t>& span : t.ranks[0])
        if (span.action.op == Op::overlap) {
            EXPECT_EQ(span.end - span.start, 5);
        }
}

TEST(TimelineTest, ADeadlockIsNamed) {
    const Schedule s = parse_csv("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", "mine.csv");
    try {
        simulate(s, times_of(1, 1, 1));
        FAIL() << "no deadlock";
    } catch (const Error& error) {
        EXPECT_STREQ(
            error.what(),
            "schedule mine.csv: deadlock: rank 0, action 1 (0B0) waits for 1I0; rank 1, action 0 (1F1) waits for 0F1");
    }
}

}  // namespace
}  // namespace tutti::schedule::timeline_test
