// simulate/job.cpp: parameters and FLOPs of a job by formula; what makes a layout impossible.
#include "tutti/simulate/job.h"

#include <cmath>
#include <numeric>

#include "tutti/base/error.h"
#include "tutti/optim/rules.h"
#include "tutti/spec/layers.h"
#include "tutti/spec/rules.h"

namespace tutti::simulate {

const char* name_of(Context method) {
    return method == Context::ring ? "ring" : method == Context::ulysses ? "ulysses" : "all_gather";
}

const char* name_of(Recompute recompute) {
    return recompute == Recompute::none ? "none" : recompute == Recompute::full ? "full" : "selective";
}

double Sizes::attention_span(double seq) const {
    if (window <= 0 || window >= seq) return seq;
    const double windowed = 2 * window - window * window / seq;
    return (window_layers * windowed + (layers - window_layers) * seq) / layers;
}

double Sizes::attention_parameters() const { return 2 * hidden * heads * head_dim + 2 * hidden * kv_heads * head_dim; }
double Sizes::mlp_parameters() const { return mlp_matrices * hidden * ffn; }
double Sizes::expert_parameters() const { return mlp_matrices * hidden * expert_ffn; }

double Sizes::parameters() const {
    const double per_mixture = experts * expert_parameters() + mlp_matrices * hidden * shared_ffn + hidden * experts;
    return layers * attention_parameters() + (layers - mixtures()) * mlp_parameters() + mixtures() * per_mixture +
           (tied ? 1 : 2) * vocab * hidden;
}

double Sizes::active_parameters() const {
    const double per_mixture = top_k * expert_parameters() + mlp_matrices * hidden * shared_ffn + hidden * experts;
    return layers * attention_parameters() + (layers - mixtures()) * mlp_parameters() + mixtures() * per_mixture +
           vocab * hidden;
}

TokenFlops token_flops(const Job& job) {
    const Sizes& m = job.model;
    TokenFlops flops;
    flops.products = 6 * m.active_parameters();
    flops.full_attention = 12 * m.heads * m.head_dim * m.layers * m.attention_span(job.seq);
    return flops;
}

Sizes sizes_of(const spec::ModelSpec& model) {
    Sizes m;
    const auto real = [](int64_t value) { return static_cast<double>(value); };
    m.layers = real(model.layers);
    m.hidden = real(model.width);
    m.ffn = real(model.ffn);
    m.heads = real(model.heads);
    m.kv_heads = real(model.kv_heads);
    m.head_dim = real(model.head_dim);
    m.vocab = real(model.vocab);
    m.mlp_matrices = spec::traits_of(model).gated ? 3 : 2;
    m.tied = model.tie_embeddings;
    m.window = real(model.window);
    for (const spec::LayerSpec& layer : spec::all_layers(model)) {
        m.window_layers += layer.attention() && layer.attention()->window > 0 ? 1 : 0;
        m.expert_layers += layer.mixture() ? 1 : 0;
    }
    if (model.moe.experts > 0) {
        m.experts = real(model.moe.experts);
        m.top_k = real(model.moe.top_k);
        m.expert_ffn = real(model.moe.ffn);
        m.shared_ffn = real(model.moe.shared_ffn);
    }
    return m;
}

namespace {

// Bytes of a value that the update rule keeps: the optimizer's state beside f32 weights, which are their own masters.
double bytes_of_rule(const spec::OptimizerSpec& optimizer) {
    constexpr int64_t kMany = 1 << 20;
    const spec::RunSpec run{.optimizer = optimizer, .precision = {.compute = "f32"}};
    return static_cast<double>(optim::state_bytes(kMany, run)[Purpose::optimizer]) / kMany;
}

}  // namespace

double adamw_bytes() {
    static const double kBytes = bytes_of_rule({});
    return kBytes;
}

Job job_of(const spec::RunSpec& run, int ranks) {
    const auto integer = [](int64_t value) { return static_cast<int>(value); };
    const spec::ParallelSpec& p = run.parallel;
    Job job;
    job.model = sizes_of(run.model);
    job.seq = static_cast<double>(run.train.seq_len);
    job.micro_batch = static_cast<double>(run.train.micro_batch);
    job.global_batch = static_cast<double>(run.train.global_batch);
    job.ranks = ranks;
    job.tp = integer(p.tp);
    job.cp = integer(p.cp);
    if (p.cp_method != "ring") job.cp_method = p.cp_method == "ulysses" ? Context::ulysses : Context::all_gather;
    if (job.cp_method != Context::ulysses) job.cp_ulysses = integer(spec::ulysses_ranks(p));
    job.pp = integer(p.pp);
    job.virtual_stages = integer(p.virtual_stages);
    job.ep = integer(p.ep);
    job.etp = integer(p.etp);
    job.dp_replicate = integer(p.dp_replicate);
    job.sequence_parallel = p.sequence_parallel;
    job.zero = integer(p.zero);
    job.schedule = p.schedule;
    if (run.recompute.policy == "selective")
        job.recompute = Recompute::selective;
    else if (run.recompute.policy != "none")
        job.recompute = Recompute::full;
    job.precision = run.precision.compute == "f32" ? "fp32" : run.precision.compute;
    job.tp_overlap = p.tp_overlap > 1;
    job.token_drop = run.model.moe.capacity_factor > 0;
    job.offload = {run.offload.optimizer, run.offload.params, run.offload.activations};
    job.rule_bytes = bytes_of_rule(run.optimizer);
    job.masters = run.precision.master == "f32";
    job.gradient_bytes = static_cast<double>(size_of(spec::gradient_dtype(run)));
    job.reduced_bytes = static_cast<double>(size_of(spec::reduce_dtype(run)));
    return job;
}

namespace {

double load_of_rank(std::span<const double> loads, int ep, int rank) {
    const size_t local = loads.size() / static_cast<size_t>(ep);
    const auto mine = loads.subspan(static_cast<size_t>(rank) * local, local);
    return std::accumulate(mine.begin(), mine.end(), 0.0);
}

}  // namespace

int fullest_rank(std::span<const double> loads, int ep) {
    int fullest = 0;
    for (int rank = 1; rank < ep; ++rank)
        if (load_of_rank(loads, ep, rank) > load_of_rank(loads, ep, fullest)) fullest = rank;
    return fullest;
}

double imbalance_of(std::span<const double> loads, int ep) {
    if (loads.empty()) return 0;
    return load_of_rank(loads, ep, fullest_rank(loads, ep)) * ep / load_of_rank(loads, 1, 0);
}

std::string layout_problem(const Job& job) {
    const Sizes& m = job.model;
    const auto whole = [](double size) { return static_cast<int64_t>(size); };
    const auto divides = [&](int part, double size) { return spec::divides(part, whole(size)); };
    const int grid = job.tp * job.cp * job.pp;
    if (!spec::divides(grid, job.ranks))
        return concat("tp * cp * pp = ", grid, " does not divide ", job.ranks, " ranks");
    if (!divides(job.tp, m.heads)) return concat("tp ", job.tp, " does not divide ", m.heads, " heads");
    if (!spec::stages_have_layers(whole(m.layers), job.pp * job.virtual_stages, true))
        return concat("pp ", job.pp, " times ", job.virtual_stages, " virtual stages exceed ", m.layers, " layers");
    if (job.microbatches() < 1) {
        return concat("global batch ", job.global_batch, " is less than micro batch ", job.micro_batch, " times dp ",
                      job.dp());
    }
    if (!divides(job.ep, m.experts)) return concat("ep ", job.ep, " does not divide ", m.experts, " experts");
    return "";
}

}  // namespace tutti::simulate
