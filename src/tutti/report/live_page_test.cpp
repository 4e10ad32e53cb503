// The live page: choices, cards, events, and the cards that report.html has too.
#include "tutti/report/live_page.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/testing/scratch.h"
#include "tutti/base/units.h"
#include "tutti/report/parts.h"
#include "tutti/report/watched_run.h"

namespace tutti::report {
namespace {

using Query = std::vector<std::pair<std::string, std::string>>;

TEST(LiveView, IsWhatTheFormSends) {
    EXPECT_EQ(live_view({}, 3).runs, (std::vector<size_t>{0}));
    const LiveView view =
        live_view({{"runs", "2"}, {"runs", "0"}, {"runs", "2"}, {"x", "time"}, {"smooth", "4"}, {"have", "7"}}, 3);
    EXPECT_EQ(view.runs, (std::vector<size_t>{0, 2}));
    EXPECT_EQ(view.view.x, View::X::time);
    EXPECT_EQ(view.view.smoothing, 4);
    Query many;
    for (int i = 0; i < 9; ++i) many.emplace_back("runs", std::to_string(i));
    EXPECT_THROW(live_view(many, 20), UsageError);
    for (const Query& wrong : {Query{{"runs", "3"}}, Query{{"runs", "-1"}}, Query{{"runs", "1x"}}, Query{{"runs", ""}},
                               Query{{"x", "steps"}}, Query{{"smooth", "2"}}, Query{{"file", "/etc/passwd"}}})
        EXPECT_THROW(live_view(wrong, 3), UsageError) << wrong[0].first << "=" << wrong[0].second;
}

class LivePage : public ::testing::Test {
  protected:
    // A log of `steps` lines, five seconds and 128 tokens a step.
    void log(const std::string& name, int steps, int first = 1) {
        std::filesystem::create_directories(folder_.path(name));
        std::ofstream file(folder_.path(name) + "/metrics.jsonl", std::ios::app);
        for (int step = first; step < first + steps; ++step) {
            const TimeSpent spent{.trained = 5.0 * step,
                                  .lost = 3,
                                  .saving = 2,
                                  .restarting = 4,
                                  .other = 1,
                                  .lost_steps = 1,
                                  .deaths = 1,
                                  .from_memory = 1};
            file << Json{{"step", step},
                         {"loss", 5 - std::log(step)},
                         {"tokens", 128 * step},
                         {"step_ms", 5000.0},
                         {"time", 1000.0 + 5 * step},
                         {"seconds", to_json(spent)},
                         {"ranks",
                          {{"rank", {0, 1, 2}}, {"wait_ms", {2500.0, 100.0, 2600.0}}, {"mem_peak_bytes", {1, 2, 3}}}}}
                        .dump()
                 << "\n";
        }
    }
    WatchedRun watched(const std::string& name) {
        WatchedRun run(folder_.path(name));
        run.update(2000);
        return run;
    }
    static std::string html_of(const std::vector<Card>& cards, const std::string& id) {
        for (const Card& card : cards)
            if (card.id == id) return card.html;
        return "no card " + id;
    }
    static Json data_of(const std::string& event) {
        const size_t at = event.find("data: ");
        EXPECT_NE(at, std::string::npos) << event;
        EXPECT_TRUE(event.ends_with("\n\n"));
        return Json::parse(event.substr(at + 6, event.size() - at - 8));  // one line
    }

    ScratchFolder folder_;
};

// One line in which the ranks waited for another one says nothing of the run.
TEST_F(LivePage, TheRankThatOthersWaitForIsThatOfMostSteps) {
    log("a", 12);
    std::ofstream(folder_.path("a") + "/metrics.jsonl", std::ios::app)
        << Json{{"step", 13},
                {"loss", 2.0},
                {"tokens", 1664},
                {"step_ms", 5000.0},
                {"ranks", {{"rank", {0, 1, 2}}, {"wait_ms", {2500.0, 2600.0, 0.0}}, {"mem_peak_bytes", {1, 2, 3}}}}}
               .dump()
        << "\n";
    std::vector<WatchedRun> runs;
    runs.push_back(watched("a"));
    EXPECT_NE(
        html_of(live_cards(runs, {{0}, {}}), "ranks")
            .find("The others wait for rank 1: it waits 2 % of a step, the rank in the middle 50 %, in the median "
                  "of 13 logged steps."),
        std::string::npos);
    EXPECT_NE(render(runs[0], 100, 0).find("\nThe others wait for rank 1: it waits 2 % of a step"), std::string::npos);
}

TEST_F(LivePage, HasTheCardsOfTheReport) {
    log("a", 40);
    std::vector<WatchedRun> runs;
    runs.push_back(watched("a"));
    const auto cards = live_cards(runs, {{0}, {}});
    const std::string report = render_report(runs[0].history());
    size_t shared = 0;
    for (const Card& card : cards_of(runs[0].history(), {})) {
        EXPECT_EQ(html_of(cards, card.id), card.html);
        EXPECT_NE(report.find(card.html), std::string::npos) << card.id;
        ++shared;
    }
    EXPECT_GE(shared, 5U);
    EXPECT_NE(html_of(cards, "ranks").find("The others wait for rank 1: it waits 2 % of a step"), std::string::npos);
    EXPECT_NE(html_of(cards, "spent")
                  .find("<b>95.2 %</b>. 1 restart after a death, with 1 step done again, and 0 after a stop. 1 of 1 "
                        "restart continued from copies in memory, the others from disk.</p>"),
              std::string::npos)
        << html_of(cards, "spent");
    // The policy of the server forbids scripts and styles inside.
    const std::string page = live_page(runs, {{0}, {}});
    for (const char* part : {"style=\"", "<style", "onclick", "javascript:", "http:", "https:"})
        EXPECT_EQ(page.find(part), std::string::npos) << part;
    EXPECT_NE(page.find(concat("data-have=\"", live_id(cards), "\"")), std::string::npos);
}

TEST_F(LivePage, SendsOnlyTheCardsThatAreNew) {
    log("a", 40);
    std::vector<WatchedRun> runs;
    runs.push_back(watched("a"));
    const LiveView view{{0}, {}};
    std::map<std::string, size_t> sent;
    const auto first = live_cards(runs, view);
    const std::string all = live_event(first, sent);
    EXPECT_EQ(data_of(all).at("cards").size(), first.size());
    EXPECT_NE(all.find(concat("id: ", live_id(first), "\n")), std::string::npos);
    runs[0].update(3000);
    EXPECT_EQ(live_event(live_cards(runs, view), sent), "");  // later, and nothing new
    log("a", 1, 41);
    runs[0].update(4000);
    const auto second = live_cards(runs, view);
    const Json change = data_of(live_event(second, sent));
    EXPECT_TRUE(change.at("cards").contains("loss"));
    EXPECT_FALSE(change.at("cards").contains("skipped"));
    EXPECT_EQ(change.at("order").size(), second.size());
    EXPECT_NE(live_id(first), live_id(second));
    EXPECT_EQ(live_event(second, sent), "");
}

TEST_F(LivePage, DrawsOverTokensAndTimeAndRunsOverEachOther) {
    log("a", 40);
    log("b", 50);
    std::vector<WatchedRun> runs;
    runs.push_back(watched("a"));
    runs.push_back(watched("b"));
    const auto loss = [&](View::X x) { return html_of(live_cards(runs, {{0}, {x, 0}}), "loss"); };
    EXPECT_NE(loss(View::X::step).find(">step<"), std::string::npos);
    EXPECT_NE(loss(View::X::tokens).find(">tokens<"), std::string::npos);
    EXPECT_NE(loss(View::X::time).find(">seconds since the first step<"), std::string::npos);
    EXPECT_NE(loss(View::X::time).find("1.311 at 195 seconds"), std::string::npos) << loss(View::X::time);
    EXPECT_EQ(loss(View::X::step).find("faint"), std::string::npos);
    const auto both = live_cards(runs, {{0, 1}, {}});
    EXPECT_NE(html_of(both, "loss").find("</svg>b</li>"), std::string::npos);
    EXPECT_NE(html_of(both, "status-1").find("step 50"), std::string::npos);
}

TEST_F(LivePage, ShowsTheCulpritAndTheLastOperations) {
    log("a<b>", 40);
    const std::string path = folder_.path("a<b>");
    ASSERT_TRUE(append_event(path, {1190, kStarted, 1, 3, "3 of 3 ranks"}));
    ASSERT_TRUE(append_event(path, {1210, kDied, 1, 3, "rank 1 on host <n2> was killed by signal 9 (Killed)"}));
    std::vector<WatchedRun> runs;
    runs.emplace_back(path);
    runs[0].set_flight({.written = 1e12,
                        .findings = {"rank 1 left no record: killed"},
                        .missing = {1},
                        .last_operations = {{0, "all_reduce of 4 f32, operation 7 of group dp"}}});
    runs[0].update(2000);
    const auto cards = live_cards(runs, {{0}, {}});
    EXPECT_NE(html_of(cards, "status-0").find("rank 1 on host &lt;n2&gt; was killed by signal 9"), std::string::npos);
    const std::string ranks = html_of(cards, "ranks");
    EXPECT_NE(ranks.find("<p>rank 1 left no record: killed</p>"), std::string::npos) << ranks;
    EXPECT_NE(ranks.find("all_reduce of 4 f32, operation 7 of group dp"), std::string::npos);
    EXPECT_NE(ranks.find(" gone\""), std::string::npos);
    EXPECT_EQ(live_page(runs, {{0}, {}}).find("<b>\""), std::string::npos);
    EXPECT_EQ(live_page(runs, {{0}, {}}).find("a<b>"), std::string::npos);
    // A run that has gone on since: its records are of an earlier death.
    runs[0].set_flight({.written = 1, .findings = {"old"}, .missing = {}, .last_operations = {}});
    runs[0].update(2000);
    EXPECT_EQ(html_of(live_cards(runs, {{0}, {}}), "ranks").find("old"), std::string::npos);
}

TEST_F(LivePage, GoodputStandsBesideTheForecast) {
    log("a", 40);
    RunHistory run = read_run(folder_.path("a"));
    EXPECT_EQ(spent_card(run).find("Forecast"), std::string::npos);
    EXPECT_EQ(spent_card(run).find("Expected"), std::string::npos);  // without the config
    run.config = "[data]\ntrain = [\"x\"]\n[checkpoint]\nevery = 20\n";
    run.predicted = PredictedStep{.machine = "8 x h100", .goodput = 0.9712, .between_failures_s = 7200};
    const std::string card = spent_card(run);
    EXPECT_NE(card.find("Forecast for 8 x h100, where a failure comes every 2 h 0 min: 97.1 %."), std::string::npos)
        << card;
    // 40 steps of 5 s and one done again: 2 saves in 2 s, so 1 s each 101 s; a death in 210 s costs 4 s and 50.5 s.
    const double expected = (1 - 1 / 101.0) * (1 - (4 + 50.5) / 210);
    EXPECT_NE(card.find(concat(format_percent(expected), ".</p>")), std::string::npos) << card << expected;
    // With copies every 4 steps: 10 in those 2 s, 20.2 s apart; the one death needed no disk.
    run.config += "memory_every = 4\n";
    const double with_copies = (1 - 0.2 / 20.2) * (1 - (4 + 10.1) / 210);
    EXPECT_NE(spent_card(run).find(concat(format_percent(with_copies), ".</p>")), std::string::npos) << with_copies;
    // A stop is no failure, and needs no disk that a death would: half as long a restart, and the rest as before.
    TimeSpent& spent = *run.steps.back().spent;
    ++spent.stops;
    const double stopped = (1 - 0.2 / 20.2) * (1 - (2 + 10.1) / 210);
    EXPECT_NE(spent_card(run).find(concat(format_percent(stopped), ".</p>")), std::string::npos) << stopped;
    // A death from disk loses half of the 101 s between two checkpoints, and of copies nothing.
    spent.from_memory = 0;
    const double from_disk = (1 - 0.2 / 20.2) * (1 - (2 + 50.5) / 210);
    EXPECT_NE(spent_card(run).find(concat(format_percent(from_disk), ".</p>")), std::string::npos) << from_disk;
}

TEST(StepTime, HasThePlansBand) {
    RunHistory run;
    for (int step = 1; step <= 3; ++step) {
        LoggedStep line{.step = step};
        line.step_ms = 100 + step;
        run.steps.push_back(line);
    }
    EXPECT_EQ(step_time_card(run, {}).find("dashed"), std::string::npos);
    run.predicted = PredictedStep{.machine = "m", .step_s = 0.1, .low_s = 0.09, .high_s = 0.12};
    const std::string card = step_time_card(run, {});
    EXPECT_NE(card.find("Predicted 90 to 120 ms."), std::string::npos);
    EXPECT_NE(card.find("dashed c2"), std::string::npos);
}

}  // namespace
}  // namespace tutti::report
