// Checks the exercises of this course:  exercise NAME [FILE].  Exit code 0: passed; 1: not yet, with what was required.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "data_parallel.h"
#include "given.h"
#include "ring_attention.h"
#include "tensor_parallel.h"
#include "tutti/base/philox.h"
#include "tutti/base/units.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/planner/counterfactual.h"
#include "tutti/planner/plan.h"
#include "tutti/rehearsal/rehearse.h"
#include "tutti/schedule/generators.h"
#include "tutti/schedule/timeline.h"
#include "tutti/schedule/validate.h"
#include "tutti/spec/toml.h"
#include "tutti/spec/validate.h"
#include "tutti/train/precision_lab.h"
#include "tutti/train/verify.h"
#include "zero1.h"

using namespace tutti;

// --- what is given --------------------------------------------------------------------------------------------------

void adamw(Values& weights, const Values& gradient, Moments& moments, int step) {
    constexpr double kRate = 1e-2, kBeta1 = 0.9, kBeta2 = 0.95, kEps = 1e-8;
    check(weights.size() == gradient.size() && weights.size() == moments.first.size(), "adamw: ", weights.size(),
          " weights, ", gradient.size(), " gradients, moments of ", moments.first.size());
    for (size_t i = 0; i < weights.size(); ++i) {
        const double g = static_cast<double>(gradient[i]);
        const double m = kBeta1 * static_cast<double>(moments.first[i]) + (1 - kBeta1) * g;
        const double v = kBeta2 * static_cast<double>(moments.second[i]) + (1 - kBeta2) * g * g;
        moments.first[i] = static_cast<float>(m);
        moments.second[i] = static_cast<float>(v);
        const double step_of_weight =
            kRate * (m / (1 - std::pow(kBeta1, step))) / (std::sqrt(v / (1 - std::pow(kBeta2, step))) + kEps);
        weights[i] = static_cast<float>(static_cast<double>(weights[i]) - step_of_weight);
    }
}

namespace {

// The result (m, n) of a product over k; at(i, l) and of(l, j) are the factors.
template <class A, class B>
Values sums(size_t m, size_t n, size_t k, const A& at, const B& of) {
    Values c(m * n);
    for (size_t i = 0; i < m; ++i)
        for (size_t j = 0; j < n; ++j) {
            double sum = 0;
            for (size_t l = 0; l < k; ++l) sum += static_cast<double>(at(i, l)) * static_cast<double>(of(l, j));
            c[i * n + j] = static_cast<float>(sum);
        }
    return c;
}

}  // namespace

Values product_t(const Values& a, const Values& b, size_t m, size_t n) {
    const size_t k = a.size() / m;
    return sums(
        m, n, k, [&](size_t i, size_t l) { return a[i * k + l]; }, [&](size_t l, size_t j) { return b[j * k + l]; });
}
Values product(const Values& a, const Values& b, size_t m, size_t n) {
    const size_t k = a.size() / m;
    return sums(
        m, n, k, [&](size_t i, size_t l) { return a[i * k + l]; }, [&](size_t l, size_t j) { return b[l * n + j]; });
}
Values t_product(const Values& a, const Values& b, size_t m, size_t n) {
    const size_t k = a.size() / m;
    return sums(
        m, n, k, [&](size_t i, size_t l) { return a[l * m + i]; }, [&](size_t l, size_t j) { return b[l * n + j]; });
}
Values relu(const Values& x) {
    Values y = x;
    for (float& v : y) v = std::max(v, 0.0f);
    return y;
}
Values relu_backward(const Values& dh, const Values& x) {
    Values dx = dh;
    for (size_t i = 0; i < x.size(); ++i)
        if (!(x[i] > 0)) dx[i] = 0;
    return dx;
}
Attention attend(const Values& q, const KeysAndValues& kv) {
    const size_t width = q.size(), keys = kv.k.size() / width;
    std::vector<double> scores(keys);
    for (size_t j = 0; j < keys; ++j)
        for (size_t c = 0; c < width; ++c)
            scores[j] += static_cast<double>(q[c]) * static_cast<double>(kv.k[j * width + c]);
    const double largest = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    std::vector<double> o(width);
    for (size_t j = 0; j < keys; ++j) {
        const double p = std::exp(scores[j] - largest);
        sum += p;
        for (size_t c = 0; c < width; ++c) o[c] += p * static_cast<double>(kv.v[j * width + c]);
    }
    Attention a{Values(width), static_cast<float>(largest + std::log(sum))};
    for (size_t c = 0; c < width; ++c) a.o[c] = static_cast<float>(o[c] / sum);
    return a;
}

namespace {

// --- the checks -----------------------------------------------------------------------------------------------------

constexpr int kRanks = 4;

Values drawn(const char* what, uint64_t which, size_t n, double scale = 1) {
    Values x(n);
    for (size_t i = 0; i < n; ++i)
        x[i] = static_cast<float>(scale * static_cast<double>(normal(random_key(1234, what, which), i)));
    return x;
}

// `tolerance`: of the largest difference, relative to the largest value.
void check_equal(const std::string& what, const Values& got, const Values& expected, double tolerance) {
    check(got.size() == expected.size(), what, ": required ", expected.size(), " values, got ", got.size());
    double largest = 0, difference = 0;
    for (size_t i = 0; i < got.size(); ++i) {
        largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
        const double d = std::abs(static_cast<double>(got[i]) - static_cast<double>(expected[i]));
        difference = std::isnan(d) ? INFINITY : std::max(difference, d);
    }
    check(difference <= tolerance * largest, what, " differs by ", difference, " from that of one rank; at most ",
          tolerance * largest, " is rounding");
}

void on_ranks(const std::function<void(Ranks&)>& body) {
    comm::run_ranks(kRanks, {.timeout_s = 60}, [&](comm::World& world) {
        const auto group = world.everyone("dp");
        Ranks ranks(*group);
        body(ranks);
    });
}

Values sum_of(const char* what, size_t n) {
    std::vector<double> sum(n);
    for (int r = 0; r < kRanks; ++r) {
        const Values x = drawn(what, static_cast<uint64_t>(r), n);
        for (size_t i = 0; i < n; ++i) sum[i] += static_cast<double>(x[i]);
    }
    return {sum.begin(), sum.end()};
}

std::string check_data_parallel(const std::string&) {
    constexpr size_t kValues = 1200;
    const Values expected = sum_of("gradient", kValues);
    int64_t sent = 0;
    on_ranks([&](Ranks& ranks) {
        Values gradient = drawn("gradient", static_cast<uint64_t>(ranks.rank()), kValues);
        sum_over_ranks(ranks, gradient);
        check_equal(concat("rank ", ranks.rank(), ": the sum of the gradients"), gradient, expected, 1e-6);
        check(ranks.exchanged() <= 2 * (kRanks - 1) * static_cast<int64_t>(kValues) / kRanks, "rank ", ranks.rank(),
              " sent ", ranks.exchanged(), " values; required at most 2 (n - 1) / n of ", kValues, " = ",
              2 * (kRanks - 1) * static_cast<int64_t>(kValues) / kRanks);
        if (ranks.rank() == 0) sent = ranks.exchanged();
    });
    return concat("the sum of ", kRanks, " gradients; a rank sent ", sent, " values, 2 (n - 1) / n of ", kValues);
}

std::string check_zero1(const std::string&) {
    constexpr size_t kWeights = 1024;
    constexpr int kSteps = 5;
    const auto gradient = [](int rank, int step) {
        return drawn("samples", static_cast<uint64_t>(rank * kSteps + step), kWeights);
    };
    Values expected = drawn("weights", 0, kWeights);
    Moments all(kWeights);
    for (int step = 1; step <= kSteps; ++step) {
        Values sum(kWeights);
        for (int r = 0; r < kRanks; ++r) {
            const Values g = gradient(r, step);
            for (size_t i = 0; i < kWeights; ++i) sum[i] += g[i];
        }
        adamw(expected, sum, all, step);
    }
    on_ranks([&](Ranks& ranks) {
        const size_t part = kWeights / kRanks;
        check(kept(ranks, kWeights) == part, "rank ", ranks.rank(), " keeps the moments of ", kept(ranks, kWeights),
              " weights; required N / n = ", part);
        Moments moments(kept(ranks, kWeights));
        Values weights = drawn("weights", 0, kWeights);
        for (int step = 1; step <= kSteps; ++step)
            training_step(ranks, weights, gradient(ranks.rank(), step), moments, step);
        check_equal(concat("rank ", ranks.rank(), ": the weights after ", kSteps, " steps"), weights, expected, 1e-5);
        const auto most = static_cast<int64_t>(2 * (kRanks - 1) * kWeights / kRanks * sizeof(float)) * kSteps;
        check(ranks.bytes() <= most, "rank ", ranks.rank(), " sent ", ranks.bytes(), " bytes in ", kSteps,
              " steps; an all-reduce of the gradient sends ", most);
    });
    return concat("the weights of one rank; a rank keeps ", kWeights / kRanks, " of ", kWeights, " moments");
}

std::string check_tensor_parallel(const std::string&) {
    constexpr size_t kTokens = 6, kWidth = 8, kHidden = 32, kPart = kHidden / kRanks;
    const Values x = drawn("x", 0, kTokens * kWidth), dy = drawn("dy", 0, kTokens * kWidth);
    const Values a = drawn("a", 0, kHidden * kWidth), b = drawn("b", 0, kWidth * kHidden);
    const Values before = product_t(x, a, kTokens, kHidden), h = relu(before);
    const Values dbefore = relu_backward(product(dy, b, kTokens, kHidden), before);
    const Values db = t_product(dy, h, kWidth, kHidden);
    const auto rows = [](const Values& m, size_t r) {  // of A
        return Values(m.begin() + static_cast<ptrdiff_t>(r * kPart * kWidth),
                      m.begin() + static_cast<ptrdiff_t>((r + 1) * kPart * kWidth));
    };
    const auto columns = [](const Values& m, size_t r) {  // of B
        Values part;
        for (size_t i = 0; i < kWidth; ++i)
            for (size_t j = 0; j < kPart; ++j) part.push_back(m[i * kHidden + r * kPart + j]);
        return part;
    };
    on_ranks([&](Ranks& ranks) {
        const auto r = static_cast<size_t>(ranks.rank());
        const Passes p = mlp(ranks, x, rows(a, r), columns(b, r), dy, kTokens, kWidth, kPart);
        const std::string rank = concat("rank ", r, ": ");
        check_equal(rank + "y", p.y, product_t(h, b, kTokens, kWidth), 1e-5);
        check_equal(rank + "dx", p.dx, product(dbefore, a, kTokens, kWidth), 1e-5);
        check_equal(rank + "the gradient of A", p.da, rows(t_product(dbefore, x, kHidden, kWidth), r), 1e-5);
        check_equal(rank + "the gradient of B", p.db, columns(db, r), 1e-5);
        check(ranks.all_reduces() == 2, rank, "required two all-reduces, got ", ranks.all_reduces());
    });
    return "y, dx and both weight gradients are those of one rank, with two all-reduces";
}

std::string check_ring_attention(const std::string&) {
    constexpr size_t kTokens = 5, kWidth = 16;  // of a rank
    // Large scores, which overflow exp().
    const auto keys = [](int r) { return drawn("k", static_cast<uint64_t>(r), kTokens * kWidth, 20); };
    const auto values = [](int r) { return drawn("v", static_cast<uint64_t>(r), kTokens * kWidth); };
    KeysAndValues all;
    for (int r = 0; r < kRanks; ++r) {
        const Values k = keys(r), v = values(r);
        all.k.insert(all.k.end(), k.begin(), k.end());
        all.v.insert(all.v.end(), v.begin(), v.end());
    }
    on_ranks([&](Ranks& ranks) {
        std::vector<Values> queries;
        for (size_t i = 0; i < kTokens; ++i)
            queries.push_back(drawn("q", static_cast<uint64_t>(ranks.rank()) * kTokens + i, kWidth, i == 0 ? 4 : 0.02));
        const std::vector<Attention> got = ring_attention(ranks, queries, {keys(ranks.rank()), values(ranks.rank())});
        check(got.size() == kTokens, "required the attention of ", kTokens, " queries, got ", got.size());
        for (size_t i = 0; i < kTokens; ++i) {
            const Attention expected = attend(queries[i], all);
            const std::string query = concat("rank ", ranks.rank(), ", query ", i, ": ");
            check_equal(query + "o", got[i].o, expected.o, 1e-5);
            check_equal(query + "lse", {got[i].lse}, {expected.lse}, 1e-5);
        }
    });
    return concat("the attention over the keys of all ", kRanks, " ranks");
}

// Times of 1 for F, I and W, as `tutti schedule` takes them; B is 2.
std::string check_schedule(const std::string& file) {
    const schedule::Schedule mine = schedule::read_csv(file);
    schedule::validate(mine);
    const schedule::Dimensions d{.ranks = 4, .chunks = 1, .microbatches = 8, .group_size = 0};
    check(mine.placement.ranks == d.ranks && mine.placement.stages == d.ranks &&
              mine.total_microbatches() == d.microbatches,
          file, ": required 4 ranks with one stage each, and 8 microbatches");
    const auto time = [](const schedule::Schedule& s) { return schedule::simulate(s, schedule::Times<int64_t>{}); };
    const auto peak = [](const auto& timeline) {
        return *std::max_element(timeline.peak_until_w.begin(), timeline.peak_until_w.end());
    };
    const auto one = time(schedule::generate("1f1b", d)), ours = time(mine);
    check(peak(ours) <= peak(one), file, ": a rank holds up to ", peak(ours), " microbatches; required at most ",
          peak(one), ", as 1F1B does");
    check(ours.makespan < one.makespan, file, ": the step takes ", ours.makespan, "; required less than the ",
          one.makespan, " of 1F1B");
    return concat("the step takes ", ours.makespan, " in place of the ", one.makespan, " of 1F1B, and a rank holds ",
                  peak(ours), " microbatches");
}

spec::RunSpec run_of(const std::string& file, int ranks) {
    spec::RunSpec run = spec::parse_file(file, {});
    if (run.data.train.empty()) run.data.train = {"none.bin"};  // forecasts read none
    spec::validate(run, ranks);
    return run;
}

std::string check_recompute(const std::string& file) {
    const spec::RunSpec run = run_of(file, 8);
    check(run.model.layers == 32 && run.model.width == 4096 && run.train.seq_len == 8192 &&
              run.train.global_batch == 16 && !run.offload.activations,
          file, ": required llama3-8b with 16 sequences of 8192 tokens, nothing offloaded");
    spec::RunSpec plain = run;
    plain.recompute = {};
    const rehearsal::Target h100 = rehearsal::target_named("h100", ComputeType::bf16, 1);
    const rehearsal::Rehearsal mine = rehearsal::rehearse(run, h100, 8, 0);
    const double more = mine.flops / rehearsal::rehearse(plain, h100, 8, 0).flops - 1;
    const int64_t peak = mine.memory.peak(), most = int64_t{44} << 30;
    check(peak <= most, file, ": the peak is ", format_bytes(peak), "; required at most ", format_bytes(most));
    check(more <= 0.05, file, ": a step computes ", format_percent(more), " more; required at most 5 %");
    return concat("the peak is ", format_bytes(peak), " and a step computes ", format_percent(more), " more");
}

report::PrecisionReading measured(const std::string& file) {
    return train::measure_precision({.run = train::one_rank_of(run_of(file, 1))});
}

std::string check_f16(const std::string& file) {
    const spec::RunSpec run = run_of(file, 1);
    check(run.precision.compute == "f16" && spec::fixed_loss_scale(run).has_value(), file,
          ": required compute = \"f16\" and a number as loss_scale");
    double worst = 0;
    std::string where;
    for (const report::TensorNumbers& t : measured(file).tensors) {
        check(t.not_finite == 0, t.layer, ", ", t.factor, ": ", t.not_finite, " values are not finite");
        const double zeros = static_cast<double>(t.zeros) / static_cast<double>(t.values);
        if (t.factor != "dy" || zeros < worst) continue;
        worst = zeros;
        where = t.layer;
    }
    check(worst <= 0.02, file, ": ", format_percent(worst), " of dy of ", where, " is zero; required at most 2 %");
    return concat("at most ", format_percent(worst), " of a dy is zero, and every value is finite");
}

std::string check_fp8(const std::string& file) {
    const spec::RunSpec run = run_of(file, 1);
    check(run.precision.recipe != "none" && run.precision.bf16_first == 1 && run.precision.bf16_last == 1, file,
          ": required a recipe of 8-bit products for the middle block");
    double worst = INFINITY;
    std::string where;
    for (const report::TensorNumbers& t : measured(file).tensors) {
        const std::optional<double> snr = t.formats.front().snr_db;  // as run
        if (t.factor != "dy" || !snr || *snr >= worst) continue;
        worst = *snr;
        where = t.layer;
    }
    check(std::isfinite(worst), file, ": no dy is multiplied in 8 bits");
    check(worst >= 30, file, ": dy of ", where, " reaches ", format_fixed(worst, 1), " dB; required 30");
    return concat("every dy reaches ", format_fixed(worst, 1), " dB");
}

std::string check_plan(const std::string& file) {
    constexpr int kDevices = 64;
    const spec::RunSpec run = run_of(file, kDevices);
    check(
        run.model.layers == 32 && run.model.width == 4096 && run.train.seq_len == 8192 && run.train.global_batch == 512,
        file, ": required llama3-8b with 512 sequences of 8192 tokens");
    const planner::Request request{.run = run, .cluster = hardware::cluster_named("h100"), .gpus = kDevices};
    const planner::RehearsedRun mine = planner::rehearsed(request, planner::target_of(request), run);
    const planner::Plan plan = planner::make_plan(request, 1);
    const planner::RehearsedRun& best = plan.finalists.chosen.front();
    check(mine.fits(), file, ": needs ", format_bytes(mine.bytes()), " of a device");
    check(mine.seconds() <= 1.03 * best.seconds(), file, ": a step takes ", format_time(mine.seconds()),
          "; required at most 3 % more than ", format_time(best.seconds()));
    return concat("a step takes ", format_time(mine.seconds()), "; that of the best plan ",
                  format_time(best.seconds()));
}

struct Exercise {
    const char *name, *file;  // "": a header
    std::string (*check)(const std::string& file);
};
constexpr Exercise kExercises[] = {{"data-parallel", "", check_data_parallel},
                                   {"zero1", "", check_zero1},
                                   {"tensor-parallel", "", check_tensor_parallel},
                                   {"ring-attention", "", check_ring_attention},
                                   {"schedule", "schedule.csv", check_schedule},
                                   {"recompute", "recompute.toml", check_recompute},
                                   {"f16", "f16.toml", check_f16},
                                   {"fp8", "fp8.toml", check_fp8},
                                   {"plan", "plan.toml", check_plan}};

}  // namespace

int main(int argc, char** argv) {
    const std::string name = argc > 1 ? argv[1] : "";
    for (const Exercise& e : kExercises) {
        if (name != e.name) continue;
        const std::string file = argc > 2 ? argv[2] : std::string("examples/course/exercises/") + e.file;
        try {
            std::printf("passed: %s\n", e.check(file).c_str());
            return 0;
        } catch (const std::exception& error) {
            std::printf("not yet: %s\n", error.what());
            return 1;
        }
    }
    std::printf("usage: exercise NAME [FILE], from the root of the repository; NAME is one of\n");
    for (const Exercise& e : kExercises) std::printf("  %s\n", e.name);
    return 2;
}
