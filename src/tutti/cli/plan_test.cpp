// `tutti plan` as its users see it: answers, files, and errors that say what to give.
#include <gtest/gtest.h>

#include <fstream>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/cli/testing/run.h"
#include "tutti/spec/toml.h"
#include "tutti/spec/validate.h"

namespace tutti::cli {
namespace {

struct PlanCommand : CommandTest {
    int run_plan(const std::vector<std::string>& words) { return run_words("plan", words); }
};

// mi300x: no kernels to rehearse with in any build, so that the answer is everywhere the same.
const std::vector<std::string> kSmall = {"--model", "llama-tiny",     "--cluster", "mi300x",    "--gpus",
                                         "8",       "--global-batch", "16",        "--seq-len", "256"};

std::vector<std::string> operator+(std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
}

TEST_F(PlanCommand, WritesTheConfigThatItShows) {
    ASSERT_EQ(run_plan(kSmall + std::vector<std::string>{"--emit", path("best.toml"), "--html", path("plan.html"),
                                                         "--data", "text.txt", "--explain", "--json"}),
              0)
        << err;
    const Json plan = Json::parse(out);
    const Json& best = plan["finalists"][0];
    const spec::RunSpec run = spec::parse_file(path("best.toml"));
    EXPECT_NO_THROW(spec::validate(run, 8));
    EXPECT_EQ(run.data.train, std::vector<std::string>{"text.txt"});
    EXPECT_EQ(run.train.global_batch, 16);
    EXPECT_EQ(run.train.seq_len, 256);
    EXPECT_EQ(run.parallel.tp, best["axes"]["tp"].get<int64_t>());
    EXPECT_EQ(run.parallel.pp, best["axes"]["pp"].get<int64_t>());
    EXPECT_EQ(run.parallel.dp_shard, best["axes"]["dp_shard"].get<int64_t>());
    EXPECT_EQ(run.parallel.zero, best["axes"]["zero"].get<int64_t>());
    EXPECT_EQ(plan["finalists"].size(), 10u);
    EXPECT_TRUE(plan["recipe"].contains("verdict"));
    EXPECT_TRUE(read_file(path("plan.html")).starts_with("<!DOCTYPE html>"));
    ASSERT_EQ(
        run_plan(kSmall + std::vector<std::string>{"--emit", path("best.toml"), "--set-cluster", "network.gbs=35"}), 0)
        << err;
    EXPECT_TRUE(says(" --dry-run --cluster mi300x --set-cluster network.gbs=35\n")) << out;  // the machine of the plan
}

TEST_F(PlanCommand, IsForTheRunOfTheConfig) {
    std::ofstream(path("run.toml")) << "[model]\npreset = \"llama-tiny\"\n[data]\ntrain = [\"text.txt\"]\n"
                                       "[train]\nsteps = 77\nglobal_batch = 16\nseq_len = 256\n"
                                       "[optimizer]\nlr = 0.02\n[comm]\ntimeout_s = 7\n";
    const auto planned = [&](const char* rule) {
        const std::vector<std::string> words = {path("run.toml"),
                                                "--cluster",
                                                "mi300x",
                                                "--ranks",
                                                "1",
                                                "--set",
                                                std::string("optimizer.name=") + rule,
                                                "--emit",
                                                path("best.toml"),
                                                "--json"};
        EXPECT_EQ(run_plan(words), 0) << err;
        return Json::parse(out);
    };
    const Json adamw = planned("adamw"), sgd = planned("sgd");
    const spec::RunSpec emitted = spec::parse_file(path("best.toml"));
    EXPECT_EQ(emitted.optimizer.name, "sgd");
    EXPECT_EQ(emitted.optimizer.lr, 0.02);
    EXPECT_EQ(emitted.train.steps, 77);
    EXPECT_EQ(emitted.comm.timeout_s, 7);
    // One f32 moment of each parameter less.
    const double saved = adamw["finalists"][0]["predicted"]["peak_bytes"].get<double>() -
                         sgd["finalists"][0]["predicted"]["peak_bytes"].get<double>();
    EXPECT_NEAR(saved, 4 * adamw["parameters"].get<double>(), 0.02 * saved);
}

TEST_F(PlanCommand, ARuleThatNoLayoutMendsIsSaidBeforeTheSearch) {
    EXPECT_EQ(run_plan(kSmall + std::vector<std::string>{"--set", "optimizer.name=lion", "--set", "optimizer.v=u8"}),
              2);
    EXPECT_TRUE(err.find("lion has no second moment") != std::string::npos) << err;
    EXPECT_TRUE(err.find("layouts") == std::string::npos) << err;
}

TEST_F(PlanCommand, AnswersInText) {
    ASSERT_EQ(run_plan(kSmall), 0) << err;
    for (const char* part : {"against the engine's rules", "= estimated", "layout", "(kernels as of",
                             "time against memory", "8 of 10 runs"})
        EXPECT_TRUE(says(part)) << part;
    ASSERT_EQ(run_plan({"--tables"}), 0) << err;
    EXPECT_TRUE(says("Llama 3 405B on H100"));
    ASSERT_EQ(run_plan({"--model", "llama-tiny", "--cluster", "h100", "--global-batch", "64", "--seq-len", "256",
                        "--scaling", "--gpus", "32", "--price", "2", "--json"}),
              0)
        << err;
    EXPECT_EQ(Json::parse(out)["rows"].size(), 3u);  // 8, 16, 32
    EXPECT_NE(err.find("goodput"), std::string::npos);
    ASSERT_EQ(run_plan({"--budget", "5.76e23", "--cluster", "a100", "--gpus", "1024", "--json"}), 0) << err;
    // 5.76e23 / (1024 x 312e12 x 0.4)
    EXPECT_NEAR(Json::parse(out)["seconds"].get<double>(), 4507211.5, 1);
    ASSERT_EQ(run_plan({"--model", "mixtral-8x7b", "--tokens", "1e12", "--html", path("loss.html"), "--json"}), 0)
        << err;
    const double active = Json::parse(out)["run"]["parameters"].get<double>();
    EXPECT_NEAR(active / 12.9e9, 1, 0.01);  // of 46.7 B
    EXPECT_NEAR(Json::parse(out)["flops"].get<double>() / (6 * active * 1e12), 1, 1e-9);
    EXPECT_NE(read_file(path("loss.html")).find("mixtral-8x7b"), std::string::npos);
    ASSERT_EQ(run_plan({"--parameters", "175e9", "--budget", "3.15e23", "--json"}), 0) << err;
    EXPECT_NEAR(Json::parse(out)["run"]["tokens"].get<double>(), 300e9, 1);
}

// A site whose products and memory are slower.
TEST_F(PlanCommand, TakesTheConstantsOfASite) {
    std::ofstream(path("site.json")) << R"({"constants": {"hopper_16": 0.84e12, "memory": 0.65}})";
    const std::vector<std::string> words = {"--model", "llama3-8b", "--cluster",      "h100", "--gpus", "8",
                                            "--top",   "1",         "--global-batch", "64",   "--json"};
    const auto products_of = [&](const std::vector<std::string>& more) {
        EXPECT_EQ(run_plan(words + more), 0) << err;
        return Json::parse(out)["finalists"][0]["predicted"]["time"]["products"].get<double>();
    };
    EXPECT_GT(products_of({"--site", path("site.json")}), 1.1 * products_of({}));
    EXPECT_EQ(run_plan(words + std::vector<std::string>{"--site", path("none.json")}), 3);
    EXPECT_EQ(run_plan({"--tables", "--site", path("site.json")}), 2);
    EXPECT_TRUE(says("--site and --tables exclude each other"));
}

TEST_F(PlanCommand, RefusesWithWhatToGive) {
    const auto refused = [&](const std::vector<std::string>& words, const std::string& part) {
        EXPECT_EQ(run_plan(words), 2);
        EXPECT_TRUE(says(part)) << err;
    };
    refused({}, "CONFIG is missing");
    refused({"--model", "llama-tiny"}, "--cluster is missing");
    refused({"--model", "llama-tinny", "--cluster", "h100"}, "the nearest is \"llama-tiny\"");
    refused({"--model", "llama-tiny", "--cluster", "h10"}, "the nearest is h100");
    refused({"--model", "llama-tiny", "--cluster", "h100"}, "--ranks (--gpus) and --global-batch are needed");
    refused({"--model", "llama-tiny", "--cluster", "mi300x", "--gpus", "7", "--global-batch", "3", "--seq-len", "255"},
            "must divide the global batch");
    refused({"--model", "llama3-405b", "--cluster", "mi300x", "--gpus", "8", "--global-batch", "8"},
            "the least that a rank needs is");
    refused({"--tables", "--scaling"}, "--scaling and --tables exclude each other");
    refused({"--model", "llama-tiny", "--cluster", "h100", "--global-batch", "64", "--scaling", "--gpus", "4"},
            "begins at 8 devices");
    refused({"--tables", "--html", path("x.html")}, "--html and --tables exclude each other");
    refused({"--tokens", "1e12"}, "--tokens has an effect only with --parameters or --model or --budget");
    refused({"--tokens", "1e12", "--parameters", "1e9", "--budget", "1e24"}, "give two of the three");
    refused(kSmall + std::vector<std::string>{"--parameters", "1e9"}, "--parameters and --model exclude each other");
    refused(kSmall + std::vector<std::string>{"--price", "2"}, "--price has an effect only with --scaling");
    refused({"--budget", "1e24", "--cluster", "h100"}, "needs --gpus");
    EXPECT_EQ(run_plan(kSmall + std::vector<std::string>{"--emit", path("nowhere/best.toml")}), 2);
    EXPECT_TRUE(says("cannot be written: No such file or directory; --emit names another place")) << err;
}

}  // namespace
}  // namespace tutti::cli
