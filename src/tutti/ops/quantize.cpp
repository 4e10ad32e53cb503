#include "tutti/ops/quantize.h"

#include "tutti/base/ceil_div.h"
#include "tutti/base/to_size.h"
#include "tutti/kernels/scale_layout.h"
#include "tutti/ops/ops.h"

namespace tutti::ops {

using kernels::KernelTable;

namespace {

int64_t groups_of(int64_t size, int64_t group) { return group > 0 ? ceil_div(size, group) : size > 0 ? 1 : 0; }

struct Matrix {
    int64_t rows, columns;
    explicit Matrix(const Shape& shape) : columns(shape[-1]) { rows = columns > 0 ? shape.numel() / columns : 0; }
};

View rows_of(const Tensor& x, int64_t first, int64_t rows, int64_t columns) {
    auto* const data = static_cast<std::byte*>(x.view().data);
    return {data + first * columns * size_of(x.dtype()), x.dtype(), {rows, columns}};
}

// One of the matrices of a tensor: its number, its rows among all, its groups as they are stored, and the place of the
// first of its divisors.
struct Segment {
    int64_t number, row, rows;
    Shape groups;
    int64_t divisor;
};

// visit(Segment) of each with rows.
template <class Visit>
void for_each_segment(const Coding& coding, const Visit& visit) {
    const Matrix m(coding.shape);
    const std::vector<int64_t> whole = {m.rows};
    const std::vector<int64_t>& segments = coding.segments.empty() ? whole : coding.segments;
    int64_t row = 0, divisor = 0;
    for (size_t i = 0; i < segments.size(); ++i) {
        const int64_t down = groups_of(segments[i], coding.group.rows),
                      across = groups_of(m.columns, coding.group.columns);
        const Shape groups = coding.transposed ? Shape{across, down} : Shape{down, across};
        if (segments[i] > 0) visit(Segment{static_cast<int64_t>(i), row, segments[i], groups, divisor});
        row += segments[i];
        divisor += kernels::scale_values(coding.layout, groups[0], groups[1]);
    }
    check(row == m.rows, "codes of ", coding.shape, ": the segments have ", row, " rows");
}

// Memory for the divisors of all segments; padding is 0.
Tensor scales_in(Context& ctx, const Coding& coding, DType divisors, Purpose purpose) {
    int64_t n = 0, used = 0, rows = 0;
    for_each_segment(coding, [&](const Segment& s) {
        n = s.divisor + kernels::scale_values(coding.layout, s.groups[0], s.groups[1]);
        used += s.groups.numel() * kernels::scale_copies(coding.layout);
        rows += s.groups[0];
    });
    const bool by_rows = coding.layout == kernels::ScaleLayout::rows && (!coding.transposed || rows * used == 0);
    const int64_t columns = rows > 0 ? used / rows : 0;
    const Tensor scales = empty(ctx, by_rows ? Shape{rows, columns} : Shape{n}, divisors, purpose);
    if (n > used)
        call(ctx, &KernelTable::fill, "fill", View(scales.view().data, DType::f32, {scales.bytes() / 4}), 0.0f);
    return scales;
}

CodedMatrix matrix_of(const Operand& x, const Segment& s) {
    const Coding& c = x.coding;
    const int64_t columns = Matrix(c.shape).columns;
    View codes = rows_of(x.values, s.row, s.rows, columns);
    if (c.transposed) codes = View(codes.data, codes.dtype, {columns, s.rows});
    auto* const data = static_cast<std::byte*>(x.scales.view().data) + s.divisor * size_of(x.scales.dtype());
    const View divisors(data, x.scales.dtype(),
                        c.layout == kernels::ScaleLayout::rows
                            ? s.groups
                            : Shape{kernels::scale_values(c.layout, s.groups[0], s.groups[1])});
    return {codes, {divisors, c.group, c.layout}, c.transposed};
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
    for_each_segment({.shape = x.shape(), .segments = segments}, [&](const Segment& s) {
        call(ctx, &KernelTable::amax, "amax", rows_of(x, s.row, s.rows, columns),
             largest.narrow(0, s.number, 1).view());
    });
    return largest;
}

Operand quantized(Context& ctx, const Tensor& x, DType format, DType divisors, Coding coding, Purpose purpose,
                  const Tensor& amax, const Tensor& factor, const Tensor& lost) {
    check(x.contiguous() && x.rank() >= 2, "quantized: needs a contiguous matrix, got shape ", x.shape());
    coding.shape = x.shape();
    coding.type = x.dtype();
    const Matrix m(x.shape());
    if (coding.direct && ctx.kernels.scale_form != nullptr) {
        const kernels::ScaleForm form = ctx.kernels.scale_form(ctx.device.stream(), divisors, stored_group(coding));
        divisors = form.divisors;
        coding.layout = form.layout;
    }
    const bool one_matrix = coding.segments.size() <= 1;
    Operand y(empty(ctx, coding.transposed && one_matrix ? Shape{m.columns, m.rows} : x.shape(), format, purpose));
    y.scales = scales_in(ctx, coding, divisors, purpose);
    y.coding = std::move(coding);
    for_each_segment(y.coding, [&](const Segment& s) {
        const CodedMatrix to = matrix_of(y, s);
        kernels::Quantize q{.x = rows_of(x, s.row, s.rows, m.columns),
                            .codes = to.codes,
                            .scales = to.scales,
                            .transposed = to.transposed,
                            .powers_of_two = y.coding.powers_of_two};
        if (amax.defined()) q.amax = amax.narrow(0, amax.numel() == 1 ? 0 : s.number, 1);
        if (factor.defined()) q.factor = factor;
        if (lost.defined()) q.lost = lost;
        call(ctx, &KernelTable::quantize, "quantize", q);
    });
    return y;
}

std::vector<CodedMatrix> coded_matrices(const Operand& x) {
    std::vector<CodedMatrix> all(std::max<size_t>(x.coding.segments.size(), 1));
    for_each_segment(x.coding, [&](const Segment& s) {
        CodedMatrix& matrix = all[to_size(s.number)] = matrix_of(x, s);
        matrix.scales.group = stored_group(x.coding);
    });
    return all;
}

kernels::Gemm product_of_codes(kernels::Gemm g, const CodedMatrix& a, const CodedMatrix& b) {
    g.a = a.codes, g.a_scales = a.scales, g.transpose_a = g.transpose_a != a.transposed;
    g.b = b.codes, g.b_scales = b.scales, g.transpose_b = g.transpose_b != b.transposed;
    return g;
}

Tensor decoded(Context& ctx, const Operand& x, DType type) {
    if (!x.coded()) return x.values.dtype() == type ? x.values : cast(ctx, x.values, type);
    const Tensor y = empty(ctx, x.shape(), type, Purpose::workspace);
    const int64_t columns = Matrix(x.shape()).columns;
    for_each_segment(x.coding, [&](const Segment& s) {
        const CodedMatrix from = matrix_of(x, s);
        call(ctx, &KernelTable::dequantize, "dequantize",
             kernels::Dequantize{.codes = from.codes,
                                 .scales = from.scales,
                                 .transposed = from.transposed,
                                 .y = rows_of(y, s.row, s.rows, columns)});
    });
    return y;
}

}  // namespace tutti::ops
