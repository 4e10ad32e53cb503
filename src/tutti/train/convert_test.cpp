// From a run to Hugging Face and back: bytes, refusals, training that starts from the result, texts of all of them.
#include "tutti/infer/convert.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tutti/base/json.h"
#include "tutti/base/testing/scratch.h"
#include "tutti/infer/generate.h"
#include "tutti/infer/stored_model.h"
#include "tutti/spec/toml.h"
#include "tutti/train/testing/small_run.h"

namespace tutti::train {
namespace {

namespace fs = std::filesystem;

class ConvertTest : public SmallRun {
  protected:
    static std::vector<std::string> brief(const std::vector<std::string>& set, int64_t steps) {
        std::vector<std::string> all = {"optimizer.warmup_steps=0", "precision.compute=f32",
                                        concat("train.steps=", steps)};
        all.insert(all.end(), set.begin(), set.end());
        return all;
    }
    TrainOptions options(const std::string& out, const std::vector<std::string>& set = {}, int64_t steps = 2) const {
        return SmallRun::options(out, brief(set, steps));
    }
    TrainOptions from_hf(const std::string& out, const std::string& hf, int64_t steps) const {
        return options_without_model(out,
                                     brief({"model.hf=" + path(hf), "data.tokenizer=bytes", "train.seed=7"}, steps));
    }
    infer::ConvertOutcome to(const std::string& from, const std::string& target, infer::ConvertOptions o = {}) const {
        o.from = path(from);
        o.to = path(target);
        return infer::convert(o);
    }
    std::string content(const std::string& name) const {
        std::ifstream file(path(name), std::ios::binary);
        std::ostringstream text;
        text << file.rdbuf();
        return text.str();
    }
    std::vector<int32_t> text(const std::string& model) const {
        const infer::LoadedModel loaded =
            infer::load_model(path(model), {.device = "cpu", .threads = 1, .compute = "f32"});
        std::vector<int32_t> made;
        infer::generate(*loaded.ctx, *loaded.model, {{97, 98}},
                        {.max_tokens = 20, .temperature = 0, .max_positions = 16}, [&](size_t, int32_t token) {
                            made.push_back(token);
                            return true;
                        });
        return made;
    }
    double first_loss(const std::string& run) const {
        return logged(options(run), [](const std::string& line) { return Json::parse(line).at("loss").get<double>(); })
            .front();
    }
};

// A run's directory has its tokenizer: the one that it was started with may be gone, on another machine for example.
TEST_F(ConvertTest, ARunGoesOnWithItsCopyOfATokenizerThatIsGone) {
    std::ofstream(path("ids.json")) << text::tokenizer_json_of_bytes();
    const std::vector<std::string> set = {"data.tokenizer=" + path("ids.json")};
    for (const char* run : {"run", "other"}) train(options(run, set, 2));
    train(options("other", set, 4));
    fs::remove(path("ids.json"));
    EXPECT_THROW(train(options("new", set, 2)), DataError);
    std::ostringstream console;
    TrainOptions again = options("run", set, 4);
    again.console = &console;
    train(again);
    EXPECT_EQ(
        missing("ids.json\" is not there; going on with the run's copy, " + path("run/tokenizer.json"), console.str()),
        "");
    EXPECT_EQ(content("run/tokenizer.json"), content("other/tokenizer.json"));
    const auto losses = [&](const std::string& run) {
        return logged(options(run), [](const std::string& line) { return Json::parse(line).at("loss").get<double>(); });
    };
    EXPECT_EQ(losses("run"), losses("other"));
}

TEST_F(ConvertTest, ThereAndBackWithoutALostBit) {
    for (const std::vector<std::string>& change :
         {std::vector<std::string>{},
          {"model.head_norm=true", "model.head_dim=8"},
          {"model.qkv_bias=true"},
          {"model.window=5", "model.tie_embeddings=false"},
          {"model.preset=lfm2-tiny", "model.conv_layers=0", "model.conv_bias=true"},
          {"model.preset=gpt2-124m", "model.kv_heads=2", "model.vocab=256", "model.max_positions=64"}}) {
        const std::string name = change.empty() ? "plain" : change[0];
        train(options(name, change));
        EXPECT_EQ(to(name, name + ".hf").format, "hf");
        EXPECT_EQ(to(name + ".hf", name + ".tutti").format, "tutti");
        EXPECT_EQ(to(name + ".tutti", name + ".again").format, "hf");
        EXPECT_EQ(content(name + ".again/model.safetensors"), content(name + ".hf/model.safetensors"));
        EXPECT_EQ(content(name + ".again/config.json"), content(name + ".hf/config.json"));
        EXPECT_FALSE(content(name + ".hf/model.safetensors").empty());
        // Weights and config alone, without a tokenizer.
        std::filesystem::create_directory(path(name + ".bare"));
        for (const char* file : {"/model.safetensors", "/config.json"})
            std::filesystem::copy(path(name + ".hf") + file, path(name + ".bare") + file);
        to(name + ".bare", name + ".bare.tutti");
        to(name + ".bare.tutti", name + ".bare.again");
        EXPECT_EQ(content(name + ".bare.again/model.safetensors"), content(name + ".hf/model.safetensors"));
        const auto expected = text(name);
        EXPECT_EQ(text(name + ".hf"), expected) << name;
        EXPECT_EQ(text(name + ".tutti"), expected) << name;
        // 16 bits and back to 16 bits.
        to(name, name + ".bf16", {.dtype = DType::bf16});
        to(name + ".bf16", name + ".bf16.tutti");
        to(name + ".bf16.tutti", name + ".bf16.again");
        EXPECT_EQ(content(name + ".bf16.again/model.safetensors"), content(name + ".bf16/model.safetensors"));
    }
}

// A run that starts from an export begins with a loss that only trained weights have (the peer tests hold its value);
// what came with the model goes with the run, and the run needs the directory no more.
TEST_F(ConvertTest, TrainingStartsFromTheWeights) {
    train(options("first", {"train.seed=7"}, 30));
    to("first", "export");
    std::ofstream(path("export/tokenizer.json")) << "carried along";
    fs::remove(path("export/XXH128SUMS"));  // the file is meant
    const auto second = from_hf("second", "export", 3);
    EXPECT_EQ(second.run.model.width, 32);
    train(second);
    const double from_nothing = first_loss("first");
    EXPECT_LT(first_loss("second"), 0.75 * from_nothing);
    EXPECT_EQ(content("second/hf/tokenizer.json"), "carried along");
    EXPECT_EQ(content("second/hf/config.json"), content("export/config.json"));

    // The place of the directory makes no difference.
    fs::copy(path("export"), path("moved"), fs::copy_options::recursive);
    train(from_hf("third", "moved", 1));
    EXPECT_EQ(first_loss("third"), first_loss("second"));

    // The resolved config resumes without the directory; a new run needs it.
    fs::remove_all(path("export"));
    TrainOptions resumed = second;
    resumed.run = spec::parse_file(path("second/config.toml"), {"train.steps=5"});
    EXPECT_EQ(train(resumed).step, 5);
    resumed.out = path("fourth");
    EXPECT_THROW(train(resumed), DataError);
    to("second", "export2");
    EXPECT_EQ(content("export2/tokenizer.json"), "carried along");
}

TEST_F(ConvertTest, RefusesAndLeavesNothing) {
    train(options("run"));
    to("run", "hf");
    EXPECT_THROW(to("run", "hf"), UsageError);
    EXPECT_THROW(to("nowhere", "x"), DataError);
    EXPECT_THROW(to("text.txt", "x"), Error);
    to("hf", "weights");
    auto resumed = options("run2");
    resumed.resume = path("weights/checkpoints/step-0000000000");
    try {
        train(resumed);
        FAIL() << "no error";
    } catch (const UsageError& error) {
        EXPECT_NE(std::string(error.what()).find("holds weights only"), std::string::npos) << error.what();
    }
    // One flipped bit in a checkpoint: an error, and no export that looks whole.
    const std::string file = path("weights/checkpoints/step-0000000000/rank-00000-of-00001.safetensors");
    std::fstream damaged(file, std::ios::binary | std::ios::in | std::ios::out);
    damaged.seekp(5000);
    damaged.put('\x55');
    damaged.close();
    EXPECT_THROW(to("weights", "x"), DataError);
    // What `generate` would refuse is not copied on.
    fs::copy(path("hf"), path("odd"));
    fs::remove(path("odd/XXH128SUMS"));
    std::ofstream(path("odd/generation_config.json")) << R"({"eos_token_id": "</s>"})";
    for (const char* format : {"hf", "tutti"}) EXPECT_THROW(to("odd", "x", {.format = format}), DataError) << format;
    std::ofstream(path("hf/model.safetensors"), std::ios::app) << "x";
    EXPECT_THROW(to("hf", "x"), DataError);
    train(options_without_model(
        "mlp", brief({"model.preset=mlp-8192", "model.width=8", "model.layers=1", "data.train=[]"}, 2)));
    EXPECT_THROW(to("mlp", "x"), UsageError);
    // What stops it between two tensors leaves as little.
    for (const char* format : {"hf", "tutti"}) {
        int tensors = 0;
        const auto stop = [&] { check<UsageError>(++tensors < 3, "stopped"); };
        EXPECT_THROW(to("run", "x", {.format = format, .between_tensors = stop}), UsageError);
        EXPECT_EQ(tensors, 3);
    }
    EXPECT_FALSE(fs::exists(path("x")));
    for (const auto& entry : fs::directory_iterator(path("")))
        EXPECT_EQ(entry.path().filename().string().find(".tmp-"), std::string::npos) << entry.path();
}

}  // namespace
}  // namespace tutti::train
