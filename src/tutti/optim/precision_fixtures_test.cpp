// Golden values of reduced precision in optimizers, from an independent float64 and integer computation: the file
// tests/precision/fixtures.json, or the one that TUTTI_PRECISION_FIXTURES names, whose notes say how each was made.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "tutti/base/dynamic_map.h"
#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/base/stochastic.h"
#include "tutti/base/to_size.h"
#include "tutti/ops/ops.h"
#include "tutti/optim/muon.h"
#include "tutti/optim/optimizer.h"

namespace tutti::optim {
namespace {

const Json& fixtures() {
    static const Json all = [] {
        const char* path = std::getenv("TUTTI_PRECISION_FIXTURES");
        return Json::parse(read_file(path != nullptr ? path : TUTTI_PRECISION_FIXTURES_FILE));
    }();
    return all;
}

// Hex digits, `digits` an element.
std::vector<uint64_t> numbers(const Json& text, size_t digits) {
    const std::string hex = text.text();
    std::vector<uint64_t> all;
    for (size_t i = 0; i + digits <= hex.size(); i += digits)
        all.push_back(std::stoull(hex.substr(i, digits), nullptr, 16));
    return all;
}
std::vector<float> floats(const Json& text) {
    std::vector<float> all;
    for (const uint64_t bits : numbers(text, 8)) all.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
    return all;
}

int64_t centred(uint64_t seed, uint64_t i) { return static_cast<int64_t>(mix64(seed + i) >> 40) - (int64_t{1} << 23); }

std::vector<const kernels::KernelTable*> tables() {
    std::vector<const kernels::KernelTable*> all = {&kernels::reference_table()};
    for (int isa = 0; isa <= static_cast<int>(kernels::best_isa()); ++isa)
        all.push_back(&kernels::cpu_table(static_cast<kernels::Isa>(isa)));
    return all;
}

TEST(PrecisionFixtures, DynamicMaps) {
    const Json& f = fixtures().at("dynamic_map");
    EXPECT_EQ(std::vector<float>(std::begin(kSignedMap.values), std::end(kSignedMap.values)), floats(f.at("signed")));
    EXPECT_EQ(std::vector<float>(std::begin(kUnsignedMap.values), std::end(kUnsignedMap.values)),
              floats(f.at("unsigned")));
    for (const DynamicMap* map : {&kSignedMap, &kUnsignedMap})
        for (int code = 0; code < 256; ++code) EXPECT_EQ(map->code_of(map->values[code]), code);
}

TEST(PrecisionFixtures, StochasticRounding) {
    const Json& f = fixtures().at("stochastic");
    const std::string purpose = f.at("purpose").text(), prefix = "optimizer.round.";
    ASSERT_EQ(purpose.substr(0, prefix.size()), prefix);
    const RandomKey key =
        rounding_key(f.at("seed").get<uint64_t>(), "", purpose.substr(prefix.size()), f.at("step").get<int64_t>());
    EXPECT_EQ(key, numbers(f.at("key"), 16).front());
    const std::vector<float> x = floats(f.at("x"));
    const std::vector<uint64_t> random = numbers(f.at("random16"), 4), rounded = numbers(f.at("bf16"), 4);
    for (size_t e = 0; e < x.size(); ++e) {
        EXPECT_EQ(rounding_bits(key, e), random[e]) << e;
        EXPECT_EQ(stochastic_bf16_bits(x[e], rounding_bits(key, e)), rounded[e]) << e << ' ' << x[e];
    }
    // The same by the kernels: from 0 a step of SGD with rate -1 leads to the gradient, which is rounded.
    for (const kernels::KernelTable* table : tables()) {
        const auto device = make_cpu_device(1);
        for (const size_t begin : {size_t{0}, size_t{5}}) {
            std::vector<float> g(x.begin() + static_cast<std::ptrdiff_t>(begin), x.end()), m(g.size());
            std::vector<bf16> p(g.size());
            const auto n = static_cast<int64_t>(p.size());
            const kernels::OptimizerPiece piece{.master = View(p.data(), DType::bf16, {n}),
                                                .gradient = View(g.data(), DType::f32, {n}),
                                                .m = {View(m.data(), DType::f32, {n})},
                                                .master_key = key,
                                                .elements = {static_cast<int64_t>(begin), n, n}};
            table->sgd(device->stream(), {.pieces = {&piece, 1}, .lr = -1});
            for (size_t i = 0; i < p.size(); ++i) {
                const float wanted = bf16_value(static_cast<uint16_t>(rounded[begin + i]));
                EXPECT_TRUE(static_cast<float>(p[i]) == wanted || (std::isnan(wanted) && std::isnan(g[i])))
                    << table->name << ' ' << i << ' ' << g[i] << ' ' << wanted;
            }
        }
    }
}

// AdamW of `n` elements with moments of these types on a table, step by step.
struct Steps {
    Steps(const Json& f, DType m_type, DType v_type) : n(f.at("n").get<int64_t>()), m(make(m_type)), v(make(v_type)) {
        a.lr = static_cast<float>(f.at("lr").get<double>());
        a.beta1 = static_cast<float>(f.at("beta1").get<double>());
        a.beta2 = static_cast<float>(f.at("beta2").get<double>());
        a.eps = static_cast<float>(f.at("eps").get<double>());
        piece.weight_decay = static_cast<float>(f.at("weight_decay").get<double>());
        const auto seed = f.at("seed").get<uint64_t>();
        for (int64_t i = 0; i < n; ++i)
            p.push_back(static_cast<float>(centred(seed, static_cast<uint64_t>(i))) * 0x1p-24f);
    }
    struct Values {
        DType type;
        std::vector<uint8_t> bytes;
        std::vector<float> largest;
    };
    Values make(DType type) const {
        return {type, std::vector<uint8_t>(to_size(n * size_of(type))),
                std::vector<float>(to_size((n + kernels::kStateBlock - 1) / kernels::kStateBlock))};
    }
    kernels::Moment view(Values& values) const {
        kernels::Moment moment{View(values.bytes.data(), values.type, {n})};
        if (values.type == DType::u8)
            moment.largest = View(values.largest.data(), DType::f32, {static_cast<int64_t>(values.largest.size())});
        return moment;
    }
    // One update with the gradients g, as update number `t`.
    void step(const kernels::KernelTable& table, const std::vector<float>& g, int t) {
        const auto device = make_cpu_device(1);
        piece.master = View(p.data(), DType::f32, {n});
        piece.gradient = View(const_cast<float*>(g.data()), DType::f32, {n});
        piece.m = view(m);
        piece.v = view(v);
        a.pieces = {&piece, 1};
        a.correction1 = static_cast<float>(1 - std::pow(double{a.beta1}, t));
        a.correction2 = static_cast<float>(1 - std::pow(double{a.beta2}, t));
        table.adamw(device->stream(), a);
    }
    template <class T>
    std::vector<T> of(const Values& values) const {
        const T* x = reinterpret_cast<const T*>(values.bytes.data());
        return {x, x + n};
    }

    int64_t n;
    Values m, v;
    std::vector<float> p;
    kernels::OptimizerPiece piece;
    kernels::AdamW a;
};

void expect_near(const std::vector<float>& got, const std::vector<float>& expected, double relative, double absolute,
                 const std::string& what) {
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], expected[i], absolute + relative * std::abs(double{expected[i]})) << what << ' ' << i;
}

TEST(PrecisionFixtures, Adam8) {
    const Json& f = fixtures().at("adam8");
    for (const kernels::KernelTable* table : tables()) {
        Steps adam(f, DType::u8, DType::u8);
        int t = 0;
        for (const Json& expected : f.at("steps")) {
            ++t;
            std::vector<float> g;
            for (int64_t i = 0; i < adam.n; ++i) {
                const auto seed = f.at("seed").get<uint64_t>() + uint64_t{1000003} * static_cast<uint64_t>(t);
                const double u = static_cast<double>(centred(seed, static_cast<uint64_t>(i)));
                g.push_back(t >= 2 && i >= 256 && i < 300
                                ? 0
                                : static_cast<float>(std::ldexp(u, -23 + static_cast<int>((7 * i + t) % 9) - 4)));
            }
            adam.step(*table, g, t);
            const std::string what = concat(table->name, ", step ", t);
            for (const auto& [codes, name] : {std::pair(&adam.m, "m_codes"), std::pair(&adam.v, "v_codes")}) {
                const std::vector<uint64_t> wanted = numbers(expected.at(name), 2);
                EXPECT_EQ(adam.of<uint8_t>(*codes), std::vector<uint8_t>(wanted.begin(), wanted.end())) << what << name;
            }
            expect_near(adam.m.largest, floats(expected.at("m_absmax")), 1e-6, 0, what);
            expect_near(adam.v.largest, floats(expected.at("v_absmax")), 1e-6, 0, what);
            expect_near(adam.p, floats(expected.at("p")), 1e-6 * t, 1e-6 * t, what);
        }
    }
}

TEST(PrecisionFixtures, HalfMoments) {
    const Json& f = fixtures().at("half_moments");
    for (const kernels::KernelTable* table : tables()) {
        Steps adam(f, DType::bf16, DType::f32);
        int t = 0;
        for (const Json& expected : f.at("steps")) {
            ++t;
            std::vector<float> g;
            for (int64_t i = 0; i < adam.n; ++i) {
                const auto seed = f.at("seed").get<uint64_t>() + uint64_t{1000003} * static_cast<uint64_t>(t);
                const auto u = static_cast<float>(centred(seed, static_cast<uint64_t>(i)));
                g.push_back(static_cast<float>(bf16(u * 0x1p-23f)));
            }
            const std::vector<bf16> before = adam.of<bf16>(adam.m);
            adam.step(*table, g, t);
            const std::string what = concat(table->name, ", step ", t);
            // Of two bf16 numbers 0.9 m + 0.1 g is often halfway between two, and the kernels' beta is f32(0.9).
            const std::vector<bf16> m = adam.of<bf16>(adam.m);
            const std::vector<uint64_t> wanted = numbers(expected.at("m"), 4);
            for (size_t i = 0; i < m.size(); ++i) {
                const double exact = adam.a.beta1 * static_cast<double>(static_cast<float>(before[i])) +
                                     (1 - double{adam.a.beta1}) * static_cast<double>(g[i]);
                const double below = bf16_value(m[i].bits), other = bf16_value(static_cast<uint16_t>(wanted[i]));
                EXPECT_NEAR((below + other) / 2, below == other ? below : exact, 1e-6 * std::abs(exact)) << what << i;
            }
            for (size_t i = 0; i < m.size(); ++i) {
                const auto bits = static_cast<uint16_t>(wanted[i]);
                std::memcpy(adam.m.bytes.data() + 2 * i, &bits, 2);
            }
            expect_near(adam.of<float>(adam.v), floats(expected.at("v")), 1e-6, 0, what);
            expect_near(adam.p, floats(expected.at("p")), 1e-6 * t, 1e-6 * t, what);
        }
    }
}

// Whole matrices on one rank.
class Alone final : public WholeMatrices {
  public:
    void transform(std::span<const Piece> pieces, std::span<const Tensor> values, DType,
                   const Transform& transform) override {
        for (size_t i = 0; i < pieces.size(); ++i)
            transform(std::vector{values[i].reshape(pieces[i].shard.parameter->shape)});
    }
};

TEST(PrecisionFixtures, Muon) {
    const Json& f = fixtures().at("muon");
    uint64_t number = 0;
    for (const Json& c : f.at("cases")) {
        const uint64_t seed = f.at("seed").get<uint64_t>() + number++;
        const Shape shape{c.at("shape").at(0).get<int64_t>(), c.at("shape").at(1).get<int64_t>()};
        const auto device = make_cpu_device(1);
        ops::Context ctx{*device, kernels::table_for(*device, ComputeType::f32)};
        autograd::Parameter p{.name = "w", .shape = shape, .role = autograd::Role::column};
        autograd::materialize(ctx, p, DType::f32, 1, true);
        const auto fill = [&](const Tensor& x, uint64_t of, double unit) {
            std::vector<float> values;
            for (uint64_t i = 0; i < to_size(shape.numel()); ++i)
                values.push_back(static_cast<float>(static_cast<double>(centred(of, i)) * unit));
            device->copy_in(x.view().data, values.data(), x.bytes());
        };
        fill(p.master, seed, 0x1p-26);
        Optimizer optimizer(ctx, whole_shards({&p}), {{.name = "muon", .weight_decay = 0.1}}, nullptr,
                            std::make_unique<Alone>());
        uint64_t t = 0;
        for (const Json& expected : c.at("steps")) {
            ++t;
            fill(p.gradient, seed + 7919 * t, 0x1p-23);
            optimizer.step(0.02, 1);
            const std::vector<float> got = p.master.to_host<float>();
            size_t i = 0;
            for (const Json& value : expected.at("p")) {
                ASSERT_NEAR(got[i], value.get<double>(), 2e-5) << shape << ", step " << t << ", element " << i;
                ++i;
            }
            EXPECT_EQ(i, got.size());
        }
    }
}

// Every iteration brings all singular values near 1, of wide and of tall matrices, in f32 and in bf16.
TEST(Muon, IterationsOrthogonalise) {
    for (const auto& [name, off] : {std::pair("simple", 0.35), {"quintic", 0.35}, {"polar_express", 0.1}})
        for (const DType type : {DType::f32, DType::bf16})
            for (const Shape& shape : {Shape{24, 64}, Shape{64, 24}}) {
                const auto device = make_cpu_device(1);
                ops::Context ctx{*device, kernels::table_for(*device, ComputeType::f32)};
                Tensor x = ops::empty(ctx, shape, DType::f32);
                ops::normal(ctx, {.y = x.view(), .key = 3, .std = 0.01f, .first = 0, .row_step = shape[1]});
                x = ops::cast(ctx, x, type);
                orthogonalise(ctx, {&x, 1}, newton_schulz(name));
                const std::vector<float> v = x.to_floats();
                const bool wide = shape[0] < shape[1];
                const int64_t m = wide ? shape[0] : shape[1], n = wide ? shape[1] : shape[0];
                double sum = 0;  // of the squares of singular values; each is then near 1 on average
                for (int64_t i = 0; i < m; ++i) {
                    double square = 0;
                    for (int64_t k = 0; k < n; ++k) {
                        const double at = v[to_size(wide ? i * n + k : k * m + i)];
                        square += at * at;
                    }
                    EXPECT_NEAR(square, 1, 2 * off + (type == DType::bf16 ? 0.05 : 0)) << name << ' ' << shape;
                    sum += square;
                }
                EXPECT_NEAR(sum / static_cast<double>(m), 1, off) << name << ' ' << shape << ' ' << type;
            }
}

}  // namespace
}  // namespace tutti::optim
