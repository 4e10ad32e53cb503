// simulate/machine_prices.h: seconds of products, attention, passes through memory, copies and communication on a
// cluster: from the data of its device (hardware/cluster.h), from the twelve numbers of physics.h, and from shapes of
// kernels. The same prices serve rehearsed programs and published runs of other systems.
//
// Units: seconds, bytes, FLOPs. M, N, K: a product of (M, K) and (K, N).
#pragma once

#include <string>
#include <vector>

#include "tutti/comm/collective.h"
#include "tutti/hardware/cluster.h"
#include "tutti/rehearsal/program.h"
#include "tutti/simulate/physics.h"

namespace tutti::simulate {

// Bits of the operands of a product. wide: those of the run (16, or 32 in fp32 and tf32).
enum class Operands { wide, eight, four };

// Kernels of attention, oldest first. unfused: all scores go through memory. flash1: FlashAttention (2022), flash2:
// FlashAttention-2 and kernels for Ampere's tensor cores. newest: written for the device (cuDNN, FlashAttention-3).
enum class Attention { unfused, flash1, flash2, newest };

// One call of an attention kernel on a device, all of its heads.
struct AttentionShape {
    double batch = 1, queries = 0, heads = 0, head_dim = 0;
    double keys = 0;  // of a sequence, of which a causal query sees half on average
};

// The slowest of the links between ranks: those of a domain, of a rack of several domains, of the network.
enum class Reach { domain, rack, network };

// The ranks of a communicator: how many, how many of them share a link domain, and how many a rack of such domains.
struct Group {
    int ranks = 1, per_domain = 1;
    int per_rack = 0;  // 0: as many as a domain
    int domains() const { return (ranks + per_domain - 1) / per_domain; }
    Reach reach() const {
        return ranks <= per_domain ? Reach::domain : ranks <= per_rack ? Reach::rack : Reach::network;
    }
};

class MachinePrices {
  public:
    // `precision`: of products and attention, as in a cluster's peaks ("fp32", "tf32", "fp16", "bf16"); 8 and 4 bits
    // are asked for product by product. UsageError where the device lacks it. `attention`: the kernel's age.
    MachinePrices(const hardware::Cluster& cluster, const Physics& physics, const std::string& precision = "bf16",
                  Attention attention = Attention::flash2);

    // --- Kernels, without their launch ---

    double product(double M, double N, double K, Operands operands = Operands::wide) const;
    // `groups` products of `rows` rows each with matrices of their own.
    double grouped(double groups, double rows, double N, double K, Operands operands = Operands::wide) const;
    // Gradients of those matrices: (K, N) each from `rows` rows.
    double grouped_gradient(double groups, double rows, double N, double K, Operands operands = Operands::wide) const;
    // Fused. `flops`: of the forward's two products or of the backward's five.
    double attention(const AttentionShape& shape, double flops, bool backward) const;
    double pass(double bytes) const { return bytes / memory_rate_; }  // through the device's memory
    double host_copy(double bytes) const;       // between the device and the memory of its host, one direction
    double launch_gap() const { return 2e-6; }  // between two kernels of one stream; Nsight traces, 1 to 3 us
    // Of the host for a kernel, without an interpreter: 3.8 us in "Getting Started with CUDA Graphs" (NVIDIA, 2019).
    double native_launch() const { return 3.8e-6; }

    // --- Communication ---

    // Every `stride`-th rank of the world, `ranks` of them, counted along tp, cp, dp, pp.
    Group group(int ranks, int stride) const;
    // From a rank to the one `distance` ranks further.
    Reach reach(int distance) const;
    // A gather or a reduce-scatter of `bytes` in all, in `pieces` one after another.
    double gather(double bytes, Group g, double pieces = 1) const;
    // Two of these; over domains the latency of a tree where that is less.
    double all_reduce(double bytes, Group g, double pieces = 1) const;
    // Each rank sends `bytes`. Where `copies` rows of a token go to one domain, they may cross as one: `crossing` is
    // the share of the bytes that leaves the domain, below 0: all that are for ranks outside.
    double all_to_all(double bytes, Group g, double crossing = -1) const;
    double message(double bytes, Reach reach) const;
    double bandwidth(Group g) const;  // of a ring, per rank

    // --- Rehearsed programs ---

    double kernel(const rehearsal::KernelCall& call) const;
    double operation(const comm::Summary& what, const std::vector<int>& ranks) const;

    const hardware::Cluster& cluster() const { return cluster_; }
    const Physics& physics() const { return physics_; }
    double product_rate(Operands operands) const;  // FLOP/s that large products hold

  private:
    static double depth_efficiency(double K, Operands operands);
    double product_bytes(double groups, double M, double N, double K, Operands operands) const;
    double latency(Group g, double steps) const;

    hardware::Cluster cluster_;
    Physics physics_;
    double wide_rate_ = 0, eight_rate_ = 0, four_rate_ = 0, attention_rate_ = 0, memory_rate_ = 0;
    double wide_bytes_ = 2;
};

// Waves of output tiles on a device with `processors`: the busy share, times the share of the peak that a tile of this
// size reaches, for the best of six tiles. 1 for a device without such units.
double tile_efficiency(double M, double N, double batch, int processors);

}  // namespace tutti::simulate
