// Golden values of f16 and its loss scale, from an independent computation: the file tests/precision/fixtures.json, or
// the one that TUTTI_PRECISION_FIXTURES names, whose notes say how each was made.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/engine/loss_scale.h"

namespace tutti::engine {
namespace {

const Json& fixtures_of_f16() {
    static const Json all = [] {
        const char* path = std::getenv("TUTTI_PRECISION_FIXTURES");
        return Json::parse(read_file(path != nullptr ? path : TUTTI_PRECISION_FIXTURES_FILE));
    }();
    return all;
}

uint16_t cast_bits(const std::string& type, float x) { return type == "f16" ? f16_bits(x) : bf16_bits(x); }
float cast_value(const std::string& type, uint16_t bits) { return type == "f16" ? f16_value(bits) : bf16_value(bits); }

TEST(PrecisionFixturesF16, Casts) {
    const Json& f = fixtures_of_f16().at("casts");
    const std::string from = f.at("f32").text();
    for (const std::string type : {"f16", "bf16"}) {
        const std::string to = f.at(type).text();
        ASSERT_EQ(to.size(), from.size() / 2);
        for (size_t i = 0; i < to.size(); i += 4) {
            const auto x = std::bit_cast<float>(static_cast<uint32_t>(std::stoul(from.substr(2 * i, 8), nullptr, 16)));
            const std::string wanted = to.substr(i, 4);
            if (wanted == "nan_")
                EXPECT_TRUE(std::isnan(cast_value(type, cast_bits(type, x)))) << type << ' ' << x;
            else
                EXPECT_EQ(cast_bits(type, x), std::stoul(wanted, nullptr, 16)) << type << ' ' << x;
        }
    }
}

// FNV-1a 64 over the little-endian bytes of casts.
template <class Pattern>
uint64_t hash_of_casts(const std::string& type, Pattern pattern) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (uint32_t i = 0; i < 65536; ++i) {
        const uint16_t bits = cast_bits(type, std::bit_cast<float>(pattern(i)));
        for (const int shift : {0, 8}) hash = (hash ^ ((bits >> shift) & 0xffu)) * 0x100000001b3u;
    }
    return hash;
}

// The file has hashes of these types where its author had another implementation.
TEST(PrecisionFixturesF16, Hashes) {
    for (const auto& [name, value] : fixtures_of_f16().at("hashes").items()) {
        const size_t dot = name.find('.');
        const std::string pattern = name.substr(0, dot), type = dot == name.npos ? "" : name.substr(dot + 1);
        if (type != "f16" && type != "bf16") continue;
        const uint64_t hash = pattern == "multiplicative"
                                  ? hash_of_casts(type, [](uint32_t i) { return i * 2654435761u; })
                                  : hash_of_casts(type, [](uint32_t i) { return i << 16; });
        EXPECT_EQ(hash, std::stoull(value.text(), nullptr, 16)) << name;
    }
}

TEST(PrecisionFixturesF16, LossScale) {
    int cases = 0;
    for (const Json& c : fixtures_of_f16().at("scaler").at("cases")) {
        ASSERT_EQ(c.at("growth").get<double>(), 2);
        ASSERT_EQ(c.at("backoff").get<double>(), 0.5);
        spec::RunSpec run;
        run.precision = {.compute = "f16",
                         .loss_scale_initial = c.at("initial").get<double>(),
                         .loss_scale_least = c.at("least").get<double>(),
                         .loss_scale_interval = c.at("interval").get<int64_t>(),
                         .loss_scale_hysteresis = c.at("hysteresis").get<int64_t>()};
        LossScale scale = first_loss_scale(run);
        const std::string skips = c.at("non_finite").text();
        const Json& after = c.at("scale_growth_hysteresis_after_step");
        ASSERT_EQ(after.size(), skips.size());
        for (size_t step = 0; step < skips.size(); ++step) {
            scale = next_loss_scale(run, scale, skips[step] == 'x');
            const Json& wanted = after[step];
            EXPECT_EQ(scale.value, wanted[0].get<double>()) << "case " << cases << ", step " << step;
            EXPECT_EQ(scale.good, wanted[1].get<int64_t>()) << "case " << cases << ", step " << step;
            EXPECT_EQ(scale.hysteresis, wanted[2].get<int64_t>()) << "case " << cases << ", step " << step;
        }
        ++cases;
    }
    EXPECT_GT(cases, 0);
}

// --- not in the file

TEST(LossScale, DoublesUpToTheLargestPowerOfF32AndFallsToItsLeast) {
    spec::RunSpec run;
    run.precision = {.compute = "f16", .loss_scale_interval = 1, .loss_scale_hysteresis = 1};
    LossScale scale{.value = 0x1p126, .hysteresis = 1};
    for (const double wanted : {0x1p127, 0x1p127, 0x1p127}) {
        scale = next_loss_scale(run, scale, false);
        EXPECT_EQ(scale.value, wanted);
    }
    scale.value = 4;
    for (const double wanted : {2, 1, 1}) {
        EXPECT_EQ(may_fall(run, scale), scale.value > 1);
        scale = next_loss_scale(run, scale, true);
        EXPECT_EQ(scale.value, wanted);
    }
}

TEST(LossScale, AFixedOneStays) {
    spec::RunSpec run;
    run.precision = {.compute = "f16", .loss_scale = "1024"};
    LossScale scale = first_loss_scale(run);
    EXPECT_EQ(scale.value, 1024);
    for (int i = 0; i < 5; ++i) scale = next_loss_scale(run, scale, true);
    EXPECT_EQ(scale, first_loss_scale(run));
    EXPECT_FALSE(may_fall(run, scale));
    run.precision.loss_scale = "auto";
    EXPECT_EQ(spec::fixed_loss_scale(run), std::nullopt);
    run.precision.compute = "bf16";
    EXPECT_EQ(spec::fixed_loss_scale(run), 1);
}

}  // namespace
}  // namespace tutti::engine
