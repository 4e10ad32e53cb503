// config.json: the published spellings of transformers 4 and 5, what is refused and with which words, and the way back.
#include "tutti/spec/hf/config.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/spec/layers.h"
#include "tutti/spec/toml.h"

namespace tutti::spec {
namespace {

// A complete config of `type` with the keys in `more` added at its end.
std::string llama_text(const std::string& type, const std::string& more = "") {
    return R"({"architectures":["X"],"model_type":")" + type +
           R"(","vocab_size":211,"hidden_size":48,"intermediate_size":112,"num_hidden_layers":3,"num_attention_heads":6,)"
           R"("max_position_embeddings":512,"rms_norm_eps":1e-05,"hidden_act":"silu","torch_dtype":"bfloat16")" +
           (more.empty() ? "" : ",") + more + "}";
}

std::string gpt2_text(const std::string& more = "") {
    return std::string(R"({"model_type":"gpt2","vocab_size":211,"n_embd":48,"n_layer":3,"n_head":6,"n_positions":96,)"
                       R"("layer_norm_epsilon":1e-05,"attn_pdrop":0.1)") +
           (more.empty() ? "" : ",") + more + "}";
}

ModelSpec read(const std::string& text) { return model_from_hf_config(text, "config.json"); }

std::string error_of(const std::string& text) {
    try {
        read(text);
    } catch (const DataError& error) {
        return error.what();
    }
    return "accepted";
}

TEST(HfConfig, Llama) {
    const ModelSpec m = read(llama_text("llama"));
    EXPECT_EQ(m.family, Family::llama);
    EXPECT_EQ(m.preset, "");
    EXPECT_EQ(m.vocab, 211);
    EXPECT_EQ(m.width, 48);
    EXPECT_EQ(m.ffn, 112);
    EXPECT_EQ(m.layers, 3);
    EXPECT_EQ(m.heads, 6);
    EXPECT_EQ(m.kv_heads, 6);  // absent: as many as heads
    EXPECT_EQ(m.head_dim, 8);
    EXPECT_EQ(m.max_positions, 512);
    EXPECT_EQ(m.norm_eps, 1e-5);
    EXPECT_EQ(m.rope_theta, 10000);  // files older than the key
    EXPECT_EQ(m.rope_scaling, RopeScaling{});
    EXPECT_FALSE(m.tie_embeddings || m.qkv_bias || m.output_bias || m.mlp_bias || m.head_norm);
    const ModelSpec biased =
        read(llama_text("llama", R"("attention_bias":true,"mlp_bias":true,"num_key_value_heads":2,"head_dim":10)"));
    EXPECT_TRUE(biased.qkv_bias && biased.output_bias && biased.mlp_bias);
    EXPECT_EQ(biased.kv_heads, 2);
    EXPECT_EQ(biased.head_dim, 10);
}

TEST(HfConfig, MixturesOfExperts) {
    const ModelSpec mixtral =
        read(llama_text("mixtral", R"("num_local_experts":8,"num_experts_per_tok":2,"head_dim":null)"));
    EXPECT_EQ(mixtral.moe, (MixtureSpec{.experts = 8, .top_k = 2, .ffn = 112}));
    EXPECT_EQ(mixtral.rope_theta, 1e6);  // where the key is absent, the default of transformers' class
    const ModelSpec qwen2 = read(llama_text(
        "qwen2_moe",
        R"("num_experts":6,"num_experts_per_tok":3,"moe_intermediate_size":40,"shared_expert_intermediate_size":56,)"
        R"("decoder_sparse_step":2,"output_router_logits":true,"router_aux_loss_coef":0.5,"sliding_window":0)"));
    EXPECT_EQ(qwen2.moe, (MixtureSpec{.experts = 6,
                                      .top_k = 3,
                                      .ffn = 40,
                                      .layers = "1",
                                      .shared_ffn = 56,
                                      .shared_gate = true,
                                      .normalise = false,
                                      .aux_loss = "all_layers",
                                      .aux_coef = 0.5}));
    EXPECT_TRUE(qwen2.qkv_bias);
    const ModelSpec qwen3 = read(llama_text(
        "qwen3_moe", R"("num_local_experts":9,"num_experts_per_tok":4,"moe_intermediate_size":24,"head_dim":16,)"
                     R"("norm_topk_prob":true,"mlp_only_layers":[1],"output_router_logits":false)"));
    EXPECT_EQ(qwen3.moe, (MixtureSpec{.experts = 9, .top_k = 4, .ffn = 24, .layers = "0,2"}));
    EXPECT_TRUE(qwen3.head_norm);
    for (const ModelSpec& m : {mixtral, qwen2, qwen3}) EXPECT_EQ(read(to_hf_config(m, DType::f32)), m);

    EXPECT_NE(error_of(llama_text("mixtral", R"("num_local_experts":2,"num_experts_per_tok":3)"))
                  .find("num_experts_per_tok = 3: must be at most the number of experts, 2"),
              std::string::npos);
    EXPECT_NE(
        error_of(llama_text("mixtral", R"("num_local_experts":2,"num_experts_per_tok":1,"router_jitter_noise":0.1)"))
            .find("router_jitter_noise"),
        std::string::npos);
    ModelSpec odd = mixtral;
    odd.moe.score = "sigmoid";
    EXPECT_THROW(to_hf_config(odd, DType::f32), UsageError);
}

TEST(HfConfig, RopeInBothSpellings) {
    const RopeScaling llama3{.type = "llama3", .factor = 32, .original_max_positions = 8192};
    const std::string keys = R"("factor":32.0,"low_freq_factor":1.0,"high_freq_factor":4.0,)"
                             R"("original_max_position_embeddings":8192,)";
    const ModelSpec v4 =
        read(llama_text("llama", R"("rope_theta":500000.0,"rope_scaling":{)" + keys + R"("rope_type":"llama3"})"));
    const ModelSpec v5 =
        read(llama_text("llama", R"("rope_parameters":{)" + keys + R"("rope_theta":500000.0,"rope_type":"llama3"})"));
    EXPECT_EQ(v4.rope_scaling, llama3);
    EXPECT_EQ(v4.rope_theta, 500000);
    EXPECT_EQ(v5, v4);
    EXPECT_EQ(read(llama_text("llama", R"("rope_scaling":{"type":"linear","factor":2.5})")).rope_scaling,
              (RopeScaling{.type = "linear", .factor = 2.5}));
    EXPECT_EQ(
        read(llama_text("llama", R"("rope_scaling":{"type":"yarn","factor":4,"attention_factor":1.5})")).rope_scaling,
        (RopeScaling{.type = "yarn", .factor = 4, .attention_factor = 1.5, .original_max_positions = 512}));
    EXPECT_EQ(read(llama_text("llama", R"("rope_scaling":null)")).rope_scaling, RopeScaling{});
    EXPECT_TRUE(error_of(llama_text("llama", R"("rope_scaling":{"type":"dynamic","factor":2})"))
                    .starts_with("config.json: rope_scaling: rope_type: this Tutti has default"));
    // As in transformers, mscale counts beside mscale_all_dim only: (0.1 * 0.7 ln 2 + 1) / (0.1 * 2 ln 2 + 1).
    EXPECT_EQ(read(llama_text("llama", R"("rope_scaling":{"type":"yarn","factor":2,"mscale":0.7})")).rope_scaling,
              (RopeScaling{.type = "yarn", .factor = 2, .original_max_positions = 512}));
    EXPECT_NEAR(
        read(llama_text("llama", R"("rope_scaling":{"type":"yarn","factor":2,"mscale":0.7,"mscale_all_dim":2})"))
            .rope_scaling.attention_factor,
        1.0485203026391962 / 1.1386294361119891, 1e-15);
    EXPECT_EQ(error_of(llama_text("llama", R"("rope_scaling":{"type":"llama3"})")),
              "config.json: rope_scaling: factor: required\n"
              "config.json: rope_scaling: low_freq_factor: required\n"
              "config.json: rope_scaling: high_freq_factor: required\n"
              "config.json: rope_scaling: original_max_position_embeddings: required");
}

TEST(HfConfig, MistralQwen2Qwen3) {
    EXPECT_EQ(read(llama_text("mistral", R"("sliding_window":9)")).window, 9);
    EXPECT_EQ(read(llama_text("mistral", R"("sliding_window":null)")).window, 0);
    EXPECT_EQ(read(llama_text("mistral")).window, 4096);  // MistralConfig's default
    const ModelSpec qwen2 = read(llama_text("qwen2", R"("sliding_window":9,"use_sliding_window":false)"));
    EXPECT_TRUE(qwen2.qkv_bias);
    EXPECT_FALSE(qwen2.output_bias);
    EXPECT_EQ(qwen2.window, 0);
    const std::string on = R"("sliding_window":9,"use_sliding_window":true,)";
    EXPECT_EQ(read(llama_text("qwen2", on + R"("max_window_layers":0)")).window, 9);
    EXPECT_EQ(read(llama_text("qwen2", on + R"("max_window_layers":3)")).window, 0);
    const ModelSpec qwen3 = read(llama_text("qwen3"));
    EXPECT_TRUE(qwen3.head_norm);
    EXPECT_FALSE(qwen3.qkv_bias);
    EXPECT_EQ(qwen3.head_dim, 128);  // Qwen3Config's default
}

// As transformers' Qwen2Config and Qwen3Config say it: layer_types, else from max_window_layers on.
TEST(HfConfig, WindowsOfSomeLayers) {
    const auto windows = [](const std::string& more, const std::string& type = "qwen2") {
        const ModelSpec m = read(llama_text(type, more));
        return concat(m.window, "/", m.window_layers);
    };
    const std::string on = R"("sliding_window":9,"use_sliding_window":true,)";
    EXPECT_EQ(windows(on + R"("max_window_layers":0)"), "9/");
    EXPECT_EQ(windows(on + R"("max_window_layers":1)"), "9/1-2");
    EXPECT_EQ(windows(on + R"("max_window_layers":2)"), "9/2");
    EXPECT_EQ(windows(on + R"("max_window_layers":3)"), "0/");
    EXPECT_EQ(windows(R"("sliding_window":9,"use_sliding_window":true)"), "0/");  // from layer 28 on
    EXPECT_EQ(windows(R"("use_sliding_window":true,"max_window_layers":2)"), "4096/2");
    EXPECT_EQ(windows(R"("use_sliding_window":true,"sliding_window":null,"max_window_layers":2)"), "0/");
    const std::string full = "\"full_attention\"", sliding = "\"sliding_attention\"";
    const auto types = [](const std::string& a, const std::string& b, const std::string& c) {
        return "\"layer_types\":[" + a + "," + b + "," + c + "]";
    };
    EXPECT_EQ(windows(on + types(full, sliding, full), "qwen3"), "9/1");
    EXPECT_EQ(windows(on + types(sliding, full, sliding), "qwen3"), "9/0,2");
    EXPECT_EQ(windows(on + "\"max_window_layers\":0," + types(full, full, full)), "0/");
    EXPECT_EQ(windows(on + "\"max_window_layers\":2," + types(sliding, sliding, sliding)), "9/");
    EXPECT_EQ(windows("\"use_sliding_window\":false," + types(full, full, full)), "0/");
    EXPECT_EQ(windows("\"sliding_window\":5," + types(sliding, sliding, sliding), "mistral"), "5/");

    const std::string odd = on + "\"layer_types\":";
    EXPECT_EQ(error_of(llama_text("qwen3", odd + R"(["full_attention"])")),
              "config.json: layer_types = [\"full_attention\"]: must be a list of 3 times sliding_attention or "
              "full_attention");
    EXPECT_EQ(error_of(llama_text("qwen3", odd + "7")),
              "config.json: layer_types = 7: must be a list of 3 times sliding_attention or full_attention");
    EXPECT_EQ(error_of(llama_text("qwen3", odd + "[1,2,3]")),
              "config.json: layer_types = [1,2,3]: must be a list of 3 times sliding_attention or full_attention");
    EXPECT_TRUE(error_of(llama_text("qwen3", types(full, full, sliding)))
                    .ends_with(": there is no window: use_sliding_window or sliding_window says so"));
    EXPECT_TRUE(error_of(llama_text("llama", types(full, full, sliding))).ends_with("sliding_window says so"));
    EXPECT_TRUE(error_of(llama_text("mistral", "\"sliding_window\":5," + types(full, full, sliding)))
                    .ends_with(": the window of a mistral is in all layers"));
}

// Qwen2MoeConfig and Qwen3MoeConfig of transformers 5.24: every other layer below max_window_layers, and all layers.
TEST(HfConfig, WindowsOfQwenMixtures) {
    const std::string experts = R"("num_experts":4,"num_experts_per_tok":2,"moe_intermediate_size":8,)";
    const std::string on = experts + R"("sliding_window":9,"use_sliding_window":true,)";
    const auto qwen3 = [](const std::string& more) {
        const ModelSpec m = read(llama_text("qwen3_moe", more));
        return concat(m.window, "/", m.window_layers);
    };
    for (const char* from : {"0", "1", "2", "28"})
        EXPECT_EQ(qwen3(on + R"("max_window_layers":)" + from), "9/") << from;
    EXPECT_EQ(qwen3(experts + R"("use_sliding_window":true)"), "4096/");
    EXPECT_EQ(qwen3(experts + R"("use_sliding_window":false,"sliding_window":9)"), "0/");
    EXPECT_TRUE(error_of(llama_text("qwen3_moe", on + R"("layer_types":["full_attention","sliding_attention",)"
                                                      R"("sliding_attention"])"))
                    .ends_with(": the window of a qwen3_moe is in all layers"));
    const auto qwen2 = [&](const std::string& more) {
        const ModelSpec m = read(llama_text("qwen2_moe", on + R"("shared_expert_intermediate_size":8,)" + more));
        return concat(m.window, "/", m.window_layers);
    };
    EXPECT_EQ(qwen2(R"("max_window_layers":3)"), "9/0,2");
    EXPECT_EQ(qwen2(R"("max_window_layers":2)"), "9/0");
    EXPECT_EQ(qwen2(R"("max_window_layers":0)"), "0/");
    EXPECT_EQ(qwen2(R"("layer_types":["full_attention","sliding_attention","full_attention"])"), "9/1");
}

TEST(HfConfig, AnAttentionFactorOfZeroIsNotAbsent) {
    const std::string yarn = R"("rope_scaling":{"rope_type":"yarn","factor":4.0,"attention_factor":)";
    EXPECT_TRUE(error_of(llama_text("llama", yarn + "0}")).find("attention_factor = 0: attention that is multiplied") !=
                std::string::npos);
    EXPECT_EQ(read(llama_text("llama", yarn + "0.5}")).rope_scaling.attention_factor, 0.5);
    EXPECT_EQ(read(llama_text("llama", yarn + "null}")).rope_scaling.attention_factor, 0);
}

TEST(HfConfig, Gpt2) {
    const ModelSpec m = read(gpt2_text());
    EXPECT_EQ(m.family, Family::gpt2);
    EXPECT_EQ(m.ffn, 192);
    EXPECT_EQ(m.head_dim, 8);
    EXPECT_TRUE(m.tie_embeddings);
    EXPECT_EQ(m.dropout, 0);  // of the training recipe
    EXPECT_EQ(read(gpt2_text(R"("n_inner":100)")).ffn, 100);
    EXPECT_EQ(read(gpt2_text(R"("n_inner":null,"n_ctx":96)")), m);
    EXPECT_EQ(error_of(gpt2_text(R"("n_ctx":95)")), "config.json: n_ctx = 95: this Tutti has 96 only");
    EXPECT_EQ(error_of(gpt2_text(R"("activation_function":"relu","scale_attn_by_inverse_layer_idx":true)")),
              "config.json: activation_function = \"relu\": this Tutti has \"gelu_new\" or \"gelu_pytorch_tanh\" only\n"
              "config.json: scale_attn_by_inverse_layer_idx = true: this Tutti has false only");
}

// As the files of LFM2-350M were published.
std::string lfm2_text(const std::string& more = "",
                      const std::string& layers = R"("full_attn_idxs":[2,5,8,10,12,14])") {
    return R"({"architectures":["Lfm2ForCausalLM"],"block_auto_adjust_ff_dim":true,"block_dim":1024,"block_ff_dim":6656,)"
           R"("block_ffn_dim_multiplier":1.0,"block_mlp_init_scale":1.0,"block_multiple_of":256,"block_norm_eps":1e-05,)"
           R"("block_out_init_scale":1.0,"block_use_swiglu":true,"block_use_xavier_init":true,"bos_token_id":1,)"
           R"("conv_L_cache":3,"conv_bias":false,"conv_dim":1024,"conv_dim_out":1024,"conv_use_xavier_init":true,)"
           R"("eos_token_id":7,"hidden_size":1024,"initializer_range":0.02,"max_position_embeddings":128000,)"
           R"("model_type":"lfm2","norm_eps":1e-05,"num_attention_heads":16,"num_heads":16,"num_hidden_layers":16,)"
           R"("num_key_value_heads":8,"pad_token_id":0,"rope_theta":1000000.0,"theta":1000000.0,"tie_embedding":true,)"
           R"("torch_dtype":"bfloat16","use_cache":true,"use_pos_enc":true,"vocab_size":65536)" +
           (layers.empty() ? "" : "," + layers) + (more.empty() ? "" : "," + more) + "}";
}

// `text` with another value of a key.
std::string changed(std::string text, const std::string& key, const std::string& value) {
    const size_t at = text.find("\"" + key + "\":"), begin = at + key.size() + 3;
    EXPECT_NE(at, std::string::npos) << key;
    return text.replace(begin, text.find_first_of(",}", begin) - begin, value);
}

TEST(HfConfig, Lfm2) {
    const ModelSpec m = read(lfm2_text());
    ModelSpec expected = preset("lfm2-350m");
    expected.preset.clear();
    EXPECT_EQ(m, expected);
    // The names and values of transformers 5.
    EXPECT_EQ(read(R"({"model_type":"lfm2","hidden_size":1024,"intermediate_size":4608,"num_hidden_layers":4,)"
                   R"("num_attention_heads":16,"num_key_value_heads":8,"vocab_size":65536,"full_attn_idxs":null,)"
                   R"("block_auto_adjust_ff_dim":false,"layer_types":["conv","full_attention","conv","conv"],)"
                   R"("rope_parameters":{"rope_theta":5000.0,"rope_type":"default"},"tie_word_embeddings":false})")
                  .conv_layers,
              "0,2-3");
    const auto attention = read(lfm2_text("", ""));  // neither layer_types nor full_attn_idxs
    EXPECT_EQ(attention.conv_layers, "");
    EXPECT_EQ(attention.conv_kernel, 0);

    const auto ffn = [](const std::string& ff, const std::string& key, const std::string& value) {
        return read(changed(changed(lfm2_text(), "block_ff_dim", ff), key, value)).ffn;
    };
    EXPECT_EQ(ffn("10240", "block_multiple_of", "256"), 6912);  // LFM2-700M
    EXPECT_EQ(ffn("12288", "block_multiple_of", "256"), 8192);  // LFM2-1.2B
    EXPECT_EQ(ffn("10240", "block_auto_adjust_ff_dim", "false"), 10240);
    EXPECT_EQ(ffn("10240", "block_ffn_dim_multiplier", "null"), 6826);  // int(2 * 10240 / 3), not rounded up
    EXPECT_EQ(ffn("10240", "block_ffn_dim_multiplier", "1.5"), 10240);  // int(1.5 * 6826) = 10239
}

TEST(HfConfig, Lfm2NamesThatDisagree) {
    const auto error = [](const std::string& key, const std::string& value) {
        return error_of(changed(lfm2_text(), key, value));
    };
    EXPECT_EQ(error("block_dim", "1000"), "config.json: block_dim = 1000: this Tutti has 1024 only");
    EXPECT_EQ(error("conv_dim", "1000"), "config.json: conv_dim = 1000: this Tutti has 1024 only");
    EXPECT_EQ(error("num_heads", "8"), "config.json: num_heads = 8: this Tutti has 16 only");
    EXPECT_EQ(error("block_norm_eps", "1e-6"), "config.json: block_norm_eps = 1e-06: this Tutti has 1e-05 only");
    EXPECT_EQ(error("block_use_swiglu", "false"), "config.json: block_use_swiglu = false: this Tutti has true only");
    EXPECT_EQ(error("use_pos_enc", "false"), "config.json: use_pos_enc = false: this Tutti has true only");
    EXPECT_EQ(error("theta", "5.0"), "config.json: theta = 5.0: this Tutti has 1000000.0 only");
    EXPECT_EQ(error_of(lfm2_text(R"("intermediate_size":4608)")),
              "config.json: intermediate_size = 4608: differs from block_ff_dim = 6656, another name for the same");
    EXPECT_EQ(error_of(lfm2_text(R"("tie_word_embeddings":false)")),
              "config.json: tie_embedding = true: differs from tie_word_embeddings = false, another name for the same");
    std::string types = "\"conv\"";
    for (int i = 1; i < 16; ++i) types += ",\"conv\"";
    EXPECT_TRUE(error_of(lfm2_text("\"layer_types\":[" + types + "]"))
                    .ends_with("differs from full_attn_idxs = [2,5,8,10,12,14], which has the same meaning"));
    EXPECT_TRUE(error_of(lfm2_text("\"layer_types\":[\"conv\"]", ""))
                    .ends_with("must be a list of 16 times full_attention or conv"));
    EXPECT_TRUE(error_of(lfm2_text("", R"("full_attn_idxs":[16])"))
                    .ends_with("must be a list of layers below num_hidden_layers = 16"));
    EXPECT_TRUE(error_of(lfm2_text("", R"("full_attn_idxs":7)"))
                    .ends_with("must be a list of layers below num_hidden_layers = 16"));
}

// The refusal names the nearest model_type, and the keys that its reader could not honour.
TEST(HfConfig, UnknownTypesNameTheNearest) {
    const std::string known = concat(": this Tutti has ", joined(hf_model_types()), "; the nearest is ");
    EXPECT_EQ(error_of(llama_text("llama4", R"("attention_chunk_size":8192,"rope_scaling":{"type":"dynamic"})")),
              concat("config.json: model_type = \"llama4\"", known,
                     "llama; what a llama could not honour:\n"
                     "read as llama: rope_scaling: rope_type: this Tutti has default, linear, llama3 and yarn only\n"
                     "read as llama: attention_chunk_size = 8192: not known to this Tutti and might change what the "
                     "model computes; remove it from the file if it does not"));
    EXPECT_EQ(error_of(llama_text("lama", "\"use_cache\":true")),
              concat("config.json: model_type = \"lama\"", known,
                     "llama; each of its keys is one that llama has, but the class may compute something else with "
                     "them"));
    EXPECT_NE(error_of(llama_text("gemma3", "\"use_cache\":true")).find("the nearest is gemma3_text; what a"),
              std::string::npos);
}

// What the classes of the rows of spec/variants.h do not read, or Tutti lacks, is refused where it says something.
// GptOssConfig makes YaRN of a file whose rope_parameters are absent or null: a model without scaling has to say so.
TEST(HfConfig, GptOssWithoutScalingIsWrittenAsSuch) {
    const ModelSpec m =
        read(llama_text("gpt_oss", R"("sliding_window":4,"num_local_experts":4,"num_experts_per_tok":2,)"
                                   R"("rope_parameters":{"rope_type":"default","rope_theta":100.0})"));
    const std::string text = to_hf_config(m, DType::f32);
    EXPECT_EQ(Json::parse(text)["rope_parameters"], (Json{{"rope_type", "default"}, {"rope_theta", 100.0}})) << text;
    EXPECT_EQ(read(text), m);
}

// transformers takes null for absent wherever a key about RoPE may be absent.
TEST(HfConfig, NullOfRopeIsAbsent) {
    int read_both = 0;
    bool reads_gemma3 = false;
    for (const std::string& type : hf_model_types()) {
        const auto text_with = [&](const std::string& more) {
            std::string text = llama_text(type, R"("sliding_window":4)" + more);
            const std::string gate = R"("hidden_act":"silu",)";
            if (type.starts_with("gemma"))
                text.replace(text.find(gate), gate.size(),
                             R"("query_pre_attn_scalar":16,"attn_logit_softcapping":null,)"
                             R"("final_logit_softcapping":null,)");
            return text;
        };
        if (error_of(text_with("")) != "accepted") continue;
        ++read_both;
        reads_gemma3 = reads_gemma3 || type == "gemma3_text";
        for (const char* key : {"rope_parameters", "rope_scaling"})
            EXPECT_EQ(read(text_with(concat(",\"", key, "\":null"))), read(text_with(""))) << type << ": " << key;
    }
    EXPECT_GE(read_both, 5);
    EXPECT_TRUE(reads_gemma3);
}

TEST(HfConfig, VariantsRefuseWhatTheyCannotHonour) {
    const auto refuses = [](const char* type, const std::string& more, const std::string& key) {
        const std::string error = error_of(llama_text(type, more));
        EXPECT_NE(error.find(concat("config.json: ", key)), std::string::npos) << type << ": " << error;
    };
    const std::string gemma2 = R"("sliding_window":4,"query_pre_attn_scalar":16,)";
    refuses("gemma2", gemma2 + R"("attn_logit_softcapping":0)", "attn_logit_softcapping = 0: must be above 0");
    refuses("gemma2", gemma2 + R"("use_bidirectional_attention":true)", "use_bidirectional_attention = true");
    refuses("gemma2", gemma2 + R"("hidden_activation":"relu")", "hidden_activation = \"relu\"");
    refuses("gemma2", gemma2 + R"("layer_types":["full_attention"])", "layer_types");
    refuses("gemma2", R"("sliding_window":4)", "query_pre_attn_scalar: required");
    refuses("gemma2", gemma2 + R"("attn_logit_softcapping":null)", "final_logit_softcapping: required");
    refuses("gemma3_text", gemma2 + R"("attn_logit_softcapping":0.5)", "attn_logit_softcapping = 0.5");
    refuses("olmo2", R"("clip_qkv":5.0)", "clip_qkv = 5");
    const std::string gpt_oss = R"("sliding_window":4,"num_local_experts":4,"num_experts_per_tok":2,)";
    refuses("gpt_oss", gpt_oss + R"("swiglu_limit":7)", "rope_parameters: required");
    refuses("gpt_oss", gpt_oss + R"("rope_parameters":null)", "rope_parameters = null: required");
    const std::string yarn = R"("rope_parameters":{"rope_type":"yarn","factor":4.0,"rope_theta":100.0)";
    EXPECT_EQ(error_of(llama_text("gpt_oss", gpt_oss + yarn + "}")), "accepted");
    refuses("gpt_oss", gpt_oss + yarn + R"(,"truncate":null})",
            "rope_parameters: truncate = null: must be true or false");
    refuses("olmo3", R"("sliding_window":4,"rope_theta":10000)", "rope_theta = 10000");
    refuses("phi3", R"("attention_bias":true)", "attention_bias = true");
    refuses("phi3", R"("rope_scaling":{"type":"longrope","short_factor":[1],"long_factor":[1]})",
            "rope_scaling: original_max_position_embeddings: required, at the top of the file");
    refuses("smollm3", R"("use_sliding_window":true)", "use_sliding_window = true");
    refuses("granite", R"("residual_multiplier":0)", "residual_multiplier = 0: must be above 0");
    refuses("glm4", R"("attention_out_bias":true)", "attention_out_bias = true: not known");
    refuses("ministral3", R"("tie_word_embeddings":false)", "rope_parameters: required");
    refuses("ministral3", R"("rope_parameters":{"rope_type":"default"})", "tie_word_embeddings: required");
    refuses("seed_oss", R"("sliding_window":4)", "sliding_window = 4");
    refuses("exaone4", R"("sliding_window":4,"sliding_window_pattern":"LGL")", "sliding_window_pattern = \"LGL\"");
}

// The classes with Mamba-2's scan. Files that Python wrote may say Infinity.
TEST(HfConfig, Scans) {
    const std::string granite =
        R"("layer_types":["mamba","attention","mamba"],"mamba_n_heads":6,"mamba_d_head":"auto",)"
        R"("num_local_experts":0)";
    const ModelSpec m = read(llama_text("granitemoehybrid", granite + R"(,"time_step_limit":[0.25, Infinity])"));
    EXPECT_EQ(m.scan_layers, "0,2");
    EXPECT_EQ(m.nope_layers, "0-2");
    EXPECT_EQ(m.scan_head_dim, 16);  // 2 * 48 channels
    EXPECT_EQ(m.ffn, 1024);          // the class's shared_intermediate_size
    EXPECT_EQ(m.scan_step_min, 0.25);
    EXPECT_EQ(m.scan_step_max, 0);
    const std::string v5 =
        granite + R"(,"time_step_limit":[0.25, {"__float__": "Infinity"}],"position_embedding_type":"rope")";
    EXPECT_EQ(read(llama_text("granitemoehybrid", v5)).nope_layers, "");
    const std::string in_text = R"(,"name_or_path":"a \"Infinity\" of \\")";
    EXPECT_EQ(read(llama_text("granitemoehybrid", granite + in_text)).scan_step_min, 0);
    const auto refuses = [](const std::string& text, const std::string& key) {
        EXPECT_NE(error_of(text).find(concat("config.json: ", key)), std::string::npos) << error_of(text);
    };
    const auto granite_with = [&](const std::string& more) {
        return llama_text("granitemoehybrid", granite + "," + more);
    };
    refuses(llama_text("granitemoehybrid", R"("mamba_n_heads":7,"num_local_experts":0)"), "mamba_n_heads = 7");
    refuses(granite_with(R"("mamba_proj_bias":true)"), "mamba_proj_bias = true");
    refuses(granite_with(R"("time_step_limit":[0.5])"), "time_step_limit");
    refuses(granite_with(R"("position_embedding_type":"learned")"), "position_embedding_type");
    const auto nemotron = [](const std::string& more) {
        return R"({"model_type":"nemotron_h","vocab_size":211,"hidden_size":48,"intermediate_size":112,)"
               R"("num_attention_heads":6,"max_position_embeddings":512,"layer_norm_epsilon":1e-05,)" +
               more + "}";
    };
    const ModelSpec n = read(nemotron(
        R"("hybrid_override_pattern":"M*-","n_groups":4,"n_shared_experts":1,"time_step_limit":[0.0, Infinity])"));
    EXPECT_EQ(n.layers, 3);
    EXPECT_EQ(n.gate, "relu2");
    EXPECT_EQ(n.scan_step_min, 0.001);
    EXPECT_EQ(n.moe, MixtureSpec{});
    EXPECT_EQ(read(nemotron(R"("layers_block_type":["moe","mamba"])")).pattern, "EM");
    refuses(nemotron(R"("hybrid_override_pattern":"M*-","num_hidden_layers":4)"), "num_hidden_layers = 4");
    refuses(nemotron(R"("hybrid_override_pattern":"MX")"), "hybrid_override_pattern = \"MX\"");
    refuses(nemotron(R"("hybrid_override_pattern":"M","time_step_limit":[0.1, 1])"), "time_step_limit");
    refuses(nemotron(R"("hybrid_override_pattern":"M","mlp_bias":true)"), "mlp_bias = true");
    refuses(nemotron(R"("hybrid_override_pattern":"E","n_shared_experts":2)"), "n_shared_experts = 2");
    const auto mamba = [](const std::string& more) {
        return R"({"model_type":"mamba2","vocab_size":211,"hidden_size":48,"num_hidden_layers":3,"head_dim":6,)"
               R"("num_heads":16,"layer_norm_epsilon":1e-05)" +
               more + "}";
    };
    const ModelSpec a = read(mamba(R"(,"time_step_limit":[0.25, 1.5],"n_groups":4)"));
    EXPECT_EQ(a.pattern, "MMM");
    EXPECT_EQ(a.scan_step_max, 1.5);
    EXPECT_FALSE(a.tie_embeddings);
    EXPECT_EQ(read(to_hf_config(a, DType::f32)), a);
    refuses(mamba(R"(,"expand":3)"), "expand = 3");
    refuses(mamba(R"(,"use_bias":true)"), "use_bias = true");
    refuses(mamba(R"(,"hidden_act":"gelu")"), "hidden_act");
    refuses(mamba(R"(,"rescale_prenorm_residual":true)"), "rescale_prenorm_residual = true");
    refuses(mamba(R"(,"num_attention_heads":4)"), "num_attention_heads = 4: not known");
    const std::string falcon =
        R"("mamba_d_ssm":48,"mamba_n_heads":6,"mlp_multipliers":[0.5,0.1],"lm_head_multiplier":0.3)";
    const ModelSpec f = read(llama_text("falcon_h1", falcon));
    EXPECT_EQ(f.multipliers, "1,1,1,1,1,1,1,1,1,1,0.5,0.1");
    EXPECT_EQ(f.scan_norm, "none");
    EXPECT_EQ(read(to_hf_config(f, DType::f32)), f);
    refuses(llama_text("falcon_h1", falcon + R"(,"attention_bias":true)"), "attention_bias = true");
    refuses(llama_text("falcon_h1", falcon + R"(,"ssm_multipliers":[1,1])"), "ssm_multipliers");
}

// DeepSeek's classes, whose sizes are those of a file but for one key.
TEST(HfConfig, LatentAttentionRefusesWhatItCannotHonour) {
    const auto with = [](const char* name, const std::string& key, const Json& value) {
        ModelSpec m = preset(name);
        m.preset.clear();
        Json json = Json::parse(to_hf_config(m, DType::bf16));
        if (value == "removed")
            json.erase(key);
        else
            json[key] = value;
        return json.dump();
    };
    const auto refuses = [&](const char* name, const std::string& key, const Json& value, const std::string& text) {
        const std::string error = error_of(with(name, key, value));
        EXPECT_NE(error.find(text), std::string::npos) << key << ": " << error;
    };
    const char *v2 = "deepseek-v2-tiny", *v3 = "deepseek-v3-tiny", *flash = "glm4.7-flash-tiny", *oss = "gpt-oss-tiny";
    refuses(oss, "swiglu_limit", 0, "swiglu_limit = 0: must be above 0");
    refuses(oss, "swiglu_alpha", 1.5, "swiglu_alpha = 1.5: this Tutti has 1.702 only");
    refuses(oss, "experts_per_token", 3, "experts_per_token = 3: this Tutti has 2 only");
    refuses(oss, "initial_context_length", 4096, "initial_context_length = 4096: this Tutti has 64 only");
    refuses(oss, "num_experts_per_tok", 9, "must be at most num_local_experts = 8");
    refuses(oss, "quantization_config", Json{{"quant_method", "fp8"}}, "this Tutti reads experts in mxfp4");
    EXPECT_EQ(error_of(with(oss, "quantization_config", Json{{"quant_method", "mxfp4"}})), "accepted");
    EXPECT_FALSE(read(with(oss, "attention_bias", false)).qkv_bias);
    EXPECT_EQ(read(with(oss, "swiglu_limit", "removed")).gate_limit, 7);
    refuses(v2, "topk_method", "noaux_tc", "topk_method = \"noaux_tc\": required, greedy or group_limited_greedy");
    refuses(v2, "topk_method", "removed", "topk_method: required");
    refuses(v2, "norm_topk_prob", true, "norm_topk_prob = true: this Tutti has false only");
    refuses(v2, "scoring_func", "sigmoid", "scoring_func = \"sigmoid\"");
    refuses(v3, "scoring_func", "softmax", "scoring_func = \"softmax\"");
    refuses(v3, "topk_method", "greedy", "topk_method = \"greedy\"");
    refuses(v3, "n_group", "removed", "n_group: required");
    refuses(v3, "attention_bias", true, "attention_bias = true");
    refuses(v3, "moe_layer_freq", 2, "moe_layer_freq = 2");
    refuses(v3, "num_key_value_heads", 2, "num_key_value_heads = 2");
    refuses(v3, "head_dim", 32, "head_dim = 32");
    refuses(v3, "q_lora_rank", "removed", "q_lora_rank: required, a number or null");
    refuses(v3, "index_topk", 64, "index_topk = 64: not known");
    refuses(v3, "quantization_config", Json{{"quant_method", "fp8"}},
            "this Tutti reads no weights of 8 bits (weight_scale_inv); give a directory in bf16");
    refuses(v3, "first_k_dense_replace", 4, "first_k_dense_replace = 4: must be below num_hidden_layers = 4");
    refuses(flash, "mlp_layer_types", {"dense", "sparse", "dense", "sparse"}, "dense layers before the sparse ones");
    refuses(flash, "first_k_dense_replace", 2, "first_k_dense_replace = 2");
    for (const char* name : {v2, v3, flash}) {
        EXPECT_EQ(error_of(with(name, "num_nextn_predict_layers", 1)), "accepted");
        EXPECT_EQ(error_of(with(name, "aux_loss_alpha", 0.001)), "accepted");
    }
    EXPECT_EQ(read(with(flash, "mlp_layer_types", "removed")).moe.layers, "1-3");
    // Interleaved pairs unless the file says otherwise, and what the two mscales mean.
    EXPECT_TRUE(read(with(v3, "rope_interleave", "removed")).rope_adjacent);
    EXPECT_FALSE(read(with(v3, "rope_interleave", false)).rope_adjacent);
    const double m = 0.1 * std::log(4.0) + 1;
    const LayerSpec of_layer = layer(preset(v3), 0);
    EXPECT_DOUBLE_EQ(of_layer.attention()->score_scale, m * m / std::sqrt(32.0));
    EXPECT_EQ(layer(preset(flash), 0).attention()->score_scale, 0);
}

TEST(HfConfig, NothingIsPassedOverUnknown) {
    EXPECT_EQ(error_of(llama_text("llama", R"("use_cache":true,"_name_or_path":"x","new":null,"other":false,"o":{})")),
              "accepted");
    EXPECT_EQ(
        error_of(llama_text("llama", R"("quantization_config":{"bits":4})")),
        "config.json: quantization_config = {\"bits\":4}: not known to this Tutti and might change what the model "
        "computes; remove it from the file if it does not");
    EXPECT_EQ(error_of(llama_text("mistral", R"("attention_bias":true)").c_str()).substr(0, 34),
              "config.json: attention_bias = true");
    EXPECT_EQ(error_of("{}"),
              concat("config.json: model_type = absent: required a text, one of ", joined(hf_model_types())));
    EXPECT_EQ(error_of(R"({"model_type":"gpt2","n_embd":48.5,"n_head":-1,"n_layer":"3"})"),
              "config.json: n_embd = 48.5: must be a whole number from 1 to 2147483647\n"
              "config.json: n_layer = \"3\": must be a whole number from 1 to 2147483647\n"
              "config.json: n_head = -1: must be a whole number from 1 to 2147483647\n"
              "config.json: n_positions: required\n"
              "config.json: layer_norm_epsilon: required\n"
              "config.json: vocab_size: required");
    EXPECT_EQ(error_of(llama_text("llama", R"("num_key_value_heads":4)")),
              "config.json: read as [model] kv_heads = 4: must divide heads = 6; nearest: 3 or 6");
}

TEST(HfConfig, RefusesHeadsThatDoNotDivideTheWidth) {
    std::string text = llama_text("llama");
    text.replace(text.find(R"("hidden_size":48)"), 16, R"("hidden_size":50)");
    EXPECT_EQ(error_of(text),
              "config.json: num_attention_heads = 6: must divide hidden_size = 50, where there is no "
              "head_dim");
    text.insert(text.size() - 1, R"(,"head_dim":8)");
    EXPECT_EQ(error_of(text), "accepted");
}

TEST(HfConfig, RefusesBadJson) {
    EXPECT_TRUE(error_of("{").starts_with("config.json: byte 1: syntax error"));
    EXPECT_EQ(error_of("[]"), "config.json: required a JSON object, got array");
    EXPECT_EQ(error_of(llama_text("llama", R"("hidden_size":49)")),
              "config.json: byte 256: \"hidden_size\" occurs twice");
    EXPECT_EQ(error_of(R"({"a":{"b":1,"b":2}})"), "config.json: byte 14: \"b\" occurs twice");
    EXPECT_EQ(error_of(std::string(40, '[')), "config.json: byte 16: nested more than 16 levels deep");
    EXPECT_EQ(error_of(std::string((16 << 20) + 1, ' ')), "config.json: 16777217 bytes, at most 16777216 are allowed");
}

// Every option that a Hugging Face architecture has survives being written; what none has is refused.
TEST(HfConfig, WritesWhatItReads) {
    const auto check_round = [](ModelSpec m, const std::string& type) {
        m.preset.clear();
        const std::string text = to_hf_config(m, DType::bf16);
        EXPECT_EQ(read(text), m) << text;
        EXPECT_NE(text.find("\"model_type\": \"" + type + "\""), std::string::npos) << text;
        EXPECT_NE(text.find("\"torch_dtype\": \"bfloat16\""), std::string::npos);
    };
    check_round(preset("gpt2-124m"), "gpt2");
    check_round(preset("llama3.2-1b"), "llama");
    check_round(preset("mistral-7b"), "mistral");
    check_round(preset("qwen2.5-0.5b"), "qwen2");
    check_round(preset("qwen3-0.6b"), "qwen3");
    check_round(preset("lfm2-700m"), "lfm2");
    ModelSpec lfm2 = preset("lfm2-tiny");
    lfm2.head_dim = 16;  // 4 * 16 is not the width
    lfm2.conv_bias = true;
    check_round(lfm2, "lfm2");
    lfm2.conv_layers.clear();
    lfm2.conv_bias = false;
    lfm2.conv_kernel = 0;
    check_round(lfm2, "lfm2");
    ModelSpec m = preset("qwen3-0.6b");
    m.window = 7;
    m.rope_scaling = {.type = "yarn", .factor = 4, .beta_fast = 16, .attention_factor = 2};
    check_round(m, "qwen3");
    for (const char* layers : {"3-27", "0,2-5,27"}) {
        m.window_layers = layers;
        check_round(m, "qwen3");
    }
    EXPECT_NE(to_hf_config(m, DType::f32).find("\"max_window_layers\": 0"), std::string::npos);
    ModelSpec mixture = preset("qwen3-30b-a3b");
    mixture.window = 7;
    mixture.moe.aux_loss = "none";  // of the run
    mixture.moe.aux_coef = 0;
    check_round(mixture, "qwen3_moe");
    mixture.window_layers = "1-2";  // its class has a window in all layers or none
    EXPECT_THROW(to_hf_config(mixture, DType::f32), UsageError);
    mixture = preset("qwen1.5-moe-a2.7b");
    mixture.moe.aux_loss = "none";
    mixture.moe.aux_coef = 0;
    for (const char* layers : {"", "1-2"}) {
        mixture.window = 7;
        mixture.window_layers = layers;
        check_round(mixture, "qwen2_moe");
    }
    ModelSpec mistral = preset("mistral-7b");
    mistral.window_layers = "1";
    EXPECT_THROW(to_hf_config(mistral, DType::f32), UsageError);
    m.mlp_bias = true;
    EXPECT_THROW(to_hf_config(m, DType::f32), UsageError);
    EXPECT_THROW(to_hf_config(preset("mlp-8192"), DType::f32), UsageError);
    EXPECT_EQ(hf_config_with_dtype(R"({"dtype":"float32","x":1})", DType::f16),
              "{\n  \"dtype\": \"float16\",\n  \"x\": 1\n}\n");
    for (const char* keys :
         {R"("dtype":"bfloat16","torch_dtype":"bfloat16")", R"("torch_dtype":"bfloat16","dtype":null)"}) {
        const Json json = Json::parse(hf_config_with_dtype(concat("{", keys, "}"), DType::f32));
        EXPECT_EQ(json.at("dtype"), "float32") << "which transformers 5 reads first";
        EXPECT_EQ(json.at("torch_dtype"), "float32");
    }
}

// The ids of a stored model are those of its tokenizer, unless another one is named.
TEST(HfConfig, AModelBringsItsTokenizer) {
    const auto folder = std::filesystem::temp_directory_path() / concat("tutti_hf_", ::getpid());
    std::filesystem::create_directory(folder);
    std::ofstream(folder / "config.json") << llama_text("llama");
    const std::string hf = "model.hf=" + folder.string();
    EXPECT_EQ(parse_text("", "c.toml", {hf}).data.tokenizer, "bytes");  // it has none
    std::ofstream(folder / "tokenizer.model") << "x";
    EXPECT_EQ(parse_text("", "c.toml", {hf}).data.tokenizer, folder.string());
    EXPECT_EQ(parse_text("", "c.toml", {hf, "data.tokenizer=bytes"}).data.tokenizer, "bytes");
    EXPECT_EQ(parse_text("[data]\ntokenizer = \"t.json\"\n", "c.toml", {hf}).data.tokenizer, "t.json");
    EXPECT_EQ(parse_text("", "c.toml", {}).data.tokenizer, "bytes");
    std::filesystem::remove_all(folder);
}

TEST(HfConfig, InAConfigOfARun) {
    const auto error = [](const std::vector<std::string>& set) -> std::string {
        try {
            parse_text("", "c.toml", set);
        } catch (const Error& e) {
            return concat(e.exit_code(), " ", e.what());
        }
        return "accepted";
    };
    EXPECT_EQ(
        error({"model.hf=/nowhere"}),
        "3 /nowhere/config.json: there is no such file; required: the directory of a stored model, or all sizes in "
        "[model], as in the config.toml of a run that began from it");
    EXPECT_EQ(
        error({"model.hf=/nowhere", "model.preset=gpt2-124m"}),
        "2 --set model.hf=/nowhere: [model] hf = \"/nowhere\" and preset = \"gpt2-124m\": a model starts from one of "
        "the two");
    // The resolved config of a run has all sizes: it reads the same when the directory is gone.
    const RunSpec run = parse_text(
        "", "c.toml",
        {"model.hf=/nowhere/Some-1B/", "model.family=llama", "model.width=64", "model.layers=2", "model.vocab=300",
         "model.heads=4", "model.kv_heads=4", "model.head_dim=16", "model.ffn=8", "model.max_positions=32"});
    EXPECT_EQ(run.model.hf, "/nowhere/Some-1B/");
    EXPECT_EQ(run.model.preset, "");
    EXPECT_EQ(name_of(run.model), "Some-1B");
}

}  // namespace
}  // namespace tutti::spec
