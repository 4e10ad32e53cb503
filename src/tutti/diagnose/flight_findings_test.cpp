// The reader of flight records: records made by hand, one per way to fail, and those of real failures of the backend of
// threads. Failures of processes: tests/mpi/failure_test.cpp.
#include "tutti/diagnose/flight_findings.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tutti/base/testing/scratch.h"
#include "tutti/comm/threads/thread_world.h"

namespace tutti::diagnose {
namespace {

namespace fs = std::filesystem;
using namespace comm;
using Finding = FlightFinding::Kind;

Summary all_reduce_of(int64_t count) {
    return {.kind = Kind::all_reduce, .dtype = DType::f32, .count = count, .bytes = 4 * count};
}

// A rank that completed `done` all_reduces of 8 f32 in group dp of all ranks.
FlightRecord after(int rank, int ranks, uint64_t done) {
    FlightRecord r{
        .rank = rank, .ranks = ranks, .cause = Cause::told, .reason = "told", .started = 100, .written = 200};
    r.groups.push_back({.name = "dp", .ranks = {}, .begun = done});
    for (int i = 0; i < ranks; ++i) r.groups[0].ranks.push_back(i);
    for (uint64_t n = 1; n <= done; ++n)
        r.operations.push_back({.sequence = n,
                                .operation = all_reduce_of(8),
                                .state = State::complete,
                                .start_s = static_cast<double>(n),
                                .end_s = static_cast<double>(n) + 0.5});
    return r;
}

FlightRecord begin(FlightRecord r, const Summary& operation, State state = State::started, size_t group = 0) {
    const uint64_t number = ++r.groups[group].begun;
    r.operations.push_back({.group = group,
                            .sequence = number,
                            .operation = operation,
                            .state = state,
                            .start_s = 50,
                            .end_s = state == State::started ? 0.0 : 51.0});
    return r;
}

FlightRecord timed_out(FlightRecord r) {
    r.cause = Cause::timed_out;
    return r;
}

FlightRecord failed(FlightRecord r, const std::string& reason, double written = 200) {
    r.cause = Cause::failed;
    r.reason = reason;
    r.written = written;
    return r;
}

FlightFinding first(const std::vector<FlightRecord>& records, int ranks) {
    return find_divergence(records, ranks).at(0);
}

TEST(FlightFindings, ARankThatStoodStillIsBehind) {
    const FlightFinding f = first(
        {timed_out(begin(after(0, 3, 6), all_reduce_of(4))), after(1, 3, 6), begin(after(2, 3, 6), all_reduce_of(4))},
        3);
    EXPECT_EQ(f.kind, Finding::behind);
    EXPECT_EQ(f.ranks, std::vector{1});
    EXPECT_EQ(f.group, "dp");
    EXPECT_EQ(f.sequence, 7u);
    EXPECT_EQ(f.text,
              "rank 1 hung or took another path: it has not begun operation 7 of group dp (all_reduce of 4 "
              "f32), in which ranks 0 and 2 wait for it; its last operation: all_reduce of 8 f32, operation 6 of group "
              "dp, complete");
}

// Rank 3 waits for rank 2, which waits for rank 0 in another group: rank 0 it is.
TEST(FlightFindings, TheOneAtTheEndOfAChainOfWaitsIsNamed) {
    std::vector<FlightRecord> records;
    for (int rank = 0; rank < 4; ++rank) {
        records.push_back(after(rank, 4, 1));
        records.back().groups.push_back({.name = "tp", .ranks = {rank / 2 * 2, rank / 2 * 2 + 1}});
        records.back().groups.push_back({.name = "cp", .ranks = {rank % 2, rank % 2 + 2}});
    }
    records[3] = begin(records[3], all_reduce_of(2), State::started, 1);
    records[2] = timed_out(begin(records[2], all_reduce_of(3), State::started, 2));
    const FlightFinding f = first(records, 4);
    EXPECT_EQ(f.kind, Finding::behind);
    EXPECT_EQ(f.ranks, std::vector{0});
    EXPECT_EQ(f.group, "cp");
}

TEST(FlightFindings, RanksThatWaitForOneAnotherAreACircle) {
    std::vector<FlightRecord> records;
    for (int rank = 0; rank < 2; ++rank) {
        records.push_back(after(rank, 2, 1));
        records.back().groups.push_back({.name = "tp", .ranks = {0, 1}});
    }
    const FlightFinding f = first(
        {timed_out(begin(records[0], all_reduce_of(2))), begin(records[1], {.kind = Kind::barrier}, State::started, 1)},
        2);
    EXPECT_EQ(f.kind, Finding::circle);
    EXPECT_EQ(f.ranks, (std::vector{0, 1}));
    EXPECT_EQ(f.text,
              "the ranks wait for one another in a circle: rank 0 waits for rank 1 in operation 2 of group dp "
              "(all_reduce of 2 f32); rank 1 waits for rank 0 in operation 1 of group tp (barrier)");
}

TEST(FlightFindings, ADifferentSizeIsNamedWithBothSides) {
    const FlightFinding f = first({begin(after(0, 3, 2), all_reduce_of(4), State::failed),
                                   failed(begin(after(1, 3, 2), all_reduce_of(5), State::failed), "they disagree"),
                                   begin(after(2, 3, 2), all_reduce_of(4))},
                                  3);
    EXPECT_EQ(f.kind, Finding::different);
    EXPECT_EQ(f.ranks, std::vector{1});
    EXPECT_EQ(f.sequence, 3u);
    EXPECT_EQ(f.text,
              "the ranks diverge at operation 3 of group dp: ranks 0 and 2 call all_reduce of 4 f32, rank 1 calls "
              "all_reduce of 5 f32; rank 1 took another path");
}

// The first difference counts, not its consequences; with two ranks there is no majority.
TEST(FlightFindings, ADifferentOperationOfTwoRanksBlamesBoth) {
    const Summary broadcast{.kind = Kind::broadcast, .dtype = DType::f32, .count = 4};
    const FlightFinding f = first({begin(begin(after(0, 2, 2), all_reduce_of(4)), broadcast),
                                   begin(begin(after(1, 2, 2), broadcast), all_reduce_of(4))},
                                  2);
    EXPECT_EQ(f.kind, Finding::different);
    EXPECT_EQ(f.ranks, (std::vector{0, 1}));
    EXPECT_EQ(f.sequence, 3u);
    EXPECT_EQ(
        f.text,
        "the ranks diverge at operation 3 of group dp: rank 0 calls all_reduce of 4 f32, rank 1 calls broadcast of "
        "4 f32 from rank 0");
}

TEST(FlightFindings, AllToAllMayDifferInItsSizes) {
    const auto exchange = [](int64_t count) {
        return Summary{.kind = Kind::all_to_all, .dtype = DType::f32, .count = count};
    };
    EXPECT_EQ(first({begin(after(0, 2, 2), exchange(4)), begin(after(1, 2, 2), exchange(5))}, 2).kind, Finding::level);
}

TEST(FlightFindings, AMissingRankIsNamedWithWhatTheOthersWaitFor) {
    const FlightFinding f =
        first({begin(after(0, 4, 6), all_reduce_of(4)), after(1, 4, 6), begin(after(3, 4, 6), all_reduce_of(4))}, 4);
    EXPECT_EQ(f.kind, Finding::missing);
    EXPECT_EQ(f.ranks, std::vector{2});
    EXPECT_EQ(f.text,
              "rank 2 left no record: killed, or its host or disk is gone; ranks 0 and 3 wait for rank 2 in operation "
              "7 of group dp (all_reduce of 4 f32)");
    EXPECT_EQ(find_divergence({begin(after(0, 2, 6), all_reduce_of(4))}, 2).size(), 1u)
        << "rank 1 is missing, not also behind";
}

TEST(FlightFindings, TheFirstErrorIsNamedBeforeWhatFollowsFromIt) {
    const auto findings = find_divergence({begin(after(0, 4, 6), all_reduce_of(4)), failed(after(1, 4, 6), "late", 180),
                                           failed(after(2, 4, 6), "the disk of rank 2 is gone", 170)},
                                          4);
    ASSERT_EQ(findings.size(), 3u);
    EXPECT_EQ(findings[0].kind, Finding::failed);
    EXPECT_EQ(findings[0].ranks, std::vector{2});
    EXPECT_EQ(findings[0].text,
              "rank 2 failed: the disk of rank 2 is gone; its last operation: all_reduce of 8 f32, operation "
              "6 of group dp, complete");
    EXPECT_EQ(findings[1].ranks, std::vector{1});
    EXPECT_EQ(findings[2].kind, Finding::missing);
}

TEST(FlightFindings, AMessageThatWasNeverSentIsTheSendersFault) {
    const auto message = [](FlightRecord r, Kind kind, int peer, uint64_t number, State state) {
        r.operations.push_back({.sequence = number,
                                .operation = {.kind = kind, .dtype = DType::f32, .count = 4, .peer = peer},
                                .state = state,
                                .start_s = 60});
        return r;
    };
    FlightRecord sender = message(after(0, 2, 1), Kind::send, 1, 1, State::complete);
    const FlightRecord receiver = timed_out(
        message(message(after(1, 2, 1), Kind::receive, 0, 1, State::complete), Kind::receive, 0, 2, State::started));
    const FlightFinding f = first({sender, receiver}, 2);
    EXPECT_EQ(f.kind, Finding::behind);
    EXPECT_EQ(f.ranks, std::vector{0});
    EXPECT_NE(f.text.find("message 2 of group dp (receive of 4 f32 from rank 0), in which rank 1 waits"),
              std::string::npos)
        << f.text;
    sender = message(sender, Kind::send, 1, 2, State::started);
    EXPECT_EQ(first({sender, receiver}, 2).kind, Finding::level);
}

TEST(FlightFindings, EqualRecordsHaveNoDivergence) {
    const FlightFinding done = first({after(0, 2, 5), after(1, 2, 5)}, 2);
    EXPECT_EQ(done.kind, Finding::level);
    EXPECT_TRUE(done.ranks.empty());
    EXPECT_EQ(done.text,
              "no rank took another path: all ranks began the same operations of every group, and completed them");
    const FlightFinding stuck =
        first({begin(after(0, 2, 5), all_reduce_of(4)), timed_out(begin(after(1, 2, 5), all_reduce_of(4)))}, 2);
    EXPECT_EQ(stuck.kind, Finding::level);
    EXPECT_NE(stuck.text.find("operation 6 of group dp, was in flight"), std::string::npos) << stuck.text;
}

// Groups of one name are told apart by their ranks, and by which of several equal ones they are.
TEST(FlightFindings, GroupsOfOneNameDoNotMix) {
    FlightRecord a = after(0, 2, 3), b = after(1, 2, 3);
    a.groups.push_back({.name = "dp", .ranks = {0}, .generation = 0});
    a = begin(a, all_reduce_of(99), State::complete, 1);
    for (FlightRecord* r : {&a, &b}) {
        r->groups.push_back({.name = "dp", .ranks = {0, 1}, .generation = 1});
        *r = begin(*r, all_reduce_of(77), State::complete, r->groups.size() - 1);
    }
    EXPECT_EQ(first({a, b}, 2).kind, Finding::level);
}

// --- files -----------------------------------------------------------------------------------------------------------

class FlightFiles : public testing::Test {
  protected:
    FlightFiles() { fs::create_directory(folder_.path("flight")); }

    fs::path file(int rank) const { return folder_.path(concat("flight/rank-", rank, ".json")); }
    void write(const FlightRecord& record) const { std::ofstream(file(record.rank)) << to_json(record); }
    std::string error() const {
        try {
            read_flight(folder_.path());
        } catch (const DataError& e) {
            return e.what();
        }
        return "";
    }
    // Runs the body on threads until it fails.
    FlightReading fail(int ranks, double timeout_s, const std::function<void(World&)>& body) const {
        EXPECT_ANY_THROW(run_ranks(ranks, {.timeout_s = timeout_s, .flight_directory = folder_.path("flight")}, body));
        return read_flight(folder_.path());
    }

    ScratchFolder folder_;
};

TEST_F(FlightFiles, ARecordReadsBackAsItWas) {
    FlightRecord r =
        begin(after(1, 3, 2), {.kind = Kind::send, .dtype = DType::bf16, .count = 3, .bytes = 6, .peer = 2});
    r.operations[0].operation.reduce = Reduce::max;
    r.operations[1].state = State::failed;
    r.reason = "\"quoted\"\nand \xff broken";
    r.forgotten = 7;
    write(r);
    const FlightRecord back = read_flight_record(file(1));
    r.reason = "\"quoted\"\nand \xef\xbf\xbd broken";  // a file of JSON holds only UTF-8
    EXPECT_EQ(to_json(back), to_json(r));
    EXPECT_EQ(back.operations[2].operation.text(), "send of 3 bf16 to rank 2");
    EXPECT_EQ(back.operations[0].operation.text(), "all_reduce (max) of 8 f32");
    EXPECT_EQ(back.operations[1].state, State::failed);
    EXPECT_EQ(back.operations[1].end_s, 2.5);
    EXPECT_EQ(back.groups[0].ranks, (std::vector{0, 1, 2}));
    EXPECT_EQ(back.forgotten, 7u);
}

TEST_F(FlightFiles, DamageIsNamedWithFileAndPlace) {
    EXPECT_NE(error().find("flight: no flight records (rank-N.json)"), std::string::npos) << error();
    write(after(0, 2, 3));
    const std::string whole = to_json(after(1, 2, 3));
    for (const size_t length : {size_t{0}, size_t{1}, whole.size() / 2, whole.size() - 3}) {
        std::ofstream(file(1)) << whole.substr(0, length);
        EXPECT_NE(error().find(concat("rank-1.json: damaged at byte ", length, " of ", length)), std::string::npos)
            << error();
    }
    for (const auto& [from, to, part] : std::vector<std::array<std::string, 3>>{
             {"\"cause\": \"told\"", "\"cause\": \"bored\"",
              "\"bored\" is not a kind, state or cause of this program's flight records"},
             {"\"rank\": 1", "\"rank\": 5", "rank is 5, required one below 2"},
             {"\"in\": 0", "\"in\": 1", "an operation is of group 1, required one below 1"},
             {"\"peer\": 0", "\"peer\": 2", "an operation has peer 2, required a rank below 2, those of its group"},
             {"\"kind\": \"all_reduce\"", "\"kind\": 7", "required a text, got 7"},
             {"\"groups\"", "\"bands\"", "\"groups\" is missing"}}) {
        std::string changed = whole;
        ASSERT_NE(changed.find(from), std::string::npos) << from;
        changed.replace(changed.find(from), from.size(), to);
        std::ofstream(file(1)) << changed;
        EXPECT_NE(error().find("rank-1.json: not a flight record of this program"), std::string::npos) << error();
        EXPECT_NE(error().find(part), std::string::npos) << error();
    }
    fs::remove_all(folder_.path("flight"));
    folder_.write("flight", "a file");
    EXPECT_NE(error().find("no flight records"), std::string::npos) << error();
}

TEST_F(FlightFiles, RecordsOfAnEarlierSessionAreLeftOut) {
    FlightRecord old = failed(after(1, 2, 3), "yesterday's error");
    old.started = 10;
    old.written = 20;
    write(old);
    write(begin(after(0, 2, 3), all_reduce_of(4)));
    const FlightReading reading = read_flight(folder_.path());
    EXPECT_EQ(reading.left_out, std::vector<std::string>{"rank-1.json"});
    EXPECT_EQ(reading.missing, std::vector{1});
    EXPECT_EQ(reading.findings.at(0).kind, Finding::missing);
}

// --- real failures ---------------------------------------------------------------------------------------------------

TEST_F(FlightFiles, ARealRankThatStaysAway) {
    const FlightReading r = fail(3, 0.3, [](World& world) {
        const auto group = world.everyone("dp"), other = world.everyone("tp");
        group->sum(1);
        other->barrier();
        const auto begin = Clock::now();
        if (world.rank() == 1)
            world.progress().wait_until([&] { return Clock::now() - begin > std::chrono::seconds(20); },
                                        [] { return std::string("its own way"); });
        group->sum(1);
    });
    ASSERT_EQ(r.records.size(), 3u);
    EXPECT_EQ(r.findings.at(0).kind, Finding::behind) << r.findings.at(0).text;
    EXPECT_EQ(r.findings.at(0).ranks, std::vector{1});
    EXPECT_EQ(r.findings.at(0).group, "dp");
    EXPECT_EQ(r.findings.at(0).sequence, 2u);
    EXPECT_EQ(last_operation(r.records[1]), "barrier, operation 1 of group tp, complete");
}

TEST_F(FlightFiles, ARealDisagreement) {
    const FlightReading r = fail(3, 60, [](World& world) {
        const auto group = world.everyone("dp");
        const auto device = make_cpu_device(1);
        group->barrier();
        const Tensor x = Tensor::empty(*device, {world.rank() == 2 ? 5 : 4}, DType::f32, Purpose::communication);
        group->all_reduce(x).wait();
    });
    EXPECT_EQ(r.findings.at(0).kind, Finding::different) << r.findings.at(0).text;
    EXPECT_EQ(r.findings.at(0).sequence, 2u);
    EXPECT_TRUE(r.missing.empty());
    EXPECT_EQ(r.findings.at(0).ranks.back(), 2);  // alone, or with the only one that had come that far
}

TEST_F(FlightFiles, ARealError) {
    const FlightReading r = fail(4, 60, [](World& world) {
        const auto group = world.everyone("dp");
        for (int i = 0; i < 600; ++i) group->barrier();  // more than a record holds
        if (world.rank() == 3) throw DataError("the disk of rank 3 is gone");
        group->barrier();
    });
    EXPECT_EQ(r.findings.at(0).kind, Finding::failed);
    EXPECT_EQ(r.findings.at(0).ranks, std::vector{3});
    EXPECT_EQ(r.findings.size(), 1u) << r.findings.at(1).text;
    EXPECT_EQ(r.records[3].forgotten, 600 - FlightRecorder::kEntries);
    EXPECT_EQ(r.records[3].groups.at(0).begun, 600u);
}

}  // namespace
}  // namespace tutti::diagnose
