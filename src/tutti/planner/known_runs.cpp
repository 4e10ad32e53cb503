#include "tutti/planner/known_runs.h"

#include <array>
#include <cmath>
#include <limits>

#include "tutti/base/error.h"
#include "tutti/base/units.h"

namespace tutti::planner {

namespace {

constexpr const char *kPalm = "Chowdhery et al. 2022, table 3", *kLlama3 = "Llama Team 2024, table 4",
                     *kNemotron = "NVIDIA 2024, arXiv 2406.11704, table 2",
                     *kKorthikanti = "Korthikanti et al. 2022, table 5";

constexpr std::array kRuns = {
    KnownRun{.model = "GPT-3 175B", .cluster = "v100", .source = kPalm, .parameters = 175e9, .seq = 2048, .mfu = 0.213},
    KnownRun{.model = "Gopher 280B",
             .cluster = "tpu-v3",
             .source = kPalm,
             .parameters = 280e9,
             .devices = 4096,
             .seq = 2048,
             .mfu = 0.325},
    KnownRun{.model = "MT-NLG 530B",
             .cluster = "a100",
             .source = kPalm,
             .parameters = 530e9,
             .devices = 2240,
             .seq = 2048,
             .mfu = 0.302,
             .tp = 8,
             .pp = 35,
             .recompute = "full"},
    KnownRun{.model = "PaLM 540B",
             .cluster = "tpu-v4",
             .source = kPalm,
             .parameters = 540e9,
             .devices = 6144,
             .seq = 2048,
             .mfu = 0.462},
    KnownRun{.model = "GPT 22B",
             .cluster = "a100",
             .source = kKorthikanti,
             .parameters = 22e9,
             .devices = 8,
             .seq = 2048,
             .mfu = 0.415,
             .tp = 8,
             .pp = 1,
             .recompute = "selective"},
    KnownRun{.model = "GPT 175B",
             .cluster = "a100",
             .source = kKorthikanti,
             .parameters = 175e9,
             .devices = 64,
             .seq = 2048,
             .mfu = 0.514,
             .tp = 8,
             .pp = 8,
             .virtual_stages = 3,
             .schedule = "interleaved",
             .recompute = "selective"},
    KnownRun{.model = "Llama 3 405B",
             .cluster = "h100",
             .source = kLlama3,
             .parameters = 405e9,
             .devices = 8192,
             .seq = 8192,
             .mfu = 0.43,
             .tp = 8,
             .pp = 16,
             .virtual_stages = 8,
             .schedule = "interleaved"},
    KnownRun{.model = "Llama 3 405B",
             .cluster = "h100",
             .source = kLlama3,
             .parameters = 405e9,
             .devices = 16384,
             .seq = 8192,
             .mfu = 0.41,
             .tp = 8,
             .pp = 16,
             .virtual_stages = 8,
             .schedule = "interleaved"},
    KnownRun{.model = "Llama 3 405B, 131,072 tokens",
             .cluster = "h100",
             .source = kLlama3,
             .parameters = 405e9,
             .devices = 16384,
             .seq = 131072,
             .mfu = 0.38,
             .tp = 8,
             .cp = 16,
             .pp = 16,
             .virtual_stages = 8,
             .schedule = "interleaved"},
    KnownRun{.model = "Llama 3.1 70B (NeMo)",
             .cluster = "h100",
             .source = "NVIDIA DGX Cloud benchmarking recipes, 2025",
             .parameters = 70.6e9,
             .devices = 64,
             .seq = 8192,
             .tp = 4,
             .cp = 2,
             .pp = 4,
             .virtual_stages = 5,
             .schedule = "interleaved"},
    KnownRun{.model = "Nemotron-4 340B",
             .cluster = "h100",
             .source = kNemotron,
             .parameters = 341e9,
             .devices = 6144,
             .seq = 4096,
             .mfu = 0.41,
             .tp = 8,
             .pp = 12,
             .virtual_stages = 8,
             .schedule = "interleaved"},
    KnownRun{.model = "Llama 2 7B (FSDP)",
             .cluster = "a100",
             .source = "PyTorch blog, Maximizing training throughput using FSDP, 2024 (from memory)",
             .parameters = 6.7e9,
             .devices = 128,
             .seq = 4096,
             .mfu = 0.57,
             .tp = 1,
             .pp = 1,
             .zero = 3},
    KnownRun{.model = "DeepSeek-V3 671B",
             .cluster = "h800",
             .source = "DeepSeek-AI 2024, section 3.2",
             .parameters = 671e9,
             .devices = 2048,
             .seq = 4096,
             .tp = 1,
             .pp = 16,
             .ep = 64,
             .schedule = "dualpipe",
             .experts = true},
    KnownRun{.model = "Mixtral 8x7B (Megatron)",
             .cluster = "h100",
             .source = "Megatron Core MoE, README of 2024 (from memory)",
             .parameters = 46.7e9,
             .devices = 64,
             .seq = 4096,
             .tp = 1,
             .pp = 4,
             .virtual_stages = 8,
             .ep = 8,
             .schedule = "interleaved",
             .experts = true},
};

constexpr double kGood = 0.30, kExcellent = 0.40;

std::string entry(const KnownRun& run) {
    return concat(run.model,
                  run.devices > 0 ? concat(" on ", run.devices, " ", run.cluster) : concat(" on ", run.cluster), ' ',
                  std::lround(1000 * run.mfu) / 10.0, " %");
}

}  // namespace

std::span<const KnownRun> known_runs() { return kRuns; }

const char* verdict_of_mfu(double mfu) {
    return mfu >= kExcellent ? "excellent (above 40 %)"
           : mfu >= kGood    ? "good (above 30 %)"
                             : "below the 30 % of a good run";
}

std::string neighbours_of(const std::string& cluster) {
    std::string own, others;
    for (const KnownRun& run : kRuns)
        if (run.mfu > 0) {
            std::string& list = cluster == run.cluster ? own : others;
            list += concat(list.empty() ? "" : "; ", entry(run));
        }
    return concat("published MFU: ", own.empty() ? others : own, '\n');
}

const KnownRun& nearest_run(double parameters, int devices, double seq, bool experts) {
    const KnownRun* nearest = nullptr;
    double least = std::numeric_limits<double>::infinity();
    for (const KnownRun& run : kRuns) {
        if (run.tp == 0 || run.experts != experts) continue;
        const double distance = std::abs(std::log(parameters / run.parameters)) +
                                0.3 * std::abs(std::log(double(devices) / run.devices)) +
                                0.3 * std::abs(std::log(seq / run.seq));
        if (distance >= least) continue;
        least = distance;
        nearest = &run;
    }
    return *nearest;
}

std::string describe_layout(const KnownRun& run) {
    std::string text = concat("tp ", run.tp);
    if (run.cp > 1) text += concat(", cp ", run.cp);
    if (run.pp > 1) {
        text += concat(", pp ", run.pp, " ", run.schedule);
        if (std::string(run.schedule) == "interleaved") text += concat(" x ", run.virtual_stages);
    }
    if (run.ep > 1) text += concat(", ep ", run.ep);
    return text + concat(", ZeRO-", run.zero);
}

}  // namespace tutti::planner
