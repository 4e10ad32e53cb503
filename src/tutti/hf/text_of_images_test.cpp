// Files for images and text, which hold the same model as files of the text alone: Qwen3.5 as it is published, with the
// experts of a layer in two tensors and tensors that predict several tokens, and Mistral 3.
#include <gtest/gtest.h>

#include "tutti/base/json.h"
#include "tutti/checkpoint/testing/memory_file_system.h"
#include "tutti/hf/export.h"
#include "tutti/spec/hf/config.h"
#include "tutti/spec/hf/generation.h"

namespace tutti::hf {
namespace {

class TextOfImages : public ::testing::Test {
  protected:
    TextOfImages() : device(make_cpu_device(1)), ctx{*device, kernels::reference_table()} {
        spec = spec::preset("qwen3.5-moe-tiny");
        spec.preset.clear();
        spec.layers = 2;
        spec.delta_layers = "0";
        spec.vocab = 16;
        spec.moe.experts = 3;
        spec.moe.top_k = 2;
    }

    // Bytes of the tensors on disk by name, all of them different.
    struct Stored {
        Shape shape;
        std::vector<float> values;
    };
    std::map<std::string, Stored> tensors_of(const models::Model& model) const {
        std::map<std::string, Stored> all;
        for (const autograd::Parameter* p : model.parameters())
            for (const std::string& name : tensor_names(*p)) {
                if (all.contains(name)) continue;  // other rows of it
                Stored& stored = all[name];
                stored.shape = shape_in_file(*p);
                const float first = 1000 * static_cast<float>(all.size());
                for (int64_t i = 0; i < stored.shape.numel(); ++i)
                    stored.values.push_back(first + static_cast<float>(i));
            }
        return all;
    }
    void put(const std::string& directory, const std::map<std::string, Stored>& all, const Json& config) {
        disk.make_directory(directory);
        checkpoint::write_file_atomically(disk, directory, {.name = "config.json", .head = config.dump(2) + "\n"});
        std::vector<checkpoint::TensorToWrite> tensors;
        for (const auto& [name, t] : all)
            tensors.push_back({name, DType::f32, {t.shape.begin(), t.shape.end()}, std::as_bytes(std::span(t.values))});
        checkpoint::write_file_atomically(disk, directory, checkpoint::safetensors_file("model.safetensors", tensors));
    }

    // The same model as published: names of the text's part, experts together, and what is not read.
    std::map<std::string, Stored> as_published(const std::map<std::string, Stored>& text) const {
        std::map<std::string, Stored> all;
        for (const auto& [name, t] : text) {
            if (name.find(".experts.") != std::string::npos) continue;
            all[name.starts_with("model.") ? "model.language_model." + name.substr(6) : name] = t;
        }
        for (int64_t layer = 0; layer < spec.layers; ++layer) {
            const std::string mlp = concat("layers.", layer, ".mlp.experts.");
            Stored gate_up{{spec.moe.experts, 2 * spec.moe.ffn, spec.width}, {}};
            Stored down{{spec.moe.experts, spec.width, spec.moe.ffn}, {}};
            for (int64_t e = 0; e < spec.moe.experts; ++e)
                for (const auto& [name, to] :
                     {std::pair{"gate_proj", &gate_up}, {"up_proj", &gate_up}, {"down_proj", &down}}) {
                    const auto& values = text.at(concat("model.", mlp, e, ".", name, ".weight")).values;
                    to->values.insert(to->values.end(), values.begin(), values.end());
                }
            all["model.language_model." + mlp + "gate_up_proj"] = gate_up;
            all["model.language_model." + mlp + "down_proj"] = down;
        }
        all["model.visual.patch_embed.weight"] = {{2, 3}, {1, 2, 3, 4, 5, 6}};
        all["mtp.norm.weight"] = {{2}, {1, 2}};
        return all;
    }

    std::unique_ptr<Device> device;
    ops::Context ctx;
    spec::ModelSpec spec;
    checkpoint::testing::MemoryFileSystem disk;
};

TEST_F(TextOfImages, OfImagesAndTextHoldTheTextModel) {
    const Json text_config = Json::parse(spec::to_hf_config(spec, DType::f32));
    Json inside = text_config;
    inside["tie_word_embeddings"] = true;  // the key outside decides
    inside["mtp_num_hidden_layers"] = 1;
    inside["eos_token_id"] = 7;
    const Json config = {{"architectures", {"Qwen3_5MoeForConditionalGeneration"}},
                         {"model_type", "qwen3_5_moe"},
                         {"text_config", inside},
                         {"vision_config", Json{{"depth", 2}}},
                         {"image_token_id", 3}};
    EXPECT_EQ(spec::model_from_hf_config(config.dump(), "config.json"), spec);
    EXPECT_EQ(spec::eos_tokens(config.dump(), "config.json"), std::vector<int32_t>{7});

    const models::Model model = models::make_model(ctx, spec, 0);
    const auto text = tensors_of(model);
    put("/text", text, text_config);
    put("/published", as_published(text), config);
    const StoredWeights plain = StoredWeights::in_directory(disk, "/text", model);
    const StoredWeights published = StoredWeights::in_directory(disk, "/published", model);
    Losses losses;
    for (const autograd::Parameter* p : model.parameters())
        EXPECT_EQ(published.read(*p, DType::f32, losses), plain.read(*p, DType::f32, losses)) << p->name;

    // Written is the text model.
    disk.make_directory("/out");
    write_directory(disk, "/out", model, published, {.side_files = "/published"}, losses);
    EXPECT_EQ(disk.content("/out/model.safetensors"), disk.content("/text/model.safetensors"));
    EXPECT_EQ(Json::parse(disk.content("/out/config.json"))["model_type"], "qwen3_5_moe_text");
    EXPECT_EQ(spec::model_from_hf_config(disk.content("/out/config.json"), "config.json"), spec);
}

TEST_F(TextOfImages, OfMistral3HaveAnotherPrefix) {
    spec = spec::preset("mistral-small-3.1");
    spec.preset.clear();
    spec.vocab = 16, spec.width = 24, spec.layers = 2, spec.heads = 4, spec.kv_heads = 2, spec.head_dim = 8,
    spec.ffn = 20;
    spec.tie_embeddings = false;
    Json inside = Json::parse(spec::to_hf_config(spec, DType::f32));
    inside.erase("tie_word_embeddings");
    const Json config = {{"model_type", "mistral3"}, {"text_config", inside}, {"tie_word_embeddings", false}};
    EXPECT_EQ(spec::model_from_hf_config(config.dump(), "config.json"), spec);
    const models::Model model = models::make_model(ctx, spec, 0);
    const auto text = tensors_of(model);
    std::map<std::string, Stored> all = {{"vision_tower.patch_conv.weight", {{2}, {1, 2}}}};
    for (const auto& [name, t] : text) all["language_model." + name] = t;
    put("/text", text, inside);
    put("/published", all, config);
    const StoredWeights plain = StoredWeights::in_directory(disk, "/text", model);
    const StoredWeights published = StoredWeights::in_directory(disk, "/published", model);
    Losses losses;
    for (const autograd::Parameter* p : model.parameters())
        EXPECT_EQ(published.read(*p, DType::f32, losses), plain.read(*p, DType::f32, losses)) << p->name;
}

TEST_F(TextOfImages, ATensorOfExpertsMustFit) {
    const models::Model model = models::make_model(ctx, spec, 0);
    auto all = as_published(tensors_of(model));
    Stored& down = all.at("model.language_model.layers.1.mlp.experts.down_proj");
    down.shape = {spec.moe.experts, spec.moe.ffn, spec.width};
    put("/in", all, Json::parse(spec::to_hf_config(spec, DType::f32)));
    try {
        StoredWeights::in_directory(disk, "/in", model);
        FAIL() << "read";
    } catch (const DataError& error) {
        EXPECT_NE(std::string(error.what())
                      .find("model.language_model.layers.1.mlp.experts.down_proj is (3, 64, 128), the model needs "
                            "(3, 128, 64)"),
                  std::string::npos)
            << error.what();
    }
}

}  // namespace
}  // namespace tutti::hf
