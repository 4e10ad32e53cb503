// kernels/testing/rope_cases.cpp: rotary embedding in both directions, of parts of a head, with both pairings; its
// table; the sum over heads.
#include <array>

#include "tutti/kernels/testing/cases.h"

namespace tutti::kernels::cases {

namespace {

// Frequencies theta^(-k / half), and one of 0, whose angles are all 0. Cosine, sine and their product with the
// amplitude have errors of a few units of f64, which can change the rounding of a result midway between two floats.
void add_rope_table(std::vector<Case>& all) {
    for (const auto& [P, half] :
         {std::array<int64_t, 2>{0, 4}, {1, 1}, {4, 1}, {40, 16}, {9, 40}, {200, 64}, {5, 3}, {4111, 17}})
        for (const double amplitude : {1.0, 1.3438})
            for (const int64_t padding : {0, 3})  // columns on the left of wider tables
                add(all, "rope_table", &KernelTable::rope_table,
                    concat("(", P, ", ", half, ")", amplitude == 1 ? "" : " amplitude", padding ? " strided" : ""),
                    [=](const auto& table, const auto& stream, Arena& arena) {
                        std::vector<double> frequency = {0};
                        for (int64_t k = 1; k < half; ++k)
                            frequency.push_back(std::pow(1e4, -static_cast<double>(k - 1) / static_cast<double>(half)));
                        const View frequencies = arena.from({half}, DType::f64, frequency);
                        const View cosines = slice(arena.empty({P, half + padding}, DType::f32), 1, 0, half);
                        const View sines = slice(arena.empty({P, half + padding}, DType::f32), 1, 0, half);
                        arena.start();
                        table.rope_table(stream, frequencies, amplitude, cosines, sines);
                        for (const auto& [name, y] : {std::pair{"cosines", cosines}, {"sines", sines}})
                            arena.result(name, y, [&y = y](int64_t i) { return rounding(DType::f32, value(y, i)); });
                    });
}

// Heads that lie apart: the last channels of wider ones.
void add_sum_heads(std::vector<Case>& all) {
    for (const DType t : kActivationTypes)
        for (const auto& [N, H, D, before] :
             {std::array<int64_t, 4>{0, 2, 8, 0}, {1, 1, 1, 0}, {17, 3, 32, 7}, {65, 16, 64, 128}, {130, 5, 20, 1}})
            add(all, "sum_heads", &KernelTable::sum_heads,
                concat(t, " (", N, ", ", H, ", ", D, ") after ", before, " channels"),
                [=, N = N, H = H, D = D, before = before](const auto& table, const auto& stream, Arena& arena) {
                    const View x = slice(arena.normal({N, H, before + D}, t, "x"), 2, before, D);
                    const View y = arena.empty({N, D}, t);
                    const std::vector<double> terms = values(x);
                    arena.start();
                    table.sum_heads(stream, x, y);
                    arena.result("y", y, [&, H = H, D = D](int64_t i) {
                        double size = 0;
                        for (int64_t h = 0; h < H; ++h)
                            size += std::abs(terms[static_cast<size_t>((i / D * H + h) * D + i % D)]);
                        return sum_error(H) * size + rounding(t, value(y, i));
                    });
                });
}

}  // namespace

void add_rope(std::vector<Case>& all) {
    add_rope_table(all);
    add_sum_heads(all);
    for (const DType t : kActivationTypes)
        for (const auto& [N, H, D, P] : {std::array<int64_t, 4>{0, 2, 8, 3},
                                         {1, 1, 2, 4},
                                         {17, 3, 32, 40},
                                         {65, 4, 64, 64},
                                         {7, 2, 80, 9},
                                         {127, 5, 128, 200},
                                         {5, 1, 6, 5},
                                         {1000, 2, 34, 1000}})
            for (const bool inverse : {false, true})
                for (const auto& [adjacent, rotated] :
                     {std::pair{false, D}, {true, D}, {false, D / 4 * 2}, {true, D / 4 * 2}}) {
                    if (rotated == 0) continue;
                    add(all, "rope", &KernelTable::rope,
                        concat(t, " (", N, ", ", H, ", ", D, ")", inverse ? " inverse" : "",
                               adjacent ? " adjacent" : "", rotated < D ? concat(" ", rotated, " channels") : ""),
                        [=, adjacent = adjacent, half = rotated / 2](const auto& table, const auto& stream,
                                                                     Arena& arena) {
                            std::vector<double> position, cosine, sine;
                            for (int64_t n = 0; n < N; ++n) position.push_back(static_cast<double>((n * 31) % P));
                            for (int64_t p = 0; p < P; ++p)
                                for (int64_t k = 0; k < half; ++k) {
                                    const double angle =
                                        static_cast<double>(p) *
                                        std::pow(1e4, -static_cast<double>(k) / static_cast<double>(half));
                                    cosine.push_back(std::cos(angle));
                                    sine.push_back(std::sin(angle));
                                }
                            const View positions = arena.from({N}, DType::i32, position);
                            const View cosines = arena.from({P, half}, DType::f32, cosine);
                            const View sines = arena.from({P, half}, DType::f32, sine);
                            const View x = arena.normal({N, H, D}, t, "x");
                            const std::vector<double> before = values(x);
                            arena.start();
                            table.rope(stream, x, positions, cosines, sines, inverse, adjacent);
                            // Two products and a sum; |cos|, |sin| <= 1.
                            arena.result("x", x, [&](int64_t i) {
                                const int64_t k = i % D;
                                if (k >= 2 * half) return 0.0;
                                const int64_t other = adjacent ? i + 1 - 2 * (k % 2) : k < half ? i + half : i - half;
                                const double size = std::abs(before[static_cast<size_t>(i)]) +
                                                    std::abs(before[static_cast<size_t>(other)]);
                                return 3 * u * size + rounding(t, value(x, i));
                            });
                        });
                }
}

}  // namespace tutti::kernels::cases
