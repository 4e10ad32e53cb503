// kernels/testing/float8_cases.cpp: amax, quantize, runs of both, dequantize. A maximum and a cast are exact, so every
// table gives the same bits; divisors are compared by their bits, since a group with an infinity has a divisor of NaN.
#include <limits>

#include "tutti/base/float8.h"
#include "tutti/base/to_size.h"
#include "tutti/kernels/scale_layout.h"
#include "tutti/kernels/testing/cases.h"

namespace tutti::kernels::cases {

namespace {

// Magnitudes over many powers of two, a row of zeros, and with `bad` an infinity and a NaN near the end.
View spread(Arena& arena, DType t, int64_t rows, int64_t columns, bool bad) {
    std::vector<double> all(static_cast<size_t>(rows * columns));
    for (int64_t i = 0; i < rows * columns; ++i) {
        const double x = normal(random_key(9, "codes"), static_cast<uint64_t>(i));
        all[static_cast<size_t>(i)] =
            i / columns == 1 ? (i % 2 == 0 ? 0.0 : -0.0) : std::ldexp(x, static_cast<int>(i * 7 % 31) - 15);
    }
    if (bad && all.size() > 2) {
        all[all.size() / 2] = -std::numeric_limits<double>::infinity();
        all[all.size() - 1] = std::numeric_limits<double>::quiet_NaN();
    }
    const View wide = arena.empty({rows, columns + 5}, t), x = slice(wide, 1, 2, columns);
    const View values = arena.from({rows, columns}, t, all);
    for (int64_t r = 0; r < rows; ++r)
        std::copy_n(on_host(values).as<std::byte>() + r * columns * size_of(t), columns * size_of(t),
                    on_host(x).as<std::byte>() + r * x.stride(0) * size_of(t));
    return x;
}

View as_bits(View x) {
    if (x.dtype == DType::f32) x.dtype = DType::i32;
    return x;
}

void add_amax(std::vector<Case>& all, DType t, int64_t rows, int64_t columns, double before, bool bad) {
    add(all, "amax", &KernelTable::amax,
        concat(t, " (", rows, ", ", columns, ") after ", before, bad ? " with an infinity and a NaN" : ""),
        [=](const auto& table, const auto& stream, Arena& arena) {
            const View x = spread(arena, t, rows, columns, bad);
            const View largest =
                arena.from({1}, DType::i32, {static_cast<double>(std::bit_cast<int32_t>(static_cast<float>(before)))});
            arena.start();
            table.amax(stream, x, largest);
            arena.result("largest", largest, [](int64_t) { return 0; });
        });
}

struct Form {
    DType codes = DType::e4m3, divisors = DType::f32;
    GroupShape group = {};
    bool transposed = false, powers_of_two = true;
    enum class Given : uint8_t { nothing, amax, factor } given = Given::nothing;
    ScaleLayout layout = ScaleLayout::rows;
};

std::string label(DType t, int64_t rows, int64_t columns, const Form& f) {
    return concat(t, " (", rows, ", ", columns, ") to ", f.codes, " by ", f.group.rows, " x ", f.group.columns, " ",
                  f.divisors, f.transposed ? ", transposed" : "", f.powers_of_two ? "" : ", any factor",
                  f.given == Form::Given::amax     ? ", amax given"
                  : f.given == Form::Given::factor ? ", factor given"
                                                   : "",
                  f.layout == ScaleLayout::rows ? "" : concat(", layout ", static_cast<int>(f.layout)));
}

Shape divisors_of(const Form& f, int64_t rows, int64_t columns) {
    const auto groups = [](int64_t size, int64_t group) { return group > 0 ? (size + group - 1) / group : 1; };
    const int64_t down = groups(rows, f.group.rows), across = groups(columns, f.group.columns);
    const Shape shape = f.transposed ? Shape{across, down} : Shape{down, across};
    return f.layout == ScaleLayout::rows ? shape : Shape{scale_values(f.layout, shape[0], shape[1])};
}

void add_quantize(std::vector<Case>& all, DType t, int64_t rows, int64_t columns, const Form& f, bool bad) {
    add(all, "quantize", &KernelTable::quantize,
        label(t, rows, columns, f) + (bad ? " with an infinity and a NaN" : ""),
        [=](const auto& table, const auto& stream, Arena& arena) {
            Quantize q{.x = spread(arena, t, rows, columns, bad),
                       .codes = arena.empty(f.transposed ? Shape{columns, rows} : Shape{rows, columns}, f.codes),
                       .scales = {arena.from(divisors_of(f, rows, columns), f.divisors,
                                             std::vector<double>(to_size(divisors_of(f, rows, columns).numel()))),
                                  f.group, f.layout},
                       .transposed = f.transposed,
                       .powers_of_two = f.powers_of_two};
            if (f.given != Form::Given::nothing)
                q.amax = arena.from({1}, DType::i32, {static_cast<double>(std::bit_cast<int32_t>(99.5f))});
            if (f.given == Form::Given::factor) q.factor = arena.from({1}, DType::f32, {8});
            q.lost = arena.from({2}, DType::i64, {3, 0});
            arena.start();
            table.quantize(stream, q);
            arena.result("lost", q.lost, [](int64_t) { return 0; });
            arena.result("codes", q.codes, [](int64_t) { return 0; });
            arena.result("divisors", as_bits(q.scales.values), [](int64_t) { return 0; });
        });
}

// A run from the middle of a row to the middle of another; magnitudes of groups that it does not reach stay as they
// are.
QuantizeRun run_of(Arena& arena, DType t, const Shape& matrix, const Form& f, bool bad) {
    const int64_t n = matrix.numel() / 2 + 1;
    const View row = spread(arena, t, 1, n, bad);
    std::vector<double> before;
    for (int64_t i = 0; i < divisors_of(f, matrix[0], matrix[1]).numel(); ++i)
        before.push_back(i % 4 == 2 ? static_cast<double>(std::bit_cast<int32_t>(std::ldexp(1.25f, int(i % 40) - 20)))
                                    : 0.0);
    return {.x = View(row.data, t, {n}),
            .first = matrix.numel() / 3,
            .matrix = matrix,
            .group = f.group,
            .amaxes = arena.from(divisors_of(f, matrix[0], matrix[1]), DType::i32, before),
            .powers_of_two = f.powers_of_two};
}

void add_runs(std::vector<Case>& all, DType t, int64_t rows, int64_t columns, const Form& f, bool bad) {
    const std::string text = label(t, rows, columns, f) + (bad ? " with an infinity and a NaN" : "");
    add(all, "amax_of_run", &KernelTable::amax_of_run, text, [=](const auto& table, const auto& stream, Arena& arena) {
        const QuantizeRun run = run_of(arena, t, {rows, columns}, f, bad);
        arena.start();
        table.amax_of_run(stream, run);
        arena.result("amaxes", run.amaxes, [](int64_t) { return 0; });
    });
    add(all, "quantize_run", &KernelTable::quantize_run, text,
        [=](const auto& table, const auto& stream, Arena& arena) {
            QuantizeRun run = run_of(arena, t, {rows, columns}, f, bad);
            std::vector<double> magnitudes;
            for (int64_t i = 0; i < run.amaxes.numel(); ++i)
                magnitudes.push_back(static_cast<double>(std::bit_cast<int32_t>(
                    bad && i % 5 == 1 ? std::numeric_limits<float>::infinity() : std::ldexp(1.9f, int(i % 33) - 16))));
            run.amaxes = arena.from(run.amaxes.shape, DType::i32, magnitudes);
            run.codes = arena.empty(run.x.shape, f.codes);
            if (f.given == Form::Given::factor) run.factor = arena.from({1}, DType::f32, {8});
            arena.start();
            table.quantize_run(stream, run);
            arena.result("codes", run.codes, [](int64_t) { return 0; });
        });
}

// Codes of any bits but those of infinities and NaN, and divisors that are powers of two.
void add_dequantize(std::vector<Case>& all, DType t, int64_t rows, int64_t columns, const Form& f) {
    add(all, "dequantize", &KernelTable::dequantize, label(t, rows, columns, f),
        [=](const auto& table, const auto& stream, Arena& arena) {
            std::vector<double> codes, divisors;
            const uint32_t finite = float8_of(f.codes).largest_code + 1;
            for (int64_t i = 0; i < rows * columns; ++i)
                codes.push_back(static_cast<double>((i * 37 + 11) % finite + (i % 3 == 0 ? 128 : 0)));
            const Shape of_divisors = divisors_of(f, rows, columns);
            for (int64_t i = 0; i < of_divisors.numel(); ++i)
                divisors.push_back(f.divisors == DType::e8m0
                                       ? static_cast<double>(120 + i % 9)
                                       : std::ldexp(f.powers_of_two ? 1 : 1.3, static_cast<int>(i % 9) - 4));
            const Dequantize d{
                .codes = arena.from(f.transposed ? Shape{columns, rows} : Shape{rows, columns}, f.codes, codes),
                .scales = {arena.from(of_divisors, f.divisors, divisors), f.group, f.layout},
                .transposed = f.transposed,
                .y = slice(arena.empty({rows, columns + 3}, t), 1, 1, columns)};
            arena.start();
            table.dequantize(stream, d);
            arena.result("y", d.y, [&](int64_t i) { return f.powers_of_two ? 0 : rounding(t, value(d.y, i)); });
        });
}

}  // namespace

void add_float8(std::vector<Case>& all) {
    const std::vector<Form> forms = {
        {},
        {.codes = DType::e5m2},
        {.powers_of_two = false},
        {.codes = DType::e5m2, .transposed = true, .powers_of_two = false},
        {.given = Form::Given::amax},
        {.transposed = true, .given = Form::Given::factor},
        {.group = {1, 128}},
        {.group = {128, 1}},
        {.group = {128, 1}, .transposed = true},
        {.group = {128, 128}},
        {.group = {128, 128}, .transposed = true},
        {.codes = DType::e5m2, .group = {1, 128}, .transposed = true},
        {.divisors = DType::e8m0, .group = {1, 32}},
        {.divisors = DType::e8m0, .group = {32, 1}},
        {.codes = DType::e5m2, .divisors = DType::e8m0, .group = {32, 1}, .transposed = true},
        {.divisors = DType::e8m0, .group = {32, 32}},
        {.group = {1, 128}, .layout = ScaleLayout::columns},
        {.group = {128, 1}, .transposed = true, .layout = ScaleLayout::columns},
        {.group = {128, 128}, .layout = ScaleLayout::padded_rows},
        {.group = {128, 128}, .transposed = true, .layout = ScaleLayout::padded_rows},
        {.divisors = DType::e8m0, .group = {1, 32}, .layout = ScaleLayout::tiles},
        {.divisors = DType::e8m0, .group = {32, 1}, .transposed = true, .layout = ScaleLayout::tiles},
        {.divisors = DType::e8m0, .group = {1, 128}, .layout = ScaleLayout::row_tiles},
        {.divisors = DType::e8m0, .group = {128, 1}, .transposed = true, .layout = ScaleLayout::row_tiles},
        {.divisors = DType::e8m0, .group = {128, 128}, .layout = ScaleLayout::block_tiles},
        {.divisors = DType::e8m0, .group = {128, 128}, .transposed = true, .layout = ScaleLayout::block_tiles},
    };
    for (const DType t : kActivationTypes)
        for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{131, 260}, {3, 1}, {33, 130}}) {
            for (const double before : {0.0, 1e6})
                for (const bool bad : {false, true}) add_amax(all, t, rows, columns, before, bad);
            for (const Form& f : forms) {
                for (const bool bad : {false, true}) add_quantize(all, t, rows, columns, f, bad);
                add_dequantize(all, t, rows, columns, f);
                if (f.layout != ScaleLayout::rows || f.transposed || f.divisors == DType::e8m0 ||
                    f.given == Form::Given::amax)
                    continue;
                for (const bool bad : {false, true}) add_runs(all, t, rows, columns, f, bad);
            }
        }
}

}  // namespace tutti::kernels::cases
