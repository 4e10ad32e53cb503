// Ring attention played by one rank: a sequence is cut into chunks, the attention of each chunk of queries is put
// together from its parts, one for each chunk of keys, and so are the gradients. Held against the attention of the
// whole in double. On every table that computes here, on a GPU too where the program has one.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tutti/base/philox.h"
#include "tutti/base/testing/unit_roundoff.h"
#include "tutti/base/to_size.h"
#include "tutti/kernels/backends.h"
#include "tutti/ops/ops.h"

namespace tutti::ops {
namespace {

using kernels::AttentionMask;
using kernels::KernelTable;

constexpr int64_t B = 2, T = 192, H = 2, Hkv = 1, D = 32;
constexpr double u = unit_roundoff(DType::f32);
const double kScale = 1.0f / std::sqrt(static_cast<float>(D));

struct Ring {
    int64_t ranks;
    bool zigzag = false;  // rank r holds chunks r and 2 ranks - 1 - r, else chunk r
    bool causal = true;
    int64_t window = 0;
    bool documents = false;

    int64_t chunks() const { return zigzag ? 2 * ranks : ranks; }
    std::vector<int64_t> chunks_of(int64_t rank) const {
        return zigzag ? std::vector<int64_t>{rank, chunks() - 1 - rank} : std::vector<int64_t>{rank};
    }
};

// (B, T, heads, D) in double, exact in the type of the tensors.
struct Values {
    int64_t heads;
    std::vector<double> x = std::vector<double>(to_size(B * T * heads * D));
    double* row(int64_t b, int64_t t, int64_t h) { return &x[to_size(((b * T + t) * heads + h) * D)]; }
    View view() { return {x.data(), DType::f64, {B, T, heads, D}}; }
};

// Places at which documents begin: others in each batch entry.
std::vector<int32_t> first_keys() {
    std::vector<int32_t> first(to_size(B * T));
    for (int32_t b = 0; b < B; ++b)
        for (int32_t t = 0, begin = 0; t < T; ++t) {
            if (t % (50 + 27 * b) == 0) begin = t;
            first[to_size(b * T + t)] = begin;
        }
    return first;
}

struct Results {
    Values o{H}, dq{H}, dk{Hkv}, dv{Hkv};
};

// Sums of terms whose factors, P and dS, a table may round to the type of the inputs: off by `packing` times the root
// of the sum of their squares, times 8 but for odds of 3e-14, and by what `plain` says.
struct ErrorBounds {
    Values plain, squares;
    explicit ErrorBounds(int64_t heads) : plain{heads}, squares{heads} {}
    // The term factor x of a row; the factor is off by `error`.
    void add(int64_t b, int64_t t, int64_t h, double factor, double error, const double* x) {
        for (int64_t d = 0; d < D; ++d) {
            plain.row(b, t, h)[d] += error * std::abs(x[d]);
            squares.row(b, t, h)[d] += factor * factor * x[d] * x[d];
        }
    }
    double of(size_t i, double packing) const { return plain.x[i] + 8 * packing * std::sqrt(squares.x[i]); }
};

// One problem: inputs, their attention and its gradients in double, and how far off tables may be.
class Problem {
  public:
    Problem(DType dtype, const Ring& ring) : packing_(dtype == DType::f32 ? 0 : unit_roundoff(dtype)) {
        for (Values* x : {&q, &k, &v, &dy})
            for (size_t i = 0; i < x->x.size(); ++i) {
                const float normal = tutti::normal(random_key(7, std::to_string(x - &q)), i);
                x->x[i] = dtype == DType::f32 ? normal : bf16_value(bf16_bits(normal));
            }
        if (ring.documents) first_key = first_keys();
        const AttentionMask mask{.causal = ring.causal,
                                 .window = ring.window,
                                 .first_key = {first_key.empty() ? nullptr : first_key.data(), DType::i32, {B, T}}};
        const View lse(lse_.data(), DType::f64, {B, H, T});
        kernels::reference_table().attention_forward({}, {.q = q.view(),
                                                          .k = k.view(),
                                                          .v = v.view(),
                                                          .o = expected.o.view(),
                                                          .lse = lse,
                                                          .scale = static_cast<float>(kScale),
                                                          .mask = mask});
        kernels::reference_table().attention_backward({}, {.q = q.view(),
                                                           .k = k.view(),
                                                           .v = v.view(),
                                                           .o = expected.o.view(),
                                                           .lse = lse,
                                                           .dy = dy.view(),
                                                           .dq = expected.dq.view(),
                                                           .dk = expected.dk.view(),
                                                           .dv = expected.dv.view(),
                                                           .scale = static_cast<float>(kScale),
                                                           .mask = mask});
        for (int64_t b = 0; b < B; ++b)
            for (int64_t h = 0; h < H; ++h)
                for (int64_t i = 0; i < T; ++i) bound_row(ring, b, h, i);
    }

    // "" where `actual` is within the bounds.
    std::string difference(Results& actual) {
        const std::tuple<const char*, Values*, Values*, ErrorBounds*> all[] = {
            {"o", &expected.o, &actual.o, &of_o_},
            {"dq", &expected.dq, &actual.dq, &of_dq_},
            {"dk", &expected.dk, &actual.dk, &of_dk_},
            {"dv", &expected.dv, &actual.dv, &of_dv_}};
        for (const auto& [name, want, got, error] : all)
            for (size_t i = 0; i < want->x.size(); ++i)
                if (!(std::abs(want->x[i] - got->x[i]) <= error->of(i, packing_)))
                    return concat(name, "[", i, "]: expected ", want->x[i], " +- ", error->of(i, packing_), ", got ",
                                  got->x[i]);
        return "";
    }

    Values q{H}, k{Hkv}, v{Hkv}, dy{H};
    std::vector<int32_t> first_key;  // (B, T), or none
    Results expected;

  private:
    // Errors with all keys at once or in chunks: each key's term is rounded to the inputs' type once. All else is f32,
    // relative to P: a score, a product of D terms of size s; exp; sums of T terms; a few roundings for each chunk. D_i
    // is as wrong as o is.
    void bound_row(const Ring& ring, int64_t b, int64_t h, int64_t i) {
        const int64_t g = h / (H / Hkv);
        const auto dot = [](const double* x, const double* y, bool sizes) {
            double sum = 0;
            for (int64_t d = 0; d < D; ++d) sum += sizes ? std::abs(x[d] * y[d]) : x[d] * y[d];
            return sum;
        };
        const double *of_q = q.row(b, i, h), *of_dy = dy.row(b, i, h), *o = expected.o.row(b, i, h);
        const double lse = lse_[to_size((b * H + h) * T + i)], D_i = dot(of_dy, o, false);
        const auto sees = [&](int64_t j) {
            return (!ring.causal || j <= i) && (ring.window == 0 || j > i - ring.window) &&
                   (first_key.empty() || j >= first_key[to_size(b * T + i)]);
        };
        double error_D = 0;
        for (const bool backward : {false, true}) {  // all of o's error, before the quantities that depend on it
            for (int64_t j = 0; j < T; ++j) {
                if (!sees(j)) continue;
                const double *of_k = k.row(b, j, g), *of_v = v.row(b, j, g);
                const double P = std::exp(kScale * dot(of_q, of_k, false) - lse);
                const double size = kScale * dot(of_q, of_k, true) + std::abs(lse);
                const double relative =
                    u * (static_cast<double>(D + 8) * size + static_cast<double>(4 * T + 12 * ring.chunks() + 32));
                if (!backward) {
                    of_o_.add(b, i, h, P, P * relative, of_v);
                    continue;
                }
                const double dS = P * (dot(of_dy, of_v, false) - D_i);
                const double error =
                    P * (relative * (dot(of_dy, of_v, true) + dot(of_dy, o, true)) + error_D) + relative * std::abs(dS);
                of_dq_.add(b, i, h, kScale * dS, kScale * error, of_k);
                of_dk_.add(b, j, g, kScale * dS, kScale * error, of_q);
                of_dv_.add(b, j, g, P, P * relative, of_dy);
            }
            const auto row = to_size(((b * T + i) * H + h) * D);
            for (size_t d = 0; !backward && d < D; ++d) error_D += std::abs(of_dy[d]) * of_o_.of(row + d, packing_);
        }
    }

    double packing_;
    std::vector<double> lse_ = std::vector<double>(to_size(B * H * T));
    ErrorBounds of_o_{H}, of_dq_{H}, of_dk_{Hkv}, of_dv_{Hkv};
};

Tensor tensor(Context& ctx, const Values& values, DType dtype) {
    const std::vector<float> x(values.x.begin(), values.x.end());
    return cast(ctx, Tensor::from_host<float>(ctx.device, {B, T, values.heads, D}, x, Purpose::data), dtype);
}

// Rows [first, first + x's rows) of `to`.
void take(const Tensor& x, int64_t first, Values& to) {
    const std::vector<float> values = x.to_host<float>();
    const auto per_entry = static_cast<int64_t>(values.size()) / B;
    for (int64_t b = 0; b < B; ++b) std::copy_n(values.begin() + b * per_entry, per_entry, to.row(b, first, 0));
}

struct Tensors {
    Tensor q, k, v, dy, dq, dk, dv;  // the gradients f32 and 0
};
Tensors tensors(Context& ctx, const Problem& problem, DType dtype) {
    Tensors t{tensor(ctx, problem.q, dtype), tensor(ctx, problem.k, dtype), tensor(ctx, problem.v, dtype),
              tensor(ctx, problem.dy, dtype)};
    t.dq = zeros(ctx, t.q.shape(), DType::f32);
    t.dk = zeros(ctx, t.k.shape(), DType::f32);
    t.dv = zeros(ctx, t.v.shape(), DType::f32);
    return t;
}

// One causal call with f32 results.
Results at_once(Context& ctx, const Problem& problem, DType dtype) {
    const auto [q, k, v, dy, dq, dk, dv] = tensors(ctx, problem, dtype);
    const Attention all = attention(ctx, q, k, v, {}, {}, DType::f32);
    attention_backward(ctx, dy, q, k, v, all, {}, dq, dk, dv);
    Results results;
    take(all.y, 0, results.o);
    take(dq, 0, results.dq);
    take(dk, 0, results.dk);
    take(dv, 0, results.dv);
    return results;
}

// Each rank's queries with the keys of one rank after the other, which travel on around the ring.
Results play(Context& ctx, const Ring& ring, const Problem& problem, DType dtype) {
    const int64_t length = T / ring.chunks();
    const auto [q, k, v, dy, dq, dk, dv] = tensors(ctx, problem, dtype);
    const Tensor first_key = problem.first_key.empty()
                                 ? Tensor()
                                 : Tensor::from_host<int32_t>(ctx.device, {B, T}, problem.first_key, Purpose::data);
    const auto chunk = [&](const Tensor& x, int64_t i) { return x.narrow(1, i * length, length); };
    Results results;
    for (int64_t rank = 0; rank < ring.ranks; ++rank)
        for (const int64_t own : ring.chunks_of(rank)) {
            const auto for_keys = [&](auto&& body) {
                for (int64_t hop = 0; hop < ring.ranks; ++hop)
                    for (const int64_t other : ring.chunks_of((rank - hop + ring.ranks) % ring.ranks))
                        body(other, AttentionMask{.causal = ring.causal,
                                                  .query_offset = own * length,
                                                  .key_offset = other * length,
                                                  .window = ring.window,
                                                  .first_key = first_key.defined() ? chunk(first_key, own) : Tensor()});
            };
            const Attention sum{zeros(ctx, {B, length, H, D}, DType::f32), empty(ctx, {B, H, length}, DType::f32)};
            fill(ctx, sum.lse, -std::numeric_limits<float>::infinity());
            for_keys([&](int64_t other, const AttentionMask& mask) {
                attention_merge(ctx, sum,
                                attention(ctx, chunk(q, own), chunk(k, other), chunk(v, other), mask, {}, DType::f32));
            });
            for_keys([&](int64_t other, const AttentionMask& mask) {
                attention_backward(ctx, chunk(dy, own), chunk(q, own), chunk(k, other), chunk(v, other), sum, mask,
                                   chunk(dq, own), chunk(dk, other), chunk(dv, other), true);
            });
            take(sum.y, own * length, results.o);
        }
    take(dq, 0, results.dq);
    take(dk, 0, results.dk);
    take(dv, 0, results.dv);
    return results;
}

double rms_error(const Values& a, const Values& b) {
    double sum = 0;
    for (size_t i = 0; i < a.x.size(); ++i) sum += (a.x[i] - b.x[i]) * (a.x[i] - b.x[i]);
    return std::sqrt(sum / static_cast<double>(a.x.size()));
}

// f(context) for each table that computes here.
template <class F>
void for_tables(F&& f) {
    const auto run = [&](Device& device, const KernelTable& table) {
        SCOPED_TRACE(table.name);
        Context ctx{device, table};
        f(ctx);
    };
    const auto cpu = make_cpu_device(1), best = make_device("auto", 1);
    run(*cpu, kernels::reference_table());
    for (const kernels::Isa isa :
         {kernels::Isa::avx2, kernels::Isa::avx512, kernels::Isa::avx512_bf16, kernels::Isa::amx})
        if (kernels::best_isa() >= isa) run(*cpu, kernels::cpu_table(isa));
    if (!best->host_readable()) run(*best, kernels::table_for(*best, ComputeType::f32));
}

TEST(RingAttention, IsAttentionWhateverTheMaskAndTheOrder) {
    for (const DType dtype : {DType::f32, DType::bf16})
        for (const Ring& ring :
             {Ring{3}, Ring{4, true}, Ring{2, true, false}, Ring{4, true, true, 70}, Ring{3, false, false, 100},
              Ring{4, true, true, 0, true}, Ring{3, true, true, 40, true}}) {
            SCOPED_TRACE(concat(dtype, ", ", ring.ranks, " ranks", ring.zigzag ? ", zigzag" : "", ", window ",
                                ring.window, ring.documents ? ", documents" : ""));
            Problem problem(dtype, ring);
            for_tables([&](Context& ctx) {
                Results results = play(ctx, ring, problem, dtype);
                EXPECT_EQ(problem.difference(results), "");
            });
        }
}

// Roundings of P and dS differ from cut to cut, but each happens once and they are as large as those of one call: the
// root of the mean square, of 12288 errors or more, stays the same, where results that are rounded to bf16 add an error
// of about that size. What f32 adds is a few u for each chunk, of values up to about 1.
TEST(RingAttention, TheErrorDoesNotGrowWithTheChunks) {
    Problem problem(DType::bf16, Ring{1});
    for_tables([&](Context& ctx) {
        const Results one = at_once(ctx, problem, DType::bf16);
        for (const int64_t ranks : {4, 12}) {
            const Results cut = play(ctx, Ring{ranks, true}, problem, DType::bf16);
            for (const auto of : {&Results::o, &Results::dq, &Results::dk, &Results::dv})
                EXPECT_LE(rms_error(problem.expected.*of, cut.*of),
                          1.2 * rms_error(problem.expected.*of, one.*of) + 4 * static_cast<double>(2 * ranks) * u)
                    << ranks << " ranks";
        }
    });
}

}  // namespace
}  // namespace tutti::ops
