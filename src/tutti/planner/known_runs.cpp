#include "tutti/planner/known_runs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tutti/base/error.h"

namespace tutti::planner {

namespace {

constexpr const char *kPalm = "Chowdhery et al. 2022, table 3", *kLlama3 = "Llama Team 2024, table 4",
                     *kKorthikanti = "Korthikanti et al. 2022, table 5",
                     *kNemotron = "NVIDIA 2024, arXiv 2406.11704, table 2",
                     *kDgxc = "NVIDIA DGX Cloud benchmarking recipes, 2025",
                     *kFsdp = "PyTorch blog, Maximizing training throughput using FSDP, 2024 (from memory)",
                     *kDeepSeek = "DeepSeek-AI 2024, section 3.2",
                     *kMixtral = "Megatron Core MoE, README of 2024 (from memory)";
constexpr KnownRun::Layout k405B{.tp = 8, .pp = 16, .virtual_stages = 8},
    k405BLong{.tp = 8, .cp = 16, .pp = 16, .virtual_stages = 8},
    kV3{.tp = 1, .pp = 16, .ep = 64, .schedule = "dualpipe"}, k8x7B{.tp = 1, .pp = 4, .virtual_stages = 8, .ep = 8};

constexpr KnownRun kRuns[] = {
    {"GPT-3 175B", "v100", kPalm, 175e9, 0, 2048, 0.213},
    {"Gopher 280B", "tpu-v3", kPalm, 280e9, 4096, 2048, 0.325},
    {"MT-NLG 530B", "a100", kPalm, 530e9, 2240, 2048, 0.302, {.tp = 8, .pp = 35}},
    {"PaLM 540B", "tpu-v4", kPalm, 540e9, 6144, 2048, 0.462},
    {"GPT 22B", "a100", kKorthikanti, 22e9, 8, 2048, 0.415, {.tp = 8}},
    {"GPT 175B", "a100", kKorthikanti, 175e9, 64, 2048, 0.514, {.tp = 8, .pp = 8, .virtual_stages = 3}},
    {"Llama 3 405B", "h100", kLlama3, 405e9, 8192, 8192, 0.43, k405B},
    {"Llama 3 405B", "h100", kLlama3, 405e9, 16384, 8192, 0.41, k405B},
    {"Llama 3 405B, 131,072 tokens", "h100", kLlama3, 405e9, 16384, 131072, 0.38, k405BLong},
    {"Llama 3.1 70B (NeMo)", "h100", kDgxc, 70.6e9, 64, 8192, 0, {.tp = 4, .cp = 2, .pp = 4, .virtual_stages = 5}},
    {"Nemotron-4 340B", "h100", kNemotron, 341e9, 6144, 4096, 0.41, {.tp = 8, .pp = 12, .virtual_stages = 8}},
    {"Llama 2 7B (FSDP)", "a100", kFsdp, 6.7e9, 128, 4096, 0.57, {.tp = 1, .zero = 3}},
    {"DeepSeek-V3 671B", "h800", kDeepSeek, 671e9, 2048, 4096, 0, kV3},
    {"Mixtral 8x7B (Megatron)", "h100", kMixtral, 46.7e9, 64, 4096, 0, k8x7B},
};

constexpr double kGood = 0.30, kExcellent = 0.40;

std::string entry(const KnownRun& run) {
    return concat(run.model, " on ", run.devices > 0 ? concat(run.devices, ' ') : "", run.cluster, ' ',
                  std::lround(1000 * run.mfu) / 10.0, " %");
}

}  // namespace

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
    const auto distance = [&](const KnownRun& run) {
        if (run.layout.tp == 0 || (run.layout.ep > 1) != experts) return std::numeric_limits<double>::infinity();
        return std::abs(std::log(parameters / run.parameters)) +
               0.3 * std::abs(std::log(double(devices) / run.devices)) + 0.3 * std::abs(std::log(seq / run.seq));
    };
    return *std::ranges::min_element(kRuns, {}, distance);
}

std::string describe_layout(const KnownRun::Layout& l) {
    std::string text = concat("tp ", l.tp);
    if (l.cp > 1) text += concat(", cp ", l.cp);
    if (l.pp > 1) text += concat(", pp ", l.pp, " ", l.schedule_name());
    if (l.virtual_stages > 1) text += concat(" x ", l.virtual_stages);
    if (l.ep > 1) text += concat(", ep ", l.ep);
    return text + concat(", ZeRO-", l.zero);
}

}  // namespace tutti::planner
