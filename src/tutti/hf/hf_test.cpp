// Weights of Hugging Face directories: names, orientation, types; all problems of a directory in one message; exports.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tutti/base/json.h"
#include "tutti/base/to_size.h"
#include "tutti/checkpoint/digest.h"
#include "tutti/checkpoint/testing/memory_file_system.h"
#include "tutti/checkpoint/testing/sample.h"
#include "tutti/hf/export.h"
#include "tutti/hf/values.h"
#include "tutti/ops/ops.h"

namespace tutti::hf {
namespace {

using checkpoint::testing::contains;

spec::ModelSpec tiny(spec::Family family) {
    spec::ModelSpec s = spec::preset(family == spec::Family::gpt2   ? "gpt2-124m"
                                     : family == spec::Family::lfm2 ? "lfm2-tiny"
                                                                    : "llama-tiny");
    s.preset.clear();
    s.vocab = 11;
    s.width = 8;
    s.layers = 2;
    s.heads = s.kv_heads = 2;
    s.head_dim = 4;
    s.ffn = 12;
    s.max_positions = 16;
    if (family == spec::Family::lfm2) {
        s.conv_layers = "0";
        s.conv_kernel = 4;
    }
    return s;
}

class Directory : public ::testing::Test {
  protected:
    Directory() : device(make_cpu_device(1)), ctx{*device, kernels::reference_table()} {}

    models::Model model_of(const spec::ModelSpec& s) { return models::make_model(ctx, s, 4); }
    models::Model drawn(const spec::ModelSpec& s) {
        models::Model model = model_of(s);
        models::materialize(ctx, model, DType::f32, 5, false);
        return model;
    }
    // The tensors of a model as transformers would store them, to be spoilt.
    std::map<std::string, Tensor> tensors_of(const models::Model& model) {
        std::map<std::string, Tensor> all;
        for (const autograd::Parameter* p : model.parameters()) {
            Tensor t = p->value;
            if (p->stored_as.transposed) {
                t = ops::empty(ctx, {p->shape[1], p->shape[0]}, DType::f32);
                const auto from = p->value.to_host<float>();
                std::vector<float> transposed(from.size());
                for (int64_t r = 0; r < p->shape[0]; ++r)
                    for (int64_t c = 0; c < p->shape[1]; ++c)
                        transposed[to_size(c * p->shape[0] + r)] = from[to_size(r * p->shape[1] + c)];
                device->copy_in(t.view().data, transposed.data(), t.bytes());
            }
            all[tensor_names(*p).front()] = t;
        }
        return all;
    }
    void put(const std::map<std::string, Tensor>& tensors) {
        std::vector<checkpoint::TensorToWrite> all;
        for (const auto& [name, t] : tensors)
            all.push_back({name,
                           t.dtype(),
                           {t.shape().begin(), t.shape().end()},
                           std::span(static_cast<const std::byte*>(t.view().data), to_size(t.bytes()))});
        checkpoint::write_file_atomically(disk, "/", checkpoint::safetensors_file("model.safetensors", all));
    }
    std::string error(const models::Model& model) {
        try {
            StoredWeights::in_directory(disk, "/", model);
        } catch (const DataError& e) {
            return e.what();
        }
        return "accepted";
    }
    void expect_equal(const models::Model& a, const models::Model& b) {
        for (size_t i = 0; i < a.parameters().size(); ++i)
            EXPECT_EQ(a.parameters()[i]->value.to_floats(), b.parameters()[i]->value.to_floats())
                << a.parameters()[i]->name;
    }

    std::unique_ptr<Device> device;
    ops::Context ctx;
    checkpoint::testing::MemoryFileSystem disk;
    Losses losses;
};

TEST_F(Directory, Gpt2IsPrefixedAndTurned) {
    const models::Model gpt2 = model_of(tiny(spec::Family::gpt2));
    const auto name_of = [&](const std::string& p) { return tensor_names(gpt2.parameter(p)).front(); };
    EXPECT_EQ(name_of("wte.weight"), "transformer.wte.weight");
    EXPECT_FALSE(gpt2.parameter("wte.weight").stored_as.transposed);
    for (const char* name : {"h.1.attn.c_attn", "h.1.attn.c_proj", "h.1.mlp.c_fc", "h.1.mlp.c_proj"}) {
        EXPECT_EQ(name_of(concat(name, ".weight")), concat("transformer.", name, ".weight"));
        EXPECT_TRUE(gpt2.parameter(concat(name, ".weight")).stored_as.transposed) << name;
        EXPECT_FALSE(gpt2.parameter(concat(name, ".bias")).stored_as.transposed) << name;
    }
    spec::ModelSpec untied = tiny(spec::Family::gpt2);
    untied.tie_embeddings = false;
    EXPECT_EQ(tensor_names(model_of(untied).parameter("lm_head.weight")).front(), "lm_head.weight");
    const models::Model llama = model_of(tiny(spec::Family::llama));
    EXPECT_EQ(tensor_names(llama.parameter("model.norm.weight")).front(), "model.norm.weight");
}

TEST(Values, ConvertAndTranspose) {
    const std::vector<float> x = {1.0f, -2.5f, 3.14159265f, 1e-30f, 65536.0f};
    std::vector<uint16_t> half(5), brain(5);
    Loss loss = convert(DType::f32, std::as_bytes(std::span(x)), DType::f16, std::as_writable_bytes(std::span(half)));
    EXPECT_EQ(loss.infinite, 1);  // 65536
    EXPECT_EQ(loss.zero, 1);      // 1e-30
    loss = convert(DType::f32, std::as_bytes(std::span(x)), DType::bf16, std::as_writable_bytes(std::span(brain)));
    EXPECT_FALSE(loss.any());
    for (size_t i = 0; i < 5; ++i) {
        EXPECT_EQ(half[i], f16_bits(x[i]));
        EXPECT_EQ(brain[i], bf16_bits(x[i]));
    }
    const std::vector<float> broken = {1.0f, NAN, -INFINITY, 65536.0f};
    EXPECT_EQ(count_not_finite(DType::f32, std::as_bytes(std::span(broken))), 2);
    EXPECT_EQ(count_not_finite(DType::f16, std::as_bytes(std::span(half))), 1);  // what 65536 became
    EXPECT_EQ(count_not_finite(DType::bf16, std::as_bytes(std::span(brain))), 0);
    std::vector<uint16_t> again(5);  // through f32 and back: every bit
    std::vector<float> wide(5);
    convert(DType::bf16, std::as_bytes(std::span(brain)), DType::f32, std::as_writable_bytes(std::span(wide)));
    convert(DType::f32, std::as_bytes(std::span(wide)), DType::bf16, std::as_writable_bytes(std::span(again)));
    EXPECT_EQ(again, brain);
    std::vector<uint16_t> matrix(70 * 33), transposed(matrix.size());
    for (size_t i = 0; i < matrix.size(); ++i) matrix[i] = static_cast<uint16_t>(i);
    transpose(std::as_bytes(std::span(matrix)), 70, 33, 2, std::as_writable_bytes(std::span(transposed)));
    for (size_t r = 0; r < 70; ++r)
        for (size_t c = 0; c < 33; ++c) ASSERT_EQ(transposed[c * 70 + r], matrix[r * 33 + c]);
}

TEST_F(Directory, LoadsEveryFamilyInEveryType) {
    for (const auto family : {spec::Family::gpt2, spec::Family::llama, spec::Family::lfm2})
        for (const DType stored : {DType::f32, DType::bf16, DType::f16}) {
            const models::Model source = drawn(tiny(family));
            auto tensors = tensors_of(source);
            for (auto& [name, t] : tensors)
                if (stored != DType::f32) t = ops::cast(ctx, t, stored);
            put(tensors);
            for (const DType compute : {DType::f32, DType::bf16})
                for (const bool train : {false, true}) {
                    models::Model loaded = model_of(tiny(family));
                    models::allocate(ctx, loaded, compute, train);
                    StoredWeights::in_directory(disk, "/", loaded).load(ctx, loaded);
                    for (size_t i = 0; i < loaded.parameters().size(); ++i) {
                        const autograd::Parameter& p = *loaded.parameters()[i];
                        Tensor expected = ops::cast(ctx, source.parameters()[i]->value, stored);
                        expected = ops::cast(ctx, expected, DType::f32);
                        if (train) {
                            EXPECT_EQ(p.master.to_floats(), expected.to_floats()) << p.name;
                        }
                        expected = ops::cast(ctx, expected, compute);
                        EXPECT_EQ(p.value.to_floats(), expected.to_floats()) << p.name;
                    }
                }
        }
}

// Each rank reads its part: rows or columns of a matrix, sections of a fused one, from files that hold some of them
// transposed.
TEST_F(Directory, LoadsThePartsOfARank) {
    constexpr mesh::Axis tp = mesh::Axis::tp_part;
    const mesh::Mesh mesh({{tp, 2}});
    for (const auto family : {spec::Family::gpt2, spec::Family::llama, spec::Family::lfm2}) {
        const models::Model source = drawn(tiny(family));
        put(tensors_of(source));
        const StoredWeights stored = StoredWeights::in_directory(disk, "/", source);
        for (const autograd::Parameter* p : source.parameters())
            for (const mesh::Placement& placement :
                 {mesh::Placement{}, mesh::Placement{{.axes = tp, .sections = p->sections, .padded = true}},
                  mesh::Placement{{.axes = tp, .dim = p->shape.rank() - 1, .padded = p->shape.rank() == 1}}})
                for (int rank = 0; rank < 2; ++rank) {
                    const mesh::Part part = mesh::part_of(mesh, rank, p->shape, placement, p->name);
                    const Tensor x = ops::zeros(ctx, {part.shape.numel()}, DType::f32);
                    stored.load(*p, part.blocks, x);
                    std::vector<float> expected(to_size(x.numel()));
                    const std::vector<float> whole = p->value.to_host<float>();
                    for (const mesh::HeldBlock& held : part.blocks)
                        mesh::for_each_run(held.block, mesh::whole_block(p->shape), held.block,
                                           [&](int64_t from, int64_t to, int64_t n) {
                                               std::copy_n(whole.begin() + from, n, expected.begin() + held.begin + to);
                                           });
                    ASSERT_EQ(x.to_host<float>(), expected) << p->name << ", rank " << rank;
                }
    }
}

// Infinity is what bf16 makes of values above its largest; the rest of the rows are loaded.
TEST_F(Directory, NamesTheFirstValueThatIsNotFinite) {
    const models::Model model = drawn(tiny(spec::Family::gpt2));
    for (const auto& [value, stands] : {std::pair{3.4e38f, "is 3.4e+38, which is not finite in bf16"},
                                        std::pair{std::nanf(""), "is nan, which is not finite in"}})
        for (const char* name : {"transformer.ln_f.bias", "transformer.h.1.mlp.c_fc.weight"}) {
            auto tensors = tensors_of(model);
            auto values = tensors[name].to_host<float>();
            values[5] = value;
            tensors[name] = Tensor::from_host<float>(*device, tensors[name].shape(), values, Purpose::data);
            put(tensors);
            models::Model loaded = model_of(tiny(spec::Family::gpt2));
            models::allocate(ctx, loaded, DType::bf16, false);
            try {
                StoredWeights::in_directory(disk, "/", loaded).load(ctx, loaded);
                FAIL() << "loaded";
            } catch (const DataError& error) {
                EXPECT_TRUE(contains(error.what(), stands)) << error.what();
                EXPECT_TRUE(contains(error.what(), std::string(name).substr(12))) << error.what();
            }
        }
}

TEST_F(Directory, ListsEverythingThatIsWrong) {
    const models::Model model = drawn(tiny(spec::Family::llama));
    auto tensors = tensors_of(model);
    tensors.erase("model.norm.weight");
    tensors["surprise"] = ops::zeros(ctx, {2}, DType::f32);
    tensors["model.layers.1.mlp.up_proj.weight"] = ops::zeros(ctx, {8, 12}, DType::f32);
    tensors["model.layers.0.mlp.up_proj.weight"] = ops::zeros(ctx, {12, 8, 1, 1, 1, 1}, DType::f32);
    tensors["model.layers.1.self_attn.q_proj.weight"] = ops::zeros(ctx, {8, 8}, DType::i32);
    tensors["model.layers.1.self_attn.rotary_emb.inv_freq"] = ops::zeros(ctx, {2}, DType::f32);
    put(tensors);
    EXPECT_EQ(error(model),
              "/model.safetensors does not fit the model:"
              "\n  model.layers.0.mlp.up_proj.weight is (12, 8, 1, 1, 1, 1), the model needs (12, 8)"
              "\n  model.layers.1.self_attn.q_proj.weight is of type i32, weights are f32, bf16 or f16"
              "\n  model.layers.1.mlp.up_proj.weight is (8, 12), the model needs (12, 8)"
              "\n  model.norm.weight is missing; the model needs (8)"
              "\n  surprise is unexpected: the model has no such parameter");
    put({});
    spec::ModelSpec deep = tiny(spec::Family::llama);
    deep.layers = 9;
    EXPECT_TRUE(contains(error(model_of(deep)), "\n  and 63 more"));  // 2 + 9 * 9 less the 20 that are named
}

TEST_F(Directory, ATiedHeadMayBeThereIfItIsTheEmbedding) {
    const models::Model model = drawn(tiny(spec::Family::llama));
    auto tensors = tensors_of(model);
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"];
    put(tensors);
    EXPECT_EQ(error(model), "accepted");
    tensors["lm_head.weight"] = ops::zeros(ctx, {11, 8}, DType::f32);
    put(tensors);
    EXPECT_TRUE(contains(error(model), "lm_head.weight differs from the embedding"));
    auto head_only = tensors_of(model);  // as save_model of safetensors keeps them
    head_only["lm_head.weight"] = head_only["model.embed_tokens.weight"];
    head_only.erase("model.embed_tokens.weight");
    put(head_only);
    EXPECT_EQ(error(model), "accepted");
    put(tensors);
    spec::ModelSpec untied = tiny(spec::Family::llama);
    untied.tie_embeddings = false;
    EXPECT_EQ(error(model_of(untied)), "accepted");
    tensors.erase("lm_head.weight");
    put(tensors);
    EXPECT_TRUE(contains(error(model_of(untied)), "lm_head.weight is missing"));
}

TEST_F(Directory, Gpt2WithoutPrefixAndWithMasks) {
    const models::Model model = drawn(tiny(spec::Family::gpt2));
    std::map<std::string, Tensor> published;
    for (const auto& [name, t] : tensors_of(model)) published[name.substr(std::strlen("transformer."))] = t;
    published["h.0.attn.bias"] = ops::zeros(ctx, {1, 1, 16, 16}, DType::u8);
    put(published);
    // Later versions stored the masks as BOOL.
    std::string file = disk.content("/model.safetensors");
    file.replace(file.find("\"U8\""), 4, "\"BOOL\"");
    uint64_t header = 0;
    std::memcpy(&header, file.data(), sizeof header);
    header += 2;
    std::memcpy(file.data(), &header, sizeof header);
    checkpoint::write_file_atomically(disk, "/", {.name = "model.safetensors", .head = file});
    models::Model loaded = model_of(tiny(spec::Family::gpt2));
    models::allocate(ctx, loaded, DType::f32, false);
    StoredWeights::in_directory(disk, "/", loaded).load(ctx, loaded);
    expect_equal(model, loaded);
}

TEST_F(Directory, ExportsInShards) {
    for (const auto family : {spec::Family::gpt2, spec::Family::llama, spec::Family::lfm2}) {
        const models::Model model = drawn(tiny(family));
        put(tensors_of(model));
        const auto weights = StoredWeights::in_directory(disk, "/", model);
        const std::string to = concat("/", name_of(family));
        disk.make_directory(to);
        const auto files = write_directory(disk, to, model, weights, {.max_shard_bytes = 1000}, losses);
        EXPECT_GT(files.size(), 4u);
        EXPECT_TRUE(contains(files[1], "model-00001-of-000"));
        EXPECT_EQ(files[files.size() - 2], "model.safetensors.index.json");
        EXPECT_EQ(files.back(), "XXH128SUMS");
        checkpoint::verify_sums(disk, to);
        EXPECT_TRUE(contains(disk.content(to + "/XXH128SUMS"), "  model-00002-of-000"));
        models::Model loaded = model_of(tiny(family));
        models::allocate(ctx, loaded, DType::f32, false);
        StoredWeights::in_directory(disk, to, loaded).load(ctx, loaded);
        expect_equal(model, loaded);
        // One file when all fits: the bytes that came.
        disk.make_directory(to + "-one");
        write_directory(disk, to + "-one", model, weights, {}, losses);
        EXPECT_EQ(disk.content(to + "-one/model.safetensors"), disk.content("/model.safetensors"));
    }
}

// As Phi-3's files: q, k and v are rows of one tensor.
TEST_F(Directory, RowsOfOneTensorAreSeveralParameters) {
    spec::ModelSpec s = tiny(spec::Family::llama);
    s.kv_heads = 1;
    const auto fused = [&] {
        models::Model model = model_of(s);
        for (const int layer : {0, 1}) {
            const std::string name = concat("model.layers.", layer, ".self_attn.");
            int64_t row = 0;
            for (const char* part : {"q_proj.weight", "k_proj.weight", "v_proj.weight"}) {
                autograd::Parameter& p = model.parameter(name + part);
                p.stored_as = {.name = name + "qkv_proj.weight",
                               .first_row = row,
                               .rows = 16,
                               .row_step = 16,
                               .row_block = p.shape[0]};
                row += p.shape[0];
            }
        }
        return model;
    };
    const models::Model plain = drawn(s);
    put(tensors_of(plain));
    disk.make_directory("/fused");
    write_directory(disk, "/fused", fused(), StoredWeights::in_directory(disk, "/", plain), {}, losses);
    const auto files = checkpoint::ShardedSafetensors::open(disk, "/fused");
    EXPECT_EQ(files.find("model.layers.1.self_attn.k_proj.weight"), nullptr);
    std::vector<float> expected, stored(16 * 8);
    for (const char* part : {"q_proj", "k_proj", "v_proj"}) {
        const auto rows = plain.parameter(concat("model.layers.1.self_attn.", part, ".weight")).value.to_floats();
        expected.insert(expected.end(), rows.begin(), rows.end());
    }
    files.read("model.layers.1.self_attn.qkv_proj.weight", 0, std::as_writable_bytes(std::span(stored)));
    EXPECT_EQ(stored, expected);
    models::Model loaded = fused();
    models::allocate(ctx, loaded, DType::f32, false);
    StoredWeights::in_directory(disk, "/fused", loaded).load(ctx, loaded);
    expect_equal(plain, loaded);
    models::Model lacks = fused();
    lacks.parameter("model.layers.0.self_attn.v_proj.weight").stored_as = {};
    disk.make_directory("/lacks");
    EXPECT_THROW(write_directory(disk, "/lacks", lacks, StoredWeights::in_directory(disk, "/", plain), {}, losses),
                 Error);
}

TEST_F(Directory, MixtralsExpertsHaveNamesOfTheirOwn) {
    spec::ModelSpec s = tiny(spec::Family::llama);
    s.moe = {.experts = 2, .top_k = 1, .ffn = 4};
    const models::Model mixtral = model_of(s);
    EXPECT_EQ(tensor_names(mixtral.parameter("model.layers.1.mlp.experts.up_proj.weight")),
              (std::vector<std::string>{"model.layers.1.block_sparse_moe.experts.0.w3.weight",
                                        "model.layers.1.block_sparse_moe.experts.1.w3.weight"}));
    EXPECT_EQ(tensor_names(mixtral.parameter("model.layers.1.mlp.gate.weight")).front(),
              "model.layers.1.block_sparse_moe.gate.weight");
    s.head_norm = true;
    EXPECT_EQ(tensor_names(model_of(s).parameter("model.layers.0.mlp.experts.down_proj.weight")).back(),
              "model.layers.0.mlp.experts.1.down_proj.weight");
}

TEST_F(Directory, KeepsAConfigThatStillFits) {
    const models::Model model = drawn(tiny(spec::Family::llama));
    put(tensors_of(model));
    const auto weights = StoredWeights::in_directory(disk, "/", model);
    std::string config = R"({"architectures":["MistralForCausalLM"],"model_type":"mistral","sliding_window":null,)"
                         R"("vocab_size":11,"hidden_size":8,"intermediate_size":12,"num_hidden_layers":2,)"
                         R"("num_attention_heads":2,"max_position_embeddings":16,"rms_norm_eps":1e-05,)"
                         R"("tie_word_embeddings":true,"eos_token_id":7,"torch_dtype":"float32"})";
    disk.make_directory("/side");
    checkpoint::write_file_atomically(disk, "/side", {.name = "config.json", .head = config});
    checkpoint::write_file_atomically(disk, "/side", {.name = "tokenizer.json", .head = "not read"});
    checkpoint::write_file_atomically(disk, "/side", {.name = "pytorch_model.bin", .head = "not carried"});
    const auto exported = [&](const ExportOptions& options) {
        checkpoint::remove_tree(disk, "/out");
        disk.make_directory("/out");
        write_directory(disk, "/out", model, weights, options, losses);
        return disk.content("/out/config.json");
    };
    EXPECT_EQ(exported({.side_files = "/side"}), config);
    EXPECT_EQ(disk.content("/out/tokenizer.json"), "not read");
    EXPECT_EQ(disk.list("/out"),
              (std::vector<std::string>{"XXH128SUMS", "config.json", "model.safetensors", "tokenizer.json"}));
    EXPECT_TRUE(contains(exported({.dtype = DType::bf16, .side_files = "/side"}), "\"eos_token_id\": 7"));
    EXPECT_TRUE(contains(disk.content("/out/config.json"), "\"torch_dtype\": \"bfloat16\""));
    // transformers loads weights in the type that config.json names: a run may have made f32 of bf16.
    std::string of_bf16 = config;
    of_bf16.replace(of_bf16.find("float32"), 7, "bfloat16");
    checkpoint::write_file_atomically(disk, "/side", {.name = "config.json", .head = of_bf16});
    EXPECT_EQ(Json::parse(exported({.side_files = "/side"})).at("torch_dtype"), "float32");
    config.replace(config.find("\"sliding_window\":null"), 21, "\"sliding_window\":3   ");  // of another function
    checkpoint::write_file_atomically(disk, "/side", {.name = "config.json", .head = config});
    EXPECT_TRUE(contains(exported({.side_files = "/side"}), "\"LlamaForCausalLM\""));
}

// Without one, transformers 5.24 takes the class of the model, such as Qwen2Tokenizer, which has its own pattern.
TEST_F(Directory, ARunsTokenizerHasAClass) {
    const models::Model model = drawn(tiny(spec::Family::llama));
    put(tensors_of(model));
    const auto weights = StoredWeights::in_directory(disk, "/", model);
    disk.make_directory("/run");
    const auto write = [&](const char* name, const char* text) {
        checkpoint::write_file_atomically(disk, "/run", {.name = name, .head = text});
    };
    const auto exported = [&](const ExportOptions& options) {
        checkpoint::remove_tree(disk, "/out");
        disk.make_directory("/out");
        const auto files = write_directory(disk, "/out", model, weights, options, losses);
        EXPECT_EQ(std::ranges::count(files, "tokenizer_config.json"), 1);
        return Json::parse(disk.content("/out/tokenizer_config.json")).dump();
    };
    write("tokenizer.json", "not read");
    const ExportOptions of_run{.tokenizer = "/run/tokenizer.json"};
    EXPECT_EQ(exported(of_run), R"({"tokenizer_class":"PreTrainedTokenizerFast"})");
    EXPECT_EQ(exported({.tokenizer_json = "text"}), R"({"tokenizer_class":"PreTrainedTokenizerFast"})");
    EXPECT_EQ(disk.content("/out/tokenizer.json"), "text");
    write("tokenizer_config.json", R"({"eos_token": "e"})");
    EXPECT_EQ(exported(of_run), R"({"eos_token":"e","tokenizer_class":"PreTrainedTokenizerFast"})");
    write("tokenizer_config.json", R"({"tokenizer_class":"Qwen2Tokenizer"})");
    EXPECT_EQ(exported(of_run), R"({"tokenizer_class":"Qwen2Tokenizer"})");
    EXPECT_EQ(disk.content("/out/tokenizer.json"), "not read");
}

}  // namespace
}  // namespace tutti::hf
