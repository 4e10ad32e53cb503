#include "tutti/ops/quantize.h"

#include "tutti/kernels/scale_layout.h"
#include "tutti/ops/ops.h"

namespace tutti::ops {

using kernels::KernelTable;

namespace {

int64_t groups_of(int64_t size, int64_t group) { return group > 0 ? (size + group - 1) / group : size > 0 ? 1 : 0; }

struct Matrix {
    int64_t rows, columns;
    explicit Matrix(const Shape& shape) : columns(shape[-1]) { rows = columns > 0 ? shape.numel() / columns : 0; }
};

View rows_of(const Tensor& x, int64_t first, int64_t rows, int64_t columns) {
    auto* const data = static_cast<std::byte*>(x.view().data);
    return {data + first * columns * size_of(x.dtype()), x.dtype(), {rows, columns}};
}

// visit(number of the segment, first row, rows, first row of divisors) of each segment with rows.
template <class Visit>
void for_each_segment(const Coding& coding, const Visit& visit) {
    const std::vector<int64_t> whole = {Matrix(coding.shape).rows};
    const std::vector<int64_t>& segments = coding.segments.empty() ? whole : coding.segments;
    int64_t row = 0, divisors = 0;
    for (size_t i = 0; i < segments.size(); ++i) {
        if (segments[i] > 0) visit(static_cast<int64_t>(i), row, segments[i], divisors);
        row += segments[i];
        divisors += groups_of(segments[i], coding.group.rows);
    }
    check(row == Matrix(coding.shape).rows, "codes of ", coding.shape, ": the segments have ", row, " rows");
}

int64_t divisor_rows(const Coding& coding) {
    int64_t rows = 0;
    for_each_segment(coding, [&](int64_t, int64_t, int64_t of_segment, int64_t) {
        rows += groups_of(of_segment, coding.group.rows);
    });
    return rows;
}

// Memory for the divisors of such a number of groups; padding is 0.
Tensor scales_in(Context& ctx, kernels::ScaleLayout layout, const Shape& groups, DType divisors, Purpose purpose) {
    if (layout == kernels::ScaleLayout::rows) return empty(ctx, groups, divisors, purpose);
    const int64_t n = kernels::scale_values(layout, groups[0], groups[1]);
    const Tensor scales = empty(ctx, {n}, divisors, purpose);
    if (n > groups.numel())
        call(ctx, &KernelTable::fill, "fill", View(scales.view().data, DType::f32, {scales.bytes() / 4}), 0.0f);
    return scales;
}

kernels::Scales scales_of(const Operand& x, int64_t first, int64_t rows) {
    const Coding& c = x.coding;
    const int64_t across = groups_of(Matrix(c.shape).columns, c.group.columns);
    if (c.transposed || c.layout != kernels::ScaleLayout::rows) return {x.scales, c.group, c.layout};
    return {rows_of(x.scales, first, groups_of(rows, c.group.rows), across), c.group};
}

}  // namespace

Tensor no_magnitudes(Context& ctx, int64_t n, Purpose purpose) {
    const Tensor magnitudes = empty(ctx, {n}, DType::i32, purpose);
    clear_magnitudes(ctx, magnitudes);
    return magnitudes;
}

// Tables fill numbers; the bits of the number 0 are those of the integer.
void clear_magnitudes(Context& ctx, const Tensor& magnitudes) {
    call(ctx, &KernelTable::fill, "fill", View(magnitudes.view().data, DType::f32, magnitudes.shape()), 0.0f);
}

void clear_codes(Context& ctx, const Tensor& codes) {
    call(ctx, &KernelTable::fill, "fill", View(codes.view().data, DType::f32, {codes.numel() / 4}), 0.0f);
}

void add_magnitudes(Context& ctx, const Tensor& x, const Tensor& magnitudes) {
    check(x.contiguous() && magnitudes.numel() == 1,
          "add_magnitudes: needs a contiguous tensor and one magnitude, got ", x.shape(), " and ", magnitudes.shape());
    const Matrix m(x.shape());
    if (m.rows > 0) call(ctx, &KernelTable::amax, "amax", rows_of(x, 0, m.rows, m.columns), magnitudes.view());
}

// The bits of magnitudes are those of numbers of f32.
void add_largest(Context& ctx, const Tensor& magnitudes, const Tensor& largest) {
    call(ctx, &KernelTable::amax, "amax", View(magnitudes.view().data, DType::f32, {1, magnitudes.numel()}),
         largest.view());
}

// A matrix of the magnitudes is quantized, each in a group of its own.
Tensor divisors_of(Context& ctx, const Tensor& magnitudes, DType format, DType type, bool powers_of_two,
                   const Tensor& factor) {
    const Shape row{1, magnitudes.numel()};
    const Tensor values = empty(ctx, row, type, Purpose::workspace),
                 codes = empty(ctx, row, format, Purpose::workspace);
    const Tensor divisors = empty(ctx, row, DType::f32, Purpose::communication);
    call(ctx, &KernelTable::cast, "cast", View(magnitudes.view().data, DType::f32, row), values.view());
    kernels::Quantize q{.x = values, .codes = codes, .scales = {divisors, {1, 1}}, .powers_of_two = powers_of_two};
    if (factor.defined()) q.factor = factor;
    call(ctx, &KernelTable::quantize, "quantize", q);
    return divisors;
}

Tensor largest_magnitudes(Context& ctx, const Tensor& x, const std::vector<int64_t>& segments) {
    check(x.contiguous(), "largest_magnitudes: needs a contiguous tensor, got shape ", x.shape());
    const Tensor largest =
        no_magnitudes(ctx, static_cast<int64_t>(std::max<size_t>(segments.size(), 1)), Purpose::workspace);
    const int64_t columns = Matrix(x.shape()).columns;
    for_each_segment({.shape = x.shape(), .segments = segments}, [&](int64_t i, int64_t row, int64_t rows, int64_t) {
        call(ctx, &KernelTable::amax, "amax", rows_of(x, row, rows, columns), largest.narrow(0, i, 1).view());
    });
    return largest;
}

Operand quantized(Context& ctx, const Tensor& x, DType format, DType divisors, Coding coding, Purpose purpose,
                  const Tensor& amax, const Tensor& factor, const Tensor& lost) {
    check(x.contiguous() && x.rank() >= 2, "quantized: needs a contiguous matrix, got shape ", x.shape());
    coding.shape = x.shape();
    coding.type = x.dtype();
    const Matrix m(x.shape());
    const int64_t down = divisor_rows(coding), across = groups_of(m.columns, coding.group.columns);
    check(!coding.transposed || coding.segments.size() <= 1, "quantized: ", coding.segments.size(),
          " matrices in one transposed tensor");
    Operand y(empty(ctx, coding.transposed ? Shape{m.columns, m.rows} : x.shape(), format, purpose));
    const Shape groups = coding.transposed ? Shape{across, down} : Shape{down, across};
    if (coding.direct && ctx.kernels.scale_layout != nullptr)
        coding.layout = ctx.kernels.scale_layout(divisors, stored_group(coding));
    y.scales = scales_in(ctx, coding.layout, groups, divisors, purpose);
    y.coding = std::move(coding);
    for_each_segment(y.coding, [&](int64_t i, int64_t row, int64_t rows, int64_t first) {
        kernels::Quantize q{.x = rows_of(x, row, rows, m.columns),
                            .codes = y.coding.transposed ? y.values.view() : rows_of(y.values, row, rows, m.columns),
                            .scales = scales_of(y, first, rows),
                            .transposed = y.coding.transposed,
                            .powers_of_two = y.coding.powers_of_two};
        if (amax.defined()) q.amax = amax.narrow(0, amax.numel() == 1 ? 0 : i, 1);
        if (factor.defined()) q.factor = factor;
        if (lost.defined()) q.lost = lost;
        call(ctx, &KernelTable::quantize, "quantize", q);
    });
    return y;
}

Tensor decoded(Context& ctx, const Operand& x, DType type) {
    if (!x.coded()) return x.values.dtype() == type ? x.values : cast(ctx, x.values, type);
    const Tensor y = empty(ctx, x.shape(), type, Purpose::workspace);
    const int64_t columns = Matrix(x.shape()).columns;
    for_each_segment(x.coding, [&](int64_t, int64_t row, int64_t rows, int64_t first) {
        const View codes = x.coding.transposed ? x.values.view() : rows_of(x.values, row, rows, columns);
        call(ctx, &KernelTable::dequantize, "dequantize",
             kernels::Dequantize{.codes = codes,
                                 .scales = scales_of(x, first, rows),
                                 .transposed = x.coding.transposed,
                                 .y = rows_of(y, row, rows, columns)});
    });
    return y;
}

}  // namespace tutti::ops
