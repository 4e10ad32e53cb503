// Tests of the CPU tables beyond the list of kernel cases: errors of the vector functions in ulp, exact rounding, exact
// masks, and the same bits for any number of threads. Each for every instruction set of this machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tutti/base/philox.h"
#include "tutti/kernels/cpu/fill.h"

namespace tutti::kernels {
namespace {

std::vector<Isa> isas() {
    std::vector<Isa> list;
    for (const Isa isa : {Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx})
        if (best_isa() >= isa) list.push_back(isa);
    return list;
}

// The sizes are those of AMX.
OwnGemm emulated_tiles() {
    OwnGemm own = own_gemm(Isa::amx);
    own.gemm = amx_emulated::gemm;
    return own;
}

VectorMath math_of(Isa isa) {
    switch (isa) {
        case Isa::avx2: return avx2::vector_math();
        case Isa::avx512: return avx512::vector_math();
        case Isa::avx512_bf16:
        case Isa::amx: return avx512_bf16::vector_math();
    }
    return {};
}

template <class T>
View view(std::vector<T>& values) {
    return View(values.data(), dtype_of<T>(), {static_cast<int64_t>(values.size())});
}

// All floats whose bits are a multiple of `step`: 2^32 / step values over every exponent and both signs, NaNs included.
std::vector<float> all_floats(uint32_t step) {
    std::vector<float> values;
    for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += step)
        values.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
    return values;
}

double ulp_of(double exact) {
    const double magnitude = std::max(std::abs(exact), 0x1p-126);
    return std::ldexp(1.0, std::ilogb(magnitude) - 23);
}

// The largest error of `function` against `exact` over a dense sweep, in ulp of the exact value; what differs from the
// exact value's nearest float in another way than by rounding counts as 1e30. Where the exact value is below the least
// normal float, 0 is right as well.
struct Sweep {
    double ulp = 0;
    float worst_x = 0;
};
Sweep sweep(void (*function)(const float*, float*, int64_t), double (*exact)(double)) {
    const std::vector<float> x = all_floats(241);  // odd: all low bits occur; 17.8 million values
    std::vector<float> y(x.size());
    function(x.data(), y.data(), static_cast<int64_t>(x.size()));
    Sweep result;
    for (size_t i = 0; i < x.size(); ++i) {
        const double want = exact(static_cast<double>(x[i]));
        const bool flushed = want >= 0 && want < 0x1p-126 && y[i] == 0;
        double error = 0;
        if (std::isnan(want))
            error = std::isnan(y[i]) ? 0 : 1e30;
        else if (static_cast<float>(want) != y[i] && !flushed)
            error = std::isfinite(y[i]) ? std::abs(static_cast<double>(y[i]) - want) / ulp_of(want) : 1e30;
        if (error > result.ulp) result = {error, x[i]};
    }
    return result;
}

TEST(vector_math, errors_in_ulp) {
    for (const Isa isa : isas()) {
        SCOPED_TRACE(name_of(isa));
        const VectorMath math = math_of(isa);
        const Sweep exponential = sweep(math.exp, [](double x) { return std::exp(x); });
        EXPECT_LE(exponential.ulp, 1.5) << "at " << exponential.worst_x;
        const Sweep power = sweep(math.exp2, [](double x) { return std::exp2(x); });
        EXPECT_LE(power.ulp, 2.1) << "at " << power.worst_x;
        const Sweep logistic = sweep(math.sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); });
        EXPECT_LE(logistic.ulp, 3.0) << "at " << logistic.worst_x;
        RecordProperty(std::string(name_of(isa)) + "_exp", std::to_string(exponential.ulp));
        RecordProperty(std::string(name_of(isa)) + "_sigmoid", std::to_string(logistic.ulp));
    }
}

// The largest relative error over 2 million values evenly spread over [low, high].
double relative_error(void (*function)(const float*, float*, int64_t), double (*exact)(double), double low,
                      double high) {
    std::vector<float> x(2'000'001);
    for (size_t i = 0; i < x.size(); ++i)
        x[i] = static_cast<float>(low + (high - low) * static_cast<double>(i) / static_cast<double>(x.size() - 1));
    std::vector<float> y(x.size());
    function(x.data(), y.data(), static_cast<int64_t>(x.size()));
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
        const double want = exact(static_cast<double>(x[i]));
        const double error = std::abs(static_cast<double>(y[i]) - want) / want;
        worst = std::max(worst, std::isnan(error) ? 1e30 : error);
    }
    return worst;
}

// The bounds of simd.h and vec_*.h: 2^-13.7 and 2^-14 of the parts add up to less than 2^-12.8.
TEST(vector_math, relative_errors) {
    const auto logistic = [](double x) { return 1 / (1 + std::exp(-x)); };
    for (const Isa isa : isas()) {
        SCOPED_TRACE(name_of(isa));
        const VectorMath math = math_of(isa);
        const auto inverse = [](double x) { return 1 / x; };
        EXPECT_LE(relative_error(math.reciprocal, inverse, 1, 2), 0x1p-23);
        EXPECT_LE(relative_error(math.reciprocal, inverse, 2, 0x1p126), 0x1p-23);
        EXPECT_LE(relative_error(
                      math.exp2_for_bf16, [](double x) { return std::exp2(x); }, -126, 126),
                  0x1.4p-14);
        EXPECT_LE(relative_error(math.sigmoid_for_bf16, logistic, -87, 87), 0x1.2p-13);
        float least = -200, y = 1;
        math.sigmoid_for_bf16(&least, &y, 1);
        EXPECT_LE(y, 0x1.01p-126f);
    }
}

TEST(vector_math, special_values) {
    constexpr float kInf = std::numeric_limits<float>::infinity();
    const std::vector<float> x = {kInf, -kInf, 0.0f, -0.0f, 88.8f, -104.0f, std::nanf(""), 88.72283f};
    std::vector<float> y(x.size());
    const auto size = static_cast<int64_t>(x.size());
    for (const Isa isa : isas()) {
        SCOPED_TRACE(name_of(isa));
        math_of(isa).exp(x.data(), y.data(), size);
        EXPECT_EQ(y[0], kInf);
        EXPECT_EQ(y[1], 0.0f);
        EXPECT_EQ(y[2], 1.0f);
        EXPECT_EQ(y[3], 1.0f);
        EXPECT_EQ(y[4], kInf);
        EXPECT_EQ(y[5], 0.0f);
        EXPECT_TRUE(std::isnan(y[6]));
        EXPECT_TRUE(std::isfinite(y[7]));  // the largest float below ln of the largest float
        math_of(isa).sigmoid(x.data(), y.data(), size);
        EXPECT_EQ(y[0], 1.0f);
        EXPECT_EQ(y[1], 0.0f);
        EXPECT_EQ(y[2], 0.5f);
        EXPECT_TRUE(std::isnan(y[6]));
        math_of(isa).sigmoid_for_bf16(x.data(), y.data(), size);
        EXPECT_TRUE(std::isnan(y[6]));
    }
}

// Values on and around every bf16 and every tie between two, in both vectors and tails.
TEST(cast, rounds_as_base_does) {
    std::vector<float> x;
    for (uint32_t high = 0; high < 0x10000u; ++high)
        for (const uint32_t low : {0x0000u, 0x0001u, 0x1000u, 0x2fffu, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
            x.push_back(std::bit_cast<float>((high << 16) | low));
    x.resize(x.size() - 3);
    std::vector<bf16> brain(x.size());
    std::vector<f16> half(x.size());
    std::vector<float> back(x.size());
    for (const Isa isa : isas()) {
        SCOPED_TRACE(name_of(isa));
        const KernelTable& table = cpu_table(isa);
        table.cast(Stream{2}, view(x), view(brain));
        table.cast(Stream{2}, view(x), view(half));
        int64_t wrong_bf16 = 0, wrong_f16 = 0, wrong_back = 0;
        for (size_t i = 0; i < x.size(); ++i) {
            wrong_bf16 += brain[i].bits != bf16_bits(x[i]);
            wrong_f16 += half[i].bits != f16_bits(x[i]);
        }
        EXPECT_EQ(wrong_bf16, 0);
        EXPECT_EQ(wrong_f16, 0);
        table.cast(Stream{2}, view(brain), view(back));
        for (size_t i = 0; i < x.size(); ++i)
            wrong_back += std::bit_cast<uint32_t>(back[i]) != std::bit_cast<uint32_t>(bf16_value(brain[i].bits));
        EXPECT_EQ(wrong_back, 0);
        for (int64_t n = 1; n <= 33; ++n) {  // nothing beyond a tail is written
            std::vector<bf16> padded(static_cast<size_t>(n) + 1, bf16(7.0f));
            table.cast(Stream{1}, View(x.data() + 4096, DType::f32, {n}), View(padded.data(), DType::bf16, {n}));
            EXPECT_EQ(padded[static_cast<size_t>(n - 1)].bits, bf16_bits(x[static_cast<size_t>(4096 + n - 1)]));
            EXPECT_EQ(static_cast<float>(padded.back()), 7.0f);
        }
    }
}

// The mask is that of base/philox.h: odd widths, offsets within a block of four, indices beyond 2^32 and a block number
// that crosses 2^32 inside one batch.
TEST(dropout, mask_is_philox) {
    struct Case {
        int64_t columns, offset, total;
        std::vector<int64_t> rows;
    };
    const std::vector<Case> cases = {{1, 0, 1, {0, 1, 2, 3}},
                                     {37, 3, 101, {0, 5, 6, 1000000007}},
                                     {768, 0, 768, {9, 8, 7}},
                                     {1101, 7, 2203, {0, 1, (int64_t{1} << 33) + 5}},
                                     {600, (int64_t{1} << 34) - 301, 0, {0}}};
    for (const Isa isa : isas())
        for (const float probability : {0.0f, 0.1f, 0.5f, 1.0f})
            for (const Case& c : cases) {
                SCOPED_TRACE(testing::Message() << name_of(isa) << " columns " << c.columns << " p " << probability);
                std::vector<int64_t> row_index = c.rows;
                const auto rows = static_cast<int64_t>(row_index.size());
                std::vector<float> x(static_cast<size_t>(rows * c.columns), 3.0f), y(x.size());
                const Dropout dropout{random_key(7, "test"), probability, view(row_index), c.offset, c.total};
                cpu_table(isa).dropout(Stream{2}, View(x.data(), DType::f32, {rows, c.columns}), dropout,
                                       View(y.data(), DType::f32, {rows, c.columns}));
                int64_t wrong = 0;
                for (int64_t n = 0; n < rows; ++n)
                    for (int64_t k = 0; k < c.columns; ++k) {
                        const int64_t index = row_index[static_cast<size_t>(n)] * c.total + c.offset + k;
                        const bool kept = uniform(dropout.key, static_cast<uint64_t>(index)) >= probability;
                        const float want =
                            kept ? 3.0f * static_cast<float>(1 / (1 - static_cast<double>(probability))) : 0;
                        wrong += y[static_cast<size_t>(n * c.columns + k)] != want;
                    }
                EXPECT_EQ(wrong, 0);
            }
}

std::vector<float> noise(int64_t n, const char* purpose) {
    std::vector<float> values(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i)
        values[static_cast<size_t>(i)] = normal(random_key(3, purpose), static_cast<uint64_t>(i));
    return values;
}

TEST(reduction, same_bits_for_any_thread_count) {
    for (const Isa isa : isas())
        for (const int64_t n : {1, 17, 4096, 100003, 1500001}) {
            SCOPED_TRACE(testing::Message() << name_of(isa) << " n " << n);
            const KernelTable& table = cpu_table(isa);
            std::vector<float> x = noise(n, "sum");
            std::vector<double> first;
            for (const int threads : {1, 2, 3, 7}) {
                std::vector<double> sums(static_cast<size_t>((n + kSumBlock - 1) / kSumBlock));
                table.sums_of_squares(Stream{threads}, view(x), view(sums));
                if (threads == 1) first = sums;
                EXPECT_EQ(sums, first);
            }
        }
}

TEST(weight_gradients, same_bits_for_any_thread_count) {
    constexpr int64_t kRows = 1003, kColumns = 771, kVocabulary = 50;
    std::vector<float> x = noise(kRows * kColumns, "x"), dy = noise(kRows * kColumns, "dy"),
                       mean = noise(kRows, "mean"), rstd = noise(kRows, "rstd");
    std::vector<int32_t> tokens(kRows);
    for (int64_t n = 0; n < kRows; ++n)
        tokens[static_cast<size_t>(n)] = static_cast<int32_t>(uniform_below(5, static_cast<uint64_t>(n), kVocabulary));
    const View x_view(x.data(), DType::f32, {kRows, kColumns}), dy_view(dy.data(), DType::f32, {kRows, kColumns});
    for (const Isa isa : isas()) {
        SCOPED_TRACE(name_of(isa));
        const KernelTable& table = cpu_table(isa);
        std::vector<std::vector<float>> first;
        for (const int threads : {1, 2, 5}) {
            const Stream stream{threads};
            std::vector<float> db(kColumns), dw(kColumns), dw_rms(kColumns), bias(kColumns),
                table_gradient(kVocabulary * kColumns);
            table.bias_backward(stream, dy_view, view(bias));
            table.norm_backward_weight(stream, dy_view, x_view, view(mean), view(rstd), view(dw), view(db));
            table.norm_backward_weight(stream, dy_view, x_view, {}, view(rstd), view(dw_rms), {});
            table.embedding_backward(stream, view(tokens), dy_view, 0,
                                     View(table_gradient.data(), DType::f32, {kVocabulary, kColumns}));
            const std::vector<std::vector<float>> all = {bias, dw, db, dw_rms, table_gradient};
            if (first.empty()) first = all;
            EXPECT_TRUE(all == first) << threads << " threads";
            EXPECT_EQ(bias, db);
        }
    }
}

// Sizes beyond one packed block: several pieces of K, of the columns and of the rows, and edges everywhere. Whole
// numbers, whose sums are exact, so every element is checked against integer arithmetic.
struct Pieces {
    int64_t M, N, K;
    bool transpose_a, transpose_b;
};
// a and b of `p`, and the rows of their product that are looked at: every 37th of many.
class WholeProduct {
  public:
    explicit WholeProduct(const Pieces& p) : p_(p), a_(size(p.M, p.K)), b_(size(p.K, p.N)), step_(p.M > 100 ? 37 : 1) {
        for (int64_t m = 0; m < p.M; ++m)
            for (int64_t k = 0; k < p.K; ++k)
                a_[static_cast<size_t>(p.transpose_a ? k * p.M + m : m * p.K + k)] = bf16(number(m, k, m * k / 11));
        for (int64_t k = 0; k < p.K; ++k)
            for (int64_t n = 0; n < p.N; ++n)
                b_[static_cast<size_t>(p.transpose_b ? n * p.K + k : k * p.N + n)] = bf16(number(k, n, k * n / 13));
        for (int64_t m = 0; m < p.M; m += step_)
            for (int64_t n = 0; n < p.N; ++n) {
                float sum = 1;  // below 2^24: exact
                for (int64_t k = 0; k < p.K; ++k) sum += number(m, k, m * k / 11) * number(k, n, k * n / 13);
                expected_.push_back(sum);
            }
    }

    // c = 1 + a b: b packed for one product, packed for a cache, and packed for a cache by another number of threads.
    void expect(const OwnGemm& own) {
        std::vector<float> packed;
        for (const auto& [threads, keeps_b] : {std::pair{1, false}, {3, false}, {2, true}, {3, true}}) {
            std::vector<float> c(size(p_.M, p_.N), 1.0f);
            const Shape shape_a = p_.transpose_a ? Shape{p_.K, p_.M} : Shape{p_.M, p_.K};
            const Shape shape_b = p_.transpose_b ? Shape{p_.N, p_.K} : Shape{p_.K, p_.N};
            Gemm g{View(a_.data(), DType::bf16, shape_a),
                   View(b_.data(), DType::bf16, shape_b),
                   View(c.data(), DType::f32, {p_.M, p_.N}),
                   p_.transpose_a,
                   p_.transpose_b,
                   true};
            const std::vector<bf16> nothing(b_.size(), bf16(NAN));
            if (keeps_b) {
                g.b_is_packed = !packed.empty();
                if (g.b_is_packed) g.b.data = const_cast<bf16*>(nothing.data());
                packed.resize(static_cast<size_t>(own.packed_b(Stream{.threads = threads}, g)), NAN);
                g.packed_b = view(packed);
            }
            std::vector<float> workspace(static_cast<size_t>(own.workspace(Stream{.threads = threads}, g)));
            g.workspace = view(workspace);
            own.gemm(Stream{.threads = threads}, g);
            std::vector<float> seen;
            for (int64_t m = 0; m < p_.M; m += step_)
                seen.insert(seen.end(), c.begin() + m * p_.N, c.begin() + (m + 1) * p_.N);
            EXPECT_TRUE(seen == expected_)
                << p_.M << " x " << p_.N << " x " << p_.K << ", threads " << threads << (keeps_b ? ", b kept" : "");
        }
    }

  private:
    static size_t size(int64_t rows, int64_t columns) { return static_cast<size_t>(rows * columns); }
    static float number(int64_t row, int64_t column, int64_t salt) {
        return static_cast<float>((row * 7 + column * 3 + salt) % 5 - 2);
    }

    Pieces p_;
    std::vector<bf16> a_, b_;
    int64_t step_;
    std::vector<float> expected_;
};

TEST(gemm, sums_over_pieces_are_exact) {
    for (const Pieces& p : {Pieces{33, 70, 20001, false, false},      // K in three pieces of pairs
                            Pieces{40, 50, 9001, true, true},         // and of a that is packed
                            Pieces{70, 36000, 300, false, true},      // columns in pieces
                            Pieces{30000, 40, 600, true, false},      // rows in pieces
                            Pieces{260, 530, 8300, false, false}}) {  // several blocks whose sums wait
        WholeProduct product(p);
        for (const Isa isa : isas()) product.expect(own_gemm(isa));
        if (best_isa() >= Isa::avx512) product.expect(emulated_tiles());
    }
}

// Values of the type of `t` that arrays of floats may be cast to.
struct Matrix {
    Matrix(DType t, int64_t rows, int64_t columns, const char* purpose) {
        std::vector<float> numbers(static_cast<size_t>(rows * columns));
        for (size_t i = 0; i < numbers.size(); ++i)
            numbers[i] = static_cast<float>(tutti::normal(random_key(4, purpose), i));
        bytes.resize(numbers.size() * static_cast<size_t>(size_of(t)));
        view = View(bytes.data(), t, {rows, columns});
        reference_table().cast(Stream{}, View(numbers.data(), DType::f32, {rows, columns}), view);
    }
    std::vector<char> bytes;
    View view;
};

// For any number of threads.
TEST(rope_table, has_the_bits_of_the_c_library) {
    constexpr int64_t kPositions = 3000, kHalf = 24;
    std::vector<double> frequencies(kHalf);
    for (size_t k = 0; k < frequencies.size(); ++k) frequencies[k] = std::pow(5e5, -static_cast<double>(k) / kHalf);
    std::vector<float> expected_cosines, expected_sines;
    for (int64_t p = 0; p < kPositions; ++p)
        for (const double frequency : frequencies) {
            expected_cosines.push_back(static_cast<float>(1.25 * std::cos(static_cast<double>(p) * frequency)));
            expected_sines.push_back(static_cast<float>(1.25 * std::sin(static_cast<double>(p) * frequency)));
        }
    for (const int threads : {1, 2, 7}) {
        std::vector<float> cosines(expected_cosines.size()), sines(expected_sines.size());
        cpu_table(best_isa())
            .rope_table(Stream{.threads = threads}, view(frequencies), 1.25,
                        View(cosines.data(), DType::f32, {kPositions, kHalf}),
                        View(sines.data(), DType::f32, {kPositions, kHalf}));
        EXPECT_EQ(cosines, expected_cosines);
        EXPECT_EQ(sines, expected_sines);
    }
}

TEST(table, is_complete_and_named) {
    for (const Isa isa : isas()) {
        const KernelTable& table = cpu_table(isa);
        EXPECT_EQ(table.name, concat("cpu-", name_of(isa)));
        EXPECT_NE(table.fill, nullptr);
        EXPECT_NE(table.adamw, nullptr);
        EXPECT_EQ(&table, &cpu_table(isa));
    }
}

}  // namespace
}  // namespace tutti::kernels
