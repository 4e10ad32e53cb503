// trace.json: what real runs leave, held against the counters and against the order in which a step must work.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/base/to_size.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/rehearsal/rehearse.h"
#include "tutti/report/trace_read.h"
#include "tutti/train/testing/small_run.h"
#include "tutti/train/trace_file.h"
#include "tutti/train/trainer.h"

namespace tutti::train {
namespace {

namespace fs = std::filesystem;
using report::TracedRank, report::TracedSpan, report::read_trace, report::times_of;

class TraceTest : public SmallRun {
  protected:
    TrainOptions options(int ranks, const std::vector<std::string>& set = {}) const {
        std::vector<std::string> all = {"train.global_batch=8", "train.steps=6", "log.trace=true"};
        all.insert(all.end(), set.begin(), set.end());
        return SmallRun::options("run", all, ranks);
    }
    std::string file() const { return path("run/trace.json"); }
    std::vector<Json> lines() const {
        return logged(options(2), [](const std::string& line) { return Json::parse(line); });
    }
};

std::vector<TracedSpan> spans_of(const TracedRank& rank, const std::string& activity, const std::string& name = "") {
    std::vector<TracedSpan> found;
    for (const TracedSpan& s : rank.spans)
        if (s.activity == activity && s.name.starts_with(name)) found.push_back(s);
    return found;
}

bool inside(const TracedSpan& inner, const TracedSpan& outer) {
    return inner.begin_us >= outer.begin_us && inner.end_us <= outer.end_us;
}

bool overlap(const TracedSpan& a, const TracedSpan& b) { return a.begin_us < b.end_us && b.begin_us < a.end_us; }

// Two spans of a track are nested or disjoint. A nanosecond is lost in doubles of microseconds.
void expect_nested(const TracedRank& rank) {
    constexpr double kRounding = 2e-3;
    std::map<int, std::vector<TracedSpan>> tracks;
    for (const TracedSpan& s : rank.spans) tracks[s.track].push_back(s);
    for (const auto& [track, spans] : tracks)
        for (size_t i = 0; i < spans.size(); ++i) {
            EXPECT_GE(spans[i].end_us, spans[i].begin_us);
            for (size_t j = 0; j < i; ++j) {
                const TracedSpan &a = spans[i], &b = spans[j];
                const bool apart = a.begin_us >= b.end_us - kRounding || b.begin_us >= a.end_us - kRounding;
                const bool in = a.begin_us >= b.begin_us - kRounding && a.end_us <= b.end_us + kRounding;
                const bool around = b.begin_us >= a.begin_us - kRounding && b.end_us <= a.end_us + kRounding;
                EXPECT_TRUE(apart || in || around)
                    << "rank " << rank.rank << ", track " << track << ": " << a.name << " " << a.begin_us << "-"
                    << a.end_us << " and " << b.name << " " << b.begin_us << "-" << b.end_us;
            }
        }
}

// Every rank has the same operations by the same numbers, each once, as long as those of the run without a trace.
void expect_same_operations(const std::vector<TracedRank>& trace) {
    using Key = std::tuple<std::string, int64_t, std::string, int64_t, int64_t>;
    std::vector<std::set<Key>> of_ranks;
    for (const TracedRank& rank : trace) {
        of_ranks.emplace_back();
        for (const TracedSpan& s : spans_of(rank, "communication"))
            EXPECT_TRUE(of_ranks.back().insert({s.group, s.number, s.name, s.bytes, s.step}).second)
                << s.group << " " << s.number << " twice on rank " << rank.rank;
    }
    for (const auto& operations : of_ranks) EXPECT_EQ(operations, of_ranks[0]);
}

// None can end before all have begun it: so the ranks' clocks are one.
void expect_no_end_before_a_begin(const std::vector<TracedRank>& trace) {
    std::map<std::pair<std::string, int64_t>, std::pair<double, double>> last_begin_first_end;
    for (const TracedRank& rank : trace)
        for (const TracedSpan& s : spans_of(rank, "communication")) {
            auto& [begin, end] =
                last_begin_first_end.try_emplace({s.group, s.number}, s.begin_us, s.end_us).first->second;
            begin = std::max(begin, s.begin_us);
            end = std::min(end, s.end_us);
        }
    EXPECT_FALSE(last_begin_first_end.empty());
    for (const auto& [operation, times] : last_begin_first_end)
        EXPECT_LE(times.first, times.second) << "operation " << operation.second << " of " << operation.first;
}

TEST_F(TraceTest, AStepOfZero2HasWhatItMust) {
    train(options(4, {"parallel.dp_shard=2", "parallel.dp_replicate=2", "parallel.zero=2", "train.micro_batch=1",
                      "log.trace_first=3", "log.trace_steps=2"}));
    const Json document = Json::parse(read_file(file()));
    EXPECT_EQ(document["displayTimeUnit"], "ms");
    std::map<std::pair<int, int>, std::string> tracks;
    for (const Json& event : document["traceEvents"])
        if (event["name"] == "thread_name")
            tracks[{event["pid"].get<int>(), event["tid"].get<int>()}] = event["args"]["name"].text();
    EXPECT_EQ((tracks[{3, 0}]), "compute");
    EXPECT_EQ((tracks[{3, 1}]), "waits");

    const std::vector<TracedRank> trace = read_trace(file());
    ASSERT_EQ(trace.size(), 4u);
    expect_same_operations(trace);
    int64_t overlaps = 0;
    for (const TracedRank& rank : trace) {
        SCOPED_TRACE(rank.rank);
        expect_nested(rank);
        const auto steps = spans_of(rank, "step");
        ASSERT_EQ(steps.size(), 2u);
        EXPECT_EQ(steps[0].step, 3);
        EXPECT_EQ(steps[1].step, 4);
        // Two microbatches a step; embedding, two blocks, head.
        for (const auto& [name, count] : std::map<std::string, size_t>{
                 {"forward", 16}, {"backward", 16}, {"recompute", 0}, {"optimizer", 2}, {"gradient norm", 2}})
            EXPECT_EQ(spans_of(rank, "compute", name).size(), count) << name;
        EXPECT_EQ(spans_of(rank, "data").size(), 4u);
        for (const TracedSpan& s : rank.spans) {
            const bool in_step = inside(s, steps[0]) || inside(s, steps[1]);
            const bool computes = s.activity == "compute" || s.activity == "data";
            EXPECT_TRUE(in_step || !computes) << s.name;
            // The track's name is the group's, with a number behind it where several are in flight.
            const std::string track = tracks[{rank.rank, s.track}];
            EXPECT_TRUE(track.starts_with(s.activity == "communication"                   ? s.group
                                          : s.activity == "wait" || s.activity == "begin" ? "waits"
                                                                                          : "compute"))
                << s.name << " in track " << track;
        }
        // One reduce_scatter of each unit in each microbatch; it begins in the backward that made its last gradient,
        // and is still in flight in the backward of the unit before: that is what overlaps.
        for (const TracedSpan& step : steps) {
            std::vector<TracedSpan> reductions, backwards;
            for (const TracedSpan& s : spans_of(rank, "communication", "reduce_scatter"))
                if (s.step == step.step) reductions.push_back(s);
            for (const TracedSpan& s : spans_of(rank, "compute", "backward"))
                if (s.step == step.step) backwards.push_back(s);
            EXPECT_EQ(reductions.size(), 8u);
            // In the order of the rank's own program, whatever the machine does beside it: all but the last begin
            // before another backward, and a wait, if any, comes after one has begun, but for the last of each
            // microbatch.
            const auto backward_between = [&](double begin_us, double end_us) {
                return std::any_of(backwards.begin(), backwards.end(),
                                   [&](const TracedSpan& b) { return b.begin_us > begin_us && b.begin_us < end_us; });
            };
            EXPECT_EQ(std::count_if(reductions.begin(), reductions.end(),
                                    [&](const TracedSpan& r) { return backward_between(r.begin_us, step.end_us); }),
                      7);
            int64_t waits_at_once = 0;
            for (const TracedSpan& wait : spans_of(rank, "wait", "wait reduce_scatter"))
                for (const TracedSpan& r : reductions)
                    if (r.group == wait.group && r.number == wait.number)
                        waits_at_once += !backward_between(r.begin_us, wait.begin_us);
            EXPECT_LE(waits_at_once, 2);
            overlaps += std::count_if(reductions.begin(), reductions.end(), [&](const TracedSpan& r) {
                return std::any_of(backwards.begin(), backwards.end(), [&](const TracedSpan& b) {
                    return overlap(r, b) && !inside(r, b) && b.begin_us > r.begin_us;
                });
            });
        }
    }
    // The last rank of a group finds the others waiting and ends at once; the first rank continues meanwhile.
    EXPECT_GE(overlaps, 1);
    const auto times = times_of(trace);
    ASSERT_EQ(times.size(), 4u);
    for (const report::RankTimes& t : times) {
        EXPECT_EQ(t.steps, 2);
        EXPECT_GT(t.compute_ms, 0);
        EXPECT_GT(t.hidden_ms, 0);
        EXPECT_LE(t.hidden_ms, t.communication_ms);
        EXPECT_LE(t.compute_ms + t.data_ms + t.wait_ms, t.step_ms * (1 + 1e-9));
    }
}

// Sums over tp that are still in flight when the rank begins the next one, without having waited: it computed
// meanwhile.
int64_t sums_beside_products(const TracedRank& rank) {
    std::vector<TracedSpan> sums;
    for (const TracedSpan& s : spans_of(rank, "communication", "reduce_scatter"))
        if (s.group == "tp") sums.push_back(s);
    std::sort(sums.begin(), sums.end(), [](const auto& a, const auto& b) { return a.number < b.number; });
    const auto waits = spans_of(rank, "wait");
    int64_t count = 0;
    for (size_t i = 0; i + 1 < sums.size(); ++i) {
        const double begin_us = sums[i].begin_us, next_us = sums[i + 1].begin_us;
        const bool waited = std::any_of(waits.begin(), waits.end(), [&](const TracedSpan& w) {
            return w.group == "tp" && w.begin_us > begin_us && w.begin_us < next_us;
        });
        count += sums[i].end_us > next_us && !waited;
    }
    return count;
}

// A rank that is the first to begin a sum learns of its end when it begins or awaits another one: so of each first
// piece at least one of the two ranks shows the overlap, and without overlap none does.
TEST_F(TraceTest, APieceOfATensorParallelProductIsSummedBesideTheNext) {
    for (const int pieces : {1, 2}) {
        fs::remove_all(path("run"));
        train(options(
            2, {"parallel.tp=2", concat("parallel.tp_overlap=", pieces), "log.trace_first=3", "log.trace_steps=2"}));
        const auto trace = read_trace(file());
        ASSERT_EQ(trace.size(), 2u);
        for (const TracedRank& rank : trace) expect_nested(rank);
        const auto blocks = static_cast<int64_t>(spans_of(trace[0], "compute", "forward").size()) / 2;  // of 4 units
        const int64_t beside = sums_beside_products(trace[0]) + sums_beside_products(trace[1]);
        if (pieces == 1)
            EXPECT_EQ(beside, 0);
        else
            EXPECT_GE(beside, 4 * blocks);  // attention and MLP, forward and backward
    }
}

// The bytes of the operations that the trace shows of a step are those that the log counts.
TEST_F(TraceTest, CountsWhatTheLogCounts) {
    for (const char* zero : {"0", "1", "3"}) {
        SCOPED_TRACE(zero);
        fs::remove_all(path("run"));
        train(options(
            3, {concat("parallel.zero=", zero), "train.global_batch=6", "log.trace_first=2", "log.trace_steps=4"}));
        const auto trace = read_trace(file());
        ASSERT_EQ(trace.size(), 3u);
        expect_same_operations(trace);
        expect_no_end_before_a_begin(trace);
        for (const Json& line : lines()) {
            int64_t of_groups = 0;
            for (const auto& [name, group] : line["comm"].items()) of_groups += group["bytes"].get<int64_t>();
            EXPECT_EQ(line["comm_bytes"], of_groups);
            const auto step = line["step"].get<int64_t>();
            if (step < 3 || step > 5) continue;                       // a line covers the time since the step before it
            std::map<std::string, std::pair<int64_t, int64_t>> seen;  // operations, bytes sent
            const TracedSpan last = spans_of(trace[0], "step")[to_size(step - 3)];
            const TracedSpan own = spans_of(trace[0], "step")[to_size(step - 2)];
            for (const TracedSpan& s : spans_of(trace[0], "communication")) {
                if (s.begin_us < last.end_us || s.begin_us > own.end_us) continue;
                auto& [operations, sent] = seen[s.group];
                ++operations;
                const auto kind = s.name == "all_reduce"       ? comm::Kind::all_reduce
                                  : s.name == "reduce_scatter" ? comm::Kind::reduce_scatter
                                                               : comm::Kind::all_gather;
                sent += comm::bytes_sent(kind, s.bytes, 3);
            }
            for (const auto& [name, group] : line["comm"].items()) {
                EXPECT_EQ(group["operations"], seen[name].first) << name << " in step " << step;
                EXPECT_EQ(group["bytes"], seen[name].second) << name << " in step " << step;
                EXPECT_GE(group["wait_ms"].get<double>(), 0);
            }
        }
    }
}

// The memory at the begin of each pass is that of the rehearsed step, to the byte, under layouts that hold different
// things at different times. Two microbatches: the rehearsal lists both.
TEST_F(TraceTest, MemoryIsWhatTheRehearsalCounts) {
    const std::vector<std::vector<std::string>> layouts = {
        {}, {"parallel.zero=3"}, {"parallel.tp=2", "recompute.policy=full"}, {"parallel.pp=2"}};
    for (const std::vector<std::string>& layout : layouts) {
        SCOPED_TRACE(layout.empty() ? "plain" : layout.front());
        fs::remove_all(path("run"));
        const bool data_parallel = layout.empty() || layout.front() == "parallel.zero=3";
        std::vector<std::string> set = {"log.trace_first=4", "log.trace_steps=1", "train.global_batch=4",
                                        concat("train.micro_batch=", data_parallel ? 1 : 2)};
        set.insert(set.end(), layout.begin(), layout.end());
        const TrainOptions o = options(2, set);
        train(o);
        const engine::Machine machine = engine::machine_of(o.run, {}, "");
        const auto trace = read_trace(file());
        ASSERT_EQ(trace.size(), 2u);
        for (int rank = 0; rank < 2; ++rank) {
            SCOPED_TRACE(rank);
            const auto r = rehearsal::rehearse(o.run, rehearsal::target_of(machine), o.ranks, rank);
            // (name, bytes) at the begin and the end of each pass.
            std::vector<std::pair<std::string, MemoryByPurpose>> rehearsed, traced;
            for (const auto& sample : r.program.memory) {
                std::string place = r.program.places[sample.place];
                const size_t of = place.find(" of ");
                if (of == std::string::npos) continue;
                rehearsed.emplace_back(place.replace(of, 4, " "), sample.bytes);
            }
            const TracedRank& own = trace[to_size(rank)];
            EXPECT_TRUE(std::is_sorted(own.memory.begin(), own.memory.end(),
                                       [](const auto& a, const auto& b) { return a.us < b.us; }));
            for (const TracedSpan& s : spans_of(own, "compute")) {
                if (s.name.find(' ') == std::string::npos || s.name == "gradient norm") continue;
                std::vector<MemoryByPurpose> inside;
                for (const auto& sample : own.memory)
                    if (sample.us >= s.begin_us && sample.us <= s.end_us) inside.push_back(sample.bytes);
                ASSERT_GE(inside.size(), 2u) << s.name;
                traced.emplace_back(s.name, inside.front());
                traced.emplace_back(s.name, inside.back());
            }
            ASSERT_GT(traced.size(), 10u);
            ASSERT_EQ(traced.size(), rehearsed.size());
            for (size_t i = 0; i < traced.size(); ++i) {
                EXPECT_EQ(traced[i].first, rehearsed[i].first) << i;
                EXPECT_EQ(traced[i].second.bytes, rehearsed[i].second.bytes) << i << ' ' << traced[i].first;
            }
        }
    }
}

TEST_F(TraceTest, RecomputedForwardsAreToldApart) {
    train(options(1, {"recompute.policy=full", "log.trace_first=6", "log.trace_steps=9"}));
    const auto trace = read_trace(file());
    ASSERT_EQ(trace.size(), 1u);
    EXPECT_EQ(spans_of(trace[0], "step").size(), 1u);
    EXPECT_EQ(spans_of(trace[0], "compute", "forward").size(), 16u);   // 4 microbatches, 4 units
    EXPECT_EQ(spans_of(trace[0], "compute", "recompute").size(), 8u);  // the 2 blocks
    EXPECT_EQ(spans_of(trace[0], "compute", "backward").size(), 16u);
    expect_nested(trace[0]);
}

// Rank 1 falls out in a traced step: the file of the session before stays as it was, and nothing half-written beside
// it.
TEST_F(TraceTest, AFailureLeavesNoHalfFile) {
    fs::create_directories(path("run"));
    std::ofstream(file()) << "older";
    comm::WorldOptions world_options{.timeout_s = 60};
    EXPECT_THROW(comm::run_ranks(2, world_options,
                                 [&](comm::World& world) {
                                     TraceFile trace(world, {1, 1}, file(), "", [](const std::string&) {});
                                     const auto group = world.everyone("dp");
                                     EXPECT_NE(trace.before(1), nullptr);
                                     group->sum(1);
                                     trace.after(1);
                                     if (world.rank() == 1) throw Error("lost");
                                     trace.after(2);
                                 }),
                 Error);
    for (const auto& entry : fs::directory_iterator(path("run"))) EXPECT_EQ(entry.path(), file());
    std::string text;
    std::getline(std::ifstream(file()), text);
    EXPECT_EQ(text, "older");
}

TEST_F(TraceTest, APlaceThatCannotBeWrittenIsSaidAndNothingMore) {
    std::vector<std::string> warnings;
    comm::run_ranks(2, {.timeout_s = 60}, [&](comm::World& world) {
        const auto warn = [&](const std::string& message) { warnings.push_back(message); };
        TraceFile trace(world, {1, 1}, path("absent/trace.json"), "", warn);
        trace.before(1);
        trace.after(1);
        trace.finish();
    });
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_NE(warnings[0].find("trace.json: No such file or directory; training continues"), std::string::npos)
        << warnings[0];
}

// Tracing does not change the numbers of a run; without the key there is no file.
TEST_F(TraceTest, ChangesNothing) {
    train(options(2));
    EXPECT_TRUE(fs::exists(file()));
    for (const auto& entry : fs::directory_iterator(path("run")))
        EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos) << entry.path();
    const auto traced = lines();
    fs::remove_all(path("run"));
    train(options(2, {"log.trace=false"}));
    EXPECT_FALSE(fs::exists(file()));
    const auto plain = lines();
    ASSERT_EQ(traced.size(), plain.size());
    for (size_t i = 0; i < plain.size(); ++i)
        for (const char* key : {"loss", "grad_norm", "comm_bytes"}) EXPECT_EQ(traced[i][key], plain[i][key]) << key;
}

TEST(TraceWindow, IsTheThirdStepOfASessionOrWhatIsAsked) {
    const auto window = [](int64_t first, int64_t count, int64_t steps, int64_t done) {
        spec::RunSpec run;
        run.train.steps = steps;
        run.log.trace_first = first;
        run.log.trace_steps = count;
        const TraceWindow w = trace_window(run, done);
        return std::pair{w.first, w.last};
    };
    using Steps = std::pair<int64_t, int64_t>;
    EXPECT_EQ(window(0, 3, 100, 0), (Steps{3, 5}));
    EXPECT_EQ(window(0, 3, 100, 40), (Steps{43, 45}));
    EXPECT_EQ(window(0, 3, 4, 0), (Steps{2, 4}));
    EXPECT_EQ(window(0, 3, 2, 0), (Steps{1, 2}));
    EXPECT_EQ(window(0, 3, 50, 49), (Steps{50, 50}));
    EXPECT_EQ(window(7, 2, 100, 0), (Steps{7, 8}));
    EXPECT_EQ(window(7, 2, 7, 0), (Steps{7, 7}));
    EXPECT_EQ(window(7, 4, 100, 8), (Steps{9, 10}));
    const Steps over = window(7, 2, 100, 8);
    EXPECT_LT(over.second, over.first) << "steps that are over";
}

// --- the parts -------------------------------------------------------------------------------------------------------

TEST(Trace, KeepsWhatFitsAndCountsTheRest) {
    Trace trace(2);
    EXPECT_EQ(trace.begin({Activity::compute, "before"}), Trace::kNone);
    trace.open(7);
    std::string name = "forward";
    const size_t first = trace.begin({.activity = Activity::compute, .name = name, .of = "h.0"});
    name = "something else";  // the trace has its own copy
    trace.end(first);
    trace.close();
    EXPECT_EQ(trace.begin({Activity::compute, "after"}), Trace::kNone);
    trace.open(8);
    const size_t second = trace.begin({Activity::compute, "forward"});
    EXPECT_EQ(trace.begin({Activity::compute, "no room"}), Trace::kNone);
    trace.end(Trace::kNone);
    EXPECT_EQ(trace.size(), 2u);
    EXPECT_EQ(trace.dropped(), 1);
    EXPECT_EQ(trace.span(0).what.name, "forward");
    EXPECT_EQ(trace.span(0).what.of, "h.0");
    EXPECT_EQ(trace.span(0).step, 7);
    EXPECT_LE(trace.span(0).begin_ns, trace.span(0).end_ns);
    EXPECT_EQ(trace.span(second).end_ns, -1);
    const Json events = Json::parse("[" + events_of(trace, 5, "\"here\"", {}) + "]");
    EXPECT_EQ(events[2]["args"]["labels"], "\"here\", 1 spans had no room");
    EXPECT_EQ(events.back()["args"]["unfinished"], true);
}

// Concurrent operations get separate tracks, as few as possible.
TEST(Trace, OperationsUnderWayTogetherHaveTracksOfTheirOwn) {
    Trace trace(10);
    trace.open(1);
    const auto begin = [&](const char* group) {
        return trace.begin({.activity = Activity::communication, .name = "all_gather", .group = group});
    };
    const size_t a = begin("dp"), b = begin("dp"), c = begin("tp");
    trace.end(a);
    trace.end(c);
    const size_t d = begin("dp");
    trace.end(b);
    trace.end(d);
    std::map<int, std::string> tracks;
    std::vector<std::string> of_spans;
    for (const Json& event : Json::parse("[" + events_of(trace, 0, "", {}) + "]")) {
        if (event["name"] == "thread_name") tracks[event["tid"].get<int>()] = event["args"]["name"].text();
        if (event["ph"] == "X") of_spans.push_back(tracks[event["tid"].get<int>()]);
    }
    EXPECT_EQ(of_spans, (std::vector<std::string>{"dp", "dp 2", "tp", "dp"}));
}

TEST(Trace, ClocksOfOneMachineAreOne) {
    comm::run_ranks(3, {.timeout_s = 60}, [](comm::World& world) {
        const auto group = world.everyone("trace");
        const TraceClock clock = compare_clocks(*group);
        EXPECT_EQ(clock.offset_ns, 0);
        EXPECT_EQ(group->max(static_cast<double>(clock.origin_ns)), static_cast<double>(clock.origin_ns));
    });
}

// The middle one of the differences: a rank that was late out of one barrier does not count.
TEST(Trace, ClocksOfOtherMachinesAreComparedAtBarriers) {
    const std::vector<std::string> readings = {"a 100 200 300 400 500", "b 1110 1205 9000 1400 1507",
                                               "a 103 204 305 406 507"};
    EXPECT_EQ(clock_from(readings, 0).offset_ns, 0);
    EXPECT_EQ(clock_from(readings, 1).offset_ns, 1007);  // of 1000, 1005, 1007, 1010, 8700
    EXPECT_EQ(clock_from(readings, 2).offset_ns, 0);     // of the same machine: none at all
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(clock_from(readings, rank).origin_ns, 500);

    Trace trace(1);
    trace.open(1);
    trace.end(trace.begin({Activity::compute, "forward"}));
    const Trace::Span span = trace.span(0);
    const TraceClock clock{.offset_ns = span.begin_ns - 2'001'000, .origin_ns = 1'500'000};
    const Json event = Json::parse("[" + events_of(trace, 0, "", clock) + "]").back();
    EXPECT_EQ(event["ts"], 501.0);
}

}  // namespace
}  // namespace tutti::train
