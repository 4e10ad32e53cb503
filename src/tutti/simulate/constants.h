// simulate/constants.h: what data sheets omit: the shares of a peak that kernels reach, how much of a collective stays
// visible, what a launch costs. Fitted to published runs (fit.h); a profile of a site changes some of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/json.h"

namespace tutti::simulate {

struct Constants {
    // Share of the peak that a large product reaches in training.
    double gemm_volta = 0.7, gemm_ampere = 0.878, gemm_hopper = 0.711, gemm_blackwell = 0.415;
    double gemm_hopper_fp8 = 0.659, gemm_blackwell_fp8 = 0.581, gemm_fp4 = 0.428;
    double ultra = 1.16;  // Blackwell Ultra over Blackwell, beyond its peaks: more power, faster exponentials
    double gemm_tpu = 0.82;
    double gemm_measured = 0.90;  // other devices: share of the best measured product
    double depth = 307;           // k0: a product of depth K reaches K / (K + k0) of its share
    double grouped = 0.927;       // further factor of grouped products
    double grouped_rows = 199;    // rows of an expert at which half of it is reached

    // Share of the 16-bit peak, causal FLOPs, forward; the backward reaches `attention_backward` of it.
    // flash2: FlashAttention-2 on Hopper, without Hopper's new instructions.
    double flash1_ampere = 0.373, flash1_hopper = 0.202, flash_ampere = 0.50, flash2_hopper = 0.253,
           flash_hopper = 0.396;
    double flash_blackwell = 0.456;
    double flash_other = 0.40;
    double attention_backward = 0.85;
    double unfused_passes = 14.9;  // of the scores through memory, forward and backward, 2 bytes each

    double memory_efficiency = 0.85;  // of the memory's bandwidth
    double elementwise_megatron = 1.1, elementwise_nanotron = 1.69, elementwise_eager = 2.41,
           elementwise_compiled = 0.928, elementwise_xla = 1.05;
    double cast_fp8 = 1.04, cast_row = 5.08, cast_mx = 1.49,
           cast_fp4 = 2.03;  // bytes to quantise, relative to reading in 16 bits and writing in 8

    double link_efficiency = 0.77, network_efficiency = 0.749;
    double host_efficiency = 0.8;                       // of the link to the host: an assumption, no run was fitted
    double link_half = 1.82e+07, network_half = 3e+08;  // bytes per rank at which half of the bandwidth is reached
    double tp_exposed = 0.351;                          // where products and communication overlap; all of it elsewhere
    double cp_exposed = 0.317;
    double ep_exposed = 1.4, ep_exposed_network = 1.17;
    double pp_exposed = 0.318;
    double dp_exposed = 0.109, zero3_exposed = 0.752, zero3_exposed_eager = 0.505;  // at least
    double overlap = 1;        // share of the compute that hides communication
    double slowdown = 0.0935;  // of compute while both run

    double host_eager = 0.001, host_megatron = 0.00196, host_compiled = 0.0007,
           host_tp = 0.000346;  // of a layer, forward and backward
    double host_nanotron = 0.002, host_nanotron_tp = 0.00433, host_nanotron_message = 0.00221;
    double host_nanotron_stall =
        0.776;                    // of a microbatch in pipelines of four positions and more over 256 ranks and more
    double nanotron_full = 2.06;  // added steps of a step that uses more than 5/6 of the memory
    double host_nanotron_far = 0.0022,
           host_nanotron_nodes = 0.00041;  // more for each rank of tp: pipelines over nodes; tp over nodes
    double host_expert = 0.00468;          // more for a layer of experts
    double host_expert_drop = 0.00233;
    double imbalance = 1.18;        // the fullest rank's tokens over the mean, with experts that drop none
    double optimizer_bytes = 40.3;  // that AdamW's update of a value reads and writes
    double step_fixed = 0.0108;
    double straggle = 0.00483;  // of the step for each doubling of the ranks
};

// The constants by name, for profiles and fits.
struct ConstantField {
    std::string_view name;
    double Constants::*member;
    double low, high;  // physical range
    double spread;     // of ln(value) around the default, assumed before any fit
};
const std::vector<ConstantField>& constant_fields();

// A site: the constants that differ from the defaults, by name. DataError with the path for a wrong name or value.
Json site_of(const Constants& constants);
Constants read_site(const std::string& path);

}  // namespace tutti::simulate
