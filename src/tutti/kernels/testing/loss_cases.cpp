// kernels/testing/loss_cases.cpp: cross entropy with padding and ignored targets, whole and in shards; squared error;
// tokens drawn from rows with ties, masked words and NaNs.
#include <algorithm>
#include <cstring>
#include <span>

#include "tutti/kernels/testing/cases.h"

namespace tutti::kernels::cases {

namespace {

struct LossForm {
    int64_t N, V, vocab;
    std::vector<int64_t> widths = {};  // columns of each shard; none: unsharded
    bool word_beyond = false;          // one target is beyond the vocabulary
    DType dtype = DType::f32;
    double amplitude = 1;  // of the logits
    bool gradient = false;
    float cap = 0;  // the logits are the values of a cap

    std::string name() const {
        std::string text = concat(dtype, " (", N, ", ", V, ") of ", vocab, " words, logits of ", amplitude,
                                  gradient ? " with gradient" : "", cap > 0 ? concat(", cap ", cap) : "");
        for (size_t p = 0; p < widths.size(); ++p) text += concat(p == 0 ? ", shards of " : " + ", widths[p]);
        return text + (word_beyond ? ", a NaN" : "");
    }
    size_t at(int64_t n, int64_t v) const { return static_cast<size_t>(n * V + v); }
};

// A third of the targets is ignored, under two negative numbers; the first and the last word both occur.
std::vector<int64_t> make_targets(const LossForm& f) {
    std::vector<int64_t> targets;
    for (int64_t n = 0; n < f.N; ++n) {
        const auto word =
            uniform_below(random_key(4, "targets"), static_cast<uint64_t>(n), static_cast<uint64_t>(f.vocab));
        const int64_t kinds[] = {static_cast<int64_t>(word), n % 2 ? f.vocab - 1 : 0, n % 2 ? -100 : -1};
        targets.push_back(f.word_beyond && n == 1 ? f.vocab : kinds[n % 3]);
    }
    return targets;
}

struct LossInputs {
    LossInputs(const LossForm& f, Arena& arena) : target(make_targets(f)) {
        x = values(arena.normal({f.N, f.V}, f.dtype, "logits", f.amplitude));
        if (f.cap > 0)
            for (double& v : x) v = f.cap * std::tanh(v / f.cap);
        for (int64_t n = 0; n < f.N; ++n)  // the padding of a vocabulary may hold any finite value
            for (int64_t v = f.vocab; v < f.V; ++v) x[f.at(n, v)] = 1e30;
        logits = arena.from({f.N, f.V}, f.dtype, x);
        if (f.cap > 0) x = values(logits);  // rounded
        targets = arena.from({f.N}, DType::i32, std::vector<double>(target.begin(), target.end()));
        for (int64_t n = 0; n < f.N; ++n) {
            const auto row = x.begin() + n * f.V;
            const auto [least, most] = std::minmax_element(row, row + f.vocab);
            double total = 0;
            for (int64_t v = 0; v < f.vocab; ++v) total += std::exp(row[v] - *most);
            lse.push_back(*most + std::log(total));
            range.push_back(*most - *least);
        }
    }

    View logits, targets;
    std::vector<double> x;  // the logits
    std::vector<int64_t> target;
    std::vector<double> lse, range;  // over the words of each row
};

// Each shard's part of the unsharded loss: its columns of the logits.
std::vector<CrossEntropy> shards_of(const LossForm& f, const CrossEntropy& whole) {
    std::vector<CrossEntropy> shards;
    int64_t first_word = 0;
    for (const int64_t width : f.widths) {
        shards.push_back(whole);
        shards.back().logits = slice(whole.logits, 1, first_word, width);
        shards.back().first_word = first_word;
        first_word += width;
    }
    return shards;
}

// partials (P, 3, N) of all shards.
void run_partials(const KernelTable& table, const Stream& stream, std::vector<CrossEntropy> shards,
                  const View& partials) {
    const int64_t N = partials.shape[2];
    for (size_t p = 0; p < shards.size(); ++p) {
        shards[p].partials = View(partials.as<float>() + static_cast<int64_t>(p) * 3 * N, DType::f32, {3, N});
        table.cross_entropy_partial(stream, shards[p]);
    }
}

// exp(x - max) is off by u |x - max| + kMath relative, a sum of such terms by sum_error more.
double sum_of_exp_error(const LossForm& f, double range) { return sum_error(f.vocab) + range * u + kMath; }

void run_cross_entropy_partial(const LossForm& f, const KernelTable& table, const Stream& stream, Arena& arena) {
    const LossInputs in(f, arena);
    const auto P = static_cast<int64_t>(f.widths.size());
    const View partials = arena.empty({P, 3, f.N}, DType::f32);
    arena.start();
    run_partials(table, stream, shards_of(f, {.logits = in.logits, .targets = in.targets, .vocab = f.vocab}), partials);
    // The maximum and the target's logit are copies.
    arena.result("partials", partials, [&](int64_t i) {
        const double sum = value(partials, i);
        if (i / f.N % 3 != 1) return 0.0;
        return sum * sum_of_exp_error(f, in.range[static_cast<size_t>(i % f.N)]) + rounding(DType::f32, sum);
    });
}

// Unsharded; or in shards, as on P ranks, which must match the unsharded reference.
void run_cross_entropy(const LossForm& f, const KernelTable& table, const Stream& stream, Arena& arena) {
    const LossInputs in(f, arena);
    const auto P = static_cast<int64_t>(f.widths.size());
    const View losses = arena.empty({f.N}, DType::f32), losses_of_ranks = arena.workspace(P * f.N);
    const View partials(arena.workspace(P * 3 * f.N).data, DType::f32, {P, 3, f.N});
    arena.start();
    const CrossEntropy whole{in.logits, in.targets, losses, f.vocab, 0.37f, f.gradient, 0, {}, f.cap};
    const bool in_shards = P > 0 && !arena.with_tolerance();
    if (!in_shards) table.cross_entropy(stream, whole);
    if (in_shards) {
        std::vector<CrossEntropy> shards = shards_of(f, whole);
        run_partials(table, stream, shards, partials);
        for (size_t p = 0; p < shards.size(); ++p) {
            shards[p].partials = partials;
            if (p > 0) shards[p].losses = slice(losses_of_ranks, 0, static_cast<int64_t>(p) * f.N, f.N);
            table.cross_entropy_finish(stream, shards[p]);
        }
    }
    const auto counts = [&](size_t n) { return in.target[n] >= 0 && in.target[n] < f.vocab; };
    // lse: a sum of exp, the logarithm by kMath relative and by the error of its argument; then two additions. The
    // maxima of shards differ from the row's by at most its range: one more exp, and a sum of P terms.
    const auto lse_error = [&](size_t n) {
        const double of_shards = P > 0 ? in.range[n] * u + kMath + sum_error(2 * P) : 0;
        return sum_of_exp_error(f, in.range[n]) + of_shards + kMath + (kMath + 2 * u) * std::abs(in.lse[n]);
    };
    arena.result("losses", losses, [&](int64_t i) {
        const auto n = static_cast<size_t>(i);
        if (!counts(n)) return 0.0;
        return lse_error(n) + 2 * u * std::abs(in.x[f.at(i, in.target[n])]) + rounding(DType::f32, value(losses, i));
    });
    double differ = 0;
    for (int64_t i = f.N; in_shards && i < P * f.N; ++i)
        differ += std::memcmp(on_host(losses_of_ranks).as<float>() + i, on_host(losses).as<float>() + i % f.N,
                              sizeof(float)) != 0;
    arena.result({"losses that differ between ranks", {differ}, {0}});
    if (!f.gradient) return;
    // The factor 1 - (x / cap)^2 is at most 1 and off by 5 u.
    // p = exp(x - lse) or exp(x - max) / sum: off by the error of lse, of the difference and of exp; then p - 1,
    // scaled.
    arena.result("dlogits", in.logits, [&](int64_t i) {
        const auto n = static_cast<size_t>(i / f.V);
        if (!counts(n) || i % f.V >= f.vocab) return 0.0;
        const double x = in.x[static_cast<size_t>(i)], p = std::exp(x - in.lse[n]);
        const double error = p * (lse_error(n) + 3 * u * (std::abs(x) + std::abs(in.lse[n])) + kMath);
        return 0.37 * (error + (3 + (f.cap > 0 ? 5 : 0)) * u * std::max(p, 1.0 * (i % f.V == in.target[n]))) +
               rounding(f.dtype, value(in.logits, i));
    });
}

void add_cross_entropy(std::vector<Case>& all) {
    const std::vector<LossForm> kWhole = {
        {0, 5, 5},     {1, 1, 1},        {1, 3, 3},        {3, 17, 17},       {5, 65, 63},
        {7, 128, 127}, {33, 1000, 1000}, {17, 1024, 1000}, {2, 50304, 50257}, {5, 20, 17, {}, true}};
    // One shard, equal shards, some that end with padding and one of padding alone.
    const std::vector<LossForm> kShards = {{0, 5, 5, {2, 3}},
                                           {1, 1, 1, {1}},
                                           {3, 17, 17, {5, 12}},
                                           {5, 65, 63, {40, 22, 3}},
                                           {7, 128, 90, {64, 32, 32}},
                                           {33, 1000, 1000, {1000}},
                                           {17, 1024, 1000, {512, 512}},
                                           {2, 50304, 50257, {16768, 16768, 16768}},
                                           {5, 20, 17, {8, 12}, true}};
    for (const DType t : kActivationTypes)
        for (const bool gradient : {false, true})
            for (const auto* forms : {&kWhole, &kShards})
                for (const double amplitude : {1.0, forms == &kWhole ? 20.0 : 100.0})
                    for (LossForm f : *forms) {
                        f.dtype = t;
                        f.amplitude = amplitude;
                        f.gradient = gradient;
                        // Amplitudes of 20 and more also through a cap that most logits reach.
                        if (f.vocab % 2 == 1) f.cap = amplitude > 1 ? 4 : 0;
                        const auto run = [f](const auto& table, const auto& stream, Arena& arena) {
                            run_cross_entropy(f, table, stream, arena);
                        };
                        if (forms == &kWhole)
                            add(all, "cross_entropy", &KernelTable::cross_entropy, f.name(), run);
                        else
                            add(all, "cross_entropy_finish", &KernelTable::cross_entropy_finish, f.name(), run);
                        if (forms == &kShards && !gradient)
                            add(all, "cross_entropy_partial", &KernelTable::cross_entropy_partial, f.name(),
                                [f](const auto& table, const auto& stream, Arena& arena) {
                                    run_cross_entropy_partial(f, table, stream, arena);
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

// A token is right or wrong: tables may differ only where a draw falls within rounding of a boundary between tokens,
// and no draw here does.

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
                for (double& x : row.first(static_cast<size_t>(f.vocab))) x = -3;  // all equal
                break;
            case 2:
                for (double& x : row.first(static_cast<size_t>(f.vocab))) x = std::round(x);  // many equal, 0 and -0
                break;
            case 3: row[0] = -INFINITY; break;
            case 4: row[static_cast<size_t>(f.vocab) / 2] = NAN; break;
            case 5:
                for (double& x : row.first(static_cast<size_t>(f.vocab))) x = -INFINITY;
                break;
            case 6: row[static_cast<size_t>(f.vocab) - 1] = 60; break;  // probability nearly 1
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
