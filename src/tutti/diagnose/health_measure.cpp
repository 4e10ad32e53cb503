// diagnose/health_measure.cpp: the figures of `tutti health`. Every phase begins on all ranks together and has a share
// of the time; sizes are those that the slowest rank manages, so that all do the same.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "tutti/base/philox.h"
#include "tutti/base/to_size.h"
#include "tutti/diagnose/health.h"
#include "tutti/diagnose/measure.h"
#include "tutti/ops/ops.h"

namespace tutti::diagnose {

namespace {

using comm::Communicator;

constexpr int64_t kSmallestProduct = 512, kLargestProduct = 8192, kLargestChecked = 4096;
constexpr int64_t kCopyBytes = 64 << 20, kMessageBytes = 16 << 20;
constexpr TimingLimits kFew{.seconds = 0, .min_runs = 1, .max_runs = 1};

// Shares of the time.
constexpr double kProducts = 0.15, kMemory = 0.1, kCopies = 0.05, kChecks = 0.1, kLinks = 0.3, kAllReduce = 0.05;

// All of the time: a GPU that overheats is slow only after a while.
TimingLimits limits_of(double seconds) { return {.seconds = seconds, .min_runs = 3, .max_runs = 1'000'000}; }

// --- a rank ----------------------------------------------------------------------------------------------------------

// The side of the largest square products of which every rank makes about ten in `seconds`.
int64_t side_for(Communicator& group, ops::Context& ctx, DType dtype, double seconds) {
    for (int64_t n = kSmallestProduct;; n *= 2) {
        const double slowest = group.max(time_gemm(ctx, dtype, {"", n, n, n}, kFew).median);
        if (n == kLargestProduct || 8 * 10 * slowest > seconds) return n;
    }
}

// The product with the bits of every f32 sum in sight: dw = dy^T x, f32, of two square operands.
class CheckedProduct {
  public:
    CheckedProduct(ops::Context& ctx, const Tensor& dy, const Tensor& x)
        : ctx_(ctx), dw_(filled(ctx, dy.shape(), DType::f32, 0)), dy_(dy), x_(x) {}
    std::vector<float> operator()() {
        ops::fill(ctx_, dw_, 0);
        ops::gemm(ctx_, ops::gemm_of(ops::GemmRole::weight_gradient, x_, dw_, dy_));
        return dw_.to_host<float>();
    }

  private:
    ops::Context& ctx_;
    Tensor dw_, dy_, x_;
};

Tensor on_device(ops::Context& ctx, const std::vector<float>& values, int64_t n, DType dtype) {
    const Tensor x = Tensor::from_host<float>(ctx.device, {n, n}, values, Purpose::workspace);
    return dtype == DType::f32 ? x : ops::cast(ctx, x, dtype, Purpose::workspace);
}

// In [-8, 8); tiled from a block whose size is a prime, so that no two rows are equal.
std::vector<float> integers(size_t count, const char* key) {
    constexpr size_t kBlock = 65521;
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i)
        values[i] = i < kBlock ? static_cast<float>(uniform_below(random_key(0, key), i, 16)) - 8 : values[i - kBlock];
    return values;
}

// Operands of integers in [-8, 8): every partial sum is an integer below 2^24, so no order of adding rounds and the
// product is known. It is compared through its rows, each summed with random signs (Freivalds 1977): n^2 operations of
// the host, and a row with one wrong element always differs.
int64_t wrong_rows(ops::Context& ctx, DType dtype, int64_t n) {
    static_assert(64 * kLargestChecked < (1 << 24));
    const size_t side = to_size(n);
    const std::vector<float> x = integers(side * side, "health x"), dy = integers(side * side, "health dy");
    std::vector<float> signs = integers(side, "health signs");
    for (float& sign : signs) sign = sign < 0 ? -1.0f : 1.0f;

    std::vector<double> expected(side, 0);  // dy^T (x signs); integers below 2^53
    for (size_t k = 0; k < side; ++k) {
        double row = 0;
        for (size_t i = 0; i < side; ++i) row += x[k * side + i] * signs[i];
        for (size_t o = 0; o < side; ++o) expected[o] += dy[k * side + o] * row;
    }
    const std::vector<float> dw = CheckedProduct(ctx, on_device(ctx, dy, n, dtype), on_device(ctx, x, n, dtype))();
    int64_t wrong = 0;
    for (size_t o = 0; o < side; ++o) {
        double row = 0;
        for (size_t i = 0; i < side; ++i) row += static_cast<double>(dw[o * side + i]) * signs[i];
        if (row != expected[o]) ++wrong;  // a NaN is too
    }
    return wrong;
}

void repeat_product(ops::Context& ctx, DType dtype, int64_t n, double seconds, RankHealth& health) {
    const double end = seconds_now() + seconds;
    const Tensor values = normal_values(ctx, {n, n}, dtype);
    CheckedProduct product(ctx, values, values);
    const std::vector<float> first = product();
    int repeats = 0;
    for (; repeats < 3 || seconds_now() < end; ++repeats) {
        const std::vector<float> again = product();
        health.changed += std::memcmp(again.data(), first.data(), first.size() * sizeof(float)) != 0 ? 1 : 0;
    }
    health.repeats += repeats;
    for (const float value : first)  // FNV-1a, by words
        health.digest = (health.digest ^ std::bit_cast<uint32_t>(value)) * 0x100000001b3u;
}

void measure_copies(ops::Context& ctx, double seconds, RankHealth& health) {
    const Tensor there = filled(ctx, {kCopyBytes / 4}, DType::f32, 0);
    std::vector<std::byte> here(to_size(kCopyBytes));
    const auto rate = [&](const std::function<void()>& call) {
        return static_cast<double>(kCopyBytes) / time_kernels(ctx.device, limits_of(seconds), call).median;
    };
    health.rates[to_size(Figure::to_device)] =
        rate([&] { ctx.device.copy_in(there.view().data, here.data(), kCopyBytes); });
    health.rates[to_size(Figure::from_device)] =
        rate([&] { ctx.device.copy_out(here.data(), there.view().data, kCopyBytes); });
}

RankHealth measure_rank(Communicator& group, ops::Context& ctx, const HealthOptions& options) {
    RankHealth health;
    host_name().copy(health.host.data(), health.host.size() - 1);
    const int sharing = comm::ranks_of_device(group, ctx.device);
    concat(ctx.device.model(), sharing > 1 ? concat(", shared by ", sharing, " ranks") : "")
        .copy(health.device.data(), health.device.size() - 1);
    for (const auto& [dtype, figure] :
         {std::pair{DType::bf16, Figure::bf16_products}, std::pair{DType::f32, Figure::f32_products}}) {
        const int64_t n = side_for(group, ctx, dtype, kProducts * options.seconds),
                      checked = std::min(n, kLargestChecked);
        const GemmShape shape{"", n, n, n};
        group.barrier();
        health.rates[to_size(figure)] =
            shape.flops() / time_gemm(ctx, dtype, shape, limits_of(kProducts * options.seconds)).median;
        group.barrier();
        health.wrong_rows += wrong_rows(ctx, dtype, checked);
        repeat_product(ctx, dtype, checked, kChecks * options.seconds, health);
    }
    ctx.device.memory().trim();
    const bool cpu = ctx.device.host_readable();  // ranks of a host share its caches and its memory
    const int64_t buffer = kBufferBytes / (cpu ? std::max(1, options.local.size) : 1);
    group.barrier();
    health.rates[to_size(Figure::memory)] =
        measure_bandwidth(ctx, limits_of(kMemory * options.seconds), std::max<int64_t>(buffer, 8 << 20));
    ctx.device.memory().trim();
    group.barrier();
    if (!cpu) measure_copies(ctx, kCopies * options.seconds, health);
    return health;
}

// --- links -----------------------------------------------------------------------------------------------------------

// Measures the link to one rank after another; all tensors are in host memory.
class Links {
  public:
    Links(Communicator& group, Device& host)
        : group_(group),
          sent_(Tensor::empty(host, {kMessageBytes / 4}, DType::i32, Purpose::communication)),
          received_(Tensor::empty(host, {kMessageBytes / 4}, DType::i32, Purpose::communication)),
          small_(Tensor::empty(host, {1}, DType::i32, Purpose::communication)) {
        for (uint32_t i = 0; i < kMessageBytes / 4; ++i) sent_.view().as<uint32_t>()[i] = i * 2654435761u;  // on all
    }

    LinkHealth meet(int peer, double seconds) {
        LinkHealth link;
        std::memset(received_.view().data, 0, to_size(kMessageBytes));
        const double exchange = median_time(peer, seconds * 3 / 4, [&] {
            comm::Work out = group_.send(sent_, peer);
            group_.receive(received_, peer).wait();
            out.wait();
        });
        link.bytes_per_s = kMessageBytes / exchange;
        const auto *x = sent_.view().as<int32_t>(), *y = received_.view().as<int32_t>();
        for (int64_t i = 0; i < kMessageBytes / 4; ++i) link.wrong_words += x[i] != y[i] ? 1 : 0;
        link.latency_s = median_time(peer, seconds / 4,
                                     [&] {
                                         if (group_.rank() < peer) group_.send(small_, peer).wait();
                                         group_.receive(small_, peer).wait();
                                         if (group_.rank() > peer) group_.send(small_, peer).wait();
                                     }) /
                         2;
        return link;
    }

    // In place; the values do not matter.
    Timing all_reduce(double seconds) {
        std::memset(received_.view().data, 0, to_size(kMessageBytes));
        return time_together(group_, seconds, [&] { group_.all_reduce(received_).wait(); });
    }

  private:
    // The number of calls is the lower of the two ranks' numbers that fit into `seconds`, at least three.
    double median_time(int peer, double seconds, const std::function<void()>& call) {
        call();  // makes connections, faults pages in
        const double begin = seconds_now();
        call();
        int32_t& runs = *small_.view().as<int32_t>();
        if (group_.rank() < peer) {
            runs = static_cast<int32_t>(std::clamp(seconds / (seconds_now() - begin), 3.0, 1000.0));
            group_.send(small_, peer).wait();
        } else {
            group_.receive(small_, peer).wait();
        }
        std::vector<double> times(to_size(runs));  // the small tensor then travels with this in it
        for (double& time : times) {
            const double start = seconds_now();
            call();
            time = seconds_now() - start;
        }
        return timing_of(std::move(times)).median;
    }

    Communicator& group_;
    Tensor sent_, received_, small_;
};

// `mine` of every rank, in the order of ranks.
template <class T>
std::vector<T> gather(Communicator& group, Device& host, const std::vector<T>& mine) {
    static_assert(std::is_trivially_copyable_v<T>);
    const int64_t bytes = static_cast<int64_t>(mine.size() * sizeof(T));
    const Tensor part = Tensor::empty(host, {bytes}, DType::u8, Purpose::communication);
    const Tensor whole = Tensor::empty(host, {bytes * group.size()}, DType::u8, Purpose::communication);
    std::memcpy(part.view().data, mine.data(), to_size(bytes));
    group.all_gather(part, whole).wait();
    std::vector<T> all(mine.size() * to_size(group.size()));
    std::memcpy(all.data(), whole.view().data, to_size(whole.bytes()));
    return all;
}

}  // namespace

// --- rounds ----------------------------------------------------------------------------------------------------------

// The circle method: one place is fixed, the others rotate by one each round.
std::vector<Round> tournament(int ranks) {
    const int places = ranks + ranks % 2;
    std::vector<Round> rounds;
    for (int r = 0; r < places - 1; ++r) {
        const auto at = [&](int place) { return place == 0 ? 0 : 1 + (place - 1 + r) % (places - 1); };
        Round round;
        for (int i = 0; i < places / 2; ++i) {
            const auto [a, b] = std::minmax({at(i), at(places - 1 - i)});
            if (b < ranks) round.emplace_back(a, b);
        }
        rounds.push_back(round);
    }
    return rounds;
}

std::vector<Round> one_by_one(int ranks) {
    std::vector<Round> rounds;
    for (int a = 0; a < ranks; ++a)
        for (int b = a + 1; b < ranks; ++b) rounds.push_back({{a, b}});
    return rounds;
}

ClusterHealth measure_health(comm::World& world, ops::Context& ctx, const HealthOptions& options) {
    const auto group = world.everyone("health");
    const auto host = make_cpu_device(1);
    ClusterHealth cluster;
    cluster.ranks = gather(*group, *host, std::vector{measure_rank(*group, ctx, options)});

    Links links(*group, *host);
    std::vector<LinkHealth> row(to_size(world.size()));
    const std::vector<Round> rounds = options.one_by_one ? one_by_one(world.size()) : tournament(world.size());
    for (const Round& round : rounds) {
        group->barrier();
        for (const auto& [a, b] : round) {
            if (world.rank() != a && world.rank() != b) continue;
            const int peer = world.rank() == a ? b : a;
            row[to_size(peer)] = links.meet(peer, kLinks * options.seconds / static_cast<double>(rounds.size()));
        }
    }
    cluster.links = gather(*group, *host, row);
    cluster.all_reduce_bytes = kMessageBytes;
    cluster.all_reduce_s = links.all_reduce(kAllReduce * options.seconds).median;
    return cluster;
}

}  // namespace tutti::diagnose
