// Blocks that predict later tokens in files of DeepSeek-V3: written under the published names with copies of embedding
// and head, read where the model has them and passed over where it has not, and refused where a copy differs.
#include <gtest/gtest.h>

#include <list>

#include "tutti/base/json.h"
#include "tutti/checkpoint/testing/memory_file_system.h"
#include "tutti/hf/export.h"
#include "tutti/spec/hf/config.h"
#include "tutti/spec/later_names.h"

namespace tutti::hf {
namespace {

class LaterTokens : public ::testing::Test {
  protected:
    LaterTokens() : device(make_cpu_device(1)), ctx{*device, kernels::reference_table()} {
        spec = spec::preset("deepseek-v3-tiny");
        spec.preset.clear();
        spec.layers = 2;
        spec.moe.layers = "1";
        spec.vocab = 16;
    }
    spec::ModelSpec with_depth() const {
        spec::ModelSpec m = spec;
        m.mtp_depth = 1;
        m.mtp_weight = 0.3;
        return m;
    }
    // Each parameter's values are the number of its first value in the model and so on.
    std::vector<checkpoint::TensorToWrite> tensors_of(const models::Model& model) {
        std::vector<checkpoint::TensorToWrite> tensors;
        const auto add = [&](const std::string& name, const Shape& shape, float first) {
            std::vector<float>& values = memory.emplace_back();
            for (int64_t i = 0; i < shape.numel(); ++i) values.push_back(first + static_cast<float>(i % 97));
            tensors.push_back({name, DType::f32, {shape.begin(), shape.end()}, std::as_bytes(std::span(values))});
        };
        for (const autograd::Parameter* p : model.parameters())
            for (const std::string& name : tensor_names(*p))
                add(name, shape_in_file(*p),
                    name == "model.embed_tokens.weight" ? 1
                    : name == "lm_head.weight"          ? 2
                                                        : 3);
        for (const TensorCopy& copy : copies_in_files(model))
            add(copy.name, copy.of->shape, copy.of->name == "lm_head.weight" ? 2 : copy_of_embedding);
        return tensors;
    }
    void put(const std::string& directory, const models::Model& model) {
        disk.make_directory(directory);
        Json config = Json::parse(spec::to_hf_config(model.spec(), DType::f32));
        checkpoint::write_file_atomically(disk, directory, {.name = "config.json", .head = config.dump(2) + "\n"});
        checkpoint::write_file_atomically(disk, directory,
                                          checkpoint::safetensors_file("model.safetensors", tensors_of(model)));
    }

    std::unique_ptr<Device> device;
    ops::Context ctx;
    spec::ModelSpec spec;
    checkpoint::testing::MemoryFileSystem disk;
    std::list<std::vector<float>> memory;
    float copy_of_embedding = 1;
};

TEST_F(LaterTokens, ComeBackAsTheyWere) {
    const models::Model model = models::make_model(ctx, with_depth(), 0);
    put("/in", model);
    const std::string config = disk.content("/in/config.json");
    EXPECT_EQ(spec::mtp_depth_of(config), 1);
    EXPECT_EQ(spec::model_from_hf_config(config, "config.json"), spec);  // a run says that it trains them
    for (const char* name : {"eh_proj", "enorm", "hnorm", "shared_head.norm", "embed_tokens", "shared_head.head",
                             "input_layernorm", "self_attn.kv_b_proj", "mlp.experts.7.up_proj"})
        EXPECT_NE(disk.content("/in/model.safetensors").find(concat("\"model.layers.2.", name, ".weight\"")),
                  std::string::npos)
            << name;
    disk.make_directory("/out");
    Losses losses;
    write_directory(disk, "/out", model, StoredWeights::in_directory(disk, "/in", model), {.side_files = "/in"},
                    losses);
    EXPECT_EQ(disk.content("/out/config.json"), config);
    const StoredWeights first = StoredWeights::in_directory(disk, "/in", model);
    const StoredWeights again = StoredWeights::in_directory(disk, "/out", model);
    for (const autograd::Parameter* p : model.parameters())
        EXPECT_EQ(again.read(*p, DType::f32, losses), first.read(*p, DType::f32, losses)) << p->name;
    EXPECT_EQ(disk.content("/out/model.safetensors").size(), disk.content("/in/model.safetensors").size());

    // A model without them reads the same directory.
    const models::Model plain = models::make_model(ctx, spec, 0);
    EXPECT_EQ(
        StoredWeights::in_directory(disk, "/in", plain).read(plain.parameter("lm_head.weight"), DType::f32, losses),
        first.read(model.parameter("lm_head.weight"), DType::f32, losses));
}

TEST_F(LaterTokens, CopiesThatDifferAreRefused) {
    const models::Model model = models::make_model(ctx, with_depth(), 0);
    copy_of_embedding = 4;
    put("/in", model);
    try {
        StoredWeights::in_directory(disk, "/in", model);
        FAIL() << "read";
    } catch (const DataError& error) {
        EXPECT_NE(std::string(error.what())
                      .find("model.layers.2.embed_tokens.weight differs from "
                            "model.embed_tokens.weight, which the model has in its place"),
                  std::string::npos)
            << error.what();
    }
}

TEST_F(LaterTokens, FilesOfSomeClassesHaveThem) {
    const auto refused = [](const char* preset, int64_t depth, const char* why) {
        spec::ModelSpec m = spec::preset(preset);
        m.mtp_depth = depth;
        m.mtp_weight = 0.3;
        try {
            spec::to_hf_config(m, DType::f32);
            ADD_FAILURE() << preset << " was written";
        } catch (const UsageError& error) {
            EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
        }
    };
    refused("llama-tiny", 1, "[model] mtp_depth = 1: of the architectures of transformers only");
    refused("qwen3-next-tiny", 2, "[model] mtp_depth = 2: files of qwen3_next have one block");
}

// What a run does not train is passed over; what it would train must be there and known.
TEST_F(LaterTokens, TensorsBehindTheModelArePassedOver) {
    const auto place = [](const char* preset, const char* tensor) {
        return spec::place_behind(spec::preset(preset), tensor);
    };
    EXPECT_EQ(place("deepseek-v3-tiny", "model.layers.4.enorm.weight"), 0);
    EXPECT_EQ(place("deepseek-v3-tiny", "model.layers.3.mlp.up_proj.weight"), std::nullopt);
    EXPECT_EQ(place("qwen3-next-tiny", "mtp.fc.weight"), 0);
    EXPECT_EQ(place("nemotron-h-tiny", "mtp.layers.3.final_layernorm.weight"), 3);
    EXPECT_EQ(place("nemotron-h-tiny", "backbone.layers.4.norm.weight"), std::nullopt);
    EXPECT_EQ(place("llama-tiny", "mtp.fc.weight"), std::nullopt);
}

}  // namespace
}  // namespace tutti::hf
