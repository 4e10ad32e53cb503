#include "tutti/simulate/machine_prices.h"

#include <algorithm>
#include <cmath>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"

namespace tutti::simulate {

namespace {

// Numbers of kernels, from tables of measured kernels (SimuMax's A100 and B200, papers of attention); not fitted.
constexpr double kDepth = 200;      // K at which a product reaches half of its rate: 142 on A100, 166 on B200
constexpr double kGroupRows = 200;  // likewise the rows of a grouped product: table of B200 33 to 17 % error
constexpr double kGrouped = 0.9;    // of the rate of one product of all rows
constexpr double kQueryTile = 128;  // queries of a block of attention
constexpr double kAttentionWaves =
    1.2;                                // of blocks at which attention reaches half of its rate: A100 16 to 2.5 % error
constexpr double kAttentionKeys = 200;  // keys at which it does
// Attention written for a device holds this share of the geometric mean of its peak and of the rate of products, since
// softmax draws no power in the tensor cores: FlashAttention-2 on A100 0.69, cuDNN on H100 0.68, on B200 0.69. A kernel
// written for the generation before has 0.56 of that: FlashAttention-1 on A100 0.37, -2 on H100 0.41; -1 on H100 0.22.
constexpr double kAttention = 0.69, kAttentionGeneration = 0.56;
constexpr double kDenseShare = 0.68;  // of the peak, of a device without a fitted energy or a measured product: V100
constexpr double kHeld = 0.87;        // of the fastest measured product, in a long run
constexpr double kAllToAll = 0.8;     // of the rate of a ring
constexpr double kHostLink = 0.8;     // of the link to the host: an assumption, no run was fitted

struct Tile {
    double rows, columns, rate;
};
constexpr Tile kTiles[] = {{128, 256, 1},   {256, 128, 1},   {128, 128, 0.92},
                           {64, 256, 0.88}, {64, 128, 0.80}, {64, 64, 0.66}};

// Of a size that tiles of 64 and vectors of 8 values do not divide: arXiv 2401.14489.
double alignment(double size) {
    const auto whole = static_cast<int64_t>(size);
    return whole % 8 != 0 ? 0.5 : whole % 64 != 0 ? 0.8 : 1;
}

// The share of a systolic array of this side that a product of so many columns, or of this depth, fills.
double filled(double size, int side) { return side > 0 ? size / (std::ceil(size / side) * side) : 1; }

bool is_blackwell(const hardware::Cluster& c) { return c.generation.starts_with("blackwell"); }

// Generations from the one that a kernel was written for, Ampere for FlashAttention-2, to the device's.
int generations_behind(Attention attention, const hardware::Cluster& c) {
    const int device = is_blackwell(c) ? 2 : c.generation == "ampere" || c.generation == "volta" ? 0 : 1;
    switch (attention) {
        case Attention::unfused:
        case Attention::newest: return 0;
        case Attention::flash2: return device;
        case Attention::flash1: return device + 1;
    }
    return 0;
}

}  // namespace

double tile_efficiency(double M, double N, double batch, int processors) {
    if (processors == 0) return 1;
    double best = 0;
    for (const Tile& tile : kTiles) {
        const double tiles = std::ceil(M / tile.rows) * std::ceil(N / tile.columns) * batch;
        const double waves = std::ceil(tiles / processors);
        best = std::max(best, tile.rate * M * N * batch / (waves * processors * tile.rows * tile.columns));
    }
    return best;
}

MachinePrices::MachinePrices(const hardware::Cluster& cluster, const Physics& physics, const std::string& precision,
                             Attention attention)
    : cluster_(cluster), physics_(physics) {
    const std::string_view sixteen = cluster.sixteen_bits();
    const bool four_bytes = precision == "fp32" || precision == "tf32";
    const double peak = cluster.peak(four_bytes ? std::string_view(precision) : sixteen);
    const double peak_16 = cluster.has(sixteen) ? cluster.peak(sixteen) : peak;
    wide_bytes_ = four_bytes ? 4 : 2;
    const double watts = cluster.power_limit > 0 ? std::min(cluster.watts, cluster.power_limit) : cluster.watts;
    const auto measured = [&](std::string_view type) {
        const auto found = cluster.measured.find(std::string(type));
        if (found == cluster.measured.end()) return kDenseShare * cluster.peak(type);
        return (cluster.matrix_unit > 0 ? 1 : kHeld) * found->second;  // the clock of systolic arrays does not fall
    };
    const auto held = [&](std::string_view type, double per_joule) {
        return watts > 0 && per_joule > 0 ? std::min(per_joule * watts, kHeld * cluster.peak(type)) : measured(type);
    };
    const bool ampere = cluster.generation == "ampere", hopper = cluster.generation == "hopper";
    const double joule_16 = ampere                  ? physics.ampere_16
                            : hopper                ? physics.hopper_16
                            : is_blackwell(cluster) ? physics.blackwell_16
                                                    : 0;
    const double joule_8 = hopper ? physics.hopper_8 : is_blackwell(cluster) ? physics.blackwell_8 : 0;
    const double rate_16 = cluster.has(sixteen) ? held(sixteen, joule_16) : kDenseShare * peak;
    wide_rate_ = rate_16 * peak / peak_16;
    if (cluster.has("fp8")) eight_rate_ = held("fp8", joule_8);
    if (cluster.has("fp4")) four_rate_ = 0.75 * eight_rate_ * cluster.peak("fp4") / cluster.peak("fp8");
    attention_rate_ = kAttention * std::pow(kAttentionGeneration, generations_behind(attention, cluster)) *
                      std::sqrt(peak * wide_rate_);
    memory_rate_ = cluster.memory_bandwidth * physics.memory;
}

double MachinePrices::product_rate(Operands operands) const {
    const double rate = operands == Operands::wide    ? wide_rate_
                        : operands == Operands::eight ? eight_rate_
                                                      : four_rate_;
    check<UsageError>(rate > 0, cluster_.name, " has no products of ", operands == Operands::eight ? "8" : "4",
                      " bits; it has ", cluster_.types());
    return rate;
}

double MachinePrices::depth_efficiency(double K, Operands operands) {
    // A step of the tensor cores takes more values of fewer bits, and as many steps fill them.
    return K / (K + kDepth * (operands == Operands::wide ? 1 : operands == Operands::eight ? 1.5 : 2.25));
}

double MachinePrices::product_bytes(double groups, double M, double N, double K, Operands operands) const {
    const double in = operands == Operands::wide ? wide_bytes_ : 1;
    return groups * (in * (M * K + K * N) + wide_bytes_ * M * N);
}

double MachinePrices::product(double M, double N, double K, Operands operands) const {
    const double aligned = cluster_.processors > 0 ? std::min(alignment(K), alignment(N))
                                                   : filled(K, cluster_.matrix_unit) * filled(N, cluster_.matrix_unit);
    const double share = tile_efficiency(M, N, 1, cluster_.processors) * depth_efficiency(K, operands) * aligned;
    return std::max(2 * M * N * K / (product_rate(operands) * share), pass(product_bytes(1, M, N, K, operands)));
}

double MachinePrices::grouped(double groups, double rows, double N, double K, Operands operands) const {
    const double share = kGrouped * rows / (rows + kGroupRows) * depth_efficiency(K, operands) *
                         tile_efficiency(rows, N, groups, cluster_.processors);
    return std::max(2 * groups * rows * N * K / (product_rate(operands) * share),
                    pass(product_bytes(groups, rows, N, K, operands)));
}

double MachinePrices::grouped_gradient(double groups, double rows, double N, double K, Operands operands) const {
    const double share =
        kGrouped * depth_efficiency(rows, operands) * tile_efficiency(N, K, groups, cluster_.processors);
    const double in = operands == Operands::wide ? wide_bytes_ : 1;
    return std::max(2 * groups * rows * N * K / (product_rate(operands) * share),
                    pass(groups * (in * rows * (K + N) + 4 * N * K)));  // added to f32
}

double MachinePrices::attention(const AttentionShape& s, double flops, bool backward) const {
    // One of the two sizes of each of its products that an array holds is a head's.
    double rate = attention_rate_ * s.keys / (s.keys + kAttentionKeys) * filled(s.head_dim, cluster_.matrix_unit);
    if (cluster_.processors > 0) {
        const double blocks = s.batch * s.heads * std::ceil(s.queries / kQueryTile);
        const double waves = std::max(0.05, blocks / cluster_.processors);
        rate *= waves / (waves + kAttentionWaves);
    }
    if (s.head_dim <= 64)
        rate *= 0.85;
    else if (s.head_dim <= 96)
        rate *= 0.93;
    // Papers of the kernels: the backward has 0.8 of the forward's rate; kAttention is of both together.
    return flops / rate * (backward ? 1.06 : 0.85);
}

double MachinePrices::host_copy(double bytes) const {
    check<UsageError>(cluster_.host_bandwidth > 0, "offload on ", cluster_.name,
                      ": its bandwidth to the host is not known; give [host] gbs in a cluster file with base = \"",
                      cluster_.name, "\", or leave [offload] out");
    double rate = cluster_.host_bandwidth;
    if (const double shared = cluster_.host_memory_bandwidth / cluster_.per_node; shared > 0)
        rate = std::min(rate, shared);  // all devices of a node copy at once
    return bytes / (rate * kHostLink);
}

Group MachinePrices::group(int ranks, int stride) const {
    const auto near = [&](int devices) { return std::max(1, std::min(ranks, devices / std::max(1, stride))); };
    return {ranks, near(cluster_.domain_of_job()), near(cluster_.rack_with_links())};
}

Reach MachinePrices::reach(int distance) const {
    return distance < cluster_.domain_of_job()     ? Reach::domain
           : distance < cluster_.rack_with_links() ? Reach::rack
                                                   : Reach::network;
}

// All links of the ranks in a domain, and all adapters of those in a rack, work side by side.
double MachinePrices::bandwidth(Group g) const {
    double inside = cluster_.link_bandwidth * physics_.link;
    // Nodes of four without a switch: each pair has one of the three parts of the links.
    if (cluster_.per_node == 4 && cluster_.domain == 4 && cluster_.vendor == "NVIDIA" && g.reach() == Reach::domain)
        inside *= std::min(1.0, (g.ranks - 1) / 3.0);
    double slowest = inside;
    if (g.per_rack > g.per_domain) slowest = std::min(slowest, g.per_domain * cluster_.rack_bandwidth * physics_.link);
    if (g.reach() == Reach::network) {
        double across = std::max(g.per_domain, g.per_rack) * cluster_.network_bandwidth * physics_.network;
        if (cluster_.pod > 0 && g.domains() * cluster_.domain_of_job() > cluster_.pod)
            across /= cluster_.oversubscription;
        slowest = std::min(slowest, across);
    }
    return slowest;
}

double MachinePrices::latency(Group g, double steps) const {
    return physics_.latency + (g.reach() == Reach::network ? steps * physics_.hop : 0);
}

double MachinePrices::gather(double bytes, Group g, double pieces) const {
    if (g.ranks <= 1) return 0;
    const double part = (g.ranks - 1.0) / g.ranks * bytes;
    return part / bandwidth(g) + pieces * latency(g, g.ranks - 1);
}

double MachinePrices::all_reduce(double bytes, Group g, double pieces) const {
    if (g.ranks <= 1) return 0;
    const double part = (g.ranks - 1.0) / g.ranks * bytes;
    const double tree = 2 * std::log2(std::max(2, g.domains())) + g.per_domain;
    return 2 * (part / bandwidth(g) + pieces * latency(g, std::min<double>(g.ranks - 1, tree)));
}

double MachinePrices::all_to_all(double bytes, Group g, double crossing) const {
    if (g.ranks <= 1) return 0;
    const double link = cluster_.link_bandwidth * physics_.link * kAllToAll;
    if (g.reach() == Reach::domain) return bytes * (g.ranks - 1) / g.ranks / link + physics_.latency;
    const double inside = double(g.per_domain) / g.ranks;
    const double outside = crossing < 0 ? 1 - inside : crossing;
    const int far = g.ranks - std::min(g.ranks, std::max(g.per_domain, g.per_rack));  // ranks behind the network
    const double across = outside * (double(far) / (g.ranks - g.per_domain)), rack = outside - across;
    double seconds = bytes * inside / link;
    if (rack > 0) seconds = std::max(seconds, bytes * rack / (cluster_.rack_bandwidth * physics_.link * kAllToAll));
    if (across > 0) seconds = std::max(seconds, bytes * across / (cluster_.network_bandwidth * physics_.network));
    return seconds + (across > 0 ? 1.5 : 1) * physics_.latency;
}

double MachinePrices::message(double bytes, Reach reach) const {
    if (reach != Reach::network)
        return bytes / ((reach == Reach::rack ? cluster_.rack_bandwidth : cluster_.link_bandwidth) * physics_.link) +
               physics_.latency / 2;
    return bytes / (cluster_.network_bandwidth * physics_.network) + physics_.latency / 2 + physics_.hop;
}

double MachinePrices::kernel(const rehearsal::KernelCall& call) const {
    using Kind = kernels::ProblemShape::Kind;
    const kernels::ProblemShape& shape = call.work.shape;
    const auto size = [&](int i) { return static_cast<double>(shape.sizes[to_size(i)]); };
    const double flops = call.work.flops;
    double seconds = pass(call.work.bytes);
    if (shape.kind == Kind::product && flops > 0) {
        const double M = size(0), K = size(1), N = size(2), groups = static_cast<double>(shape.groups);
        double products = 0;
        if (shape.groups == 0)
            products =
                product(M, N, K, std::string_view(call.kernel) == "gemm_of_codes" ? Operands::eight : Operands::wide) *
                flops / (2 * M * N * K);
        else if (shape.transpose_a)  // gradients of the matrices: K is the rows of all groups
            products = grouped_gradient(groups, K / groups, N, M);
        else
            products = grouped(groups, M / groups, N, K);
        seconds = std::max(seconds, products);
    } else if (shape.kind == Kind::attention && flops > 0) {
        const bool backward = std::string_view(call.kernel).find("backward") != std::string_view::npos;
        AttentionShape s{size(0), size(1), size(2), size(3)};
        s.keys = flops / ((backward ? 5 : 2) * s.batch * s.queries * s.heads * s.head_dim);  // twice the visible ones
        seconds = std::max(seconds, attention(s, flops, backward));
    }
    return launch_gap() + seconds;
}

double MachinePrices::operation(const comm::Summary& what, const std::vector<int>& ranks) const {
    const auto bytes = static_cast<double>(what.bytes);
    const auto near = [&](int devices) {
        const int home = ranks.front() / devices;
        return static_cast<int>(std::count_if(ranks.begin(), ranks.end(), [&](int r) { return r / devices == home; }));
    };
    const Group g{static_cast<int>(ranks.size()), near(cluster_.domain_of_job()),
                  cluster_.rack_with_links() > 0 ? near(cluster_.rack) : 0};
    switch (what.kind) {
        case comm::Kind::all_reduce: return all_reduce(bytes, g);
        case comm::Kind::reduce_scatter:
        case comm::Kind::all_gather:
        case comm::Kind::broadcast:
        case comm::Kind::barrier: return gather(bytes, g);
        case comm::Kind::all_to_all: return all_to_all(bytes, g);
        case comm::Kind::send:
        case comm::Kind::receive: return message(bytes, g.reach());
    }
    return 0;
}

}  // namespace tutti::simulate
