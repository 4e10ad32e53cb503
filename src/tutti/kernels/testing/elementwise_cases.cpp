// kernels/testing/elementwise_cases.cpp: fill, cast, copy, add, accumulate, scale, the activations and dropout.
#include <algorithm>
#include <limits>

#include "tutti/kernels/testing/cases.h"

namespace tutti::kernels::cases {

namespace {

std::string label(DType dtype, int64_t n) { return concat(dtype, " (", n, ")"); }

// Normal numbers; from the eighth element on, values that saturate an activation or where exp leaves the range of f32.
View activation_input(Arena& arena, const Shape& shape, DType dtype, const char* purpose) {
    const View x = arena.normal(shape, dtype, purpose, 2);
    const std::vector<double> special = {0, 20, -20, 100, -100, 1e-4, -1e-4};
    std::vector<double> all = values(x);
    for (size_t i = 0; i < special.size() && 8 + i < all.size(); ++i) all[8 + i] = special[i];
    return arena.from(shape, dtype, all);
}

void add_simple(std::vector<Case>& all, DType t, int64_t n) {
    add(all, "fill", &KernelTable::fill, label(t, n), [=](const auto& table, const auto& stream, Arena& arena) {
        const View y = arena.empty({n}, t);
        arena.start();
        table.fill(stream, y, 0.7f);
        arena.result("y", y, [](int64_t) { return 0; });
    });
    add(all, "add", &KernelTable::add, label(t, n), [=](const auto& table, const auto& stream, Arena& arena) {
        const View a = arena.normal({n}, t, "a"), b = arena.normal({n}, t, "b"), y = arena.empty({n}, t);
        arena.start();
        table.add(stream, a, b, y);
        arena.result("y", y, [&](int64_t i) { return one_operation(t, value(y, i)); });
    });
    add(all, "add", &KernelTable::add, label(t, n) + " in place",
        [=](const auto& table, const auto& stream, Arena& arena) {
            const View a = arena.normal({n}, t, "a"), b = arena.normal({n}, t, "b");
            arena.start();
            table.add(stream, a, b, b);
            arena.result("y", b, [&](int64_t i) { return one_operation(t, value(b, i)); });
        });
    for (const DType sum : t == DType::f32 ? std::vector{t} : std::vector{t, DType::f32}) {
        add(all, "accumulate", &KernelTable::accumulate, concat(label(t, n), " onto ", sum),
            [=](const auto& table, const auto& stream, Arena& arena) {
                const View x = arena.normal({n}, t, "x"), y = arena.normal({n}, sum, "y");
                arena.start();
                table.accumulate(stream, x, y);
                arena.result("y", y, [&](int64_t i) { return one_operation(sum, value(y, i)); });
            });
    }
    add(all, "scale", &KernelTable::scale, label(t, n), [=](const auto& table, const auto& stream, Arena& arena) {
        const View x = arena.normal({n}, t, "x");
        arena.start();
        table.scale(stream, x, 0.3f);
        arena.result("x", x, [&](int64_t i) { return one_operation(t, value(x, i)); });
    });
}

// A block of columns of a wider tensor, at offsets that begin anywhere in a Philox block and exceed 2^32.
void add_normal(std::vector<Case>& all, int64_t rows, int64_t columns, int64_t first) {
    const std::string name = concat("(", rows, ", ", columns, ") from ", first);
    add(all, "normal", &KernelTable::normal, name, [=](const auto& table, const auto& stream, Arena& arena) {
        const View whole = arena.empty({rows, columns + 3}, DType::f32), y = slice(whole, 1, 2, columns);
        arena.start();
        table.normal(stream,
                     {.y = y, .key = random_key(3, "block"), .std = 0.02f, .first = first, .row_step = columns + 11});
        arena.result("y", y, [](int64_t) { return 0; });
    });
}

// The heads of some ranks and a part of the sequence, copied from one packed tensor into another.
void add_copies(std::vector<Case>& all, DType t, int64_t B, int64_t T, int64_t H, int64_t D) {
    add(all, "copy", &KernelTable::copy, concat(t, " (", B, ", ", T, ", ", H, ", ", D, ")"),
        [=](const auto& table, const auto& stream, Arena& arena) {
            const View packed = arena.normal({B, T + 3, 3 * H, D}, t, "x"),
                       whole = arena.empty({B, T, H + 1, D + 2}, t);
            const View x = slice(slice(packed, 1, 2, T), 2, H, H), y = slice(slice(whole, 2, 1, H), 3, 1, D);
            arena.start();
            table.copy(stream, x, y);
            arena.result("y", y, [](int64_t) { return 0; });
        });
}

// Casts round once, so every table gives the same bits; below FLT_MIN the hardware's conversions may flush.
void add_casts(std::vector<Case>& all, DType from, DType to, int64_t n) {
    add(all, "cast", &KernelTable::cast, concat(from, " to ", to, " (", n, ")"),
        [=](const auto& table, const auto& stream, Arena& arena) {
            std::vector<double> given(static_cast<size_t>(n));
            for (int64_t i = 0; i < n; ++i)  // 2^-25 .. 2^17: f16 has subnormals below 2^-14 and overflows at 65520
                given[static_cast<size_t>(i)] =
                    std::ldexp(normal(random_key(1, "cast"), static_cast<uint64_t>(i)), static_cast<int>(i % 43) - 25);
            constexpr double kInfinity = std::numeric_limits<double>::infinity();
            // Ties of bf16 and of f16 in both directions; not a number.
            const std::vector<double> special = {
                0,           -0.0,  kInfinity, -kInfinity, kInfinity - kInfinity, 1 + 0x1p-8, 1 + 0x3p-8, 1 + 0x1p-11,
                1 + 0x3p-11, 65519, 65520,     0x1p-25,    0x1.000002p-25,        3e38,       3.4e38};
            for (size_t i = 0; i < special.size() && i + 1 < given.size(); ++i) given[i + 1] = special[i];
            const View x = arena.from({n}, from, given), y = arena.empty({n}, to);
            arena.start();
            table.cast(stream, x, y);
            arena.result("y", y, [](int64_t) { return FLT_MIN; });
        });
}

void add_relu_and_gelu(std::vector<Case>& all, DType t, int64_t n) {
    add(all, "relu_forward", &KernelTable::relu_forward, label(t, n),
        [=](const auto& table, const auto& stream, Arena& arena) {
            const View x = activation_input(arena, {n}, t, "x"), y = arena.empty({n}, t);
            arena.start();
            table.relu_forward(stream, x, y);
            arena.result("y", y, [](int64_t) { return 0; });
        });
    add(all, "relu_backward", &KernelTable::relu_backward, label(t, n),
        [=](const auto& table, const auto& stream, Arena& arena) {
            std::vector<double> positive = values(arena.normal({n}, t, "y"));
            for (double& v : positive) v = std::max(v, 0.0);
            const View dy = arena.normal({n}, t, "dy"), y = arena.from({n}, t, positive), dx = arena.empty({n}, t);
            arena.start();
            table.relu_backward(stream, dy, y, dx);
            arena.result("dx", dx, [](int64_t) { return 0; });
        });
    // x/2 (1 + tanh(a)): a is off by 4 u relative, which moves tanh by a (1 - tanh^2) 4 u < 2 u; tanh itself by kMath;
    // the sum and the products by 2 u. With the factor x/2: under 8 u |x|, also where 1 + tanh cancels.
    add(all, "gelu_forward", &KernelTable::gelu_forward, label(t, n),
        [=](const auto& table, const auto& stream, Arena& arena) {
            const View x = activation_input(arena, {n}, t, "x"), y = arena.empty({n}, t);
            arena.start();
            table.gelu_forward(stream, x, y);
            arena.result("y", y, [&](int64_t i) { return 8 * u * std::abs(value(x, i)) + rounding(t, value(y, i)); });
        });
    // (1 + tanh)/2 + x/2 (1 - tanh^2) a': with tanh off by 8 u, 1 - tanh^2 is off by 16 u even where it vanishes. From
    // |x| = 20 on 1 - |tanh| is below the smallest f32, and every table must have reached 1.
    add(all, "gelu_backward", &KernelTable::gelu_backward, label(t, n),
        [=](const auto& table, const auto& stream, Arena& arena) {
            const View dy = arena.normal({n}, t, "dy"), x = activation_input(arena, {n}, t, "x");
            const View dx = arena.empty({n}, t);
            arena.start();
            table.gelu_backward(stream, dy, x, dx);
            arena.result("dx", dx, [&](int64_t i) {
                const double v = value(x, i), slope = std::abs(v) < 20 ? 0.8 * (1 + 0.1342 * v * v) : 0;
                return 8 * u * std::abs(value(dy, i)) * (1 + std::abs(v) * slope) + rounding(t, value(dx, i));
            });
        });
}

// Of the clamped unit: its gate and its up + 1, t = kClampedSlope gate, and s = sigmoid(t), which is off by 6 u
// relative, and by |t| u since t is rounded.
struct Clamped {
    double gate, up, t, s, error;
};
Clamped clamped(Gate g, const View& gate, const View& up, int64_t i) {
    const double limit = g.limit, x = std::min(value(gate, i), limit), t = kClampedSlope * x;
    return {x, std::clamp(value(up, i), -limit, limit) + 1, t, 1 / (1 + std::exp(-t)), (6 + std::abs(t)) * u};
}

// sigmoid: exp, a sum and a quotient, 6 u relative; two products more. Where exp overflows a table may give 0 instead
// of g e^g: |g| FLT_MIN, times up. gelu as alone: under 8 u |g|.
void run_swiglu(const KernelTable& table, const Stream& stream, Arena& arena, Gate g, View gate, View up, View y) {
    arena.start();
    table.swiglu_forward(stream, g, gate, up, y);
    arena.result("y", y, [&](int64_t i) {
        if (g.kind == Gate::clamped) {
            const Clamped x = clamped(g, gate, up, i);
            return (x.error + 4 * u) * std::abs(value(y, i)) + std::abs(x.gate * x.up) * FLT_MIN +
                   rounding(y.dtype, value(y, i));
        }
        const double whole = std::abs(value(gate, i) * value(up, i));
        return 10 * u * (g == Gate::gelu ? whole : std::abs(value(y, i))) + whole * FLT_MIN +
               rounding(y.dtype, value(y, i));
    });
}

// s (1 + g (1 - s)): s off by 6 u relative, 1 - s by 7 u absolute.
void run_swiglu_backward(const KernelTable& table, const Stream& stream, Arena& arena, Gate activation, View dy,
                         View gate, View up, View dgate, View dup) {
    const std::vector<double> gradients = values(dy);  // dgate may take the place of dy
    arena.start();
    table.swiglu_backward(stream, activation, dy, gate, up, dgate, dup);
    const auto size = [&](int64_t i) {  // of s (1 + |g|), the flushed part included; of gelu as in its own backward
        const double g = value(gate, i), slope = std::abs(g) < 20 ? 0.8 * (1 + 0.1342 * g * g) : 0;
        if (activation == Gate::gelu)
            return (1 + std::abs(g) * (1 + slope)) * std::abs(gradients[static_cast<size_t>(i)]);
        return (1 / (1 + std::exp(-g)) + FLT_MIN / u) * (1 + std::abs(g)) * std::abs(gradients[static_cast<size_t>(i)]);
    };
    if (activation.kind == Gate::clamped) {
        // (up + 1) s (1 + t (1 - s)), with 1 - s off by the error of s and u; gate s.
        arena.result("dgate", dgate, [&](int64_t i) {
            const Clamped x = clamped(activation, gate, up, i);
            return std::abs(gradients[static_cast<size_t>(i)] * x.up) * (x.s + FLT_MIN / u) * (1 + std::abs(x.t)) *
                       (2 * x.error + 6 * u) +
                   rounding(dy.dtype, value(dgate, i));
        });
        arena.result("dup", dup, [&](int64_t i) {
            const Clamped x = clamped(activation, gate, up, i);
            return std::abs(gradients[static_cast<size_t>(i)] * x.gate) * ((x.error + 3 * u) * x.s + FLT_MIN) +
                   rounding(dy.dtype, value(dup, i));
        });
        return;
    }
    arena.result("dgate", dgate, [&](int64_t i) {
        return 16 * u * size(i) * std::abs(value(up, i)) + rounding(dy.dtype, value(dgate, i));
    });
    arena.result("dup", dup, [&](int64_t i) { return 10 * u * size(i) + rounding(dy.dtype, value(dup, i)); });
}

// The limit is one that bf16 values reach.
constexpr Gate kGates[] = {Gate::silu, Gate::gelu, {Gate::clamped, 1.5F}, Gate::sigmoid, Gate::relu};
const char* name_of(Gate g) {
    switch (g.kind) {  // a new kind, which the compiler misses here, needs its cases above
        case Gate::silu: return "";
        case Gate::gelu: return " gelu";
        case Gate::clamped: return " clamped";
        case Gate::sigmoid: return " sigmoid";
        case Gate::relu: return " relu";
    }
    return nullptr;
}

void add_swiglu(std::vector<Case>& all, Gate g, DType t, int64_t n) {
    add(all, "swiglu_forward", &KernelTable::swiglu_forward, label(t, n) + name_of(g),
        [=](const auto& table, const auto& stream, Arena& arena) {
            const View gate = activation_input(arena, {n}, t, "gate"), up = arena.normal({n}, t, "up");
            run_swiglu(table, stream, arena, g, gate, up, arena.empty({n}, t));
        });
    add(all, "swiglu_backward", &KernelTable::swiglu_backward, label(t, n) + name_of(g),
        [=](const auto& table, const auto& stream, Arena& arena) {
            const View dy = arena.normal({n}, t, "dy"), gate = activation_input(arena, {n}, t, "gate");
            const View up = arena.normal({n}, t, "up"), dgate = arena.empty({n}, t);
            run_swiglu_backward(table, stream, arena, g, dy, gate, up, dgate, arena.empty({n}, t));
        });
}

// gate and up, and their gradients, are the left and the right columns of one matrix.
void add_swiglu_side_by_side(std::vector<Case>& all, Gate g, DType t, int64_t rows, int64_t columns) {
    const std::string name = concat(t, " (", rows, ", 2 x ", columns, ") side by side", name_of(g));
    const auto part = [=](const View& both, int64_t number) { return slice(both, 1, number * columns, columns); };
    add(all, "swiglu_forward", &KernelTable::swiglu_forward, name,
        [=](const auto& table, const auto& stream, Arena& arena) {
            const View z = activation_input(arena, {rows, 2 * columns}, t, "z");
            run_swiglu(table, stream, arena, g, part(z, 0), part(z, 1), arena.empty({rows, columns}, t));
        });
    for (const bool in_place : {false, true})  // dy in the place of dgate, as an epilogue of its own has it
        add(all, "swiglu_backward", &KernelTable::swiglu_backward, name + (in_place ? " in place" : ""),
            [=](const auto& table, const auto& stream, Arena& arena) {
                const View z = activation_input(arena, {rows, 2 * columns}, t, "z");
                const View dz = arena.normal({rows, 2 * columns}, t, "dz"), dgate = part(dz, 0);
                const View dy = in_place ? dgate : arena.normal({rows, columns}, t, "dy");
                run_swiglu_backward(table, stream, arena, g, dy, part(z, 0), part(z, 1), dgate, part(dz, 1));
            });
}

// tanh is good to kMath relative, of an argument that is off by 2 u relative, which changes tanh by at most as much.
void add_soft_cap(std::vector<Case>& all, DType t, int64_t n) {
    for (const float cap : {0.7f, 30.0f})
        add(all, "soft_cap", &KernelTable::soft_cap, concat(label(t, n), " cap ", cap),
            [=](const auto& table, const auto& stream, Arena& arena) {
                const View x = arena.normal({n}, t, "x", 5);
                if (n > 2)
                    reference_table().fill({}, on_host(slice(x, 0, 1, 1)), 1e-6f);  // where 1 - 2 / (1 + e^2x) cancels
                arena.start();
                table.soft_cap(stream, x, cap);
                arena.result("x", x, [&](int64_t i) {
                    return (2 * kMath + 4 * u) * std::abs(value(x, i)) + rounding(t, value(x, i));
                });
            });
}

// The mask must match the reference in every element; a surviving x has a factor that f32 holds to 2 u.
void add_dropout(std::vector<Case>& all, DType t, int64_t rows, int64_t columns, float probability, int64_t first) {
    add(all, "dropout", &KernelTable::dropout,
        concat(t, " (", rows, ", ", columns, ") p ", probability, " from column ", first),
        [=](const auto& table, const auto& stream, Arena& arena) {
            std::vector<double> row_index;
            for (int64_t n = 0; n < rows; ++n)  // far apart, out of order, some beyond 2^32 elements
                row_index.push_back(static_cast<double>((n * 7919) % 1000 * (n % 3 == 0 ? 100'000'007 : 1)));
            const Dropout dropout{.key = random_key(5, "dropout"),
                                  .probability = probability,
                                  .row_index = arena.from({rows}, DType::i64, row_index),
                                  .column_offset = first,
                                  .columns_total = columns + first + 3};
            const View x = arena.normal({rows, columns}, t, "x"), y = arena.empty({rows, columns}, t);
            arena.start();
            table.dropout(stream, x, dropout, y);
            arena.result("y", y, [&](int64_t i) {
                const double v = value(y, i);
                return v == 0 ? 0 : 3 * u * std::abs(v) + rounding(t, v);
            });
        });
}

}  // namespace

void add_elementwise(std::vector<Case>& all) {
    for (const auto& [rows, columns] : {std::array<int64_t, 2>{0, 5}, {1, 1}, {3, 17}, {1, 1000}, {57, 64}, {31, 700}})
        for (const int64_t first : {int64_t{0}, int64_t{3}, (int64_t{1} << 34) - 9})
            add_normal(all, rows, columns, first);
    for (const DType t : kActivationTypes)
        for (const int64_t n : kLengths) {
            add_simple(all, t, n);
            add_relu_and_gelu(all, t, n);
            for (const Gate g : kGates) add_swiglu(all, g, t, n);
            add_soft_cap(all, t, n);
        }
    for (const DType t : kActivationTypes)
        for (const auto& [rows, columns] :
             {std::pair<int64_t, int64_t>{1, 1}, {3, 8}, {5, 17}, {7, 64}, {2, 300}, {0, 4}})
            for (const Gate g : kGates) add_swiglu_side_by_side(all, g, t, rows, columns);
    for (const DType t : {DType::f32, DType::bf16, DType::f16})
        for (const auto& [B, T, H, D] :
             {std::array<int64_t, 4>{1, 1, 1, 1}, {2, 5, 3, 7}, {3, 40, 2, 64}, {2, 0, 1, 8}})
            add_copies(all, t, B, T, H, D);
    for (const DType from : {DType::f32, DType::bf16, DType::f16})
        for (const DType to : {DType::f32, DType::bf16, DType::f16})
            for (const int64_t n : kLengths) add_casts(all, from, to, n);
    for (const DType t : kActivationTypes) {
        for (const auto& [rows, columns, first] : {std::array<int64_t, 3>{1, 1, 0},
                                                   {3, 17, 0},
                                                   {5, 63, 1},
                                                   {2, 65, 2},
                                                   {7, 127, 3},
                                                   {4, 1000, 64},
                                                   {400, 96, 32}})
            add_dropout(all, t, rows, columns, 0.1f, first);
        add_dropout(all, t, 9, 130, 0.0f, 5);
        add_dropout(all, t, 9, 130, 0.75f, 5);
    }
}

}  // namespace tutti::kernels::cases
