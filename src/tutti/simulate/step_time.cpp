// simulate/step_time.cpp: a layer's products, attention, elementwise passes and communication, added up over layers,
// microbatches and stages.
#include "tutti/simulate/step_time.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "tutti/simulate/footprint.h"

namespace tutti::simulate {

std::vector<std::pair<const char*, double>> kinds_of(const StepTime& t) {
    return {{"matrix products", t.products},
            {"attention", t.attention},
            {"elementwise", t.elementwise},
            {"recompute", t.recompute},
            {"optimizer", t.optimizer},
            {"exposed tp", t.tp},
            {"exposed cp", t.cp},
            {"exposed ep", t.ep},
            {"exposed pp", t.pp},
            {"exposed dp", t.dp},
            {"pipeline bubble", t.bubble},
            {"exposed offload", t.offload},
            {"other", t.other}};
}

namespace {

constexpr double kVisible = 0.3;        // of tensor-parallel traffic beside products in pieces
constexpr double kWindow = 0.85;        // of a backward, in which gradients are ready to be reduced
constexpr double kOptimizerBytes = 30;  // that AdamW's update of a value reads and writes

struct Linear {
    const MachinePrices& price;
    Cost operator()(double rows, double in, double out) const {
        return {price.product(rows, out, in), price.product(rows, in, out) + price.product(in, out, rows)};
    }
};

Cost attention_price(const Job& job, const MachinePrices& price) {
    const Sizes& m = job.model;
    const double rows = job.micro_batch * job.seq / job.cp;
    const double flops = 2 * rows * m.attention_span(job.seq) * m.heads * m.head_dim / job.tp;  // causal
    const AttentionShape shape{job.micro_batch, job.seq / job.cp, m.heads / job.tp, m.head_dim, job.seq};
    return {price.attention(shape, flops, false), price.attention(shape, 2.5 * flops, true)};
}

LayerPrice layer_price(const Job& job, const MachinePrices& price, bool experts) {
    const Sizes& m = job.model;
    const Linear linear{price};
    const double t = job.tp, sp = job.sequence_parallel ? t : 1;
    const double rows = job.micro_batch * job.seq / job.cp;  // tokens of a microbatch
    LayerPrice layer;
    const double query = m.heads * m.head_dim / t, keys = std::max(1.0, m.kv_heads / t) * m.head_dim;
    layer.products += linear(rows, m.hidden, query + 2 * keys);
    layer.products += linear(rows, query, m.hidden);
    layer.attention = attention_price(job, price);

    double inner = 0, moved = 0;  // values of the inner size per row, values of tokens that dispatch moves
    if (experts) {
        const double mine = rows / sp;  // rows that this rank routes
        const double imbalance = job.token_drop || job.imbalance <= 0 ? 1 : job.imbalance;
        const double local = m.experts / job.ep;
        const double each = mine * m.top_k / local * job.etp * imbalance;
        const auto grouped = [&](double in, double out) {
            layer.products += {price.grouped(local, each, out, in),
                               price.grouped(local, each, in, out) + price.grouped_gradient(local, each, out, in)};
        };
        grouped(m.hidden, (m.mlp_matrices - 1) * m.expert_ffn / job.etp);
        grouped(m.expert_ffn / job.etp, m.hidden);
        if (m.shared_ffn > 0) {
            layer.products += linear(rows, m.hidden, (m.mlp_matrices - 1) * m.shared_ffn / t);
            layer.products += linear(rows, m.shared_ffn / t, m.hidden);
        }
        layer.products += linear(mine, m.hidden, m.experts);
        moved = mine * m.top_k * m.hidden * imbalance;
        inner = mine * m.top_k * m.expert_ffn * imbalance + rows * m.shared_ffn / t;
    } else {
        layer.products += linear(rows, m.hidden, (m.mlp_matrices - 1) * m.ffn / t);
        layer.products += linear(rows, m.ffn / t, m.hidden);
        inner = rows * m.ffn / t;
    }

    // Norms, residual sums, rotations, activations: reads and writes of 2 bytes.
    const double gated = m.mlp_matrices == 3 ? 1 : 0.7;
    const double residual = rows * m.hidden / sp, rotated = rows * (query + keys);
    layer.elementwise = {price.pass(2 * (10 * residual + 2 * rotated + 3 * gated * inner + 4 * moved)),
                         price.pass(2 * (12 * residual + 2 * rotated + 5 * gated * inner + 5 * moved))};

    // Tensor parallel: two gathers and two reduce-scatters in each pass.
    const double tp = 4 * price.gather(2 * rows * m.hidden, price.group(job.tp, 1)) * (job.tp_overlap ? kVisible : 1);
    layer.tp = {tp, tp};

    // Context parallel: keys and values of the others, their gradients back.
    const int exchanging = job.exchanging(), passing = job.cp / exchanging;
    if (exchanging > 1) {
        // Queries, keys and values to the ranks of their heads, the output back; in the backward their gradients.
        const double exchange = price.all_to_all(2 * rows * (2 * query + 2 * keys), price.group(exchanging, job.tp));
        layer.cp += {exchange, exchange};
    }
    if (passing > 1) {
        const double heads = std::max(1.0, keys / m.head_dim / exchanging);  // of keys, after the exchange
        const double all_keys =
            price.gather(2 * 2 * rows * job.cp * heads * m.head_dim, price.group(passing, job.tp * exchanging));
        // The backward passes keys and values again and their gradients in f32. A ring passes them beside attention.
        const auto visible = [&](double passed, double attention) {
            if (job.cp_method != Context::ring) return passed;
            return std::max(price.physics().latency * (passing - 1) / 2, passed - attention * (passing - 1) / passing);
        };
        layer.cp += {visible(all_keys, layer.attention.forward), visible(3 * all_keys, layer.attention.backward)};
    }
    if (experts && job.ep > 1) {
        // The fullest rank receives so much more than it sends.
        const double received = job.token_drop ? 1 : std::max(1.0, job.imbalance);
        const double bytes = 2 * rows / sp * m.top_k * m.hidden * received;
        const double exchange = 2 * price.all_to_all(bytes, price.group(job.ep, job.etp));
        layer.ep = {exchange, exchange};
    }
    // Ranks that share an expert gather its rows and reduce its output.
    if (experts && job.etp > 1) {
        const double gathered = 2 * price.gather(2 * moved * job.etp, price.group(job.etp, 1));
        layer.ep += {gathered, gathered};
    }
    return layer;
}

PassPrice pass_price(const Job& job, const MachinePrices& price) {
    const Sizes& m = job.model;
    const double rows = job.micro_batch * job.seq / job.cp;
    PassPrice pass;
    if (m.mixtures() < m.layers) pass.dense = layer_price(job, price, false);
    if (m.mixtures() > 0) pass.mixture = layer_price(job, price, true);
    pass.head = Linear{price}(rows, m.hidden, m.vocab / job.tp).sum();
    pass.loss = price.pass(14 * rows * m.vocab / job.tp);
    return pass;
}

// `pass` times all layers, microbatches and stages together.
StepTime whole_step(const Job& job, const MachinePrices& price, const PassPrice& pass) {
    const Sizes& m = job.model;
    const double p = job.pp, microbatches = job.microbatches(), bytes_of_value = job.wide() ? 4 : 2;
    const double mixtures = m.mixtures(), per_stage = m.layers / p, contention = price.physics().contention;

    // Adds `count` layers of a kind to the time of one microbatch on one stage, kind by kind.
    StepTime micro;
    double forward = 0, backward = 0;  // seconds of compute of a microbatch on a stage
    const auto add_layers = [&](const LayerPrice& layer, double count) {
        double again = 0;
        if (job.recompute == Recompute::full)
            again = layer.products.forward + layer.attention.forward + layer.elementwise.forward + layer.tp.forward +
                    layer.ep.forward + layer.cp.forward;
        else if (job.recompute == Recompute::selective)
            again = layer.elementwise.forward;
        micro.products += count * layer.products.sum();
        micro.attention += count * layer.attention.sum();
        micro.elementwise += count * layer.elementwise.sum();
        micro.recompute += count * again;
        micro.tp += count * layer.tp.sum();
        micro.cp += count * layer.cp.sum();
        micro.ep += count * layer.ep.sum();
        forward += count * (layer.products.forward + layer.attention.forward + layer.elementwise.forward);
        backward += count * (layer.products.backward + layer.attention.backward + layer.elementwise.backward);
    };
    if (mixtures < m.layers) add_layers(pass.dense, (m.layers - mixtures) / p);
    if (mixtures > 0) add_layers(pass.mixture, mixtures / p);
    if (job.offload.activations) {
        // Saved tensors leave beside the forward and return beside the backward.
        const double copies = per_stage * price.host_copy(footprint(job).offloaded_layer);
        micro.offload = std::max(0.0, copies - forward) + std::max(0.0, copies - backward - micro.recompute);
    }
    const double layers_only = micro.total(), head = pass.head + pass.loss;

    // The head and the loss, on the last stage; without a pipeline on every rank.
    micro.products += pass.head;
    micro.elementwise += pass.loss;
    forward += pass.head / 3;
    backward += pass.head * 2 / 3 + pass.loss;
    StepTime step = micro;
    for (double* part : {&step.products, &step.attention, &step.elementwise, &step.recompute, &step.tp, &step.cp,
                         &step.ep, &step.offload})
        *part *= microbatches;
    if (job.pp > 1) {
        const double rows = job.micro_batch * job.seq / job.cp;
        const double boundary = 2 * rows * m.hidden / (job.sequence_parallel ? job.tp : 1);
        const double message = price.message(boundary, job.ranks > price.cluster().domain);
        step.pp = 2 * (p - 1) * message;  // in the steady state they are hidden
        step.bubble = (p - 1) * bubble_share(job) * (layers_only + head / p);
    }
    // Gradients and weights over the data-parallel ranks.
    const double expert_values = mixtures / p * m.experts * m.expert_parameters() / (job.ep * job.etp);
    const double dense_values =
        (per_stage * m.attention_parameters() + (m.layers - mixtures) / p * m.mlp_parameters() +
         mixtures / p * (m.mlp_matrices * m.hidden * m.shared_ffn) + m.vocab * m.hidden * (p > 1 || m.tied ? 1 : 2)) /
        job.tp;
    const double gradient = job.reduced_bytes;
    const int replicas = job.dp() * job.cp;
    const Group over = price.group(replicas, job.tp);
    const int expert_replicas = std::max(1, job.ranks / (job.pp * job.ep * job.etp));
    const Group expert_over = price.group(expert_replicas, job.ep * job.etp);
    const double shard = std::max(1, replicas / job.dp_replicate);
    const double owned =
        dense_values / (job.zero >= 1 ? shard : 1) + expert_values / (job.zero >= 1 ? expert_replicas : 1);
    if (job.zero >= 3) {
        const Group shards = price.group(static_cast<int>(shard), job.tp);
        // Forward and backward of each microbatch gather the weights, the backward reduces the gradients, layer by
        // layer.
        const double units = per_stage + 1;
        const auto exchange = [&](double values, Group g) {
            return 2 * price.gather(2 * values, g, units) + price.gather(gradient * values, g, units);
        };
        double comm = exchange(dense_values, shards) + (expert_values > 0 ? exchange(expert_values, expert_over) : 0);
        if (job.dp_replicate > 1)
            comm += price.all_reduce(4 * dense_values / shard,
                                     price.group(job.dp_replicate, static_cast<int>(shard) * job.tp)) /
                    microbatches;
        const double busy = forward + backward + micro.recompute;
        const auto visible = [&](double copies) {
            return microbatches * (std::max(copies / units, copies - busy) + contention * std::min(copies, busy));
        };
        step.dp = visible(comm);
        // Both gathers read this rank's shard in the memory of the host.
        if (job.offload.weights) step.offload += visible(comm + 2 * price.host_copy(bytes_of_value * owned)) - step.dp;
    } else if (replicas > 1) {
        // A layer at a time; ZeRO-2 reduces into its shards after each microbatch. An all-reduce is a reduce-scatter
        // and a gather.
        const double reductions = job.zero == 2 ? microbatches : 1;
        double comm = reductions * price.gather(gradient * dense_values, over, per_stage) +
                      price.gather((job.zero > 0 ? 2 : gradient) * dense_values, over, per_stage);
        if (expert_values > 0)
            comm += reductions * price.gather(gradient * expert_values, expert_over, per_stage) +
                    price.gather(2 * expert_values, expert_over, per_stage);
        const double window = kWindow * (forward + backward);
        step.dp = std::max(comm / std::max(2.0, per_stage), comm - window) + contention * std::min(comm, window);
    }
    step.optimizer = price.pass((kOptimizerBytes + 2 * (job.rule_bytes - adamw_bytes())) * owned);
    // Master weights and the rule's state come from the host and go back; rounded weights go there.
    if (job.offload.optimizer) step.offload += price.host_copy(2 * job.optimizer_bytes() * owned);
    if (job.offload.weights) step.offload += price.host_copy((job.wide() ? 2 * 4 : 2) * owned);
    step.other = kStepFixed;
    return step;
}

}  // namespace

double bubble_share(const Job& job) {
    const std::string& s = job.schedule;
    // From the first forward to the last rank's end: an update waits for all ranks, as the norm of the gradient does.
    if (s == "zb-v") return 1.0 / 6;
    if (s == "zb-h1" || s == "zb-h2" || s.starts_with("dualpipe")) return 1.0 / 3;
    if (s == "v-half") return 0.65;
    if (s == "v-min") return 2.0 / 3;
    return 1.0 / job.virtual_stages;
}

StepTime step_time(const Job& job, const hardware::Cluster& cluster, const Physics& physics) {
    const MachinePrices price(cluster, physics, job.precision);
    return whole_step(job, price, pass_price(job, price));
}

StepPricer::StepPricer(const Job& job, const hardware::Cluster& cluster, const Physics& physics)
    : prices_(cluster, physics, job.precision) {}

PassPrice StepPricer::pass(const Job& job) const { return pass_price(job, prices_); }

StepTime StepPricer::step(const Job& job, const PassPrice& pass) const { return whole_step(job, prices_, pass); }

// Products at the best rate there is and attention, in the layers and the head; the pipeline fills and drains with
// them. What whole_step() adds is not negative.
double StepPricer::lower_bound(const Job& job) const {
    const Sizes& m = job.model;
    const double rows = job.micro_batch * job.seq / job.cp, p = job.pp, microbatches = job.microbatches();
    const double mixtures = m.mixtures();
    const double again = job.recompute == Recompute::full ? 4.0 / 3 : 1;
    // A rank's experts process top_k rows for each that the rank routes.
    const double routed = rows / (job.sequence_parallel ? job.tp : 1) * m.top_k * m.expert_parameters();
    const double values = rows *
                              (m.layers * m.attention_parameters() + (m.layers - mixtures) * m.mlp_parameters() +
                               mixtures * m.mlp_matrices * m.hidden * m.shared_ffn) /
                              job.tp +
                          mixtures * routed;
    Cost attention = attention_price(job, prices_);
    if (job.recompute == Recompute::full) attention.backward += attention.forward;
    const double layers = (6 * again * values / prices_.product_rate(Operands::wide) + m.layers * attention.sum()) / p;
    const double head = 6 * rows * m.hidden * m.vocab / job.tp / prices_.product_rate(Operands::wide);
    const double pipeline = job.pp > 1 ? (p - 1) * bubble_share(job) * (layers + head / p) : 0;
    const double seconds = microbatches * (layers + head) + pipeline + kStepFixed;
    // Rounding must not make the bound exceed the bounded time.
    return seconds * (1 - 1e-9);
}

}  // namespace tutti::simulate
