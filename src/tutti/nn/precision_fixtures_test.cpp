// Golden values of 8-bit codes, from an independent float64 and integer computation: the file
// tests/precision/fixtures.json, or the one that TUTTI_PRECISION_FIXTURES names, whose notes say how each was made.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>

#include "tutti/base/float8.h"
#include "tutti/base/json.h"
#include "tutti/base/philox.h"
#include "tutti/base/read_file.h"
#include "tutti/base/to_size.h"
#include "tutti/nn/delayed.h"
#include "tutti/nn/quantized.h"
#include "tutti/ops/ops.h"
#include "tutti/ops/quantize.h"
#include "tutti/ops/testing/bits.h"
#include "tutti/spec/recipe.h"

namespace tutti::nn::precision_fixtures_test {
namespace {

using namespace ops;

const Json& fixtures() {
    static const Json all = [] {
        const char* path = std::getenv("TUTTI_PRECISION_FIXTURES");
        return Json::parse(read_file(path != nullptr ? path : TUTTI_PRECISION_FIXTURES_FILE));
    }();
    return all;
}

// Hex digits, `digits` an element.
std::vector<uint32_t> hex(const Json& text, size_t digits) {
    const std::string all = text.text();
    std::vector<uint32_t> numbers;
    for (size_t i = 0; i + digits <= all.size(); i += digits)
        numbers.push_back(static_cast<uint32_t>(std::stoul(all.substr(i, digits), nullptr, 16)));
    return numbers;
}
float as_float(uint32_t bits) { return std::bit_cast<float>(bits); }

// FNV-1a of 64 bits (Fowler, Noll, Vo).
uint64_t fnv(const void* data, size_t bytes) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < bytes; ++i) hash = (hash ^ static_cast<const uint8_t*>(data)[i]) * 0x100000001b3u;
    return hash;
}
uint64_t fnv(const std::vector<uint8_t>& bytes) { return fnv(bytes.data(), bytes.size()); }
uint64_t number_of(const Json& text) { return std::stoull(text.text(), nullptr, 16); }

TEST(PrecisionFixturesFloat8, Casts) {
    const Json& f = fixtures().at("casts");
    const std::vector<uint32_t> x = hex(f.at("f32"), 8);
    ASSERT_GT(x.size(), 100u);
    for (const auto& [name, format] : {std::pair{"e4m3", kE4m3}, {"e5m2", kE5m2}}) {
        const std::vector<uint32_t> codes = hex(f.at(name), 2);
        ASSERT_EQ(codes.size(), x.size());
        for (size_t i = 0; i < x.size(); ++i)
            EXPECT_EQ(float8_code(as_float(x[i]), format), codes[i]) << name << ' ' << as_float(x[i]);
    }
}

TEST(PrecisionFixturesFloat8, HashesOfAllPatterns) {
    const Json& f = fixtures().at("hashes");
    for (const auto& [name, format] : {std::pair{"e4m3", kE4m3}, {"e5m2", kE5m2}}) {
        std::vector<uint8_t> bf16_patterns, multiplicative;
        for (uint32_t i = 0; i < 65536; ++i) {
            bf16_patterns.push_back(float8_code(as_float(i << 16), format));
            multiplicative.push_back(float8_code(as_float(i * 2654435761u), format));
        }
        EXPECT_EQ(fnv(bf16_patterns), number_of(f.at(concat("bf16_patterns.", name)))) << name;
        EXPECT_EQ(fnv(multiplicative), number_of(f.at(concat("multiplicative.", name)))) << name;
    }
}

// The values of codes: the hash is that of cuda_fp8.h's conversions to f32, with NaN as 0.
TEST(PrecisionFixturesFloat8, ValuesOfAllCodes) {
    for (const auto& [format, hash] : {std::pair{kE4m3, 0x854cabd1defe4645u}, {kE5m2, 0xa5377db4cd98b445u}}) {
        std::vector<float> values;
        for (uint32_t code = 0; code < 256; ++code) {
            const float value = float8_value(static_cast<uint8_t>(code), format);
            values.push_back(std::isnan(value) ? 0.0f : value);
            if (std::isfinite(value)) {
                EXPECT_EQ(float8_code(value, format), code);
            }
        }
        EXPECT_EQ(fnv(values.data(), values.size() * sizeof(float)), hash);
    }
    static_assert(float8_code(1, kE4m3) == 0x38 && float8_value(0x7e, kE4m3) == 448 && e8m0_value(127) == 1);
}

TEST(PrecisionFixturesFloat8, ScalesOfGroups) {
    const Json& f = fixtures().at("scales");
    const std::vector<uint32_t> amax = hex(f.at("amax"), 8);
    for (const auto& [name, format] : {std::pair{"e4m3", kE4m3}, {"e5m2", kE5m2}}) {
        const Json& of = f.at(name);
        const auto scale = hex(of.at("scale"), 8), pow2 = hex(of.at("pow2"), 8), codes = hex(of.at("e8m0_up"), 2);
        ASSERT_EQ(scale.size(), amax.size());
        const float largest = largest_of(DType::bf16);
        for (size_t i = 0; i < amax.size(); ++i) {
            const float a = as_float(amax[i]);
            EXPECT_EQ(float8_factor(a, format, largest, false), as_float(scale[i])) << name << ' ' << a;
            EXPECT_EQ(float8_factor(a, format, largest, true), as_float(pow2[i])) << name << ' ' << a;
            EXPECT_EQ(e8m0_divisor(a, format), codes[i]) << name << ' ' << a;
        }
    }
}

// Round up of every power of two: the E8M0 codes of cuda_fp8.h for the non-negative finite numbers of bf16.
TEST(PrecisionFixturesFloat8, E8m0OfAllMagnitudes) {
    std::vector<uint8_t> codes;
    for (uint32_t i = 0; i < 0x7f80; ++i) codes.push_back(e8m0_code_above(as_float(i << 16)));
    EXPECT_EQ(fnv(codes), 0xba9538a6e5b8931bu);
}

// A magnitude of 0, infinity or NaN changes neither history nor factor.
TEST(PrecisionFixturesFloat8, DelayedScales) {
    for (const Json& f : fixtures().at("delayed").at("cases").elements()) {
        const bool most_recent = f.at("algorithm").text() == "most_recent";
        const auto length = f.at("length").get<size_t>();
        for (const bool pow2 : {false, true}) {
            std::vector<float> magnitudes(length);
            float factor = as_float(hex(f.at("first_scale"), 8).front());
            for (size_t step = 0; step < f.at("amax_of_step").size(); ++step) {
                MagnitudeHistory{magnitudes, factor}.add(as_float(hex(f.at("amax_of_step")[step], 8).front()), kE4m3,
                                                         most_recent, pow2);
                uint32_t expected = hex(f.at("scale_after_step")[step], 8).front();
                if (pow2) expected &= 0xff800000u;
                EXPECT_EQ(std::bit_cast<uint32_t>(factor), expected) << step;
                const std::vector<uint32_t> history = hex(f.at("history_after_step")[step], 8);
                ASSERT_EQ(history.size(), length);
                for (size_t i = 0; i < length; ++i)
                    EXPECT_EQ(std::bit_cast<uint32_t>(magnitudes[i]), history[i]) << step << ' ' << i;
            }
        }
    }
}

// --- one linear layer ------------------------------------------------------------------------------------------------

int64_t centred(uint64_t seed, uint64_t i) { return static_cast<int64_t>(mix64(seed + i) >> 40) - (int64_t{1} << 23); }

struct Matrix {
    int64_t rows = 0, columns = 0;
    std::vector<float> values;
};

Matrix operand(uint64_t seed, int64_t rows, int64_t columns, int64_t spread) {
    Matrix m{rows, columns, {}};
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c) {
            const double x = static_cast<double>(centred(seed, static_cast<uint64_t>(r * columns + c))) * 0x1p-23;
            const int64_t exponent = (5 * c) % spread - spread / 2 + (3 * r) % 15 - 7;
            m.values.push_back(bf16_value(bf16_bits(static_cast<float>(std::ldexp(x, static_cast<int>(exponent))))));
        }
    return m;
}

Matrix transposed(const Matrix& x) {
    Matrix t{x.columns, x.rows, {}};
    for (int64_t c = 0; c < x.columns; ++c)
        for (int64_t r = 0; r < x.rows; ++r) t.values.push_back(x.values[to_size(r * x.columns + c)]);
    return t;
}

struct Linear {
    Matrix x, w, dy;
    Linear() {
        const Json& f = fixtures().at("linear");
        const auto seed = f.at("seed").get<uint64_t>();
        const auto M = f.at("M").get<int64_t>(), N = f.at("N").get<int64_t>(), K = f.at("K").get<int64_t>();
        x = operand(seed, M, K, 9);
        x.values[to_size(3 * K + 17)] = 96;
        w = operand((seed + 1) << 20, N, K, 3);
        dy = operand((seed + 2) << 20, M, N, 13);
        for (float& v : dy.values) v = bf16_value(bf16_bits(v * 0x1p-12f));
        for (const auto& [m, hash] : {std::pair{&x, "x_hash"}, {&w, "w_hash"}, {&dy, "dy_hash"}})
            EXPECT_EQ(fnv(m->values.data(), m->values.size() * sizeof(float)), number_of(f.at(hash))) << hash;
    }
};

Tensor in_bf16(Context& ctx, const Matrix& m) {
    const Tensor f32 = Tensor::from_host<float>(ctx.device, {m.rows, m.columns}, m.values, Purpose::activations);
    return cast(ctx, f32, DType::bf16);
}

// What the rule of a layer makes for its three products: "_t" of what is summed over rows.
std::map<std::string, Operand> operands_of(Context& ctx, const QuantizedProducts& rule, const Linear& l) {
    const Tensor x = in_bf16(ctx, l.x), dy = in_bf16(ctx, l.dy);
    Parameter w{.name = "w", .shape = {l.w.rows, l.w.columns}};
    w.value = in_bf16(ctx, l.w);
    std::map<std::string, Operand> made = {{"x", rule.input(ctx, x, {GemmRole::forward})},
                                           {"x_t", rule.input(ctx, x, {GemmRole::weight_gradient})},
                                           {"w", rule.weight(ctx, w, {GemmRole::forward})},
                                           {"w_t", rule.weight(ctx, w, {GemmRole::input_gradient})},
                                           {"dy", rule.gradient(ctx, dy, {GemmRole::input_gradient})},
                                           {"dy_t", rule.gradient(ctx, dy, {GemmRole::weight_gradient})}};
    for (auto& [name, operand] : made) operand.forms = nullptr;  // they end with the weight
    return made;
}

// Codes as they are stored, and factors before the cast (f32), or the codes of divisors.
void expect_quantized(const Operand& q, const Json& golden, const std::string& name) {
    const auto* codes = q.values.view().as<const uint8_t>();
    EXPECT_EQ(fnv(codes, to_size(q.values.bytes())), number_of(golden.at("codes_fnv"))) << name;
    std::string text;
    std::vector<uint8_t> bytes;
    for (int64_t i = 0; i < q.scales.numel(); ++i) {
        if (q.scales.dtype() == DType::e8m0) {
            bytes.push_back(q.scales.view().as<const uint8_t>()[i]);
        } else {
            const auto factor = std::bit_cast<uint32_t>(1 / q.scales.view().as<const float>()[i]);
            for (int b = 0; b < 4; ++b) bytes.push_back(static_cast<uint8_t>(factor >> (8 * b)));
            char digits[9];
            std::snprintf(digits, sizeof digits, "%08x", factor);
            text += digits;
        }
    }
    const std::string expected = golden.at("scales").text();
    if (!q.coding.powers_of_two) {  // 1 / (1 / factor) may be another number
        EXPECT_EQ(q.scales.view().as<const float>()[0], 1 / as_float(hex(golden.at("scales"), 8).at(0))) << name;
        return;
    }
    if (expected.starts_with("fnv:"))
        EXPECT_EQ(fnv(bytes), std::stoull(expected.substr(4), nullptr, 16)) << name;
    else
        EXPECT_EQ(text, expected) << name;
}

// sum_k a[i, k] b[j, k] in double.
std::vector<double> product(const std::vector<float>& a, const std::vector<float>& b, int64_t M, int64_t N, int64_t K) {
    std::vector<double> c(to_size(M * N));
    for (int64_t i = 0; i < M; ++i)
        for (int64_t j = 0; j < N; ++j)
            for (int64_t k = 0; k < K; ++k)
                c[to_size(i * N + j)] += double{a[to_size(i * K + k)]} * double{b[to_size(j * K + k)]};
    return c;
}

// `relative`: 0 where decoded values are exact in f32, as sums of their products are in double.
void expect_product(const std::vector<double>& c, int64_t N, const Json& golden, double relative, const char* name) {
    double sum = 0, squares = 0;
    for (const double v : c) sum += v, squares += v * v;
    const double size = std::sqrt(squares);
    for (const Json& entry : golden.at("entries").elements()) {
        const auto at = to_size(entry[0].get<int64_t>() * N + entry[1].get<int64_t>());
        const auto expected = entry[2].get<double>();
        EXPECT_NEAR(c[at], expected, relative * size + 1e-12 * std::abs(expected)) << name << ' ' << at;
    }
    EXPECT_NEAR(squares, golden.at("sum_of_squares").get<double>(), (relative + 1e-12) * squares) << name;
    EXPECT_NEAR(sum, golden.at("sum").get<double>(),
                (relative + 1e-12) * size * std::sqrt(static_cast<double>(c.size())))
        << name;
}

double snr_db(const std::vector<double>& exact, const std::vector<double>& c) {
    double signal = 0, noise = 0;
    for (size_t i = 0; i < c.size(); ++i) signal += exact[i] * exact[i], noise += std::pow(c[i] - exact[i], 2);
    return 10 * std::log10(signal / noise);
}

// Codes, divisors and decoded products of all tables, and then the products of ops.
TEST(PrecisionFixturesFloat8, ALinearLayer) {
    const Json& f = fixtures().at("linear");
    const Linear l;
    const int64_t M = l.x.rows, K = l.x.columns, N = l.w.rows;
    const auto exact_y = product(l.x.values, l.w.values, M, N, K);
    const auto exact_dx = product(l.dy.values, transposed(l.w).values, M, K, N);
    const auto exact_dw = product(transposed(l.dy).values, transposed(l.x).values, N, K, M);
    for (const Json& golden : f.at("recipes").elements()) {
        const std::string name = golden.at("recipe").text();
        const size_t dot = name.find('.');
        spec::PrecisionSpec p{.recipe = name.substr(0, dot), .scales = dot == std::string::npos ? "pow2" : "f32"};
        const spec::Recipe recipe = spec::recipe_of(p).value();
        EXPECT_EQ(name_of(recipe.x.format), golden.at("formats").front().text());
        EXPECT_EQ(name_of(recipe.dy.format), golden.at("formats").back().text());
        // Divisors that are not powers of two are rounded to f32, and so are decoded values.
        const double relative = recipe.powers_of_two ? 0 : 1e-6;
        for (const kernels::KernelTable* table : ops::testing::tables()) {
            SCOPED_TRACE(concat(name, " on ", table->name));
            const auto device = make_cpu_device(2);
            // As for kernels that multiply codes, which are the golden ones; below, as for others.
            kernels::KernelTable direct = *table;
            direct.gemm_of_codes = [](const Stream&, const kernels::Gemm&) { return true; };
            Context ctx{*device, *table}, of_codes{*device, direct};
            const QuantizedProducts rule(recipe, {}, false, false);
            std::map<std::string, Matrix> numbers;
            for (const auto& [what, operand] : operands_of(of_codes, rule, l)) {
                expect_quantized(operand, golden.at("quantized").at(what), what);
                numbers[what] = {operand.shape()[0], operand.shape()[1],
                                 decoded(of_codes, operand, DType::f32).to_host<float>()};
            }
            const auto turned = [&](const char* what) { return transposed(numbers.at(what)).values; };
            const auto y = product(numbers["x"].values, numbers["w"].values, M, N, K),
                       dx = product(numbers["dy"].values, turned("w_t"), M, K, N),
                       dw = product(turned("dy_t"), turned("x_t"), N, K, M);
            expect_product(y, N, golden.at("y"), relative, "y");
            expect_product(dx, K, golden.at("dx"), relative, "dx");
            expect_product(dw, K, golden.at("dw"), relative, "dw");
            const double least[] = {28, recipe.x.along > 0 ? 28.0 : 24.5, recipe.x.along > 0 ? 28.0 : 24.5};
            const double snr[] = {snr_db(exact_y, y), snr_db(exact_dx, dx), snr_db(exact_dw, dw)};
            for (size_t i = 0; i < 3; ++i) {
                EXPECT_NEAR(snr[i], golden.at("snr_db").at(i).get<double>(), 0.006) << i;
                EXPECT_GE(snr[i], least[i]) << i;
            }
            // ops: sums in f32, rounded to bf16 once; |c - exact| <= K 2^-24 sum |a| |b| + 2^-8 |c|, of which the first
            // term is here below 2^-13 of the norm of a row times that of a column.
            const auto near = [](const Tensor& c, const std::vector<double>& exact, const char* what) {
                const std::vector<float> values = c.to_floats();
                double size = 0;
                for (const double v : exact) size = std::max(size, std::abs(v));
                for (size_t i = 0; i < exact.size(); ++i)
                    ASSERT_NEAR(values[i], exact[i], 0x1.01p-8 * std::abs(exact[i]) + 1e-5 * size) << what << ' ' << i;
            };
            const std::map<std::string, Operand> made = operands_of(ctx, rule, l);
            near(linear(ctx, made.at("x"), made.at("w"), nullptr), y, "y");
            near(linear_backward_input(ctx, made.at("dy"), made.at("w_t")), dx, "dx");
            const Tensor dw_sum = zeros(ctx, {N, K}, DType::f32);
            linear_backward_weight(ctx, made.at("dy_t"), made.at("x_t"), dw_sum, true);
            near(dw_sum, dw, "dw");
        }
    }
}

}  // namespace
}  // namespace tutti::nn::precision_fixtures_test
