// kernels/testing/loss_cases.cpp: cross entropy with padding and ignored targets, squared error.
#include <algorithm>

#include "tutti/kernels/testing/cases.h"

namespace tutti::kernels::cases {

namespace {

struct LossForm {
    int64_t N, V, vocab;
    DType dtype = DType::f32;
    double amplitude = 1;  // of the logits
    bool gradient = false;
};

// A third of the targets is ignored, under two different negative numbers; the first and the last word do occur.
std::vector<double> make_targets(const LossForm& f) {
    std::vector<double> targets;
    for (int64_t n = 0; n < f.N; ++n) {
        const auto word =
            uniform_below(random_key(4, "targets"), static_cast<uint64_t>(n), static_cast<uint64_t>(f.vocab));
        const int64_t kinds[] = {static_cast<int64_t>(word), n % 2 ? f.vocab - 1 : 0, n % 2 ? -100 : -1};
        targets.push_back(static_cast<double>(kinds[n % 3]));
    }
    return targets;
}

void run_cross_entropy(const LossForm& f, const KernelTable& table, const Stream& stream, Arena& arena) {
    const std::vector<double> target = make_targets(f);
    std::vector<double> given = values(arena.normal({f.N, f.V}, f.dtype, "logits", f.amplitude));
    for (int64_t n = 0; n < f.N; ++n)  // the padding of a vocabulary may hold anything finite
        for (int64_t v = f.vocab; v < f.V; ++v) given[static_cast<size_t>(n * f.V + v)] = 1e30;
    const View logits = arena.from({f.N, f.V}, f.dtype, given), targets = arena.from({f.N}, DType::i32, target);
    const View losses = arena.empty({f.N}, DType::f32);
    const std::vector<double> x = values(logits);
    std::vector<double> lse(static_cast<size_t>(f.N)), range(lse.size());
    for (size_t n = 0; n < lse.size(); ++n) {
        const auto row = x.begin() + static_cast<int64_t>(n) * f.V;
        const auto [least, most] = std::minmax_element(row, row + f.vocab);
        double total = 0;
        for (int64_t v = 0; v < f.vocab; ++v) total += std::exp(row[v] - *most);
        lse[n] = *most + std::log(total);
        range[n] = *most - *least;
    }
    arena.start();
    table.cross_entropy(stream, {logits, targets, losses, f.vocab, 0.37f, f.gradient});
    // lse: exp(x - max) is off by u |x - max| + kMath relative, its sum by sum_error(vocab) more, the logarithm by
    // kMath relative and by what its argument is off; then two additions.
    const auto lse_error = [&](size_t n) {
        return sum_error(f.vocab) + range[n] * u + 2 * kMath + (kMath + 2 * u) * std::abs(lse[n]);
    };
    arena.result("losses", losses, [&](int64_t i) {
        const auto n = static_cast<size_t>(i);
        if (target[n] < 0) return 0.0;
        return lse_error(n) + 2 * u * std::abs(x[n * static_cast<size_t>(f.V) + static_cast<size_t>(target[n])]) +
               rounding(DType::f32, value(losses, i));
    });
    if (!f.gradient) return;
    // p = exp(x - lse) or exp(x - max) / sum: off by the error of lse, of the difference and of exp; then p - 1,
    // scaled.
    arena.result("dlogits", logits, [&](int64_t i) {
        const auto n = static_cast<size_t>(i / f.V);
        if (target[n] < 0 || i % f.V >= f.vocab) return 0.0;
        const double difference = x[static_cast<size_t>(i)] - lse[n], p = std::exp(difference);
        const double error =
            p * (lse_error(n) + 3 * u * (std::abs(x[static_cast<size_t>(i)]) + std::abs(lse[n])) + kMath);
        return 0.37 * (error + 3 * u * std::max(p, 1.0 * (i % f.V == static_cast<int64_t>(target[n])))) +
               rounding(f.dtype, value(logits, i));
    });
}

void add_cross_entropy(std::vector<Case>& all) {
    for (const DType t : kActivationTypes)
        for (const bool gradient : {false, true})
            for (const double amplitude : {1.0, 20.0})
                for (const auto& [N, V, vocab] : {std::array<int64_t, 3>{0, 5, 5},
                                                  {1, 1, 1},
                                                  {1, 3, 3},
                                                  {3, 17, 17},
                                                  {5, 65, 63},
                                                  {7, 128, 127},
                                                  {33, 1000, 1000},
                                                  {17, 1024, 1000},
                                                  {2, 50304, 50257}}) {
                    const LossForm f{N, V, vocab, t, amplitude, gradient};
                    add(all, "cross_entropy", &KernelTable::cross_entropy,
                        concat(t, " (", N, ", ", V, ") of ", vocab, " words, logits of ", amplitude,
                               gradient ? " with gradient" : ""),
                        [f](const auto& table, const auto& stream, Arena& arena) {
                            run_cross_entropy(f, table, stream, arena);
                        });
                }
}

void add_squared_error(std::vector<Case>& all) {
    for (const DType t : kActivationTypes)
        for (const bool gradient : {false, true})
            for (const auto& [N, C] :
                 {std::array<int64_t, 2>{0, 5}, {1, 1}, {3, 17}, {5, 63}, {65, 65}, {7, 127}, {33, 1000}})
                add(all, "squared_error", &KernelTable::squared_error,
                    concat(t, " (", N, ", ", C, ")", gradient ? " with gradient" : ""),
                    [=](const auto& table, const auto& stream, Arena& arena) {
                        const View x = arena.normal({N, C}, t, "x"), target = arena.normal({N, C}, t, "target");
                        const View losses = arena.empty({N}, DType::f32);
                        const View dx = gradient ? arena.empty({N, C}, t) : View();
                        arena.start();
                        table.squared_error(stream, x, target, 0.37f, losses, dx);
                        // C positive terms, each the square of a rounded difference.
                        arena.result("losses", losses,
                                     [&](int64_t n) { return sum_error(C + 4) * value(losses, n) + FLT_MIN; });
                        if (gradient)
                            arena.result("dx", dx, [&](int64_t i) {
                                return 3 * u * std::abs(value(dx, i)) + rounding(t, value(dx, i));
                            });
                    });
}

}  // namespace

void add_losses(std::vector<Case>& all) {
    add_cross_entropy(all);
    add_squared_error(all);
}

}  // namespace tutti::kernels::cases
