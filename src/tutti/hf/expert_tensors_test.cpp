// Tensors of all experts in files: a gpt-oss whose matrices are in MXFP4 against the same model in bf16 whose values
// the test decodes and transposes by itself; the export of either; and files that do not fit.
#include "tutti/hf/expert_tensors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tutti/base/json.h"
#include "tutti/base/philox.h"
#include "tutti/base/to_size.h"
#include "tutti/checkpoint/testing/memory_file_system.h"
#include "tutti/hf/export.h"
#include "tutti/spec/hf/config.h"

namespace tutti::hf {
namespace {

constexpr int64_t kE = 3, kC = 64, kF = 96;

spec::ModelSpec model_spec() {
    spec::ModelSpec m = spec::preset("gpt-oss-tiny");
    m.preset.clear();
    m.layers = 1;
    m.width = kC;
    m.vocab = 16;
    m.ffn = m.moe.ffn = kF;
    m.moe.experts = kE;
    m.window_layers = "";
    return m;
}

uint64_t word(const std::string& name, int64_t i) { return mix64(random_key(4, name) + static_cast<uint64_t>(i)); }

// A tensor of a file, its bytes made of its name.
struct Stored {
    std::string name;
    DType dtype;
    std::vector<int64_t> shape;
    std::vector<std::byte> bytes;
};
int64_t count(const std::vector<int64_t>& shape) {
    int64_t n = 1;
    for (const int64_t size : shape) n *= size;
    return n;
}
template <class T>
Stored stored(const std::string& name, DType dtype, const std::vector<int64_t>& shape, const std::vector<T>& values) {
    Stored s{name, dtype, shape, std::vector<std::byte>(values.size() * sizeof(T))};
    std::memcpy(s.bytes.data(), values.data(), s.bytes.size());
    return s;
}
Stored bytes_of(const std::string& name, const std::vector<int64_t>& shape, int low, int high) {
    std::vector<uint8_t> values;
    for (int64_t i = 0; i < count(shape); ++i)
        values.push_back(
            static_cast<uint8_t>(low + static_cast<int>(word(name, i) % static_cast<uint64_t>(high - low))));
    return stored(name, DType::u8, shape, values);
}

// Value (e, out, in) of blocks and scales, in double.
double decoded(const Stored& blocks, const Stored& scales, int64_t e, int64_t row, int64_t column) {
    constexpr double kValues[] = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0};
    const int64_t rows = blocks.shape[1], count = blocks.shape[2], block = (e * rows + row) * count + column / 32;
    const int byte = std::to_integer<int>(blocks.bytes[to_size(block * 16 + column % 32 / 2)]);
    const int code = column % 2 == 0 ? byte % 16 : byte / 16;
    const double sign = code >= 8 ? -1 : 1;
    return sign * kValues[code % 8] * std::pow(2.0, std::to_integer<int>(scales.bytes[to_size(block)]) - 127);
}

class ExpertTensors : public ::testing::Test {
  protected:
    ExpertTensors() : device(make_cpu_device(1)), ctx{*device, kernels::reference_table()} {}

    void put(const std::string& directory, const std::vector<Stored>& all, const std::string& config) {
        disk.make_directory(directory);
        checkpoint::write_file_atomically(disk, directory, {.name = "config.json", .head = config});
        std::vector<checkpoint::TensorToWrite> tensors;
        for (const Stored& s : all) tensors.push_back({s.name, s.dtype, s.shape, s.bytes});
        checkpoint::write_file_atomically(disk, directory,
                                          checkpoint::safetensors_file("model.safetensors", std::move(tensors)));
    }
    // Everything but the matrices of the experts, in bf16.
    std::vector<Stored> others(const models::Model& model) const {
        std::vector<Stored> all;
        for (const autograd::Parameter* p : model.parameters()) {
            const std::string name = tensor_names(*p).front();
            if (name.ends_with("_proj") || (!all.empty() && all.back().name == name)) continue;
            const Shape shape = shape_in_file(*p);
            std::vector<bf16> values;
            for (int64_t i = 0; i < shape.numel(); ++i)
                values.emplace_back(static_cast<float>(word(name, i) % 1000) / 1000);
            all.push_back(stored(name, DType::bf16, {shape.begin(), shape.end()}, values));
        }
        return all;
    }
    models::Model model() { return models::make_model(ctx, model_spec(), 0); }

    static constexpr const char* kExperts = "model.layers.0.mlp.experts.";
    std::unique_ptr<Device> device;
    ops::Context ctx;
    checkpoint::testing::MemoryFileSystem disk;
};

TEST_F(ExpertTensors, ReadsMxfp4AndWritesBf16) {
    const models::Model m = model();
    std::vector<Stored> packed = others(m), plain = packed;
    for (const auto& [name, rows, columns] :
         {std::tuple{"gate_up_proj", 2 * kF, kC}, std::tuple{"down_proj", kC, kF}}) {
        const std::string whole = std::string(kExperts) + name;
        packed.push_back(bytes_of(whole + "_blocks", {kE, rows, columns / 32, 16}, 0, 256));
        packed.push_back(bytes_of(whole + "_scales", {kE, rows, columns / 32}, 118, 131));
        std::vector<bf16> values;  // (E, in, out)
        for (int64_t e = 0; e < kE; ++e)
            for (int64_t c = 0; c < columns; ++c)
                for (int64_t r = 0; r < rows; ++r)
                    values.emplace_back(static_cast<float>(decoded(packed.end()[-2], packed.end()[-1], e, r, c)));
        plain.push_back(stored(whole, DType::bf16, {kE, columns, rows}, values));
    }
    Json config = Json::parse(spec::to_hf_config(model_spec(), DType::bf16));
    put("/plain", plain, config.dump(2) + "\n");
    config["quantization_config"] = {{"quant_method", "mxfp4"},
                                     {"modules_to_not_convert", {"model.layers.*.self_attn"}}};
    put("/packed", packed, config.dump(2) + "\n");
    EXPECT_EQ(spec::model_from_hf_config(config.dump(), "config.json"), model_spec());

    const StoredWeights from_plain = StoredWeights::in_directory(disk, "/plain", m);
    const StoredWeights from_packed = StoredWeights::in_directory(disk, "/packed", m);
    Losses losses;
    for (const autograd::Parameter* p : m.parameters()) {
        EXPECT_EQ(from_packed.dtype(p->name), DType::bf16);
        EXPECT_EQ(from_packed.read(*p, DType::bf16, losses), from_plain.read(*p, DType::bf16, losses)) << p->name;
    }
    // gate is the even rows of the blocks, up the odd ones, down all of them.
    const auto value = [&](const char* name, int64_t e, int64_t row, int64_t column) {
        const autograd::Parameter& p = m.parameter(name);
        const std::vector<std::byte> bytes = from_packed.read(p, DType::f32, losses);
        return value_at(DType::f32, bytes, (e * p.shape[1] + row) * p.shape[2] + column);
    };
    const auto of = [&](size_t from_end, int64_t e, int64_t row, int64_t column) {
        return decoded(packed[packed.size() - from_end], packed[packed.size() - from_end + 1], e, row, column);
    };
    EXPECT_EQ(value("model.layers.0.mlp.experts.gate_proj.weight", 1, 5, 40), of(4, 1, 10, 40));
    EXPECT_EQ(value("model.layers.0.mlp.experts.up_proj.weight", 2, 7, 33), of(4, 2, 15, 33));
    EXPECT_EQ(value("model.layers.0.mlp.experts.down_proj.weight", 2, 63, 95), of(2, 2, 63, 95));

    // Both are written as the directory in bf16, without the codes' key.
    for (const char* from : {"/plain", "/packed"}) {
        const std::string to = std::string(from) + "_out";
        disk.make_directory(to);
        write_directory(disk, to, m, StoredWeights::in_directory(disk, from, m), {.side_files = from}, losses);
        EXPECT_EQ(disk.content(to + "/model.safetensors"), disk.content("/plain_out/model.safetensors")) << from;
        EXPECT_EQ(disk.content(to + "/config.json"), disk.content("/plain/config.json")) << from;
    }
    const StoredWeights again = StoredWeights::in_directory(disk, "/packed_out", m);
    for (const autograd::Parameter* p : m.parameters())
        EXPECT_EQ(again.read(*p, DType::bf16, losses), from_plain.read(*p, DType::bf16, losses)) << p->name;
    EXPECT_TRUE(losses.empty()) << describe(losses);
}

TEST_F(ExpertTensors, NamesWhatDoesNotFit) {
    const models::Model m = model();
    std::vector<Stored> packed = others(m);
    packed.push_back(bytes_of(std::string(kExperts) + "gate_up_proj_blocks", {kE, 2 * kF, kC / 32, 15}, 0, 256));
    packed.push_back(bytes_of(std::string(kExperts) + "down_proj_blocks", {kE, kC, kF / 32, 16}, 0, 256));
    put("/packed", packed, spec::to_hf_config(model_spec(), DType::bf16));
    try {
        StoredWeights::in_directory(disk, "/packed", m);
        FAIL() << "read";
    } catch (const DataError& error) {
        const std::string text = error.what();
        for (const char* part : {"gate_up_proj_blocks is (3, 192, 2, 15), the model needs (3, 192, 2, 16)",
                                 "gate_up_proj_scales is missing", "down_proj_scales is missing"})
            EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
    }
}

}  // namespace
}  // namespace tutti::hf
