// validate() refuses what cannot run and nothing else: every generated schedule passes, and random mutations are judged
// as by an oracle that knows nothing of the walk: it counts the works and sorts the graph of all dependencies.
#include "tutti/schedule/validate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/schedule/generators.h"
#include "tutti/schedule/lowering.h"
#include "tutti/schedule/schedule.h"

namespace tutti::schedule {
namespace {

std::vector<Schedule> examples() {
    std::vector<Schedule> all;
    for (const Kind& kind : kinds()) {
        all.push_back(generate(kind.name, {4, kind.chunks == 0 ? 2 : 1, 8}));
        all.push_back(generate(kind.name, {2, kind.chunks == 0 ? 3 : 1, 4}));
    }
    return all;
}

// --- valid schedules -------------------------------------------------------------------------------------------------

TEST(Validate, AcceptsEveryKind) {
    for (const int p : {1, 2, 3, 4, 6, 8})
        for (const int m : {1, 2, 5, 8, 16, 24})
            for (const Kind& kind : kinds()) {
                Schedule s;
                try {
                    s = generate(kind.name, {p, kind.chunks == 0 ? 3 : 1, m});
                } catch (const UsageError&) {
                    continue;  // asked for more microbatches or an even number of ranks
                }
                EXPECT_EQ(problems_of(s), std::vector<std::string>{}) << s.name << ' ' << p << ' ' << m;
                for (const bool fsdp : {false, true}) {
                    const Schedule lowered = insert_messages(fsdp ? insert_unshard(s) : s);
                    EXPECT_EQ(problems_of(lowered), std::vector<std::string>{}) << s.name << ' ' << p << ' ' << m;
                    EXPECT_EQ(compute_only(lowered).programs, s.programs) << s.name;
                }
            }
}

TEST(Validate, OnlyTwoKindsAddGradientsInAnotherOrder) {
    for (Schedule& s : examples()) {
        s.ascending = true;
        EXPECT_EQ(problems_of(s).empty(), s.name != "looped-bfs") << s.name;
    }
}

// --- mutations, judged by an oracle ----------------------------------------------------------------------------------

// Whether a compute-only schedule can run, without validate.cpp and walk.cpp: its works are those of the original, each
// on its own rank, and the graph of program order and dependencies has a topological order.
bool oracle(const Schedule& original, const Schedule& mutated) {
    using Key = std::pair<Work, Op>;
    std::map<Key, int> expected, found;
    std::map<Key, size_t> node_of;
    std::vector<std::vector<size_t>> after;
    std::vector<int> waits;
    std::map<Key, int> rank_of;
    for (size_t rank = 0; rank < original.programs.size(); ++rank)
        for (const Action& whole : original.programs[rank])
            for (const Action& part : Parts(whole)) {
                ++expected[{part.work(), part.op}];
                rank_of[{part.work(), part.op}] = static_cast<int>(rank);
            }
    for (size_t rank = 0; rank < mutated.programs.size(); ++rank)
        for (size_t i = 0; i < mutated.programs[rank].size(); ++i) {
            for (const Action& part : Parts(mutated.programs[rank][i])) {
                const Key key{part.work(), part.op};
                ++found[key];
                if (!rank_of.contains(key) || rank_of[key] != static_cast<int>(rank)) return false;
                node_of[key] = after.size();
            }
            after.emplace_back();
            waits.push_back(0);
        }
    if (found != expected) return false;
    const auto edge = [&](size_t from, size_t to) {
        after[from].push_back(to);
        ++waits[to];
    };
    const auto end_of = [&](const Work& work) {  // of its backward
        const auto B = node_of.find({work, Op::backward});
        return B != node_of.end() ? B->second : node_of.at({work, Op::backward_input});
    };
    size_t node = 0;
    for (const Program& program : mutated.programs)
        for (size_t i = 0; i < program.size(); ++i, ++node) {
            if (i > 0) edge(node - 1, node);
            for (const Action& part : Parts(program[i])) {
                const Work work = part.work();
                const bool last = work.stage + 1 == mutated.placement.stages;
                if (part.op == Op::forward) {
                    if (work.stage > 0)
                        edge(node_of.at({{work.replica, work.stage - 1, work.microbatch}, Op::forward}), node);
                } else if (part.op == Op::backward_weight) {
                    edge(node_of.at({work, Op::backward_input}), node);
                } else {
                    edge(node_of.at({work, Op::forward}), node);
                    if (!last) edge(end_of({work.replica, work.stage + 1, work.microbatch}), node);
                }
            }
        }
    std::vector<size_t> ready;
    for (size_t i = 0; i < waits.size(); ++i)
        if (waits[i] == 0) ready.push_back(i);
    size_t sorted = 0;
    while (!ready.empty()) {
        const size_t first = ready.back();
        ready.pop_back();
        ++sorted;
        for (const size_t next : after[first])
            if (--waits[next] == 0) ready.push_back(next);
    }
    return sorted == waits.size();
}

class Mutator {
  public:
    size_t below(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(engine_); }

    Schedule structural(Schedule s) {
        Program& program = s.programs[below(s.programs.size())];
        const size_t at = below(program.size());
        const auto here = program.begin() + static_cast<std::ptrdiff_t>(at);
        switch (below(5)) {
            case 0: program.erase(here); break;
            case 1: program.insert(program.begin() + static_cast<std::ptrdiff_t>(below(program.size())), *here); break;
            case 2: here->stage += below(2) == 0 ? 1 : -1; break;
            case 3: here->microbatch += below(2) == 0 ? 1 : -1; break;
            default: {
                Program& other = s.programs[(to_size(&program - s.programs.data()) + 1) % s.programs.size()];
                other.push_back(*here);
                program.erase(here);
            }
        }
        return s;
    }
    Schedule swapped(Schedule s) {
        Program& program = s.programs[below(s.programs.size())];
        const size_t a = below(program.size()), b = std::min(program.size() - 1, a + 1 + below(6));
        std::swap(program[a], program[b]);
        return s;
    }

  private:
    std::mt19937 engine_{7};
};

// Promises that an order may break without being impossible.
Schedule without_promises(Schedule s) {
    s.ascending = false;
    s.peak_bound.clear();
    return s;
}

TEST(Mutations, StructuralOnesAreRefused) {
    Mutator mutate;
    int refused = 0;
    for (const Schedule& example : examples()) {
        const Schedule original = without_promises(example);
        for (int i = 0; i < 200; ++i) {
            const Schedule mutated = mutate.structural(original);
            EXPECT_EQ(problems_of(mutated).empty(), oracle(original, mutated)) << to_csv(mutated);
            if (problems_of(mutated).empty()) continue;
            ++refused;
            EXPECT_THROW(validate(mutated), UsageError);
        }
    }
    EXPECT_GT(refused, 5000);
}

TEST(Mutations, SwapsAreRefusedWhenTheyDeadlock) {
    Mutator mutate;
    int legal = 0, across_ranks = 0;
    for (const Schedule& example : examples()) {
        const Schedule original = without_promises(example);
        for (int i = 0; i < 200; ++i) {
            const Schedule mutated = mutate.swapped(original);
            const std::vector<std::string> problems = problems_of(mutated);
            EXPECT_EQ(problems.empty(), oracle(original, mutated)) << to_csv(mutated);
            legal += problems.empty() ? 1 : 0;
            across_ranks += !problems.empty() && problems[0].starts_with("deadlock") ? 1 : 0;
        }
    }
    EXPECT_GT(legal, 500);
    EXPECT_GT(across_ranks, 200);  // no single rank can detect these
}

// Any change of a lowered program that is not one of independent neighbours is refused, too.
TEST(Mutations, OfLoweredSchedules) {
    Mutator mutate;
    for (const Schedule& example : examples()) {
        const Schedule original = insert_messages(example);
        for (int i = 0; i < 100; ++i) {
            const Schedule mutated = mutate.structural(original);
            EXPECT_EQ(problems_of(mutated).empty(), mutated.programs == original.programs) << to_csv(mutated);
        }
    }
}

// --- messages --------------------------------------------------------------------------------------------------------

std::string first_problem(const std::string& csv) {
    const std::vector<std::string> problems = problems_of(parse_csv(csv, "mine"));
    return problems.empty() ? "" : problems[0];
}

TEST(Messages, NameTheAction) {
    EXPECT_EQ(first_problem("0F0,0B0\n1F0,1B0\n"), "");
    EXPECT_EQ(first_problem("0F0,0B0\n1F0,1F0,1B0\n"),
              "rank 1, action 1 (1F0): occurs twice; first as action 0 of rank 1");
    EXPECT_EQ(first_problem("0F0,0B0,0F1,0B1\n1F0,1B0,1F1\n"), "rank 1: 1B1 is missing (or 1I1 and 1W1)");
    EXPECT_EQ(first_problem("0F0,0I0\n1F0,1B0\n"), "rank 0: 0W0 is missing");
    EXPECT_EQ(first_problem("0F0,0B0,0W0\n1F0,1B0\n"), "rank 0, action 2 (0W0): is part of 0B0, which is also present");
    EXPECT_EQ(first_problem("0F0,0B0\n1B0,1F0\n"), "rank 1, action 0 (1B0): comes before 1F0, which it needs");
    EXPECT_EQ(first_problem("0F0,0W0,0I0\n1F0,1B0\n"), "rank 0, action 1 (0W0): comes before 0I0, which it needs");
    EXPECT_EQ(first_problem("0F0,2F0,2B0,0B0\n1F0,1B0\n"),
              "all ranks must hold equally many stages, but rank 0 holds 2 and rank 1 1");
    EXPECT_EQ(first_problem("0F0,0F1,(0F2;0B2)OVERLAP_F_B,0B0,0B1\n"),
              "rank 0, action 2 ((0F2;0B2)OVERLAP_F_B): the backward needs the forward of its own microbatch; an "
              "overlap takes two");
    EXPECT_EQ(first_problem("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n"),
              "deadlock: rank 0, action 1 (0B0) waits for 1I0; rank 1, action 0 (1F1) waits for 0F1");
}

TEST(Messages, OfLoweredSchedules) {
    const std::string right = "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n";
    EXPECT_EQ(first_problem(right), "");
    EXPECT_EQ(first_problem("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0\n"),
              "rank 0, action 1 (0SEND_F0): has no counterpart 1RECV_F0 on rank 1");
    EXPECT_EQ(first_problem("0F0,0SEND_F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
              "rank 0, action 2 (0SEND_F0): occurs twice");
    EXPECT_EQ(first_problem("0F0,0SEND_F0,1F0,1B0,0B0\n"),
              "rank 0, action 1 (0SEND_F0): the neighbour of stage 0 is on the same rank or does not exist; no message "
              "is needed");
    EXPECT_EQ(first_problem("0SEND_F0,0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
              "rank 0, action 0 (0SEND_F0): needs 0F0 before it on this rank");
    EXPECT_EQ(first_problem("0F0,0SEND_F0,0B0,0RECV_B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
              "rank 0, action 2 (0B0): needs 0RECV_B0 before it on this rank");
    // 1F1B lowered as in a textbook, receive before use and send after production: both ranks send.
    const std::string textbook =
        "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n";
    EXPECT_EQ(first_problem(textbook),
              "sends and receives do not come in one order of all ranks; blocking sends would stop at rank 0, action 3 "
              "(0SEND_F1); "
              "rank 1, action 3 (1SEND_B0); insert_messages() makes such an order");
}

// --- promises, unsharding
// ---------------------------------------------------------------------------------------------

// Changes one action of a lowered schedule; returns the first problem.
template <class Change>
std::string broken(Schedule s, Change change) {
    change(s);
    const std::vector<std::string> problems = problems_of(s);
    return problems.empty() ? "" : problems[0];
}

TEST(Promises, AreHeld) {
    Schedule s = generate("1f1b", {2, 1, 4});
    s.peak_bound = {1, 1};
    EXPECT_EQ(problems_of(s),
              (std::vector<std::string>{"rank 0, action 1 (0F1): the saved tensors of 2 chunks live, more than the 1 "
                                        "that the schedule promises (peak_bound)"}));
    Schedule bfs = generate("looped-bfs", {1, 1, 2});
    bfs.ascending = true;
    EXPECT_EQ(problems_of(bfs)[0],
              "rank 0, action 3 (0B0): adds the gradient of microbatch 0 after that of 1, although the "
              "schedule promises ascending order");
}

TEST(Unshard, ComesBeforeEachUse) {
    const Schedule s = insert_messages(insert_unshard(generate("looped-bfs", {2, 4, 4}), 2));
    int unshards = 0;
    for (const Action& a : s.programs[0]) unshards += a.op == Op::unshard ? 1 : 0;
    EXPECT_EQ(unshards,
              4 + 2);  // forwards through 0, 2, 4, 6; backwards begin with the last two, which are still there
    EXPECT_EQ(broken(s, [](Schedule& b) { b.programs[0].erase(b.programs[0].begin()); }),
              "rank 0, action 1 (0F0): stage 0 is not unsharded; UNSHARD must come first");
    EXPECT_EQ(broken(s, [](Schedule& b) { b.programs[0].pop_back(); }).substr(0, 46),
              "rank 0: stage 0 is unsharded to the end; 0RESH");
    // One at a time: a stage that is left is gathered again. An overlap uses two stages.
    const Schedule one = insert_unshard(generate("zb-v", {2, 1, 4}), 1);
    EXPECT_NO_THROW(validate(one));
    EXPECT_THROW(insert_unshard(generate("zb-v", {2, 1, 4}), 0), UsageError);
    EXPECT_THROW(insert_unshard(generate("dualpipe-v", {2, 1, 4}), 1), UsageError);
}

TEST(Lowering, RefusesWhatDeadlocks) {
    EXPECT_THROW(insert_messages(parse_csv("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", "mine")), Error);
    EXPECT_THROW(insert_messages(insert_messages(generate("gpipe", {2, 1, 2}))), Error);
}

// --- wrong input -----------------------------------------------------------------------------------------------------

std::string refusal(const std::string& kind, const Dimensions& d) {
    try {
        generate(kind, d);
    } catch (const UsageError& error) {
        return error.what();
    }
    return "";
}

TEST(Generate, RefusesWhatDoesNotExist) {
    EXPECT_EQ(refusal("dualpipe", {3, 1, 8}), "schedule: dualpipe needs an even number of ranks, got 3");
    EXPECT_EQ(refusal("dualpipe", {4, 1, 6}),
              "schedule: dualpipe needs an even number of microbatches, at least 8 for 4 ranks, got 6");
    EXPECT_EQ(refusal("dualpipe-v", {4, 1, 7}),
              "schedule: dualpipe-v needs at least 8 microbatches for 4 ranks, got 7");
    EXPECT_EQ(refusal("chimera", {4, 1, 6}),
              "schedule: chimera needs a multiple of the 4 ranks as microbatches, got 6");
    EXPECT_EQ(refusal("1f1b", {4, 2, 8}),
              "schedule 1f1b has 1 stage per rank, got 2 virtual stages; leave them out, or try interleaved, "
              "looped-bfs or interleaved-zb");
    EXPECT_EQ(refusal("zb-v", {4, 2, 8}), "");
    EXPECT_EQ(
        refusal("gpipe", {4, 1, 8, 4}),
        "schedule gpipe has no groups of microbatches, got a group size of 4; interleaved and interleaved-zb have");
    EXPECT_EQ(refusal("interleaved", {4, 2, 10}), "");  // slower, but it runs
    EXPECT_EQ(
        refusal("interleaved", {5, 3, 7}),
        "schedule interleaved deadlocks with groups of 5 microbatches: the last of 7 has 2, and 5 ranks need a full "
        "one or at least 5; try a group size of 7, or a multiple of 5 microbatches");
    EXPECT_EQ(refusal("1f1b", {0, 1, 8}),
              "schedule 1f1b: ranks, virtual stages and microbatches must be at least 1, got 0, 1 and 8");
}

std::string parse_error(const std::string& csv) {
    try {
        parse_csv(csv, "mine.csv");
    } catch (const UsageError& error) {
        return error.what();
    }
    return "";
}

TEST(Csv, RefusesWhatIsNoSchedule) {
    EXPECT_TRUE(parse_error("0F0,0X0\n").starts_with("mine.csv, row 1, cell 2: `0X0` is not an action; expected:"))
        << parse_error("0F0,0X0\n");
    for (const char* cell : {"F0", "0F", "0F0x", "-1F0", "0F-1", "0UNSHARD1", "(0F0;0B1)", "(0B0;0F1)OVERLAP_F_B",
                             "(0F0)OVERLAP_F_B", "99999999F0", "0F99999999", "0''F0", "0 F0"})
        EXPECT_THROW(parse_action(cell), UsageError) << cell;
    EXPECT_TRUE(parse_error("").starts_with("mine.csv: empty"));
    EXPECT_EQ(
        parse_error("0F0,0B0\n0F1,0B1\n"),
        "mine.csv: stage 0 is computed by rank 0 and by rank 1 (0F1); a stage belongs to one rank, which is one row");
    EXPECT_EQ(parse_error("0F0,0B0\n2F0,2B0\n"),
              "mine.csv: no rank computes stage 1 of replica 0, although there are 3 stages");
}

TEST(Csv, ReadsWhatPyTorchWrites) {
    // Blanks for idle time, reductions that follow anyway, lines end with \r\n.
    const Schedule s = parse_csv("0F0,,0B0,0REDUCE_GRAD\r\n,1F0,1B0,1REDUCE_GRAD\r\n", "torch");
    EXPECT_EQ(to_csv(s), "0F0,0B0\n1F0,1B0\n");
    EXPECT_EQ(problems_of(s), std::vector<std::string>{});
    for (const char* text : {"2F0", "12B34", "0I7", "3W1", "3SEND_F1", "4RECV_F1", "4SEND_B1", "3RECV_B1", "1UNSHARD",
                             "1RESHARD", "3'F4", "(0F7;7B3)OVERLAP_F_B", "(3'F6;0B0)OVERLAP_F_B"})
        EXPECT_EQ(to_string(parse_action(text)), text);
    for (const Schedule& example : examples()) {
        const Schedule lowered = insert_messages(insert_unshard(example));
        EXPECT_EQ(parse_csv(to_csv(lowered), "again").programs, lowered.programs) << example.name;
    }
}

}  // namespace
}  // namespace tutti::schedule
