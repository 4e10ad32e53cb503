#include "tutti/planner/peers.h"

#include <algorithm>
#include <cmath>

#include "tutti/base/error.h"
#include "tutti/base/units.h"
#include "tutti/planner/rules.h"
#include "tutti/spec/layers.h"
#include "tutti/spec/rules.h"

namespace tutti::planner {

void keep_to(Limits& limits, Peer peer) {
    const auto keep = [](auto& list, auto allowed) {
        if (!list.empty()) std::erase_if(allowed, [&](const auto& value) { return !Limits::in(list, value); });
        check<UsageError>(!allowed.empty(), "--emit-for: --without leaves nothing that this trainer can run");
        list = std::move(allowed);
    };
    using Names = std::vector<std::string>;
    using Numbers = std::vector<int>;
    limits.offload = false;
    limits.plain_context = true;
    switch (peer) {
        case Peer::megatron:
            keep(limits.schedules, Names{"1f1b", "interleaved"});
            keep(limits.zero, Numbers{0, 1});
            break;
        case Peer::torchtitan:
            keep(limits.schedules, Names{"1f1b", "interleaved", "zb-v", "dualpipe-v"});
            keep(limits.zero, Numbers{2, 3});
            keep(limits.etp, Numbers{1});
            break;
        case Peer::nanotron:
            keep(limits.schedules, Names{"1f1b"});
            keep(limits.zero, Numbers{0, 1});
            keep(limits.recompute, Names{"none", "full"});
            keep(limits.dp_replicate, Numbers{1});
            keep(limits.ep, Numbers{1});
            keep(limits.etp, Numbers{1});
            break;
        case Peer::deepspeed:
        case Peer::nanogpt:
            if (peer == Peer::nanogpt) keep(limits.tp, Numbers{1});
            if (peer == Peer::nanogpt) keep(limits.zero, Numbers{0});
            for (std::vector<int>* axis : {&limits.cp, &limits.pp, &limits.ep, &limits.etp, &limits.dp_replicate})
                keep(*axis, Numbers{1});
            keep(limits.recompute, Names{"none"});
            break;
    }
}

namespace {

// As rows of tests/published/runs.json name the software; "": its programs are not told.
std::string software_of(Peer peer) {
    switch (peer) {
        case Peer::megatron: return "megatron-lm 0.14";
        case Peer::torchtitan: return "torchtitan 2025, compile";
        case Peer::nanotron: return "nanotron";
        case Peer::deepspeed:
        case Peer::nanogpt: return "";
    }
    return "";
}

std::optional<published::Model> model_of(const spec::ModelSpec& m) {
    const std::vector<spec::LayerSpec> layers = spec::all_layers(m);
    const bool told = std::ranges::all_of(layers, [](const spec::LayerSpec& layer) {
        return layer.attention() != nullptr && layer.beside() == nullptr && (layer.mlp() || layer.mixture());
    });
    if (!told) return std::nullopt;
    const auto real = [](int64_t n) { return static_cast<double>(n); };
    const auto dense = std::ranges::count_if(layers, [](const auto& layer) { return layer.mixture() == nullptr; });
    return published::Model{.layers = real(m.layers),
                            .hidden = real(m.width),
                            .ffn = real(m.ffn),
                            .heads = real(m.heads),
                            .kv_heads = real(m.kv_heads),
                            .head_dim = real(m.head_dim),
                            .vocab = real(m.vocab),
                            .mlp_matrices = layers.front().gate.gated ? 3 : 2,
                            .tied = m.tie_embeddings,
                            .experts = real(m.moe.experts),
                            .top_k = real(m.moe.top_k),
                            .expert_ffn = real(m.moe.ffn),
                            .shared_ffn = real(m.moe.shared_ffn),
                            .dense_layers = m.moe.experts > 0 ? real(dense) : 0,
                            .latent = m.kv_latent > 0};
}

}  // namespace

std::optional<PeerMemory> memory_of(Peer peer, const Request& r, const spec::RunSpec& run) {
    const std::string software = software_of(peer);
    const std::optional<published::Model> model = model_of(run.model);
    if (software.empty() || !model) return std::nullopt;
    const spec::ParallelSpec& p = run.parallel;
    published::PublishedRun theirs{.model = *model, .cluster = r.cluster};
    theirs.software = published::traits_of({.software = software, .experts = model->experts > 0, .tp = p.tp > 1});
    theirs.software.sequence_parallel = theirs.software.sequence_parallel && p.sequence_parallel;
    theirs.seq = static_cast<double>(run.train.seq_len);
    theirs.global_batch = static_cast<double>(run.train.global_batch);
    theirs.micro_batch = static_cast<double>(run.train.micro_batch);
    theirs.ranks = r.gpus;
    theirs.tp = static_cast<int>(p.tp);
    theirs.cp = static_cast<int>(p.cp);
    theirs.pp = static_cast<int>(p.pp);
    theirs.ep = static_cast<int>(p.ep);
    theirs.virtual_stages = static_cast<int>(p.pp > 1 ? p.virtual_stages : 1);
    theirs.dp = static_cast<int>(spec::data_parallel_ranks(p, r.gpus));
    theirs.zero = static_cast<int>(p.zero);
    theirs.schedule = p.schedule;
    theirs.recompute = run.recompute.policy == "full"        ? published::Recompute::full
                       : run.recompute.policy == "selective" ? published::Recompute::selective
                                                             : published::Recompute::none;
    theirs.precision = hardware::peak_name(spec::compute_type_of(run));
    theirs.offload_optimizer = run.offload.optimizer;
    if (!layout_problem(theirs).empty()) return std::nullopt;
    return PeerMemory{theirs.software.name, memory(theirs).total(),
                      memory_errors(published::calibration_runs(), theirs.software.name)};
}

std::string render(const PeerMemory& m, double ours) {
    return concat("  ", m.system, " itself, by the counts of its programs: ", format_bytes(m.bytes), ", ",
                  format_difference(m.bytes / ours - 1), " of the memory here; ",
                  m.errors.rows == 0
                      ? "no published row of it has its memory"
                      : concat("on ", m.errors.rows, " published rows such forecasts are ",
                               format_percent(m.errors.median), " off in the median, ", format_percent(m.errors.mean),
                               " in the mean, with a bias of ", format_difference(m.errors.bias)),
                  '\n');
}

Json to_json(const PeerMemory& m, double ours) {
    Json json = {{"system", m.system},
                 {"peak_bytes", std::round(m.bytes)},
                 {"of_ours", m.bytes / ours},
                 {"published_rows", m.errors.rows}};
    if (m.errors.rows > 0) {
        json["median_error"] = m.errors.median;
        json["mean_error"] = m.errors.mean;
        json["bias"] = m.errors.bias;
    }
    return json;
}

}  // namespace tutti::planner
