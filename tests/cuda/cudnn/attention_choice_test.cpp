// [train] attention of whole runs over the emulated GPU and a fake cuDNN: layouts, memory as rehearsed, what a run is
// told, measured times.
#include "tutti/kernels/attention_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/cuda/cudnn/fake_cudnn.h"
#include "tests/cuda/training.h"
#include "tests/cuda/training_runs.h"
#include "tutti/cli/cli.h"
#include "tutti/kernels/backends.h"

namespace tutti {
namespace {

namespace fake = kernels::cuda::fake_cudnn;
using train::Settings, train::operator+;

class AttentionOfARun : public train::CudaTraining {
  protected:
    AttentionOfARun() {
        fake::set_missing(false);
        fake::set_version("cuDNN 9.15.1");
        fake::set_seconds(0, 0);
        fake::forget();
    }

    // Three steps; TearDown compares the memory of each with its rehearsal.
    std::vector<train::Logged> three(const Settings& set, int ranks = 1) {
        console_.str("");
        train::TrainOptions o = options_of("cuda", Settings{"train.steps=3", "precision.compute=bf16"} + set, ranks);
        o.console = o.warnings = &console_;
        train::train(o);
        out_ = o.out;
        return metrics(o);
    }
    int times(const std::string& text) const {
        int count = 0;
        const std::string all = console_.str();
        for (size_t at = all.find(text); at != std::string::npos; at = all.find(text, at + 1)) ++count;
        return count;
    }
    // Writes the times of the attention of this run, of llama-tiny.
    std::string tune(const Settings& set) {
        const std::string file = path("attention.json");
        std::vector<std::string> words = {"tutti",    "bench", "attention", "--tune",  file,
                                          "--device", "cuda",  "--json",    "--model", "llama-tiny"};
        for (const std::string& value :
             Settings{"model.width=32", "model.layers=2", "model.heads=2", "model.kv_heads=1", "model.head_dim=16",
                      "model.ffn=48", "train.seq_len=16", "train.global_batch=4", "train.micro_batch=2"} +
                 set) {
            words.emplace_back("--set");
            words.push_back(value);
        }
        std::vector<const char*> argv;
        for (const std::string& word : words) argv.push_back(word.c_str());
        std::ostringstream out, err;
        EXPECT_EQ(cli::run(static_cast<int>(argv.size()), argv.data(), cli::Io{out, err}), 0) << err.str();
        return file;
    }
    kernels::AttentionTuning read(const std::string& file) {
        const auto gpu = std::find_if(kernels::backends().begin(), kernels::backends().end(),
                                      [](const kernels::Backend& b) { return b.attention_library != nullptr; });
        return kernels::read_attention_tuning(file, kernels::empty_attention_tuning(*gpu));
    }

    std::ostringstream console_;
    std::string out_;
};

constexpr double kRoundings = 1.0 / 64;  // of bf16, over three steps

// Both kernels compute one definition. Rings have parts in f32, which ours compute; documents too.
TEST_F(AttentionOfARun, ByCudnnFollowsOursUnderEveryLayout) {
    const Settings cudnn = {"train.attention=cudnn"};
    const std::vector<train::Logged> own = three({});
    EXPECT_EQ(fake::forwards(), 0);
    expect_follows(three(cudnn), own, kRoundings);
    EXPECT_GT(fake::forwards(), 0);
    EXPECT_GT(fake::backwards(), 0);
    EXPECT_EQ(times("is computed by the kernels"), 0) << console_.str();
    struct Layout {
        Settings set;
        int ranks;
        bool by_cudnn;
    };
    for (const auto& [set, ranks, by_cudnn] :
         {Layout{{"parallel.tp=2", "model.kv_heads=2"}, 2, true},
          Layout{{"parallel.cp=2", "parallel.cp_method=ulysses"}, 2, true},
          Layout{{"parallel.cp=2", "parallel.cp_method=ring"}, 2, false}, Layout{{"parallel.pp=2"}, 2, true},
          Layout{{"parallel.zero=3", "train.micro_batch=1", "recompute.policy=full"}, 2, true},
          Layout{{"data.documents=respected", "data.eod=10"}, 1, false}}) {
        SCOPED_TRACE(joined(set));
        const std::vector<train::Logged> ours = three(set, ranks);
        fake::forget();
        expect_follows(three(set + cudnn, ranks), ours, kRoundings);
        EXPECT_EQ(fake::forwards() > 0, by_cudnn);
        EXPECT_EQ(times("is computed by the kernels") > 0, !by_cudnn) << console_.str();
        EXPECT_LE(times("in f32, which parts of ring"), 1) << "said once a run";
    }
}

TEST_F(AttentionOfARun, NamesOurSlowerKernelsToo) {
    const std::vector<train::Logged> own = three({});
    for (const char* kernels : {"tensor", "plain"})
        expect_follows(three({concat("train.attention=", kernels)}), own, kRoundings);
    EXPECT_EQ(fake::forwards(), 0);
}

TEST_F(AttentionOfARun, AMissingLibraryIsRefusedBeforeTheFirstStep) {
    fake::set_missing(true);
    EXPECT_EQ(refusal([&] { three({"train.attention=cudnn"}); }), "the fake cuDNN is missing");
    const std::string cpu = refusal([&] { options_of("cpu", {"train.attention=cudnn"}); });
    EXPECT_NE(cpu.find("\"cpu\" has one kernel; set attention = \"own\""), std::string::npos) << cpu;
    const std::string alone = refusal([&] { three({"train.attention=fastest"}); });
    EXPECT_NE(alone.find("needs a file of tutti bench attention --tune"), std::string::npos) << alone;
}

// cuDNN's forward takes no time and its backward an hour.
TEST_F(AttentionOfARun, TheFastestKernelsComputeEachPass) {
    fake::set_seconds(0, 3600);
    const std::string file = tune({});
    const kernels::AttentionTuning times_of = read(file);
    EXPECT_EQ(times_of.library, "cuDNN 9.15.1");
    ASSERT_EQ(times_of.requests.size(), 2U);  // a forward and a backward
    for (const auto& [key, request] : times_of.requests) {
        std::set<std::string> kernels;
        for (const auto& [name, seconds] : request.seconds) kernels.insert(name);
        EXPECT_EQ(kernels, (std::set<std::string>{"cudnn", "hopper", "tensor"})) << request.text;
        EXPECT_EQ(request.seconds.at("cudnn") >= 3600, request.text.starts_with("backward")) << request.text;
    }
    const Settings fastest = {"train.attention=fastest", "train.attention_tuning=" + file};
    const std::vector<train::Logged> own = three({});
    fake::forget();
    expect_follows(three(fastest), own, kRoundings);
    EXPECT_GT(fake::forwards(), 0);
    EXPECT_EQ(fake::backwards(), 0);
    EXPECT_EQ(times("2 measured requests from " + file + ", with cuDNN 9.15.1"), 1) << console_.str();
    EXPECT_EQ(Json::parse(read_file(out_ + "/run.json"))["attention_tuning"]["missed"], 0);

    // Another micro-batch has no times, and ours compute it.
    fake::forget();
    three(fastest + Settings{"train.micro_batch=1"});
    EXPECT_EQ(fake::forwards(), 0);
    EXPECT_EQ(times("has no times for 2 requests of attention"), 1) << console_.str();

    fake::set_version("cuDNN 9.16.0");
    const std::string other = refusal([&] { three(fastest); });
    EXPECT_NE(other.find("cuDNN 9.15.1; this rank has "), std::string::npos) << other;
    EXPECT_NE(other.find("cuDNN 9.16.0. Make a file here: tutti bench attention --tune FILE"), std::string::npos)
        << other;
}

// Without cuDNN our own kernels are compared, and a run on such a machine reads the file.
TEST_F(AttentionOfARun, TimesWithoutTheLibrary) {
    fake::set_missing(true);
    const std::string file = tune({"parallel.tp=2", "model.kv_heads=2"});
    for (const auto& [key, request] : read(file).requests) {
        EXPECT_FALSE(request.seconds.contains("cudnn")) << request.text;
        EXPECT_EQ(request.seconds.size(), 2U) << request.text;
    }
    three({"train.attention=fastest", "train.attention_tuning=" + file, "parallel.tp=2", "model.kv_heads=2"}, 2);
    EXPECT_EQ(times("has no times for"), 0) << console_.str();
    EXPECT_EQ(fake::forwards(), 0);
}

TEST_F(AttentionOfARun, AFileThatIsNoneIsRefused) {
    const std::string file = path("other.json");
    const Settings fastest = {"train.attention=fastest", "train.attention_tuning=" + file};
    for (const char* text : {"{\"format\": \"tutti matrix products\", \"version\": 1}", "{"}) {
        std::ofstream(file) << text;
        const std::string why = refusal([&] { three(fastest); });
        EXPECT_NE(why.find(file + ": not a file of tutti bench attention --tune"), std::string::npos) << why;
    }
}

}  // namespace
}  // namespace tutti
