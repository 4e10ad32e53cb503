// kernels/testing/norm_cases.cpp: layer norm, RMS norm, forward and backward.
#include "tutti/kernels/testing/cases.h"

namespace tutti::kernels::cases {

namespace {

constexpr float kEps = 1e-5f;
constexpr std::array<std::array<int64_t, 2>, 9> kShapes = {
    {{0, 16}, {1, 1}, {3, 17}, {5, 63}, {2, 65}, {7, 127}, {4, 1000}, {33, 768}, {300, 65}}};

// offset_norm: RMS norm by w + 1; group_norm: with weights of kGroups groups.
enum class Kind : uint8_t { layer_norm, rms_norm, offset_norm, group_norm };
constexpr int64_t kGroups = 3;
const char* name_of(Kind kind) {
    constexpr const char* kNames[] = {" layer norm", " RMS norm", " RMS norm by w + 1", " RMS norm of groups"};
    return kNames[static_cast<size_t>(kind)];
}
float offset_of(Kind kind) { return kind == Kind::offset_norm ? 1 : 0; }
int64_t groups_of(Kind kind) { return kind == Kind::group_norm ? kGroups : 1; }

struct Inputs {
    View x, residual;                                             // (N, C); residual may be undefined
    View s;                                                       // the input of the norm
    View w, b, dy;                                                // (C) or (G C), (C), (N, C)
    float offset = 0;                                             // of w
    int64_t weight_at(int64_t i) const { return i % w.numel(); }  // of element i of x: rows take turns in the groups
    double weight(int64_t i) const { return value(w, weight_at(i)) + offset; }
    View mean, rstd;  // (N) f32, as the forward stores them; RMS norm has neither b nor mean
};

// Sums of these values are exact in f32, so that every table rounds them alike.
View sixteenths(Arena& arena, const Shape& shape, DType t, const char* purpose) {
    std::vector<double> all = values(arena.normal(shape, t, purpose, 1, 0.5));
    for (double& v : all) v = std::round(16 * v) / 16;
    return arena.from(shape, t, all);
}

// The mean of x is half its deviation: large enough to detect a mean left out or applied twice.
Inputs make(Arena& arena, int64_t N, int64_t C, DType t, Kind kind, bool with_residual) {
    Inputs in{.x = with_residual ? sixteenths(arena, {N, C}, t, "x") : arena.normal({N, C}, t, "x", 1, 0.5),
              .w = arena.normal({groups_of(kind) * C}, t, "w", 0.2, 1),
              .dy = arena.normal({N, C}, t, "dy"),
              .offset = offset_of(kind),
              .rstd = arena.empty({N}, DType::f32)};
    if (kind == Kind::layer_norm) {
        in.b = arena.normal({C}, t, "b");
        in.mean = arena.empty({N}, DType::f32);
    }
    const View y = arena.empty({N, C}, t);
    in.s = in.x;
    if (with_residual) {
        in.residual = sixteenths(arena, {N, C}, t, "residual");
        in.s = arena.empty({N, C}, t);
        reference_table().add({}, on_host(in.x), on_host(in.residual), on_host(in.s));
    }
    using F = NormForward;
    reference_table().norm_forward(
        {}, on_host(F{in.s, in.w, in.b, kEps, y, in.mean, in.rstd}, &F::x, &F::w, &F::b, &F::y, &F::mean, &F::rstd));
    return in;
}

// The tensor that the gradient of a norm is added to.
enum class Added : uint8_t { nothing, another, itself };
const char* name_of(Added added) {
    return added == Added::nothing ? "" : added == Added::another ? " added" : " added in place";
}

struct Gradient {
    View dx, add;
    std::vector<double> before;  // values of add
};
Gradient make_gradient(Arena& arena, int64_t N, int64_t C, DType t, Added added) {
    Gradient g;
    if (added == Added::nothing) return {arena.empty({N, C}, t), {}, {}};
    g.add = arena.normal({N, C}, t, "add");
    g.before = values(g.add);
    g.dx = added == Added::itself ? g.add : arena.empty({N, C}, t);
    return g;
}

// Errors of one row's statistics.
struct RowError {
    double mean = 0;  // absolute
    double rstd_relative = 0;
};

// mean: C terms and a division, sum_error(C + 1) mean|x|. Differences d = x - mean inherit that, and u |d| of their
// own; their mean square is off by sum_error(C + 4) of itself, by 2 mean|d| times the error of the mean and by its
// square. rstd is the power -1/2: half the relative error, and a root and a division.
RowError layer_norm_error(const View& x, int64_t n, int64_t C) {
    double m = 0, size = 0, deviation = 0, variance = 0;
    for (int64_t c = 0; c < C; ++c) m += value(x, n * C + c) / static_cast<double>(C);
    for (int64_t c = 0; c < C; ++c) {
        const double v = value(x, n * C + c), d = v - m;
        size += std::abs(v) / static_cast<double>(C);
        deviation += std::abs(d) / static_cast<double>(C);
        variance += d * d / static_cast<double>(C);
    }
    const double mean = sum_error(C + 1) * size;
    const double error = sum_error(C + 4) * variance + 2 * deviation * mean + mean * mean;
    return {mean, error / (variance + kEps) / 2 + kMath};
}

// The mean square is a sum of C positive terms.
RowError rms_norm_error(int64_t C) { return {0, sum_error(C + 3) / 2 + kMath}; }

// Bound on |x^| that also holds for x - mean computed in f32: (|x| + |mean|) rstd.
double normalised(const Inputs& in, int64_t n, int64_t i) {
    const double mean = in.mean.defined() ? std::abs(value(in.mean, n)) : 0;
    return (std::abs(value(in.s, i)) + mean) * value(in.rstd, n);
}

// dx = add + rstd (g - mean g - x^ mean(g x^)): means of C terms, each term a few operations.
void report_input_gradient(Arena& arena, const Inputs& in, const Gradient& gradient) {
    const View& dx = gradient.dx;
    const int64_t C = in.s.shape[1], N = in.rstd.numel();
    std::vector<double> mean_g(static_cast<size_t>(N)), mean_gx(static_cast<size_t>(N));
    for (int64_t i = 0; i < N * C; ++i) {
        const double g = std::abs(value(in.dy, i) * in.weight(i)) / static_cast<double>(C);
        mean_g[static_cast<size_t>(i / C)] += g;
        mean_gx[static_cast<size_t>(i / C)] += g * normalised(in, i / C, i);
    }
    arena.result("dx", dx, [&](int64_t i) {
        const int64_t n = i / C;
        const double size = std::abs(value(in.dy, i) * in.weight(i)) + mean_g[static_cast<size_t>(n)] +
                            normalised(in, n, i) * mean_gx[static_cast<size_t>(n)];
        const double before = gradient.before.empty() ? 0 : std::abs(gradient.before[static_cast<size_t>(i)]);
        return sum_error(C + 10) * value(in.rstd, n) * size + 2 * u * before + rounding(dx.dtype, value(dx, i));
    });
}

// dw = sum of N terms dy x^ and the previous value, each term a few operations; db the same with dy.
void report_weight_gradient(Arena& arena, const Inputs& in, const char* name, const View& dw,
                            const std::vector<double>& before, bool with_x) {
    const int64_t C = in.s.shape[1], N = in.rstd.numel();
    std::vector<double> size(before.size());
    for (size_t c = 0; c < size.size(); ++c) size[c] = std::abs(before[c]);
    for (int64_t i = 0; i < N * C; ++i)
        size[static_cast<size_t>(i % dw.numel())] +=
            std::abs(value(in.dy, i)) * (with_x ? normalised(in, i / C, i) : 1);
    arena.result(name, dw, [&](int64_t c) { return sum_error(N + 8) * size[static_cast<size_t>(c)]; });
}

void add_forward(std::vector<Case>& all, Kind kind, DType t, int64_t N, int64_t C, bool residual) {
    add(all, "norm_forward", &KernelTable::norm_forward,
        concat(t, " (", N, ", ", C, ")", name_of(kind), residual ? " of a sum" : ""),
        [=](const auto& table, const auto& stream, Arena& arena) {
            const bool centred = kind == Kind::layer_norm;
            const Inputs in = make(arena, N, C, t, kind, residual);
            const View y = arena.empty({N, C}, t), mean = centred ? arena.empty({N}, DType::f32) : View();
            const View rstd = arena.empty({N}, DType::f32), sum = residual ? arena.empty({N, C}, t) : View();
            arena.start();
            table.norm_forward(stream, {in.x, in.w, in.b, kEps, y, mean, rstd, in.residual, sum, in.offset});
            std::vector<RowError> errors;
            for (int64_t n = 0; n < N; ++n)
                errors.push_back(centred ? layer_norm_error(in.s, n, C) : rms_norm_error(C));
            // y = (s - mean) rstd w + b: the errors of mean and rstd, and six operations; four without mean and b.
            arena.result("y", y, [&](int64_t i) {
                const auto& [mean_error, rstd_error] = errors[static_cast<size_t>(i / C)];
                if (!centred) return (rstd_error + 4 * u) * std::abs(value(y, i)) + rounding(t, value(y, i));
                const double w = std::abs(value(in.w, i % C)), r = value(in.rstd, i / C);
                const double xhat = std::abs(value(in.s, i) - value(in.mean, i / C)) * r;
                return w * (r * mean_error + xhat * (rstd_error + 6 * u)) + 2 * u * std::abs(value(in.b, i % C)) +
                       rounding(t, value(y, i));
            });
            if (centred)
                arena.result("mean", mean, [&](int64_t n) {
                    return errors[static_cast<size_t>(n)].mean + rounding(DType::f32, value(mean, n));
                });
            arena.result("rstd", rstd, [&](int64_t n) {
                return (errors[static_cast<size_t>(n)].rstd_relative + 2 * u) * value(in.rstd, n);
            });
            if (residual) arena.result("sum", sum, [](int64_t) { return 0; });
        });
}

void add_backward_input(std::vector<Case>& all, Kind kind, DType t, int64_t N, int64_t C, Added added) {
    add(all, "norm_backward_input", &KernelTable::norm_backward_input,
        concat(t, " (", N, ", ", C, ")", name_of(kind), name_of(added)),
        [=](const auto& table, const auto& stream, Arena& arena) {
            const Inputs in = make(arena, N, C, t, kind, false);
            const Gradient g = make_gradient(arena, N, C, t, added);
            arena.start();
            table.norm_backward_input(stream, {in.dy, in.s, in.w, in.mean, in.rstd, g.dx, g.add, in.offset});
            report_input_gradient(arena, in, g);
        });
}

// Of the weights, which are added to; RMS norm has no db.
struct WeightGradients {
    View dw, db;
    std::vector<double> dw_before, db_before;
    WeightGradients(Arena& arena, Kind kind, int64_t C) : dw(arena.normal({groups_of(kind) * C}, DType::f32, "dw")) {
        if (kind == Kind::layer_norm) db = arena.normal({C}, DType::f32, "db");
        dw_before = values(dw);
        if (db.defined()) db_before = values(db);
    }
    void report(Arena& arena, const Inputs& in) const {
        report_weight_gradient(arena, in, "dw", dw, dw_before, true);
        if (db.defined()) report_weight_gradient(arena, in, "db", db, db_before, false);
    }
};

void add_backward_weight(std::vector<Case>& all, Kind kind, DType t, int64_t N, int64_t C) {
    add(all, "norm_backward_weight", &KernelTable::norm_backward_weight,
        concat(t, " (", N, ", ", C, ")", name_of(kind)), [=](const auto& table, const auto& stream, Arena& arena) {
            const Inputs in = make(arena, N, C, t, kind, false);
            const WeightGradients g(arena, kind, C);
            arena.start();
            table.norm_backward_weight(stream, in.dy, in.s, in.mean, in.rstd, g.dw, g.db);
            g.report(arena, in);
        });
}

void add_backward_of_both(std::vector<Case>& all, Kind kind, DType t, int64_t N, int64_t C, Added added) {
    add(all, "norm_backward_input", &KernelTable::norm_backward_input,
        concat(t, " (", N, ", ", C, ")", name_of(kind), name_of(added), " and weights"),
        [=](const auto& table, const auto& stream, Arena& arena) {
            const Inputs in = make(arena, N, C, t, kind, false);
            const Gradient of_input = make_gradient(arena, N, C, t, added);
            const WeightGradients g(arena, kind, C);
            arena.start();
            table.norm_backward_input(
                stream, {in.dy, in.s, in.w, in.mean, in.rstd, of_input.dx, of_input.add, in.offset, g.dw, g.db});
            report_input_gradient(arena, in, of_input);
            g.report(arena, in);
        });
}

}  // namespace

void add_norms(std::vector<Case>& all) {
    for (const Kind kind : {Kind::layer_norm, Kind::rms_norm, Kind::offset_norm, Kind::group_norm})
        for (const DType t : kActivationTypes)
            for (const auto& [tokens, C] : kShapes) {
                const int64_t N = tokens * groups_of(kind);
                for (const bool residual : {false, true}) add_forward(all, kind, t, N, C, residual);
                for (const Added added : {Added::nothing, Added::another, Added::itself})
                    add_backward_input(all, kind, t, N, C, added);
                for (const Added added : {Added::nothing, Added::itself})
                    add_backward_of_both(all, kind, t, N, C, added);
                add_backward_weight(all, kind, t, N, C);
            }
    // More rows than one slice of a GPU sums (cuda/column_sums.h).
    for (const Kind kind : {Kind::layer_norm, Kind::rms_norm})
        for (const DType t : kActivationTypes) add_backward_weight(all, kind, t, 1100, 24);
    // Rows of which a thread of a GPU has two words (cuda/norm.cu), and rows that are longer.
    for (const Kind kind : {Kind::layer_norm, Kind::offset_norm}) {
        for (const int64_t C : {2056, 4104}) add_backward_of_both(all, kind, DType::f32, 5, C, Added::itself);
        add_backward_of_both(all, kind, DType::bf16, 5, 4104, Added::itself);
    }
}

}  // namespace tutti::kernels::cases
