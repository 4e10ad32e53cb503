#include <gtest/gtest.h>

#include "tutti/report/parts.h"

namespace tutti::report {
namespace {

// Two ranks, two microbatches: F takes 1 ms, B 2 ms, and rank 1 begins 0.5 ms late.
RunHistory traced() {
    RunHistory run;
    const auto span = [](const char* name, double begin_ms, double end_ms) {
        TracedSpan s{.name = name, .activity = "action", .group = ""};
        s.step = 3;
        s.begin_us = 1000 * begin_ms;
        s.end_us = 1000 * end_ms;
        return s;
    };
    run.trace.push_back(
        {0, {span("0F0", 10, 11), span("0F1", 11, 12), span("0B0", 14.5, 16.5), span("0B1", 17.5, 19.5)}});
    run.trace.push_back({1, run.trace[0].spans});  // the same stage of another data-parallel rank
    run.trace.push_back(
        {2, {span("1F0", 11.5, 12.5), span("1B0", 12.5, 14.5), span("1F1", 14.5, 15.5), span("1B1", 15.5, 17.5)}});
    return run;
}

TEST(PipelineCard, ShowsWhatWasMeasuredBesideTheTimelineOfTheSameActions) {
    const std::string card = pipeline_card(traced());
    const auto expect = [&](const char* text) {
        EXPECT_NE(card.find(text), std::string::npos) << text << "\n" << card;
    };
    expect("The pipeline in step 3");
    expect("<b>Measured</b>: 9.5 ms, bubble 36.8 %");       // 10 to 19.5; 6 ms of work
    expect("without messages</b>: 9.0 ms, bubble 33.3 %");  // rank 1 from 1 to 7, then 0B1
    size_t images = 0;
    for (size_t at = card.find("<img"); at != std::string::npos; at = card.find("<img", at + 1)) ++images;
    EXPECT_EQ(images, 2U);
}

// An overlap is one pass of both stages, as long as all overlaps are on average.
TEST(PipelineCard, OverlapsHaveATimeOfTheirOwn) {
    RunHistory run = traced();
    run.trace.resize(1);
    run.trace.push_back({2, run.trace[0].spans});
    const auto name = [](TracedRank& rank, std::vector<std::string> names) {
        for (size_t i = 0; i < names.size(); ++i) rank.spans[i].name = names[i];
    };
    name(run.trace[0], {"0F0", "0F1", "0B0", "0B1"});
    name(run.trace[1], {"1F0", "(1F1;1B0)OVERLAP_F_B", "1B1", ""});
    run.trace[1].spans.pop_back();  // 1 ms, 1 ms, 2 ms
    const std::string card = pipeline_card(run);
    // 1F0 from 1 to 2, the overlap to 3, 0B0 to 5; 1B1 from 3 to 5; 0B1 to 7.
    EXPECT_NE(card.find("without messages</b>: 7.0 ms"), std::string::npos) << card;
}

TEST(PipelineCard, WithoutAPipelineThereIsNone) {
    EXPECT_EQ(pipeline_card({}), "");
    RunHistory one = traced();
    one.trace.resize(2);
    EXPECT_EQ(pipeline_card(one), "");
}

TEST(PipelineCard, AnIncompleteTraceSaysWhy) {
    RunHistory run = traced();
    run.trace[2].spans.clear();
    run.trace[2].spans.push_back(run.trace[0].spans[0]);
    run.trace[2].spans[0].name = "2F0";
    EXPECT_NE(pipeline_card(run).find("no rank computes stage 1"), std::string::npos) << pipeline_card(run);
}

}  // namespace
}  // namespace tutti::report
