// kernels/testing/rope_cases.cpp: rotary embedding, both directions, in place and not; and its table.
#include "tutti/kernels/testing/cases.h"

namespace tutti::kernels::cases {

namespace {

// Frequencies theta^(-k / half), and one of 0, whose angles are all 0. Cosine, sine and their product with the
// amplitude are good to a few units of f64, which moves a result that lies between two floats to the other one:
// rounding.
void add_rope_table(std::vector<Case>& all) {
    for (const auto& [P, half] :
         {std::array<int64_t, 2>{0, 4}, {1, 1}, {4, 1}, {40, 16}, {9, 40}, {200, 64}, {5, 3}, {4111, 17}})
        for (const double amplitude : {1.0, 1.3438})
            for (const int64_t padding : {0, 3})  // the left columns of wider tables
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

}  // namespace

void add_rope(std::vector<Case>& all) {
    add_rope_table(all);
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
                for (const bool in_place : {false, true})
                    add(all, "rope", &KernelTable::rope,
                        concat(t, " (", N, ", ", H, ", ", D, ")", inverse ? " inverse" : "",
                               in_place ? " in place" : ""),
                        [=](const auto& table, const auto& stream, Arena& arena) {
                            std::vector<double> position, cosine, sine;
                            for (int64_t n = 0; n < N; ++n) position.push_back(static_cast<double>((n * 31) % P));
                            for (int64_t p = 0; p < P; ++p)
                                for (int64_t k = 0; k < D / 2; ++k) {
                                    const double angle =
                                        static_cast<double>(p) *
                                        std::pow(1e4, -2.0 * static_cast<double>(k) / static_cast<double>(D));
                                    cosine.push_back(std::cos(angle));
                                    sine.push_back(std::sin(angle));
                                }
                            const View positions = arena.from({N}, DType::i32, position);
                            const View cosines = arena.from({P, D / 2}, DType::f32, cosine);
                            const View sines = arena.from({P, D / 2}, DType::f32, sine);
                            const View x = arena.normal({N, H, D}, t, "x");
                            const View y = in_place ? x : arena.empty({N, H, D}, t);
                            const std::vector<double> before = values(x);
                            arena.start();
                            table.rope(stream, x, positions, cosines, sines, inverse, y);
                            // Two products and a sum; |cos|, |sin| <= 1.
                            arena.result("y", y, [&](int64_t i) {
                                const int64_t k = i % D, other = k < D / 2 ? i + D / 2 : i - D / 2;
                                const double size = std::abs(before[static_cast<size_t>(i)]) +
                                                    std::abs(before[static_cast<size_t>(other)]);
                                return 3 * u * size + rounding(t, value(y, i));
                            });
                        });
}

}  // namespace tutti::kernels::cases
