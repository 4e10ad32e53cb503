// Golden values of small models of many families, from an independent float64 computation: the file
// tests/families/fixtures.json, or the one that TUTTI_FAMILIES_FIXTURES names. Each model is a config.json as
// published, tensors by their names on disk, whose values are a hash of the name, and the logits, loss and gradients of
// one sequence. Beside it later_tokens.json has models with blocks that predict later tokens, and their losses.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tutti/base/json.h"
#include "tutti/base/philox.h"
#include "tutti/base/read_file.h"
#include "tutti/checkpoint/testing/memory_file_system.h"
#include "tutti/hf/expert_tensors.h"
#include "tutti/hf/export.h"
#include "tutti/spec/hf/config.h"
#include "tutti/spec/later_names.h"

namespace tutti::hf {
namespace {

const Json& fixtures() {
    static const Json all = [] {
        const char* path = std::getenv("TUTTI_FAMILIES_FIXTURES");
        Json file = Json::parse(read_file(path != nullptr ? path : TUTTI_FAMILIES_FIXTURES_FILE));
        const Json later = Json::parse(read_file(TUTTI_LATER_TOKENS_FILE));
        for (const auto& [name, model] : later.at("families").items()) file["families"][name] = model;
        return file;
    }();
    return all;
}

// The formula of the file's "weights": every value is exact in f32.
std::vector<float> values_of(const std::string& name, int64_t count, double c, double a) {
    uint64_t fnv = 0xcbf29ce484222325;
    for (const char letter : name) fnv = (fnv ^ static_cast<uint8_t>(letter)) * 0x100000001b3;
    const uint64_t key = mix64(mix64(fixtures().at("weights").at("seed").get<uint64_t>()) ^ fnv);
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) {
        const auto u = static_cast<double>(static_cast<int64_t>(mix64(key + static_cast<uint64_t>(i)) >> 48) - 32768);
        values.push_back(static_cast<float>(c + a * u / 32768));
    }
    return values;
}

std::vector<std::string> families() {
    std::vector<std::string> names;
    for (const auto& [name, model] : fixtures().at("families").items()) names.push_back(name);
    return names;
}

bool is_known(const Json& model) {
    const std::vector<std::string> known = spec::hf_model_types();
    return std::ranges::find(known, model.at("config").at("model_type").text()) != known.end();
}

class FamiliesFixtures : public ::testing::TestWithParam<std::string> {
  protected:
    FamiliesFixtures() : device(make_cpu_device(2)) {}

    const Json& fixture() const { return fixtures().at("families").at(GetParam()); }
    std::string config() const { return fixture().at("config").dump(2) + "\n"; }
    spec::ModelSpec spec() const {
        spec::ModelSpec m = spec::model_from_hf_config(config(), "config.json");
        m.mtp_depth = fixture().value("mtp_depth", int64_t{0});
        m.mtp_weight = fixture().value("mtp_weight", 0.0);
        return m;
    }

    // The model's directory, as published: config.json and the tensors by their names on disk.
    void put_directory() {
        checkpoint::write_file_atomically(disk, "/", {.name = "config.json", .head = config()});
        std::vector<std::vector<float>> values;
        std::vector<checkpoint::TensorToWrite> tensors;
        for (const auto& [name, t] : fixture().at("tensors").items()) {
            const auto shape = t[0].get<std::vector<int64_t>>();
            int64_t count = 1;
            for (const int64_t size : shape) count *= size;
            values.push_back(values_of(name, count, t[1].get<double>(), t[2].get<double>()));
            tensors.push_back({name, DType::f32, {shape.begin(), shape.end()}, {}});
        }
        for (size_t i = 0; i < tensors.size(); ++i) tensors[i].bytes = std::as_bytes(std::span(values[i]));
        checkpoint::write_file_atomically(disk, "/", checkpoint::safetensors_file("model.safetensors", tensors));
    }

    nn::Batch batch_of(const std::vector<int32_t>& ids) {
        std::vector<int32_t> targets(ids.begin() + 1, ids.end());
        targets.push_back(-1);
        nn::Batch batch = nn::make_batch(
            *device, {.tokens = ids, .targets = targets, .first_key = {}, .depths = spec().mtp_depth}, 1, 0);
        batch.grad_scale = 1.0f / static_cast<float>(ids.size() - 1);
        return batch;
    }

    // Logits, loss and gradients by the kernels of this table.
    void expect_golden_values(const kernels::KernelTable& table, const std::string& name) {
        ops::Context ctx{*device, table};
        const auto ids = fixtures().at("ids").get<std::vector<int32_t>>();
        models::Model model = models::make_model(ctx, spec(), std::ssize(ids));
        models::allocate(ctx, model, DType::f32, true);
        StoredWeights::in_directory(disk, "/", model).load(ctx, model);

        nn::Batch next = batch_of(ids);
        next.targets = {};
        nn::Tape inference(ctx, false);
        const std::vector<float> logits = model.forward(inference, next).value.to_floats();
        const auto golden = fixture().at("logits_last16").get<std::vector<double>>();
        for (size_t i = 0; i < golden.size(); ++i) EXPECT_NEAR(logits[i], golden[i], 5e-5) << name << ", logit " << i;

        nn::Batch batch = batch_of(ids);
        const auto mean = [scale = static_cast<double>(batch.grad_scale)](const Tensor& losses) {
            double sum = 0;
            for (const float x : losses.to_floats()) sum += x * scale;
            return sum;
        };
        std::vector<double> later;
        batch.later_losses = [&](int64_t, const Tensor& losses) { later.push_back(mean(losses)); };
        nn::Tape tape(ctx, true);
        const nn::Var losses = model.forward(tape, batch);
        EXPECT_NEAR(mean(losses.value), fixture().at("loss").get<double>(), 5e-6) << name;
        const auto golden_later = fixture().value("mtp_losses", std::vector<double>());
        ASSERT_EQ(later.size(), golden_later.size());
        for (size_t k = 0; k < later.size(); ++k)
            EXPECT_NEAR(later[k], golden_later[k], 5e-6) << name << ", depth " << k;
        tape.backward(losses);
        std::map<std::string, double> squares;  // by tensor on disk
        for (const autograd::Parameter* p : model.parameters()) {
            const std::vector<std::string> names = tensor_names(*p);  // of experts one after another
            const std::vector<float> gradient = p->gradient.to_host<float>();
            for (size_t i = 0; i < gradient.size(); ++i)
                squares[names[i * names.size() / gradient.size()]] += static_cast<double>(gradient[i]) * gradient[i];
        }
        for (const auto& [tensor, t] : fixture().at("tensors").items()) {
            if (t[3].is_null()) continue;
            ASSERT_TRUE(squares.contains(tensor)) << tensor;
            // In f32 all gradients of the file are within 5e-5 of float64; a sum of nearly nothing only by its size.
            EXPECT_NEAR(squares[tensor], t[3].get<double>(), 2e-4 * t[3].get<double>() + 1e-10)
                << name << ", gradient of " << tensor;
        }
    }

    std::unique_ptr<Device> device;
    checkpoint::testing::MemoryFileSystem disk;
};

TEST_P(FamiliesFixtures, LogitsLossAndGradients) {
    if (!is_known(fixture())) return;
    put_directory();
    kernels::KernelTable fused = kernels::reference_table();
    fused.fused_projections = true;
    expect_golden_values(kernels::reference_table(), "reference");
    expect_golden_values(fused, "reference, fused projections");
    for (int isa = 0; isa <= static_cast<int>(kernels::best_isa()); ++isa) {
        const kernels::KernelTable& table = kernels::cpu_table(static_cast<kernels::Isa>(isa));
        expect_golden_values(table, table.name);
    }
}

// To Tutti's names and back: every byte of the file and of its config.json; and the config.json that Tutti writes by
// itself describes the same model.
TEST_P(FamiliesFixtures, ComesBackAsItWas) {
    if (!is_known(fixture())) return;
    put_directory();
    ops::Context ctx{*device, kernels::reference_table()};
    const spec::ModelSpec spec = this->spec();
    const models::Model model = models::make_model(ctx, spec, 0);
    disk.make_directory("/out");
    Losses losses;
    write_directory(disk, "/out", model, StoredWeights::in_directory(disk, "/", model), {.side_files = "/"}, losses);
    EXPECT_EQ(disk.content("/out/config.json"), config());
    EXPECT_EQ(disk.content("/out/model.safetensors"), disk.content("/model.safetensors"));
    const std::string written = spec::to_hf_config(spec, DType::f32);
    EXPECT_EQ(spec::mtp_depth_of(written), spec.mtp_depth);
    spec::ModelSpec again = spec::model_from_hf_config(written, "written");
    again.mtp_depth = spec.mtp_depth;  // a run says that it trains them
    again.mtp_weight = spec.mtp_weight;
    EXPECT_EQ(again, spec) << written;
}

// The file's block of values in MXFP4.
TEST(Mxfp4, IsDecodedExactly) {
    const Json& block = fixtures().at("mxfp4");
    std::vector<std::byte> codes;
    for (const Json& byte : block.at("blocks")) codes.push_back(static_cast<std::byte>(byte.get<int64_t>()));
    const std::vector<std::byte> scales = {static_cast<std::byte>(block.at("scale").get<int64_t>())};
    std::vector<bf16> values(2 * codes.size());
    decode_mxfp4(codes, scales, values);
    const auto golden = block.at("values").get<std::vector<double>>();
    ASSERT_EQ(golden.size(), values.size());
    for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(static_cast<float>(values[i]), golden[i]) << i;
}

// Families that Tutti lacks are refused by the name of the nearest one.
TEST_P(FamiliesFixtures, UnknownOnesAreRefused) {
    if (is_known(fixture())) return;
    try {
        spec::model_from_hf_config(config(), "config.json");
        FAIL() << "read";
    } catch (const DataError& error) {
        EXPECT_NE(std::string(error.what()).find("the nearest is "), std::string::npos) << error.what();
    }
}

INSTANTIATE_TEST_SUITE_P(All, FamiliesFixtures, ::testing::ValuesIn(families()),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace tutti::hf
