// The page of several runs and the CSV: every run in every chart and table, differences and nothing else, numbers that
// read back to the same bits.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <sstream>

#include "tutti/base/error.h"
#include "tutti/report/report.h"

namespace tutti::report {
namespace {

size_t count(const std::string& text, const std::string& part) {
    size_t n = 0;
    for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++n;
    return n;
}
bool contains(const std::string& text, const std::string& part) { return count(text, part) > 0; }

RunHistory run(const std::string& name, double lr, double tokens_per_step) {
    RunHistory r;
    r.name = name;
    for (int64_t step = 1; step <= 10; ++step) {
        LoggedStep s;
        s.step = step;
        s.tokens = tokens_per_step * static_cast<double>(step);
        s.loss = 5.0 / static_cast<double>(step) + lr;
        s.lr = lr;
        s.grad_norm = 1.5;
        s.tokens_per_s = 1000 * lr;
        r.steps.push_back(s);
    }
    r.totals.model = "llama-tiny";
    r.config = concat("[model]\npreset = \"llama-tiny\"\n\n[optimizer]\nlr = ", lr, "\nbeta1 = 0.9\n");
    return r;
}

TEST(ReportComparison, ShowsEveryRunAndWhereTheyDiffer) {
    const std::string page = render_comparison({run("a<1>", 1, 64), run("b", 2, 64), run("b", 3, 64)});
    EXPECT_TRUE(contains(page, "3 runs side by side"));
    EXPECT_TRUE(contains(page, "a&lt;1&gt;") && !contains(page, "a<1>"));
    EXPECT_TRUE(contains(page, "b (1)") && contains(page, "b (2)"));
    for (const char* colour : {"line c1", "line c2", "line c3"}) EXPECT_GE(count(page, colour), 4u) << colour;
    EXPECT_FALSE(contains(page, "line c4"));
    EXPECT_TRUE(contains(page, "<th scope=\"row\">optimizer.lr</th><td>1</td><td>2</td><td>3</td>"));
    EXPECT_FALSE(contains(page, "beta1"));
    EXPECT_TRUE(contains(page, "2 other keys are the same."));
    EXPECT_TRUE(contains(page, "<th scope=\"row\">final loss</th><td>1.5</td><td>2.5</td><td>3.5</td>"));
    EXPECT_FALSE(contains(page, "memory peak"));  // no run knows it
    EXPECT_FALSE(contains(page, "Loss over tokens"));
    EXPECT_FALSE(contains(page, "<script") || contains(page, "http"));
}

TEST(ReportComparison, OfOtherBatchSizesGoesByTokensToo) {
    EXPECT_TRUE(contains(render_comparison({run("a", 1, 64), run("b", 1, 128)}), "Loss over tokens"));
}

TEST(ReportComparison, MissingKeysAreDashes) {
    RunHistory other = run("b", 1, 64);
    other.config = "[optimizer]\nlr = 1\n";
    const std::string page = render_comparison({run("a", 1, 64), other});
    EXPECT_TRUE(contains(page, "<th scope=\"row\">optimizer.beta1</th><td>0.9</td><td>–</td>"));
}

TEST(ReportComparison, EveryStageHasItsKeys) {
    RunHistory a = run("a", 1, 64), b = run("b", 1, 64);
    const std::string rest = "\n[[stage]]\noptimizer.lr = 1e-4\n";
    a.config += "\n[[stage]]\nuntil = 2\noptimizer.lr = 0.1\n" + rest;
    b.config += "\n[[stage]]\nuntil = 2\noptimizer.lr = 0.2\n" + rest;
    const std::string page = render_comparison({a, b});
    EXPECT_TRUE(contains(page, "<th scope=\"row\">stage 1: optimizer.lr</th><td>0.1</td><td>0.2</td>")) << page;
    EXPECT_FALSE(contains(page, "stage 2:"));
}

TEST(ReportComparison, OfTwoToEightRuns) {
    EXPECT_THROW(render_comparison({run("a", 1, 1)}), UsageError);
    EXPECT_NO_THROW(render_comparison(std::vector<RunHistory>(8, run("a", 1, 1))));
    EXPECT_THROW(render_comparison(std::vector<RunHistory>(9, run("a", 1, 1))), UsageError);
}

TEST(ReportCsv, NumbersReadBackToTheSameBits) {
    RunHistory r = run("a, \"b\"", 1, 64);
    r.steps.resize(2);
    r.steps[0].loss = 5.545177444479562;
    r.steps[0].lr = 2.9999999999999997e-05;
    r.steps[0].tokens = 4503599627370497;
    r.steps[1].loss = std::nan("");
    r.steps[1].grad_norm = std::nullopt;
    r.steps[1].skipped_before = 1;
    std::istringstream lines(render_csv({r}));
    std::string header, first, second;
    std::getline(lines, header);
    std::getline(lines, first);
    std::getline(lines, second);
    EXPECT_EQ(header,
              "run,step,tokens,loss,eval_loss,grad_norm,lr,step_ms,tokens_per_s,mfu,hfu,mem_peak_bytes,comm_bytes,"
              "bubble,aux_loss,router_entropy,dropped_share,loss_scale,fp8_saturated,fp8_flushed,time,skipped\r");
    EXPECT_EQ(
        first,
        "\"a, \"\"b\"\"\",1,4503599627370497,5.545177444479562,,1.5,2.9999999999999997e-05,,1000,,,,,,,,,,,,,0\r");
    EXPECT_EQ(second, "\"a, \"\"b\"\"\",2,128,nan,,,1,,1000,,,,,,,,,,,,,1\r");
    EXPECT_EQ(std::strtod("2.9999999999999997e-05", nullptr), *r.steps[0].lr);
    EXPECT_EQ(count(render_csv({run("a", 1, 1), run("b", 1, 1)}), "\n"), 21u);
}

// lr-1/run, lr-2/run and lr-3/other: each line is of one run.
TEST(ReportCsv, RunsOfDirectoriesOfOneNameAreToldApart) {
    const std::string csv = render_csv({run("run", 1, 1), run("run", 2, 1), run("other", 3, 1)});
    for (const char* name : {"run (1)", "run (2)", "other"}) EXPECT_EQ(count(csv, concat("\n", name, ",")), 10u) << csv;
}

}  // namespace
}  // namespace tutti::report
