// `tutti inspect`: bits of numbers, checkpoints, and the files of --precision.
#include <gtest/gtest.h>

#include <sstream>

#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/base/units.h"
#include "tutti/cli/testing/run.h"

namespace tutti::cli {
namespace {

struct Inspect : CommandTest {
    int inspect(const std::vector<std::string>& words) { return run_words("inspect", words); }
};

// The bits of 0.3952 in f16 as the course on scaling prints them, 0 01101 1001010011 = 0.395264; the others by hand:
// 0.3952 = 1.5808 x 2^-2.
TEST_F(Inspect, ShowsTheBitsOfANumber) {
    ASSERT_EQ(inspect({"--number", "0.3952", "--json"}), 0) << err;
    struct Expected {
        const char *name, *exponent, *fraction;
        double value;
    };
    const Expected expected[] = {{"f32", "01111101", "10010100101011110101000", 0.3952},
                                 {"tf32", "01111101", "1001010011", 0.395263671875},
                                 {"bf16", "01111101", "1001010", 0.39453125},
                                 {"f16", "01101", "1001010011", 0.395263671875},
                                 {"e4m3", "0101", "101", 0.40625},
                                 {"e5m2", "01101", "10", 0.375}};
    const auto document = Json::parse(out);
    const auto& formats = document.at("formats").elements();
    ASSERT_EQ(formats.size(), std::size(expected));
    for (size_t i = 0; i < formats.size(); ++i) {
        EXPECT_EQ(formats[i].at("format").text(), expected[i].name);
        EXPECT_EQ(formats[i].at("sign").text(), "0");
        EXPECT_EQ(formats[i].at("exponent").text(), expected[i].exponent) << expected[i].name;
        EXPECT_EQ(formats[i].at("fraction").text(), expected[i].fraction) << expected[i].name;
        EXPECT_NEAR(formats[i].at("value").get<double>(), expected[i].value, 1e-7);
    }
    EXPECT_EQ(inspect({"--number", "inf"}), 0);
    EXPECT_EQ(inspect({"--number", "half"}), 2);
    EXPECT_NE(err.find("required a number"), std::string::npos) << err;
}

TEST_F(Inspect, MeasuresAConfigAndARun) {
    folder.write("t.txt", std::string(4000, 'a') + std::string(4000, 'b'));
    const std::string config = folder.write(
        "r.toml", "[model]\npreset = \"llama-tiny\"\n[data]\ntrain = [\"" + folder.path("t.txt") +
                      "\"]\n[train]\nsteps = 2\nseq_len = 16\nglobal_batch = 2\nmicro_batch = 1\nthreads = 1\n");
    const std::string svg = folder.path("e.svg"), dir = folder.path("run");
    ASSERT_EQ(inspect({"--precision", config, "--svg", svg}), 0) << err;
    EXPECT_NE(out.find("as run"), std::string::npos);
    std::istringstream lines(out);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(columns_of(line), 100u) << line;
    const std::string picture = read_file(svg);
    for (const char* part :
         {"w (weights) and dy (gradients); shade: share of the values</text>", "largest of f16</text>"})
        EXPECT_NE(picture.find(part), std::string::npos) << part;

    ASSERT_EQ(run_words("train", {config, "--out", dir}), 0) << err;
    ASSERT_EQ(inspect({"--precision", dir, "--json"}), 0) << err;
    const auto reading = Json::parse(out);
    EXPECT_EQ(reading.at("step").get<int>(), 3);  // the step behind the checkpoint
    EXPECT_EQ(Json::parse(read_file(dir + "/precision.json")), reading);
    ASSERT_EQ(run_words("report", {dir}), 0) << err;
    EXPECT_NE(read_file(dir + "/report.html").find("Numbers of the products, step 3"), std::string::npos);
    folder.write("run/precision.json", "{}");
    EXPECT_EQ(run_words("report", {dir}), 3);
    EXPECT_NE(err.find("precision.json"), std::string::npos) << err;

    ASSERT_EQ(inspect({dir, "--json"}), 0) << err;
    const auto contents = Json::parse(out);
    EXPECT_EQ(contents.at("step").get<int>(), 2);
    EXPECT_GT(contents.at("tensors").size(), 10u);
    EXPECT_EQ(inspect({folder.path("t.txt")}), 3);
    EXPECT_EQ(inspect({}), 2);
    EXPECT_EQ(inspect({"--precision", folder.path("")}), 2);
}

}  // namespace
}  // namespace tutti::cli
