// kernels/testing/expert_cases.cpp: rows on their way to experts and back, and products of groups of rows.
#include <numeric>
#include <span>

#include "tutti/kernels/groups.h"
#include "tutti/kernels/testing/cases.h"

namespace tutti::kernels::cases {

namespace {

// `count` of the numbers [0, M) in some order, each at most once; -1 where there are no more, and here and there.
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
            std::vector<double> from;  // a row several times, and none
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

// K and N as of Gemm; of a weight gradient c is (K', N') per group and its rows are summed over.
struct GroupedForm {
    Rows rows;
    int64_t N, K;
    DType in = DType::f32, out = DType::f32;
    bool transpose_a = false, transpose_b = false, accumulate = false;
    Numbers kind = Numbers::normal;
    Epilogue epilogue = Epilogue::none;
    bool keeps_z = true;
    int64_t total() const { return std::accumulate(rows.begin(), rows.end(), int64_t{0}); }
    int64_t groups() const { return static_cast<int64_t>(rows.size()); }
};

std::string label(const GroupedForm& f) {
    constexpr const char* kNames[] = {"", " gelu", " gelu_backward", " swiglu", " swiglu_backward"};
    std::string rows;
    for (const int64_t n : f.rows) rows += concat(rows.empty() ? "" : "+", n);
    return concat(f.in, " to ", f.out, " (", rows, ", ", f.N, ", ", f.K, ") ", f.transpose_a ? "t" : "n",
                  f.transpose_b ? "t" : "n", f.accumulate ? " accumulate" : "", name_of(f.kind),
                  kNames[static_cast<size_t>(f.epilogue)], f.keeps_z ? "" : " z not kept");
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
    if (backward)
        g.x = arena.normal(of_c, f.in, "x");
    else if (f.epilogue != Epilogue::none && f.keeps_z)
        g.x = arena.empty(of_c, f.in);
    if (gated) g.gate = arena.normal(of_c, f.in, "gate");
    if (f.epilogue == Epilogue::swiglu_backward) g.dup = arena.empty(of_c, f.in);
    return g;
}

struct Inputs {
    std::vector<double> a, b, c;  // c where it is added to
};

// Element i of a product without epilogue: its value and how far it may be off, as of Gemm.
Inexact sum_at(const GroupedForm& f, const Inputs& in, int64_t i) {
    const int64_t m = f.transpose_a ? i / f.N % f.K : i / f.N, n = i % f.N;
    int64_t e = 0, first = 0;  // the group, and its first row
    if (f.transpose_a)
        for (; e < i / f.N / f.K; ++e) first += f.rows[static_cast<size_t>(e)];
    else
        for (; m >= first + f.rows[static_cast<size_t>(e)]; ++e) first += f.rows[static_cast<size_t>(e)];
    const int64_t terms = f.transpose_a ? f.rows[static_cast<size_t>(e)] : f.K;
    // The first element of a and of b, and from one term to the next.
    const int64_t a = f.transpose_a ? first * f.K + m : m * f.K, a_step = f.transpose_a ? f.K : 1;
    const int64_t b = f.transpose_a ? first * f.N + n : e * f.N * f.K + (f.transpose_b ? n * f.K : n);
    const int64_t b_step = f.transpose_b ? 1 : f.N;
    double sum = f.accumulate ? in.c[static_cast<size_t>(i)] : 0, size = std::abs(sum);
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
    const Inputs in{values(g.a), values(g.b), f.accumulate ? values(g.c) : std::vector<double>()};
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
    const std::pair<DType, DType> types[] = {
        {DType::f32, DType::f32}, {DType::bf16, DType::bf16}, {DType::bf16, DType::f32}};
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
                    add_grouped(all, {rows, N, K, t, t, false, true, false, Numbers::normal, e, keeps_z});
            for (const Epilogue e : {Epilogue::gelu_backward, Epilogue::swiglu_backward})
                add_grouped(all, {rows, N, K, t, t, false, false, false, Numbers::normal, e});
        }
}

}  // namespace tutti::kernels::cases
