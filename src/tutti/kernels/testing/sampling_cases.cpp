// kernels/testing/sampling_cases.cpp: tokens drawn from rows with ties, masked words and NaNs. A token is right or
// wrong: tables may differ only where a draw falls within rounding of a border, and these do not.
#include <span>

#include "tutti/kernels/testing/cases.h"

namespace tutti::kernels::cases {

namespace {

struct SampleForm {
    int64_t N, V, vocab;
    DType dtype = DType::f32;
    float temperature = 1;
    int64_t top_k = 0;
    double top_p = 1;
};

void run_sample(const SampleForm& f, const KernelTable& table, const Stream& stream, Arena& arena) {
    std::vector<double> given = values(arena.normal({f.N, f.V}, f.dtype, "logits", 2));
    std::vector<double> draws;
    for (int64_t n = 0; n < f.N; ++n) {
        draws.push_back(static_cast<double>(7 * n + 1));
        const auto row = std::span(given).subspan(static_cast<size_t>(n * f.V), static_cast<size_t>(f.V));
        for (auto& x : row.subspan(static_cast<size_t>(f.vocab))) x = 1e30;  // padding is never drawn
        switch (n % 7) {
            case 1:
                for (double& x : row.first(static_cast<size_t>(f.vocab))) x = -3;  // all alike
                break;
            case 2:
                for (double& x : row.first(static_cast<size_t>(f.vocab))) x = std::round(x);  // many alike, 0 and -0
                break;
            case 3: row[0] = -INFINITY; break;
            case 4: row[static_cast<size_t>(f.vocab) / 2] = NAN; break;
            case 5:
                for (double& x : row.first(static_cast<size_t>(f.vocab))) x = -INFINITY;
                break;
            case 6: row[static_cast<size_t>(f.vocab) - 1] = 60; break;  // as good as certain
            default: break;
        }
    }
    const Sample s{.logits = arena.from({f.N, f.V}, f.dtype, given),
                   .draws = arena.from({f.N}, DType::i64, draws),
                   .tokens = arena.from({f.N}, DType::i32, std::vector<double>(draws.size(), -7)),
                   .key = random_key(3, "sampling case"),
                   .vocab = f.vocab,
                   .temperature = f.temperature,
                   .top_k = f.top_k,
                   .top_p = f.top_p};
    arena.start();
    table.sample(stream, s);
    arena.result("tokens", s.tokens, [](int64_t) { return 0.0; });
}

}  // namespace

void add_sampling(std::vector<Case>& all) {
    struct Rule {
        float temperature;
        int64_t top_k;
        double top_p;
    };
    const Rule rules[] = {{0, 0, 1},   {1, 0, 1},        {0.7f, 0, 1},     {1, 1, 1},   {1, 5, 1},
                          {1, 0, 0.9}, {1.5f, 40, 0.55}, {0.3f, 40, 0.01}, {0, 3, 0.5}, {1e-30f, 0, 1}};
    for (const DType t : kActivationTypes)
        for (const Rule& rule : rules)
            for (const auto& [N, V, vocab] : {std::array<int64_t, 3>{0, 5, 5},
                                              {1, 1, 1},
                                              {14, 17, 17},
                                              {7, 300, 257},
                                              {21, 1000, 1000},
                                              {7, 50304, 50257}}) {
                const SampleForm f{N, V, vocab, t, rule.temperature, rule.top_k, rule.top_p};
                add(all, "sample", &KernelTable::sample,
                    concat(t, " (", N, ", ", V, ") of ", vocab, " words at ", rule.temperature, ", top ", rule.top_k,
                           ", ", rule.top_p),
                    [f](const auto& table, const auto& stream, Arena& arena) { run_sample(f, table, stream, arena); });
            }
}

}  // namespace tutti::kernels::cases
