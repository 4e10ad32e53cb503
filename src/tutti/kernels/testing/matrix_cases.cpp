// kernels/testing/matrix_cases.cpp: matrix products, reductions, embedding.
#include <limits>

#include "tutti/base/exact_sum.h"
#include "tutti/kernels/testing/cases.h"

namespace tutti::kernels::cases {

View numbers(Arena& arena, Numbers kind, const Shape& shape, DType dtype, const char* purpose) {
    if (kind == Numbers::normal) return arena.normal(shape, dtype, purpose);
    std::vector<double> whole(static_cast<size_t>(shape.numel()));
    const RandomKey key = random_key(6, purpose);
    for (size_t i = 0; i < whole.size(); ++i) whole[i] = static_cast<double>(uniform_below(key, i, 9)) - 4;
    return arena.from(shape, dtype, whole);
}

// The slopes of GELU and SiLU are at most 1.13 and 1.1; elementwise_cases.cpp derives the errors of the functions
// themselves.
void report_product(Arena& arena, const Gemm& g, const std::function<Inexact(int64_t)>& z_at) {
    const DType t = g.c.dtype;
    const bool backward = g.epilogue == Epilogue::gelu_backward || g.epilogue == Epilogue::swiglu_backward;
    const auto silu = [](double x) { return x / (1 + std::exp(-x)); };
    arena.result("c", g.c, [&](int64_t i) {
        const auto [z, error] = z_at(i);
        const double x = backward ? value(g.x, i) : z, gate = g.gate.defined() ? value(g.gate, i) : 0;
        const double last = rounding(t, value(g.c, i));
        switch (g.epilogue) {
            case Epilogue::none: return error;
            case Epilogue::gelu: return 1.13 * error + 8 * u * std::abs(z) + last;
            case Epilogue::gelu_backward:
                return 1.13 * error + 8 * u * std::abs(z) * (1 + 0.8 * std::abs(x) * (1 + 0.1342 * x * x)) + last;
            case Epilogue::swiglu: return std::abs(silu(gate)) * error + 10 * u * std::abs(value(g.c, i)) + last;
            case Epilogue::swiglu_backward:
                return std::abs(x) * (1.1 * error + 16 * u * (1 + std::abs(gate)) * std::abs(z)) + last;
        }
        return last;
    });
    const bool keeps_z = !backward && g.epilogue != Epilogue::none && g.x.defined();
    if (keeps_z) arena.result("x", g.x, [&](int64_t i) { return z_at(i).error; });
    if (g.dup.defined())
        arena.result("dup", g.dup, [&](int64_t i) {
            const auto [z, error] = z_at(i);
            const double gate = value(g.gate, i);
            return std::abs(silu(gate)) * error + 10 * u * (1 + std::abs(gate)) * std::abs(z) +
                   rounding(t, value(g.dup, i));
        });
}

namespace {

struct GemmForm {
    int64_t M, N, K;
    DType in = DType::f32, out = DType::f32;
    bool transpose_a = false, transpose_b = false, accumulate = false;
    enum class Bias { none, same, f32 } bias = Bias::none;
    Numbers kind = Numbers::normal;
    int64_t padding = 0;  // a, b and c are the left columns of matrices wider by this
};

std::string label(const GemmForm& f) {
    return concat(f.in, " to ", f.out, " (", f.M, ", ", f.N, ", ", f.K, ") ", f.transpose_a ? "t" : "n",
                  f.transpose_b ? "t" : "n", f.accumulate ? " accumulate" : "",
                  f.bias == GemmForm::Bias::none   ? ""
                  : f.bias == GemmForm::Bias::same ? " bias"
                                                   : " bias f32",
                  f.padding ? " strided" : "", name_of(f.kind));
}

View matrix(Arena& arena, const GemmForm& f, int64_t rows, int64_t columns, DType t, const char* purpose) {
    return slice(numbers(arena, f.kind, {rows, columns + f.padding}, t, purpose), 1, 0, columns);
}

// |error| <= sum_error(K + 4) (sum_k |a||b| + |bias| + |c|): a sum of K products and at most two terms more. With
// integers only the last rounding is left, which is the same in every table.
void run_gemm(const GemmForm& f, const KernelTable& table, const Stream& stream, Arena& arena) {
    const View a = f.transpose_a ? matrix(arena, f, f.K, f.M, f.in, "a") : matrix(arena, f, f.M, f.K, f.in, "a");
    const View b = f.transpose_b ? matrix(arena, f, f.N, f.K, f.in, "b") : matrix(arena, f, f.K, f.N, f.in, "b");
    const View c = f.accumulate ? matrix(arena, f, f.M, f.N, f.out, "c")
                                : slice(arena.empty({f.M, f.N + f.padding}, f.out), 1, 0, f.N);
    View bias;
    if (f.bias != GemmForm::Bias::none)
        bias = numbers(arena, f.kind, {f.N}, f.bias == GemmForm::Bias::same ? f.in : DType::f32, "bias");
    const std::vector<double> left = values(a), right = values(b), old = values(c);
    Gemm gemm{.a = a,
              .b = b,
              .c = c,
              .transpose_a = f.transpose_a,
              .transpose_b = f.transpose_b,
              .accumulate = f.accumulate,
              .bias = bias};
    gemm.workspace = arena.workspace(table.gemm_workspace(stream, gemm));
    arena.start();
    table.gemm(stream, gemm);
    arena.result("c", c, [&](int64_t i) {
        if (f.kind == Numbers::whole) return 0.0;
        const int64_t m = i / f.N, n = i % f.N;
        double size = bias.defined() ? std::abs(value(bias, n)) : 0;
        if (f.accumulate) size += std::abs(old[static_cast<size_t>(i)]);
        for (int64_t k = 0; k < f.K; ++k)
            size += std::abs(left[static_cast<size_t>(f.transpose_a ? k * f.M + m : m * f.K + k)] *
                             right[static_cast<size_t>(f.transpose_b ? n * f.K + k : k * f.N + n)]);
        return sum_error(f.K + 4) * size + rounding(f.out, value(c, i));
    });
}

// A product of normal numbers, with an epilogue.
struct EpilogueForm {
    int64_t M, N, K;
    DType t = DType::f32;
    Epilogue epilogue = Epilogue::gelu;
    bool transpose_b = false, bias = false, keeps_z = true;
    bool side_by_side = false;  // gate and x, and c and dup, are the left and the right columns of one matrix
};

std::string label(const EpilogueForm& f) {
    constexpr const char* kNames[] = {"none", "gelu", "gelu_backward", "swiglu", "swiglu_backward"};
    return concat(f.t, " (", f.M, ", ", f.N, ", ", f.K, ") n", f.transpose_b ? "t " : "n ",
                  kNames[static_cast<size_t>(f.epilogue)], f.bias ? " bias" : "", f.keeps_z ? "" : " z not kept",
                  f.side_by_side ? " side by side" : "");
}

// z has the error of a product and of its rounding.
void run_epilogue(const EpilogueForm& f, const KernelTable& table, const Stream& stream, Arena& arena) {
    const bool backward = f.epilogue == Epilogue::gelu_backward || f.epilogue == Epilogue::swiglu_backward;
    const Shape shape = {f.M, f.N};
    const View a = arena.normal({f.M, f.K}, f.t, "a");
    const View b = arena.normal(f.transpose_b ? Shape{f.N, f.K} : Shape{f.K, f.N}, f.t, "b");
    Gemm g{.a = a, .b = b, .c = arena.empty(shape, f.t), .transpose_b = f.transpose_b, .epilogue = f.epilogue};
    if (f.bias) g.bias = arena.normal({f.N}, f.t, "bias");
    if (backward)
        g.x = arena.normal(shape, f.t, "x");
    else if (f.keeps_z)
        g.x = arena.empty(shape, f.t);
    if (f.epilogue == Epilogue::swiglu || f.epilogue == Epilogue::swiglu_backward)
        g.gate = arena.normal(shape, f.t, "gate");
    if (f.epilogue == Epilogue::swiglu_backward) g.dup = arena.empty(shape, f.t);
    if (f.side_by_side) {
        const View saved = arena.normal({f.M, 2 * f.N}, f.t, "gate and up"), to = arena.empty({f.M, 2 * f.N}, f.t);
        g.gate = slice(saved, 1, 0, f.N);
        g.x = slice(saved, 1, f.N, f.N);
        g.c = slice(to, 1, 0, f.N);
        g.dup = slice(to, 1, f.N, f.N);
    }
    g.workspace = arena.workspace(table.gemm_workspace(stream, g));
    arena.start();
    table.gemm(stream, g);
    report_product(arena, g, [&](int64_t i) {
        const int64_t m = i / f.N, n = i % f.N;
        double sum = f.bias ? value(g.bias, n) : 0, size = std::abs(sum);
        for (int64_t k = 0; k < f.K; ++k) {
            const double term = value(a, m * f.K + k) * value(b, f.transpose_b ? n * f.K + k : k * f.N + n);
            sum += term;
            size += std::abs(term);
        }
        return Inexact{sum, sum_error(f.K + 4) * size + rounding(f.t, sum)};
    });
}

}  // namespace

void add_gemm(std::vector<Case>& all) {
    const auto add_form = [&](const GemmForm& f) {
        add(all, "gemm", &KernelTable::gemm, label(f),
            [f](const KernelTable& table, const Stream& stream, Arena& arena) { run_gemm(f, table, stream, arena); });
    };
    using Bias = GemmForm::Bias;
    const std::pair<DType, DType> types[] = {{DType::f32, DType::f32},
                                             {DType::bf16, DType::bf16},
                                             {DType::bf16, DType::f32},
                                             {DType::f16, DType::f16},
                                             {DType::f16, DType::f32}};
    const std::array<int64_t, 3> sizes[] = {{1, 1, 1},     {3, 17, 5},    {17, 63, 65},   {65, 127, 33}, {1, 300, 64},
                                            {63, 3, 1000}, {128, 96, 64}, {127, 65, 257}, {4, 130, 77},  {16, 70, 40}};
    for (const auto& [in, out] : types) {
        for (const auto& [M, N, K] : sizes)
            for (const bool ta : {false, true})
                for (const bool tb : {false, true}) {
                    add_form({M, N, K, in, out, ta, tb});
                    add_form({M, N, K, in, out, ta, tb, true, Bias::none, Numbers::normal, 3});
                    add_form({M, N, K, in, out, ta, tb, false, Bias::none, Numbers::whole, 1});
                }
        for (const bool tb : {false, true}) {
            add_form({17, 63, 65, in, out, false, tb, false, Bias::same});
            add_form({17, 63, 65, in, out, false, tb, true, Bias::f32, Numbers::whole});
            add_form({65, 127, 33, in, out, false, tb, false, Bias::f32, Numbers::normal, 5});
            add_form({33, 64, 48, in, out, false, tb, true, Bias::same, Numbers::normal, 16});
        }
        add_form({0, 5, 7, in, out});                                 // no rows
        add_form({3, 0, 9001, in, out});                              // no columns, and K in pieces
        add_form({3, 5, 0, in, out});                                 // no terms: zeros
        add_form({3, 5, 0, in, out, false, false, true, Bias::f32});  // no terms: c + bias
        add_form({3, 5, 0, in, out, true, false, true});              // no terms: a weight gradient of no rows
    }
    const auto add_epilogue = [&](const EpilogueForm& f) {
        add(all, "gemm", &KernelTable::gemm, label(f),
            [f](const KernelTable& table, const Stream& stream, Arena& arena) {
                run_epilogue(f, table, stream, arena);
            });
    };
    for (const DType t : kActivationTypes)
        for (const auto& [M, N, K] : {std::array<int64_t, 3>{1, 1, 1},
                                      {4, 70, 33},
                                      {17, 63, 65},
                                      {128, 96, 64},
                                      {200, 300, 40},
                                      {0, 5, 7},
                                      {3, 5, 0}}) {
            for (const Epilogue forward : {Epilogue::gelu, Epilogue::swiglu}) {
                add_epilogue({M, N, K, t, forward, true});
                add_epilogue({M, N, K, t, forward, true, true});
                add_epilogue({M, N, K, t, forward, true, true, false});
            }
            for (const Epilogue backward : {Epilogue::gelu_backward, Epilogue::swiglu_backward})
                add_epilogue({M, N, K, t, backward, false});
            EpilogueForm form{M, N, K, t, Epilogue::swiglu_backward, false};
            form.side_by_side = true;
            add_epilogue(form);
        }
}

namespace {

void add_sums(std::vector<Case>& all, Numbers kind, int64_t n) {
    add(all, "sums_of_squares", &KernelTable::sums_of_squares, concat("(", n, ")", name_of(kind)),
        [=](const auto& table, const auto& stream, Arena& arena) {
            const int64_t blocks = (n + kSumBlock - 1) / kSumBlock;
            const View x = numbers(arena, kind, {n}, DType::f32, "x"), sums = arena.empty({blocks}, DType::f64);
            std::vector<double> size(static_cast<size_t>(blocks));
            const std::vector<double> given = values(x);
            for (size_t i = 0; i < given.size(); ++i) size[i / kSumBlock] += given[i] * given[i];
            arena.start();
            table.sums_of_squares(stream, x, sums);
            // Squares of f32 are exact in f64; only the additions round.
            arena.result("sums", sums, [&](int64_t b) {
                return kind == Numbers::whole ? 0
                                              : kSumBlock * unit_roundoff(DType::f64) * size[static_cast<size_t>(b)];
            });
        });
}

// Every table must give the same words; doubles hold them: all are below 2^32 but the highest, which is small.
void add_exact_sum(std::vector<Case>& all, std::string name, DType t, const std::vector<double>& given,
                   const std::vector<double>& before) {
    add(all, "exact_sum", &KernelTable::exact_sum, std::move(name),
        [=](const auto& table, const auto& stream, Arena& arena) {
            const View x = arena.from({static_cast<int64_t>(given.size())}, t, given);
            const View words = arena.from({ExactSum::kWords}, DType::i64, before);
            arena.start();
            table.exact_sum(stream, x, words);
            arena.result("words", words, [](int64_t) { return 0; });
        });
}

// Sums of terms of all magnitudes and signs, starting from zero or from a negative sum.
void add_exact_sums(std::vector<Case>& all) {
    const std::vector<double> zero(ExactSum::kWords);
    std::vector<double> below_zero(ExactSum::kWords, 0xffffffff);  // -2^-1074
    below_zero[ExactSum::kDigits - 1] = -1;
    below_zero[ExactSum::kDigits] = 2;
    for (const DType t : {DType::f32, DType::f64})
        for (const int64_t n : {0, 1, 3, 100, 9000, 40001}) {
            std::vector<double> near, far;
            for (int64_t i = 0; i < n; ++i) {
                const double x = tutti::normal(random_key(7, "terms"), static_cast<uint64_t>(i));
                near.push_back(x * x);
                const int range = t == DType::f32 ? 270 : 2090;  // from subnormal to nearly infinite
                far.push_back(std::ldexp(x, static_cast<int>(i * 7919 % range) - (t == DType::f32 ? 145 : 1070)));
            }
            add_exact_sum(all, concat(t, " (", n, ")"), t, near, below_zero);
            add_exact_sum(all, concat(t, " (", n, ") far apart"), t, far, zero);
        }
    const double infinity = std::numeric_limits<double>::infinity(), largest = std::numeric_limits<double>::max();
    const double least = std::numeric_limits<double>::denorm_min();
    add_exact_sum(all, "not finite", DType::f32, {1, infinity, -2, -infinity, std::nan(""), 0, -0.0}, below_zero);
    add_exact_sum(all, "not finite f64", DType::f64, {1, infinity, -2, -infinity, std::nan(""), 0, -0.0}, zero);
    add_exact_sum(all, "ends of f64", DType::f64, {largest, largest, -least, least, least, -largest, 0x1p-1022}, zero);
    add_exact_sum(all, "one below zero", DType::f64, {-least}, zero);
    add_exact_sum(all, "equal terms", DType::f64, std::vector<double>(20000, -0x1.fffffffffffffp31), below_zero);
}

void add_bias_backward(std::vector<Case>& all, DType t, Numbers kind, int64_t N, int64_t C) {
    add(all, "bias_backward", &KernelTable::bias_backward, concat(t, " (", N, ", ", C, ")", name_of(kind)),
        [=](const auto& table, const auto& stream, Arena& arena) {
            const View dy = numbers(arena, kind, {N, C}, t, "dy"), db = numbers(arena, kind, {C}, DType::f32, "db");
            std::vector<double> size = values(db);
            for (double& v : size) v = std::abs(v);
            for (int64_t i = 0; i < N * C; ++i) size[static_cast<size_t>(i % C)] += std::abs(value(dy, i));
            arena.start();
            table.bias_backward(stream, dy, db);
            arena.result("db", db, [&](int64_t c) {
                return kind == Numbers::whole ? 0 : sum_error(N + 2) * size[static_cast<size_t>(c)];
            });
        });
}

// Tokens below V; the matrix holds rows [first_row, first_row + rows).
struct EmbeddingForm {
    int64_t N, V, C, first_row, rows;
    DType dtype = DType::f32;
    Numbers kind = Numbers::normal;
    std::string name() const {
        return concat(dtype, " (", N, ", ", C, ") of ", V, ", rows ", first_row, " to ", first_row + rows,
                      name_of(kind));
    }
};

std::vector<double> make_tokens(int64_t N, int64_t V) {
    std::vector<double> tokens;
    for (int64_t n = 0; n < N; ++n)
        tokens.push_back(static_cast<double>(
            uniform_below(random_key(3, "tokens"), static_cast<uint64_t>(n), static_cast<uint64_t>(V))));
    return tokens;
}

void add_embedding_forward(std::vector<Case>& all, const EmbeddingForm& f) {
    add(all, "embedding_forward", &KernelTable::embedding_forward, f.name(),
        [f](const auto& table, const auto& stream, Arena& arena) {
            const View index = arena.from({f.N}, DType::i32, make_tokens(f.N, f.V));
            const View weight = arena.normal({f.rows, f.C}, f.dtype, "weight"), y = arena.empty({f.N, f.C}, f.dtype);
            arena.start();
            table.embedding_forward(stream, index, weight, f.first_row, y);
            arena.result("y", y, [](int64_t) { return 0; });  // a copy
        });
}

// A row that m tokens name is a sum of m + 1 terms; other rows stay unchanged.
void add_embedding_backward(std::vector<Case>& all, const EmbeddingForm& f) {
    add(all, "embedding_backward", &KernelTable::embedding_backward, f.name(),
        [f](const auto& table, const auto& stream, Arena& arena) {
            const std::vector<double> tokens = make_tokens(f.N, f.V);
            const View index = arena.from({f.N}, DType::i32, tokens);
            const View dy = numbers(arena, f.kind, {f.N, f.C}, f.dtype, "dy");
            const View dweight = numbers(arena, f.kind, {f.rows, f.C}, DType::f32, "dweight");
            std::vector<double> size = values(dweight);
            std::vector<int64_t> terms(size.size(), 1);
            for (double& v : size) v = std::abs(v);
            for (int64_t i = 0; i < f.N * f.C; ++i) {
                const auto row = static_cast<int64_t>(tokens[static_cast<size_t>(i / f.C)]) - f.first_row;
                if (row < 0 || row >= f.rows) continue;
                const auto at = static_cast<size_t>(row * f.C + i % f.C);
                size[at] += std::abs(value(dy, i));
                ++terms[at];
            }
            arena.start();
            table.embedding_backward(stream, index, dy, f.first_row, dweight);
            arena.result("dweight", dweight, [&](int64_t i) {
                const auto at = static_cast<size_t>(i);
                return f.kind == Numbers::whole || terms[at] == 1 ? 0 : sum_error(terms[at]) * size[at];
            });
        });
}

}  // namespace

void add_reductions(std::vector<Case>& all) {
    constexpr std::array<int64_t, 2> kShapes[] = {{0, 5},   {1, 1},      {3, 17},     {17, 63},
                                                  {65, 65}, {127, 1000}, {1000, 127}, {1000, 1}};
    for (const DType t : kActivationTypes)
        for (const Numbers kind : {Numbers::normal, Numbers::whole}) {
            if (t == DType::f32)
                for (const int64_t n : kLengths) add_sums(all, kind, n);
            for (const auto& [N, C] : kShapes) add_bias_backward(all, t, kind, N, C);
        }
    add_exact_sums(all);
}

void add_embedding(std::vector<Case>& all) {
    // N, V, C, first_row, rows: all rows; then rows in the middle, at one end, and rows that no token names.
    constexpr std::array<int64_t, 5> kShapes[] = {
        {0, 5, 3, 0, 5},         {1, 1, 1, 0, 1},     {17, 5, 63, 0, 5},           {65, 100, 127, 0, 100},
        {1000, 300, 65, 0, 300}, {300, 7, 128, 0, 7}, {1300, 2500, 8, 1000, 1400}, {65, 100, 127, 37, 41},
        {300, 7, 128, 2, 3},     {17, 5, 63, 0, 2},   {1000, 300, 65, 299, 1},     {33, 9, 17, 9, 4}};
    for (const DType t : kActivationTypes)
        for (const auto& [N, V, C, first_row, rows] : kShapes) {
            add_embedding_forward(all, {N, V, C, first_row, rows, t});
            for (const Numbers kind : {Numbers::normal, Numbers::whole})
                add_embedding_backward(all, {N, V, C, first_row, rows, t, kind});
        }
}

}  // namespace tutti::kernels::cases
