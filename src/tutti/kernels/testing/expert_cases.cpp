// kernels/testing/expert_cases.cpp: the experts of rows with gradient, the balance of loads, moving rows to experts and
// back, and products of groups of rows.
#include <numeric>

#include "tutti/kernels/groups.h"
#include "tutti/kernels/testing/cases.h"

namespace tutti::kernels::cases {

namespace {

enum class Logits : uint8_t { normal, tied, with_nan };

struct RoutingForm {
    int64_t N, E, k;
    bool sigmoid = false, bias = false, normalise = false;
    float epsilon = 0, scale = 1;
    int64_t groups = 1, chosen_groups = 1, group_best = 1;
    Logits kind = Logits::normal;
    bool shares = true;
};

std::string label(const RoutingForm& f) {
    return concat(f.sigmoid ? "sigmoid" : "softmax", " (", f.N, ", ", f.E, ") top ", f.k, f.bias ? " bias" : "",
                  f.normalise ? concat(" normalised ", f.epsilon) : "", f.scale == 1 ? "" : concat(" scale ", f.scale),
                  f.groups == 1 ? "" : concat(", ", f.chosen_groups, " of ", f.groups, " groups by ", f.group_best),
                  f.kind == Logits::tied ? ", ties" : "", f.shares ? "" : ", no shares",
                  f.kind == Logits::with_nan ? ", a NaN" : "");
}

// Ties: logits are multiples of 1/2 and biases of 1/8. Every expert has several equals, and unequal p + bias differ by
// far more than rounding.
View make_logits(const RoutingForm& f, Arena& arena) {
    std::vector<double> x = values(arena.normal({f.N, f.E}, DType::f32, "logits", 2));
    for (size_t i = 0; i < x.size(); ++i) {
        if (f.kind == Logits::tied) x[i] = std::round(2 * x[i]) / 2;
        if (f.kind == Logits::with_nan && i % static_cast<size_t>(2 * f.E + 3) == 1) x[i] = NAN;
    }
    return arena.from({f.N, f.E}, DType::f32, x);
}

View make_bias(const RoutingForm& f, Arena& arena) {
    if (!f.bias) return {};
    std::vector<double> b = values(arena.normal({f.E}, DType::f32, "bias", f.kind == Logits::tied ? 0.3 : 0.05));
    if (f.kind == Logits::tied)
        for (double& v : b) v = std::round(8 * v) / 8;
    return arena.from({f.E}, DType::f32, b);
}

Routing make_routing(const RoutingForm& f, Arena& arena) {
    return {.logits = make_logits(f, arena),
            .bias = make_bias(f, arena),
            .sigmoid = f.sigmoid,
            .groups = f.groups,
            .chosen_groups = f.chosen_groups,
            .group_best = f.group_best,
            .normalise = f.normalise,
            .epsilon = f.epsilon,
            .scale = f.scale,
            .experts = arena.from({f.N, f.k}, DType::i32, std::vector<double>(static_cast<size_t>(f.N * f.k), -7)),
            .weights = arena.empty({f.N, f.k}, DType::f32),
            .shares = f.shares ? arena.empty({f.N, f.E}, DType::f32) : View(),
            .entropy = arena.empty({f.N}, DType::f32),
            .log_sum = arena.empty({f.N}, DType::f32)};
}

// Bounds on the rounding errors of one row.
struct ExpertErrors {
    double p;        // relative, of each probability
    double entropy;  // absolute, as for log_sum
    double log_sum;
    std::vector<double> value, soft;  // p, and softmax
    double total = 0;                 // sum of p
};

// softmax: differences x - m of up to `range` are rounded, and their exponentials summed: p is off by
// 2 (kMath + u range) + sum_error(E), log_sum = m + ln S by half of that, by kMath ln S and by the last sum. sigmoid:
// an exponential, a sum and a quotient. Entropy: with H = sum s (ln P - ln p) the terms' own errors, times
// |ln P - ln p| + 1 as ds ln s = (ln s + 1) ds, and the sum's.
ExpertErrors errors_of(const Routing& r, int64_t n) {
    const int64_t E = r.logits.shape[1];
    double largest = -INFINITY, least = INFINITY, sum = 0;
    for (int64_t e = 0; e < E; ++e) {
        const double x = value(r.logits, n * E + e);
        largest = std::max(largest, x);
        least = std::min(least, x);
    }
    for (int64_t e = 0; e < E; ++e) sum += std::exp(value(r.logits, n * E + e) - largest);
    ExpertErrors errors{};
    for (int64_t e = 0; e < E; ++e) {
        const double x = value(r.logits, n * E + e), soft = std::exp(x - largest) / sum;
        errors.soft.push_back(soft);
        errors.value.push_back(r.sigmoid ? 1 / (1 + std::exp(-x)) : soft);
        errors.total += errors.value.back();
    }
    const double of_softmax = 2 * (kMath + u * (largest - least)) + sum_error(E);
    errors.p = r.sigmoid ? 3 * kMath : of_softmax;
    errors.log_sum = of_softmax + kMath * std::log(sum) + 2 * u * std::abs(largest);
    const double share = 2 * errors.p + sum_error(E) + 2 * u;
    for (const double p : errors.value)
        errors.entropy += p / errors.total * (std::abs(std::log(errors.total)) + std::abs(std::log(p)) + 1) *
                          (share + kMath + sum_error(E));
    return errors;
}

void run_route(const RoutingForm& f, const KernelTable& table, const Stream& stream, Arena& arena) {
    const Routing r = make_routing(f, arena);
    arena.start();
    table.route(stream, r);
    std::vector<ExpertErrors> errors;
    for (int64_t n = 0; n < f.N; ++n) errors.push_back(errors_of(r, n));
    const auto of_row = [&](int64_t n) -> const ExpertErrors& { return errors[static_cast<size_t>(n)]; };
    // A NaN of the reference requires a NaN.
    const auto result = [&](const char* name, const View& y, auto&& tolerance) {
        arena.result(name, y, [&](int64_t i) { return std::isnan(value(y, i)) ? 0 : tolerance(i); });
    };
    arena.result("experts", r.experts, [](int64_t) { return 0.0; });
    // A quotient of p and a sum of k of them.
    result("weights", r.weights, [&](int64_t i) {
        const double relative = (f.normalise ? 2 : 1) * of_row(i / f.k).p + sum_error(f.k + 4);
        return relative * std::abs(value(r.weights, i)) + rounding(DType::f32, value(r.weights, i));
    });
    if (f.shares)
        result("shares", r.shares, [&](int64_t i) {
            const double relative = 2 * of_row(i / f.E).p + sum_error(f.E + 2);
            return relative * value(r.shares, i) + rounding(DType::f32, value(r.shares, i));
        });
    result("entropy", r.entropy,
           [&](int64_t n) { return of_row(n).entropy + rounding(DType::f32, value(r.entropy, n)); });
    result("log_sum", r.log_sum,
           [&](int64_t n) { return of_row(n).log_sum + rounding(DType::f32, value(r.log_sum, n)); });
}

// --- backward ---

struct BackwardForm {
    RoutingForm forward;
    int64_t segments = 0;  // rows of dshares; 0: no dshares
    float z_scale = 0;
};

std::string label(const BackwardForm& f) {
    return concat(label(f.forward), f.segments > 0 ? concat(", ", f.segments, " segments") : "",
                  f.z_scale != 0 ? concat(", z ", f.z_scale) : "");
}

// Sums of the absolute terms in route_backward, which computes dp from a few operations on p and sums over the k chosen
// experts and over E; each term is off by a few times the error of p.
std::vector<double> sizes_of_gradient(const RoutingBackward& b, const ExpertErrors& row, int64_t n) {
    const Routing& r = b.forward;
    const int64_t E = r.logits.shape[1], k = r.experts.shape[1];
    double chosen = r.epsilon, g_p = 0, largest_D = 0, p_dp = 0;
    for (int64_t i = n * k; i < (n + 1) * k; ++i) {
        const double p = row.value[static_cast<size_t>(value(r.experts, i))];
        chosen += p;
        g_p += std::abs(value(b.dweights, i)) * p;
    }
    const double factor = r.normalise ? r.scale / chosen : static_cast<double>(r.scale);
    std::vector<double> dp(static_cast<size_t>(E));
    const auto segment = b.segments.defined() ? static_cast<int64_t>(value(b.segments, n)) : 0;
    for (int64_t e = 0; b.dshares.defined() && e < E; ++e)
        largest_D = std::max(largest_D, std::abs(value(b.dshares, segment * E + e)));
    for (double& d : dp) d = 2 * largest_D / row.total;
    for (int64_t i = n * k; i < (n + 1) * k; ++i)
        dp[static_cast<size_t>(value(r.experts, i))] +=
            factor * (std::abs(value(b.dweights, i)) + (r.normalise ? g_p / chosen : 0));
    for (size_t e = 0; e < dp.size(); ++e) p_dp += row.value[e] * dp[e];
    for (size_t e = 0; e < dp.size(); ++e)
        dp[e] = row.value[e] * (dp[e] + (r.sigmoid ? 0 : p_dp)) +
                2 * b.z_scale * std::abs(value(r.log_sum, n)) * row.soft[e];
    return dp;
}

void run_route_backward(const BackwardForm& f, const KernelTable& table, const Stream& stream, Arena& arena) {
    const int64_t N = f.forward.N, E = f.forward.E, k = f.forward.k;
    const Routing forward = make_routing(f.forward, arena);
    using R = Routing;
    reference_table().route(
        {}, on_host(forward, &R::logits, &R::bias, &R::experts, &R::weights, &R::shares, &R::entropy, &R::log_sum));
    RoutingBackward b{.forward = forward,
                      .dweights = arena.normal({N, k}, DType::f32, "dweights"),
                      .z_scale = f.z_scale,
                      .dlogits = arena.empty({N, E}, DType::f32)};
    b.forward.bias = b.forward.shares = b.forward.entropy = {};
    if (f.segments > 0) b.dshares = arena.normal({f.segments, E}, DType::f32, "dshares");
    if (f.segments > 1) {
        std::vector<double> segment;
        for (int64_t n = 0; n < N; ++n) segment.push_back(static_cast<double>(n * 5 / 3 % f.segments));
        b.segments = arena.from({N}, DType::i32, segment);
    }
    arena.start();
    table.route_backward(stream, b);
    std::vector<double> tolerance;
    for (int64_t n = 0; n < N; ++n) {
        const ExpertErrors row = errors_of(forward, n);
        for (const double size : sizes_of_gradient(b, row, n))
            tolerance.push_back((6 * row.p + 2 * row.log_sum + sum_error(E) + sum_error(k) + 20 * u) * size + FLT_MIN);
    }
    arena.result("dlogits", b.dlogits, [&](int64_t i) { return tolerance[static_cast<size_t>(i)]; });
}

const RoutingForm kRoutingForms[] = {
    {.N = 0, .E = 4, .k = 2},
    {.N = 1, .E = 1, .k = 1},
    {.N = 3, .E = 2, .k = 2},
    {.N = 65, .E = 8, .k = 2, .normalise = true},
    {.N = 33, .E = 17, .k = 3, .scale = 2.5f},
    {.N = 200, .E = 32, .k = 4, .sigmoid = true, .bias = true, .normalise = true, .epsilon = 1e-6f},
    {.N = 31, .E = 60, .k = 4, .bias = true},
    {.N = 17, .E = 63, .k = 7, .sigmoid = true},
    {.N = 301, .E = 64, .k = 6, .shares = false},
    {.N = 127, .E = 128, .k = 8, .normalise = true},
    {.N = 9, .E = 512, .k = 10, .normalise = true, .epsilon = 0.125f, .scale = 0.5f},
    {.N = 5, .E = 513, .k = 20, .sigmoid = true, .bias = true},
    {.N = 3, .E = 40, .k = 40, .normalise = true},
    {.N = 2, .E = 3000, .k = 100, .bias = true},
    {.N = 65, .E = 24, .k = 4, .groups = 4, .chosen_groups = 2, .group_best = 2},
    {.N = 65, .E = 160, .k = 6, .scale = 16, .groups = 8, .chosen_groups = 3},
    {.N = 100,
     .E = 256,
     .k = 8,
     .sigmoid = true,
     .bias = true,
     .normalise = true,
     .epsilon = 1e-20f,
     .scale = 2.5f,
     .groups = 8,
     .chosen_groups = 4,
     .group_best = 2},
    {.N = 33, .E = 21, .k = 3, .sigmoid = true, .groups = 7, .chosen_groups = 3, .shares = false},
    {.N = 20, .E = 40, .k = 5, .bias = true, .groups = 2, .chosen_groups = 1, .group_best = 5},
    {.N = 20, .E = 40, .k = 7, .sigmoid = true, .bias = true, .groups = 5, .chosen_groups = 3, .group_best = 4},
    {.N = 50, .E = 33, .k = 5, .normalise = true, .kind = Logits::tied},
    {.N = 50, .E = 32, .k = 8, .sigmoid = true, .bias = true, .kind = Logits::tied},
    {.N = 50, .E = 48, .k = 4, .groups = 12, .chosen_groups = 2, .group_best = 2, .kind = Logits::tied},
};

}  // namespace

void add_routing(std::vector<Case>& all) {
    const auto add_form = [&](const RoutingForm& f) {
        add(all, "route", &KernelTable::route, label(f),
            [f](const auto& table, const auto& stream, Arena& arena) { run_route(f, table, stream, arena); });
    };
    for (const RoutingForm& f : kRoutingForms) add_form(f);
    for (const bool sigmoid : {false, true})
        for (const bool normalise : {false, true}) {
            add_form({.N = 20, .E = 37, .k = 3, .sigmoid = sigmoid, .normalise = normalise, .kind = Logits::with_nan});
            add_form({.N = 20,
                      .E = 36,
                      .k = 4,
                      .sigmoid = sigmoid,
                      .bias = true,
                      .normalise = normalise,
                      .groups = 6,
                      .chosen_groups = 2,
                      .kind = Logits::with_nan});
        }
    const auto add_backward = [&](const BackwardForm& f) {
        add(all, "route_backward", &KernelTable::route_backward, label(f),
            [f](const auto& table, const auto& stream, Arena& arena) { run_route_backward(f, table, stream, arena); });
    };
    for (const RoutingForm& f : kRoutingForms) {
        add_backward({f});
        add_backward({f, 1});
        add_backward({f, 3, 0.25f});
    }
    for (const float rate : {0.001f, 0.0f})
        for (const int64_t n : kLengths) {
            if (n > 5000) continue;
            add(all, "balance", &KernelTable::balance, concat("(", n, ") rate ", rate),
                [=](const auto& table, const auto& stream, Arena& arena) {
                    const View bias = arena.normal({n}, DType::f32, "bias", 0.1);
                    std::vector<double> count;  // some counts equal the mean
                    for (int64_t e = 0; e < n; ++e) count.push_back(static_cast<double>(40 + e * 7 % 5));
                    const View counts = arena.from({n}, DType::f32, count);
                    arena.start();
                    table.balance(stream, bias, counts, 42, rate);
                    arena.result("bias", bias, [](int64_t) { return 0.0; });  // one sum
                });
        }
}

namespace {

// `count` distinct numbers of [0, M) in random order; -1 beyond M, and in every third place unless all_named.
std::vector<double> make_rows(int64_t count, int64_t M, bool all_named) {
    std::vector<double> rows(static_cast<size_t>(M));
    std::iota(rows.begin(), rows.end(), 0.0);
    for (size_t i = rows.size(); i > 1; --i)
        std::swap(rows[i - 1], rows[static_cast<size_t>(uniform_below(random_key(4, "rows"), i, i))]);
    rows.resize(static_cast<size_t>(count), -1);
    if (!all_named)
        for (size_t i = 0; i < rows.size(); i += 3) rows[i] = -1;
    return rows;
}

// x (M, C); N rows of k choices.
struct CombineForm {
    int64_t M, N, k, C;
    DType dtype = DType::f32;
    bool weights = true, all_named = false;
    std::string name() const {
        return concat(dtype, " (", M, ", ", C, ") to (", N, ", ", k, ")", weights ? "" : " no weights",
                      all_named ? " all named" : "");
    }
};

void add_gather(std::vector<Case>& all, DType t, int64_t N, int64_t M, int64_t C) {
    add(all, "gather_rows", &KernelTable::gather_rows, concat(t, " (", N, ", ", C, ") to ", M, " rows"),
        [=](const auto& table, const auto& stream, Arena& arena) {
            std::vector<double> from;  // some rows repeat, some are none
            for (int64_t m = 0; m < M; ++m) from.push_back(m % 5 == 3 ? -1 - m : static_cast<double>(m * 7 % N));
            const View x = arena.normal({N, C}, t, "x"), rows = arena.from({M}, DType::i32, from);
            const View y = arena.empty({M, C}, t);
            arena.start();
            table.gather_rows(stream, x, rows, y);
            arena.result("y", y, [](int64_t) { return 0.0; });  // a copy
        });
}

// A sum of k products.
void add_combine(std::vector<Case>& all, const CombineForm& f) {
    add(all, "combine_rows", &KernelTable::combine_rows, f.name(),
        [f](const auto& table, const auto& stream, Arena& arena) {
            const View x = arena.normal({f.M, f.C}, f.dtype, "x");
            const View rows = arena.from({f.N, f.k}, DType::i32, make_rows(f.N * f.k, f.M, f.all_named));
            const View weights = f.weights ? arena.normal({f.N, f.k}, DType::f32, "weights") : View();
            const View y = arena.empty({f.N, f.C}, f.dtype);
            arena.start();
            table.combine_rows(stream, x, rows, weights, y);
            arena.result("y", y, [&](int64_t i) {
                double size = 0;
                for (int64_t j = i / f.C * f.k; j < (i / f.C + 1) * f.k; ++j)
                    if (const auto row = static_cast<int64_t>(value(rows, j)); row >= 0)
                        size += std::abs((f.weights ? value(weights, j) : 1) * value(x, row * f.C + i % f.C));
                return sum_error(f.k + 1) * size + rounding(f.dtype, value(y, i));
            });
        });
}

// dx is one product, dweights a sum of C of them.
void add_combine_backward(std::vector<Case>& all, const CombineForm& f) {
    add(all, "combine_rows_backward", &KernelTable::combine_rows_backward, f.name(),
        [f](const auto& table, const auto& stream, Arena& arena) {
            const View x = arena.normal({f.M, f.C}, f.dtype, "x"), dy = arena.normal({f.N, f.C}, f.dtype, "dy");
            const View rows = arena.from({f.N, f.k}, DType::i32, make_rows(f.N * f.k, f.M, f.all_named));
            const View weights = f.weights ? arena.normal({f.N, f.k}, DType::f32, "weights") : View();
            const View dx = arena.empty({f.M, f.C}, f.dtype);
            const View dweights = f.weights ? arena.empty({f.N, f.k}, DType::f32) : View();
            arena.start();
            table.combine_rows_backward(stream, dy, x, rows, weights, dx, dweights);
            arena.result("dx", dx, [&](int64_t i) { return one_operation(f.dtype, value(dx, i)); });
            if (f.weights)
                arena.result("dweights", dweights, [&](int64_t i) {
                    const auto row = static_cast<int64_t>(value(rows, i));
                    double size = 0;
                    for (int64_t c = 0; row >= 0 && c < f.C; ++c)
                        size += std::abs(value(dy, i / f.k * f.C + c) * value(x, row * f.C + c));
                    return sum_error(f.C + 1) * size + rounding(DType::f32, value(dweights, i));
                });
        });
}

// --- products ---

using Rows = std::vector<int64_t>;

// K and N as in Gemm. For a weight gradient c is (K', N') per group, summed over the group's rows.
struct GroupedForm {
    Rows rows;
    int64_t N, K;
    DType in = DType::f32, out = DType::f32;
    bool transpose_a = false, transpose_b = false, accumulate = false;
    Numbers kind = Numbers::normal;
    Epilogue epilogue = Epilogue::none;
    bool keeps_z = true, bias = false;
    int64_t total() const { return std::accumulate(rows.begin(), rows.end(), int64_t{0}); }
    int64_t groups() const { return static_cast<int64_t>(rows.size()); }
};

std::string label(const GroupedForm& f) {
    constexpr const char* kNames[] = {"", " gelu", " gelu_backward", " swiglu", " swiglu_backward"};
    std::string rows;
    for (const int64_t n : f.rows) rows += concat(rows.empty() ? "" : "+", n);
    return concat(f.in, " to ", f.out, " (", rows, ", ", f.N, ", ", f.K, ") ", f.transpose_a ? "t" : "n",
                  f.transpose_b ? "t" : "n", f.accumulate ? " accumulate" : "", name_of(f.kind),
                  kNames[static_cast<size_t>(f.epilogue)], f.keeps_z ? "" : " z not kept", f.bias ? " bias" : "");
}

Gemm operands(const GroupedForm& f, Arena& arena) {
    const int64_t M = f.total(), E = f.groups();
    const bool backward = f.epilogue == Epilogue::gelu_backward || f.epilogue == Epilogue::swiglu_backward;
    const bool gated = f.epilogue == Epilogue::swiglu || f.epilogue == Epilogue::swiglu_backward;
    const Shape of_c = f.transpose_a ? Shape{E, f.K, f.N} : Shape{M, f.N};
    Gemm g{.a = numbers(arena, f.kind, {M, f.K}, f.in, "a"),
           .b = numbers(arena, f.kind,
                        f.transpose_a   ? Shape{M, f.N}
                        : f.transpose_b ? Shape{E, f.N, f.K}
                                        : Shape{E, f.K, f.N},
                        f.in, "b"),
           .c = f.accumulate ? numbers(arena, f.kind, of_c, f.out, "c") : arena.empty(of_c, f.out),
           .transpose_a = f.transpose_a,
           .transpose_b = f.transpose_b,
           .accumulate = f.accumulate,
           .epilogue = f.epilogue};
    if (f.bias) g.bias = numbers(arena, f.kind, {E, f.N}, f.in, "bias");
    if (backward)
        g.x = arena.normal(of_c, f.in, "x");
    else if (f.epilogue != Epilogue::none && f.keeps_z)
        g.x = arena.empty(of_c, f.in);
    if (gated) g.gate = arena.normal(of_c, f.in, "gate");
    if (f.epilogue == Epilogue::swiglu_backward) g.dup = arena.empty(of_c, f.in);
    return g;
}

struct Inputs {
    std::vector<double> a, b, c, bias;  // c only with `accumulate`
};

// Element i of a product without epilogue: its value and error bound, as for Gemm.
Inexact sum_at(const GroupedForm& f, const Inputs& in, int64_t i) {
    const int64_t m = f.transpose_a ? i / f.N % f.K : i / f.N, n = i % f.N;
    int64_t e = 0, first = 0;  // the group and its first row
    if (f.transpose_a)
        for (; e < i / f.N / f.K; ++e) first += f.rows[static_cast<size_t>(e)];
    else
        for (; m >= first + f.rows[static_cast<size_t>(e)]; ++e) first += f.rows[static_cast<size_t>(e)];
    const int64_t terms = f.transpose_a ? f.rows[static_cast<size_t>(e)] : f.K;
    // Offsets of the first element of a and b, and strides between terms.
    const int64_t a = f.transpose_a ? first * f.K + m : m * f.K, a_step = f.transpose_a ? f.K : 1;
    const int64_t b = f.transpose_a ? first * f.N + n : e * f.N * f.K + (f.transpose_b ? n * f.K : n);
    const int64_t b_step = f.transpose_b ? 1 : f.N;
    double sum = f.accumulate ? in.c[static_cast<size_t>(i)] : 0, size = std::abs(sum);
    if (f.bias) {
        const double added = in.bias[static_cast<size_t>(e * f.N + n)];
        sum += added;
        size += std::abs(added);
    }
    for (int64_t k = 0; k < terms; ++k) {
        const double term = in.a[static_cast<size_t>(a + k * a_step)] * in.b[static_cast<size_t>(b + k * b_step)];
        sum += term;
        size += std::abs(term);
    }
    return {sum, f.kind == Numbers::whole ? 0 : sum_error(terms + 4) * size + rounding(f.out, sum)};
}

void run_grouped(const GroupedForm& f, const KernelTable& table, const Stream& stream, Arena& arena) {
    GroupedGemm grouped{.all = operands(f, arena), .rows = f.rows};
    const Gemm& g = grouped.all;
    grouped.all.workspace = arena.workspace(table.grouped_gemm_workspace(stream, grouped));
    const Inputs in{values(g.a), values(g.b), f.accumulate ? values(g.c) : std::vector<double>(),
                    f.bias ? values(g.bias) : std::vector<double>()};
    arena.start();
    table.grouped_gemm(stream, grouped);
    report_product(arena, g, [&](int64_t i) { return sum_at(f, in, i); });
}

void add_grouped(std::vector<Case>& all, const GroupedForm& f) {
    add(all, "grouped_gemm", &KernelTable::grouped_gemm, label(f),
        [f](const auto& table, const auto& stream, Arena& arena) { run_grouped(f, table, stream, arena); });
}

}  // namespace

void add_expert_rows(std::vector<Case>& all) {
    for (const DType t : kActivationTypes) {
        for (const auto& [N, M, C] : {std::array<int64_t, 3>{3, 0, 5},
                                      {1, 1, 1},
                                      {5, 9, 17},
                                      {100, 300, 63},
                                      {64, 65, 65},
                                      {33, 80, 128},
                                      {200, 17, 1000},
                                      {1000, 1001, 127}})
            add_gather(all, t, N, M, C);
        for (const auto& [M, N, k, C] : {std::array<int64_t, 4>{0, 0, 2, 5},
                                         {1, 1, 1, 1},
                                         {9, 3, 3, 17},
                                         {20, 5, 2, 63},
                                         {64, 33, 2, 65},
                                         {130, 65, 2, 128},
                                         {40, 5, 8, 1000},
                                         {700, 300, 3, 127}})
            for (const bool weights : {true, false})
                for (const bool all_named : {false, true}) {
                    const CombineForm f{M, N, k, C, t, weights, all_named};
                    add_combine(all, f);
                    if (N * k <= M || !all_named) add_combine_backward(all, f);
                }
        add_combine_backward(all, {12, 6, 2, 70, t, true, true});  // every row of dx is named
        add_combine_backward(all, {300, 100, 3, 65, t, true, true});
    }
}

void add_grouped_gemm(std::vector<Case>& all) {
    const std::pair<DType, DType> types[] = {{DType::f32, DType::f32},
                                             {DType::bf16, DType::bf16},
                                             {DType::bf16, DType::f32},
                                             {DType::f16, DType::f16},
                                             {DType::f16, DType::f32}};
    const std::pair<Rows, std::array<int64_t, 2>> sizes[] = {
        {{1}, {1, 1}},
        {{0, 3, 0, 0, 7, 1}, {17, 5}},
        {{0, 40, 0}, {63, 65}},
        {{5, 30, 0, 70, 2, 17, 4}, {33, 77}},
        {{130, 3, 64}, {70, 130}},
        {{0, 0, 0}, {5, 7}},
        {{300, 1, 20}, {96, 64}},
    };
    for (const auto& [in, out] : types)
        for (const auto& [rows, size] : sizes)
            for (const auto& [kind, accumulate] :
                 {std::pair{Numbers::normal, false}, {Numbers::normal, true}, {Numbers::whole, true}}) {
                const auto [N, K] = size;
                add_grouped(all, {rows, N, K, in, out, false, true, accumulate, kind});
                add_grouped(all, {rows, N, K, in, out, false, false, accumulate, kind});
                if (out == DType::f32) add_grouped(all, {rows, N, K, in, out, true, false, accumulate, kind});
            }
    for (const DType t : kActivationTypes)
        for (const auto& [rows, size] : sizes) {
            const auto [N, K] = size;
            for (const Epilogue e : {Epilogue::gelu, Epilogue::swiglu})
                for (const bool keeps_z : {true, false})
                    for (const bool bias : {true, false})
                        add_grouped(all, {rows, N, K, t, t, false, true, false, Numbers::normal, e, keeps_z, bias});
            for (const Numbers kind : {Numbers::normal, Numbers::whole})
                add_grouped(all, {rows, N, K, t, t, false, true, false, kind, Epilogue::none, true, true});
            for (const Epilogue e : {Epilogue::gelu_backward, Epilogue::swiglu_backward})
                add_grouped(all, {rows, N, K, t, t, false, false, false, Numbers::normal, e});
        }
}

}  // namespace tutti::kernels::cases
