// Exactness of the 16-bit types, Philox against its published vectors, shapes, errors, exact sums, timing.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tutti/base/digits.h"
#include "tutti/base/dtype.h"
#include "tutti/base/error.h"
#include "tutti/base/exact_sum.h"
#include "tutti/base/philox.h"
#include "tutti/base/read_file.h"
#include "tutti/base/shape.h"
#include "tutti/base/timing.h"

namespace tutti {

namespace {

// Nearest representable value by search over all 65,536 codes; ties go to the even code.
template <class Decode>
uint16_t nearest(float x, Decode decode, uint16_t max_finite) {
    uint16_t best = 0;
    double best_error = std::numeric_limits<double>::infinity();
    const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    for (uint16_t code = 0; code <= max_finite; ++code) {
        const double error = std::abs(std::abs(static_cast<double>(x)) - decode(code));
        if (error < best_error || (error == best_error && (code & 1) == 0)) {
            best = code;
            best_error = error;
        }
    }
    return static_cast<uint16_t>(sign | best);
}

TEST(Retried, OnlyWhatASignalInterrupted) {
    int calls = 0;
    const auto ends_with = [&](int last) {
        return [&calls, last] {
            errno = ++calls < 3 ? EINTR : last;
            return calls < 3 || last != 0 ? -1 : 7;
        };
    };
    EXPECT_EQ(retried(ends_with(0)), 7);
    calls = 0;
    EXPECT_EQ(retried(ends_with(EIO)), -1);
    EXPECT_EQ(errno, EIO);
    EXPECT_EQ(calls, 3);
}

TEST(DType, EveryCodeSurvivesTheRoundTrip) {
    for (uint32_t code = 0; code < 65536; ++code) {
        const uint16_t bits = static_cast<uint16_t>(code);
        if (!std::isnan(bf16_value(bits))) {
            EXPECT_EQ(bf16_bits(bf16_value(bits)), bits);
        }
        if (!std::isnan(f16_value(bits))) {
            EXPECT_EQ(f16_bits(f16_value(bits)), bits);
        }
    }
}

TEST(DType, RoundsToNearestEven) {
    const auto key = random_key(1, "dtype");
    for (uint64_t i = 0; i < 200; ++i) {
        const float f = std::ldexp(normal(key, i), static_cast<int>(i % 30) - 24);
        EXPECT_EQ(f16_bits(f), nearest(f, f16_value, 0x7bff)) << f;
        EXPECT_EQ(bf16_bits(f), nearest(f, bf16_value, 0x7f7f)) << f;
    }
    // Ties: halfway between two neighbours goes to the even one.
    EXPECT_EQ(bf16_bits(1.0f + 0x1p-8f), 0x3f80);
    EXPECT_EQ(bf16_bits(1.0f + 3 * 0x1p-8f), 0x3f82);
    EXPECT_EQ(f16_bits(1.0f + 0x1p-11f), 0x3c00);
    EXPECT_EQ(f16_bits(1.0f + 3 * 0x1p-11f), 0x3c02);
    EXPECT_EQ(f16_bits(0x1p-25f), 0x0000);  // half of the smallest subnormal: to even zero
    EXPECT_EQ(f16_bits(std::nextafter(0x1p-25f, 1.0f)), 0x0001);
    EXPECT_EQ(f16_bits(65519.996f), 0x7bff);
    EXPECT_EQ(f16_bits(65520.0f), 0x7c00);
}

TEST(DType, NaNAndInfinity) {
    EXPECT_TRUE(std::isnan(bf16_value(bf16_bits(std::nanf("")))));
    EXPECT_TRUE(std::isnan(f16_value(f16_bits(std::nanf("")))));
    EXPECT_EQ(bf16_bits(-INFINITY), 0xff80);
    EXPECT_EQ(f16_bits(-INFINITY), 0xfc00);
    EXPECT_EQ(bf16_bits(3.4e38f), 0x7f80);  // above the largest bf16 by more than half a step
}

// FNV-1a 64 of the little-endian bytes, with one NaN. The expected values were computed by Python's struct, format 'e'.
template <class Word, class At>
uint64_t hash_of(At at) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (uint32_t i = 0; i < 65536; ++i) {
        const Word word = at(i);
        for (size_t shift = 0; shift < 8 * sizeof(Word); shift += 8)
            hash = (hash ^ ((word >> shift) & 0xffu)) * 0x100000001b3u;
    }
    return hash;
}

TEST(DType, F16IsPythonsOverPatternsOfF32AndAllOfItsOwn) {
    const auto cast = [](uint32_t bits) {
        const auto x = std::bit_cast<float>(bits);
        return std::isnan(x) ? uint16_t{0x7e00} : f16_bits(x);
    };
    EXPECT_EQ(hash_of<uint16_t>([&](uint32_t i) { return cast(i * 2654435761u); }), 0x5c08c26d7ff30ca7u);
    EXPECT_EQ(hash_of<uint16_t>([&](uint32_t i) { return cast(i << 16); }), 0x45c62c832ca49c65u);
    const auto in_range = [](uint32_t i) {  // from below the least subnormal to above the largest number
        return 0x32800000u + static_cast<uint32_t>(uint64_t{i} * (0x47800000u - 0x32800000u) / 65535u);
    };
    EXPECT_EQ(hash_of<uint16_t>([&](uint32_t i) { return cast(in_range(i)); }), 0x9505ecd089fdbf09u);
    const auto value = [](uint32_t i) {
        const float x = f16_value(static_cast<uint16_t>(i));
        return std::isnan(x) ? 0x7fc00000u : std::bit_cast<uint32_t>(x);
    };
    EXPECT_EQ(hash_of<uint32_t>(value), 0x1f87f165810ea7c5u);
    static_assert(f16(0x1p-24f).bits == 1 && static_cast<float>(f16(65504.0f)) == 65504 &&
                  f16(65520.0f).bits == 0x7c00);
    static_assert(is_compute_dtype(DType::f16) && !is_compute_dtype(DType::u16));
}

// Vectors of the Random123 distribution (kat_vectors, philox4x32 10 rounds).
TEST(Philox, KnownAnswer) {
    const auto zero = philox(0, 0);
    EXPECT_EQ(zero, (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
}

TEST(Philox, MomentsOfTheNormal) {
    const auto key = random_key(7, "moments");
    double sum = 0, squares = 0, fourth = 0;
    const int n = 200000;
    for (int i = 0; i < n; ++i) {
        const double x = normal(key, static_cast<uint64_t>(i));
        sum += x;
        squares += x * x;
        fourth += x * x * x * x;
    }
    EXPECT_NEAR(sum / n, 0.0, 5.0 / std::sqrt(n));  // 5 sigma
    EXPECT_NEAR(squares / n, 1.0, 5.0 * std::sqrt(2.0 / n));
    EXPECT_NEAR(fourth / n, 3.0, 5.0 * std::sqrt(96.0 / n));
}

// Against the maths library: at the ends of both words, at each change of octant and exponent, and at random words.
TEST(Philox, BoxMullerIsWhatItsFormulaSays) {
    std::vector<uint32_t> words;
    for (int bit = 0; bit < 32; ++bit)
        for (uint32_t near : {0xffffffffu, 0u, 1u}) words.push_back((uint32_t{1} << bit) + near);
    for (uint32_t octant = 0; octant < 8; ++octant) words.push_back(octant << 29);
    words.push_back(0xb504f333u);  // sqrt(1/2) 2^32
    for (uint64_t i = 0; i < 300; ++i) words.push_back(philox(5, i)[0]);
    for (uint32_t a : words)
        for (uint32_t b : words) {
            const double radius = std::sqrt(-2 * std::log((a + 1.0) * 0x1p-32)), angle = 2 * M_PI * b * 0x1p-32;
            float first = NAN, second = NAN;
            box_muller(a, b, first, second);
            // One rounding to float, and 1e-11 of the radius where sine or cosine vanish.
            ASSERT_NEAR(first, radius * std::cos(angle), 6e-8 * std::abs(first) + 1e-11 * radius) << a << " " << b;
            ASSERT_NEAR(second, radius * std::sin(angle), 6e-8 * std::abs(second) + 1e-11 * radius) << a << " " << b;
        }
}

TEST(Philox, StreamsDiffer) {
    EXPECT_NE(random_key(1, "a"), random_key(1, "b"));
    EXPECT_NE(random_key(1, "a"), random_key(2, "a"));
    EXPECT_NE(random_key(1, "a", 0), random_key(1, "a", 1));
}

TEST(Shape, IndexAndPrint) {
    const Shape s{2, 3, 5};
    EXPECT_EQ(s.numel(), 30);
    EXPECT_EQ(s[-1], 5);
    EXPECT_EQ(concat(s), "(2, 3, 5)");
    EXPECT_THROW(s[3], Error);
    EXPECT_EQ(Shape{}.numel(), 1);
}

// Against the stream that messages were written with.
template <class T>
void expect_text_of_stream(const T& value) {
    std::ostringstream stream;
    stream << value;
    EXPECT_EQ(concat("<", value, ">"), '<' + stream.str() + '>');
}

TEST(Error, AMessageHasTheTextsOfAStream) {
    std::mt19937_64 random(1);
    for (int i = 0; i < 2000; ++i) {
        const uint64_t bits = random();
        expect_text_of_stream(std::bit_cast<double>(bits));
        expect_text_of_stream(std::bit_cast<float>(static_cast<uint32_t>(bits)));
        expect_text_of_stream(std::ldexp(static_cast<double>(bits % 2000), static_cast<int>(bits % 41) - 30));
        expect_text_of_stream(bits >> bits % 64);
        expect_text_of_stream(static_cast<int64_t>(bits) >> bits % 64);
        expect_text_of_stream(static_cast<int>(bits));
        expect_text_of_stream(static_cast<int16_t>(bits));
    }
    for (const double x :
         {0.0, -0.0, 1e5, 999999.5, 1e6, 1e-4, 1e-5, 0.1, 1.0 / 3, 100000.0, 1234567.0, HUGE_VAL, -HUGE_VAL})
        expect_text_of_stream(x);
    for (const int64_t x : {INT64_MIN, INT64_MAX, int64_t{0}}) expect_text_of_stream(x);
    for (int c = 1; c < 128; ++c) {
        expect_text_of_stream(static_cast<char>(c));
        expect_text_of_stream(static_cast<unsigned char>(c));
    }
    enum Plain { first, second };
    expect_text_of_stream(second);
    expect_text_of_stream(true);
    expect_text_of_stream(DType::bf16);
    expect_text_of_stream(Shape{2, 3});
    expect_text_of_stream(std::string("a\0b", 3));
    expect_text_of_stream(std::string_view("part of it").substr(0, 4));
    EXPECT_EQ(concat(), "");
    EXPECT_EQ(joined(std::vector{1, 2, 3}), "1, 2, 3");
    EXPECT_EQ(joined(std::vector{1, 2, 3}, ", ", " and ", [](int n) { return n; }), "1, 2 and 3");
    EXPECT_EQ(joined(std::vector<std::string>{"a", "bc"}, "-", [](const std::string& text) { return text.size(); }),
              "1-2");
}

TEST(Error, CarriesItsExitCode) {
    try {
        check<DataError>(false, "x.bin: ", 3, " bytes");
        FAIL();
    } catch (const Error& e) {
        EXPECT_EQ(e.exit_code(), 3);
        EXPECT_STREQ(e.what(), "x.bin: 3 bytes");
    }
}

// Cases with known results, any order, any split; the largest and smallest doubles.

double sum(const std::vector<double>& terms) {
    ExactSum s;
    for (double t : terms) s.add(t);
    return s.value();
}

TEST(ExactSum, KeepsWhatRoundingWouldLose) {
    EXPECT_EQ(sum({}), 0);
    EXPECT_EQ(sum({1e300, 1, -1e300}), 1);
    EXPECT_EQ(sum({1, 1e-300, -1}), 1e-300);
    EXPECT_EQ(sum({-1, 0x1p-60}), -1 + 0x1p-60);
    EXPECT_EQ(sum({-3.5, 1.25}), -2.25);
    EXPECT_EQ(sum({5e-324, 5e-324}), 1e-323);
    EXPECT_EQ(sum({1.7976931348623157e308, -1.7976931348623157e308, 2}), 2);
    EXPECT_EQ(sum(std::vector<double>(1000, 0.1)),
              100);  // 0.1 exceeds a tenth by 5.6e-18: the exact sum rounds to 100
}

TEST(ExactSum, RoundsOnce) {
    EXPECT_EQ(sum({1, 0x1p-53}), 1);  // a tie, to even
    EXPECT_EQ(sum({1, 0x1p-53, 0x1p-500}), 1 + 0x1p-52);
    EXPECT_EQ(sum({1, 0x1p-53, -0x1p-500}), 1);
    EXPECT_EQ(sum({1 + 0x1p-52, 0x1p-53}), 1 + 0x1p-51);
    EXPECT_EQ(sum({-1, -0x1p-53, -0x1p-74}), -1 - 0x1p-52);
    for (uint64_t i = 0; i < 500; ++i) {  // a power of two moves the digits
        std::vector<double> terms;
        for (uint64_t j = 0; j < 40; ++j)
            terms.push_back(std::ldexp(normal(random_key(5, "scaled", i), j), static_cast<int>((i * j) % 60) - 30));
        const double one = sum(terms);
        const int exponent = static_cast<int>(i % 80) - 40;
        for (double& term : terms) term = std::ldexp(term, exponent);
        EXPECT_EQ(sum(terms), std::ldexp(one, exponent)) << i;
    }
}

TEST(ExactSum, SaysWhenATermIsNotFinite) {
    EXPECT_TRUE(std::isnan(sum({1, INFINITY, 2})));
    EXPECT_TRUE(std::isnan(sum({INFINITY, -INFINITY})));
    EXPECT_TRUE(std::isnan(sum({NAN})));
}

TEST(ExactSum, DoesNotDependOnOrderOrSplit) {
    std::vector<double> terms;
    for (uint64_t i = 0; i < 5000; ++i)
        terms.push_back(std::ldexp(normal(random_key(3, "terms"), i), static_cast<int>(i % 200) - 100));
    const double whole = sum(terms);
    long double plain = 0;
    for (double t : terms) plain += t;
    EXPECT_NEAR(whole, static_cast<double>(plain), 1e-15 * std::abs(whole));
    std::sort(terms.begin(), terms.end());
    EXPECT_EQ(sum(terms), whole);
    for (size_t parts : {2, 3, 7}) {
        ExactSum::Words words{};
        for (size_t p = 0; p < parts; ++p) {
            ExactSum part;
            for (size_t i = p; i < terms.size(); i += parts) part.add(terms[i]);
            const ExactSum::Words& other = part.words();
            for (size_t k = 0; k < words.size(); ++k) words[k] += other[k];
        }
        EXPECT_EQ(ExactSum::of(words).value(), whole) << parts;
    }
}

TEST(Timing, CountsRunsAndOrdersThem) {
    int calls = 0;
    const Timing t = time_calls({.seconds = 0, .min_runs = 4, .max_runs = 9}, [&] {
        ++calls;
        std::this_thread::sleep_for(std::chrono::milliseconds(calls == 1 ? 20 : 3));
    });
    EXPECT_EQ(t.runs, 4);
    EXPECT_EQ(calls, 5);  // one to warm up
    EXPECT_GE(t.min, 3e-3);
    EXPECT_LE(t.min, t.median);
    EXPECT_LE(t.median, t.max);
}

TEST(Timing, OfAnEvenNumberTheMedianLiesBetweenTwo) {
    EXPECT_EQ(timing_of({5, 1, 2, 4}).median, 3);
    EXPECT_EQ(timing_of({5, 1, 2}).median, 2);
    EXPECT_EQ(timing_of({3, 7}).median, 5);
}

TEST(Timing, ShortCallsAreTimedTogether) {
    int64_t calls = 0;
    const Timing t = time_calls({.seconds = 0, .min_runs = 3, .max_runs = 3}, [&] { ++calls; });
    EXPECT_EQ(t.runs, 3);
    EXPECT_GT(calls, 1000);  // 2 ms hold many of them
    EXPECT_LT(t.median, 1e-3);
}

TEST(Digits, ANumberIsTheWholeText) {
    EXPECT_EQ(parse_number<int>("-12"), -12);
    EXPECT_EQ(parse_number<int64_t>("9223372036854775807"), INT64_MAX);
    EXPECT_EQ(parse_number<double>("0.5"), 0.5);
    for (const char* text : {"", " 1", "1 ", "+1", "1x", "1.5", "2147483648"})
        EXPECT_EQ(parse_number<int>(text), std::nullopt) << text;
    EXPECT_EQ(parse_number<double>("1e400"), std::nullopt);
    EXPECT_EQ(parse_numbers<int>("11,11,10"), (std::vector<int>{11, 11, 10}));
    EXPECT_EQ(parse_numbers<double>("1.25"), std::vector<double>{1.25});
    for (const char* text : {"", ",", "1,", ",1", "1,,2", "1, 2"})
        EXPECT_EQ(parse_numbers<int>(text), std::nullopt) << text;
}

TEST(Digits, HexadecimalHasTheHighDigitFirst) {
    EXPECT_EQ(to_hex(uint64_t{0x0123456789abcdef}), "0123456789abcdef");
    EXPECT_EQ(to_hex(std::vector<unsigned char>{0, 0x1f, 0xa0}), "001fa0");
}

}  // namespace

}  // namespace tutti
