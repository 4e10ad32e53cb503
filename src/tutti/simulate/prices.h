// simulate/prices.h: seconds of products, attention, passes through memory, collectives and messages on a cluster, by
// formulas whose constants were fitted to published runs.
#pragma once

#include <algorithm>
#include <cmath>

#include "tutti/hardware/cluster.h"
#include "tutti/simulate/constants.h"
#include "tutti/simulate/job.h"

namespace tutti::simulate {

enum class Generation { volta, ampere, hopper, blackwell, tpu, other };
inline Generation generation_of(const hardware::Cluster& c) {
    if (c.generation == "volta") return Generation::volta;
    if (c.generation == "ampere") return Generation::ampere;
    if (c.generation == "hopper") return Generation::hopper;
    if (c.generation.starts_with("blackwell")) return Generation::blackwell;
    return c.generation == "tpu" ? Generation::tpu : Generation::other;
}

// Seconds forward and backward.
struct Cost {
    double forward = 0, backward = 0;
    double sum() const { return forward + backward; }
    Cost& operator+=(const Cost& o) {
        forward += o.forward;
        backward += o.backward;
        return *this;
    }
    friend Cost operator*(double f, Cost c) { return {f * c.forward, f * c.backward}; }
};

// Seconds of products, collectives and messages on a cluster.
class Prices {
  public:
    Prices(const Job& job, const hardware::Cluster& cluster, const Constants& constants)
        : job_(job), c_(cluster), k_(constants), generation_(generation_of(cluster)) {
        const bool four_bit = job.precision == "nvfp4";
        narrow_ = four_bit || job.precision.find("fp8") != std::string::npos;
        const char* sixteen = c_.has("bf16") ? "bf16" : "fp16";
        wide_peak_ = c_.clock() * c_.peak(job.precision == "fp32"   ? "fp32"
                                          : job.precision == "tf32" ? "tf32"
                                                                    : sixteen);
        wide_share_ = wide_share(sixteen);
        if (c_.generation == "blackwell-ultra") ultra_ = k_.ultra;
        narrow_peak_ = wide_peak_;
        narrow_share_ = wide_share_;
        if (four_bit) {
            narrow_peak_ = c_.clock() * c_.peak("fp4");
            narrow_share_ = k_.gemm_fp4;
            cast_ = k_.cast_fp4;
        } else if (narrow_) {
            narrow_peak_ = c_.clock() * c_.peak("fp8");
            narrow_share_ = generation_ == Generation::hopper      ? k_.gemm_hopper_fp8
                            : generation_ == Generation::blackwell ? k_.gemm_blackwell_fp8
                                                                   : measured_share("fp8");
            cast_ = job.precision.find("mx") != std::string::npos    ? k_.cast_mx
                    : job.precision.find("row") != std::string::npos ? k_.cast_row
                                                                     : k_.cast_fp8;
        }
        wide_share_ *= ultra_;
        narrow_share_ *= ultra_;
    }

    int domain() const { return c_.domain; }
    // FLOP/s that no product exceeds.
    double fastest() const { return wide_peak_ * wide_share_; }

    // One product of M x N values of depth K.
    double product(double m, double n, double k, bool narrow) const {
        const double peak = narrow ? narrow_peak_ * narrow_share_ : wide_peak_ * wide_share_;
        const double compute = 2 * m * n * k / (peak * waves(m, n) * k / (k + k_.depth));
        const double bytes = narrow ? m * k + k * n + 2 * m * n : 2 * (m * k + k * n + m * n);
        return std::max(compute, memory(bytes));
    }
    // Activations of `rows` rows times a weight of in x out: the output, the gradients of input and weight.
    Cost linear(double rows, double in, double out, bool narrow_allowed = true) const {
        const bool narrow = narrow_ && narrow_allowed;
        Cost cost{product(rows, out, in, narrow), product(rows, in, out, narrow) + product(in, out, rows, narrow)};
        if (narrow) {
            // Input and output gradient are read in 16 bits and written in 8, each in both orders.
            cost.forward += cast_ * memory(4 * rows * in);
            cost.backward += cast_ * memory(4 * rows * out);
        }
        return cost;
    }
    // Like products of `groups` weights, `rows` rows each.
    Cost grouped(double groups, double rows, double in, double out) const {
        const double share = k_.grouped * rows / (rows + k_.grouped_rows);
        return groups / share * linear(rows, in, out);
    }

    // `rows` rows in all, of `groups` weights of k x n.
    double grouped_product(double groups, double rows, double n, double k) const {
        const double each = rows / groups;
        return groups * product(each, n, k, false) * (each + k_.grouped_rows) / (k_.grouped * each);
    }

    double memory(double bytes) const { return bytes / (c_.memory_bandwidth * k_.memory_efficiency); }

    // Between the device and the memory of its host, in one direction.
    double host(double bytes) const { return bytes / (c_.host_bandwidth * k_.host_efficiency); }

    // Causal FLOPs of the forward of attention, and bytes of the scores of all pairs.
    Cost attention(double flops, double score_values) const {
        if (job_.attention == Attention::unfused) {
            const double products = 2 * flops / (wide_peak_ * wide_share_ * 0.6);  // all pairs, shallow products
            const double passes = memory(2 * k_.unfused_passes * score_values);
            return {products + passes * 0.45, 2 * products + passes * 0.55};
        }
        const bool first = job_.attention == Attention::flash1;
        double share = k_.flash_other;
        if (generation_ == Generation::ampere) share = first ? k_.flash1_ampere : k_.flash_ampere;
        const bool newest = job_.year > 2024.8 && (job_.stack == Stack::megatron || job_.stack == Stack::xla);
        if (generation_ == Generation::hopper)
            share = first ? k_.flash1_hopper : newest ? k_.flash_hopper : k_.flash2_hopper;
        if (generation_ == Generation::blackwell) share = k_.flash_blackwell * ultra_;
        const double shallow = job_.model.head_dim / (job_.model.head_dim + 32) * 1.25;  // 1 for heads of 128
        const double forward = flops / (wide_peak_ * share * std::min(1.0, shallow));
        return {forward, 2.5 * forward / k_.attention_backward};
    }

    // `ranks` ranks at a distance of `stride` in the order tp, cp, dp, pp.
    Group group(int ranks, int stride) const {
        return {ranks, std::max(1, std::min(ranks, std::max(1, c_.domain) / std::max(1, stride)))};
    }
    // Seconds for `steps` of (n-1)/n of `bytes`: 1 for a gather or a reduce-scatter, 2 for an all-reduce.
    double collective(double bytes, Group g, double steps) const {
        if (g.ranks <= 1) return 0;
        const double part = (g.ranks - 1.0) / g.ranks * bytes;
        if (g.per_domain >= g.ranks) {
            return steps * (part / (c_.link_bandwidth * k_.link_efficiency * half(bytes, k_.link_half)) + 8e-6 +
                            c_.link_latency * (g.ranks - 1));
        }
        const double network = across(g) * k_.network_efficiency * half(bytes, k_.network_half);
        const double width = std::min(c_.link_bandwidth * k_.link_efficiency, network);
        return steps * (part / width + 15e-6 + c_.network_latency * (g.ranks - 1));
    }
    // Trees save the latency of a ring's many steps.
    double all_reduce(double bytes, Group g) const {
        if (g.per_domain >= g.ranks) return collective(bytes, g, 2);
        const double width = std::min(c_.link_bandwidth * k_.link_efficiency, across(g) * k_.network_efficiency);
        return 2 * (g.ranks - 1.0) / g.ranks * bytes / width + 15e-6 +
               4 * c_.network_latency * std::log2(double(g.ranks));
    }
    // Visible seconds of an all-to-all: each rank sends `bytes`, `copies` of a row at most to a domain.
    double all_to_all(double bytes, Group g, double copies) const {
        if (g.ranks <= 1) return 0;
        const double inside = double(g.per_domain) / g.ranks;
        const double domains = double(g.ranks) / g.per_domain;
        const double local =
            bytes * inside * (g.per_domain - 1.0) / g.per_domain / (c_.link_bandwidth * k_.link_efficiency) + 10e-6;
        if (domains <= 1) return k_.ep_exposed * local;
        const double once = std::min(1.0, domains / copies);  // one copy of a row to each domain
        const double network = bytes * (1 - inside) * once / (c_.network_bandwidth * k_.network_efficiency) + 15e-6;
        return std::max(k_.ep_exposed * local, k_.ep_exposed_network * network);
    }
    double message(double bytes, int stride) const {
        if (stride < c_.domain) return bytes / (c_.link_bandwidth * k_.link_efficiency) + 8e-6;
        return bytes / (c_.network_bandwidth * k_.network_efficiency) + 15e-6;
    }

  private:
    double measured_share(const char* type) const {
        const auto found = c_.measured.find(type);
        const double share = found == c_.measured.end() ? 0.72 : found->second / c_.peak(type);
        return share * k_.gemm_measured;
    }
    double wide_share(const char* type) const {
        switch (generation_) {
            case Generation::volta: return k_.gemm_volta;
            case Generation::ampere: return k_.gemm_ampere;
            case Generation::hopper: return k_.gemm_hopper;
            case Generation::blackwell: return k_.gemm_blackwell;
            case Generation::tpu: return k_.gemm_tpu;
            case Generation::other: break;
        }
        return measured_share(type);
    }
    static double half(double bytes, double at) { return bytes / (bytes + at); }
    double across(Group g) const {
        double rate = g.per_domain * c_.network_bandwidth;
        if (c_.pod > 0 && g.ranks / g.per_domain * c_.domain > c_.pod) rate /= c_.oversubscription;
        return rate;
    }
    // The busy share of the last wave of output tiles; the best of a few tile shapes.
    double waves(double m, double n) const {
        if (c_.processors == 0 || generation_ == Generation::blackwell) return 1;
        double best = 0;
        for (const auto& [rows, columns, rate] :
             {Tile{256, 128, 1}, Tile{128, 256, 1}, Tile{128, 128, 0.95}, Tile{64, 128, 0.75}, Tile{64, 64, 0.55}}) {
            const double tiles = std::ceil(m / rows) * std::ceil(n / columns);
            const double share = m * n / (std::ceil(tiles / c_.processors) * c_.processors * rows * columns);
            best = std::max(best, rate * share);
        }
        return std::max(best, 0.02);
    }
    struct Tile {
        double rows, columns, rate;
    };

    const Job& job_;  // precision, attention, stack, year, head size
    const hardware::Cluster& c_;
    const Constants& k_;
    Generation generation_;
    bool narrow_ = false;
    double ultra_ = 1, wide_peak_ = 0, wide_share_ = 0, narrow_peak_ = 0, narrow_share_ = 0, cast_ = 0;
};

}  // namespace tutti::simulate
