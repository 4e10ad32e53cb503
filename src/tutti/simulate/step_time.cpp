// simulate/step_time.cpp: a layer's products, attention, elementwise passes and communication, added up over layers,
// microbatches and stages.
#include "tutti/simulate/step_time.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "tutti/simulate/footprint.h"
#include "tutti/simulate/prices.h"

namespace tutti::simulate {

std::vector<std::pair<const char*, double>> kinds_of(const StepTime& t) {
    return {{"matrix products", t.products},
            {"attention", t.attention},
            {"elementwise", t.elementwise},
            {"recompute", t.recompute},
            {"optimizer", t.optimizer},
            {"host", t.host},
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

LayerPrice layer_price(const Job& job, const Prices& price, const Constants& k, bool experts) {
    const Sizes& m = job.model;
    const double t = job.tp, sp = job.sequence_parallel ? t : 1;
    const double rows = job.micro_batch * job.seq / job.cp;  // tokens of a microbatch
    LayerPrice layer;

    // Attention.
    const double query = m.heads * m.head_dim / t, keys = std::max(1.0, m.kv_heads / t) * m.head_dim;
    if (m.kv_rank > 0) {
        if (m.q_rank > 0) layer.products += price.linear(rows, m.hidden, m.q_rank);
        layer.products +=
            price.linear(rows, m.q_rank > 0 ? m.q_rank : m.hidden, m.heads * (m.head_dim + m.rope_dim) / t);
        layer.products += price.linear(rows, m.hidden, m.kv_rank + m.rope_dim);
        layer.products += price.linear(rows, m.kv_rank, m.heads * (m.head_dim + m.value_dim) / t);
        layer.products += price.linear(rows, m.heads * m.value_dim / t, m.hidden);
    } else {
        layer.products += price.linear(rows, m.hidden, query + 2 * keys);
        layer.products += price.linear(rows, query, m.hidden);
    }
    layer.attention =
        price.attention(2 * rows * m.attention_span(job.seq) * m.attention_width() / t, rows * job.seq * m.heads / t);

    // Feed-forward part.
    double inner = 0, moved = 0;  // values of the inner size per row, values of tokens that dispatch moves
    if (experts) {
        const double mine = rows / sp;  // rows that this rank routes
        const double imbalance = job.token_drop ? 1 : job.imbalance > 0 ? job.imbalance : k.imbalance;
        const double local = m.experts / job.ep;
        const double per_expert = mine * m.top_k / local * job.etp * imbalance;
        layer.products += price.grouped(local, per_expert, m.hidden, (m.mlp_matrices - 1) * m.expert_ffn / job.etp);
        layer.products += price.grouped(local, per_expert, m.expert_ffn / job.etp, m.hidden);
        if (m.shared_ffn > 0) {
            layer.products += price.linear(rows, m.hidden, (m.mlp_matrices - 1) * m.shared_ffn / t);
            layer.products += price.linear(rows, m.shared_ffn / t, m.hidden);
        }
        layer.products += price.linear(mine, m.hidden, m.experts, false);
        moved = mine * m.top_k * m.hidden * imbalance;
        inner = mine * m.top_k * m.expert_ffn * imbalance + rows * m.shared_ffn / t;
    } else {
        layer.products += price.linear(rows, m.hidden, (m.mlp_matrices - 1) * m.ffn / t);
        layer.products += price.linear(rows, m.ffn / t, m.hidden);
        inner = rows * m.ffn / t;
    }

    // Norms, residual sums, rotations, activations: reads and writes of 2 bytes.
    const double gated = m.mlp_matrices == 3 ? 1 : 0.7;
    const double passes = job.stack == Stack::megatron   ? k.elementwise_megatron
                          : job.stack == Stack::eager    ? k.elementwise_eager
                          : job.stack == Stack::compiled ? k.elementwise_compiled
                          : job.stack == Stack::xla      ? k.elementwise_xla
                          : job.stack == Stack::nanotron ? k.elementwise_nanotron
                                                         : k.elementwise_megatron;
    const double residual = rows * m.hidden / sp, rotated = rows * (query + keys);
    layer.elementwise.forward =
        passes * price.memory(2 * (10 * residual + 2 * rotated + 3 * gated * inner)) + price.memory(2 * 4 * moved);
    layer.elementwise.backward =
        passes * price.memory(2 * (12 * residual + 2 * rotated + 5 * gated * inner)) + price.memory(2 * 5 * moved);

    // Tensor parallel: two gathers and two reduce-scatters in each pass.
    const double tp =
        4 * price.collective(2 * rows * m.hidden, price.group(job.tp, 1), 1) * (job.tp_overlap ? k.tp_exposed : 1);
    layer.tp = {tp, tp};

    // Context parallel: keys and values of the others, their gradients back.
    const int exchanging = job.exchanging(), passing = job.cp / exchanging;
    if (exchanging > 1) {
        // Queries, keys and values to the ranks of their heads, the output back; in the backward their gradients.
        const double exchange = price.all_to_all(2 * rows * (2 * query + 2 * keys), price.group(exchanging, job.tp), 1);
        layer.cp += {exchange, exchange};
    }
    if (passing > 1) {
        const double heads = std::max(1.0, keys / m.head_dim / exchanging);  // of keys, after the exchange
        const double all_keys =
            price.collective(2 * 2 * rows * job.cp * heads * m.head_dim, price.group(passing, job.tp * exchanging), 1);
        // The backward passes keys and values again and their gradients, which are f32 in this system.
        const double back = job.stack == Stack::tutti ? 3 : 2;
        const auto beside = [&](double passed, double attention) {
            return k.cp_exposed * passed + std::max(0.0, passed - attention) * (1 - k.cp_exposed);
        };
        if (job.cp_method == Context::ring)
            layer.cp += {beside(all_keys, layer.attention.forward), beside(back * all_keys, layer.attention.backward)};
        else
            layer.cp += {all_keys, back * all_keys};
    }
    if (experts && job.ep > 1) {
        // The fullest rank receives so much more than it sends.
        const double received = job.token_drop ? 1 : std::max(1.0, job.imbalance);
        const double bytes = 2 * rows / sp * m.top_k * m.hidden * received;
        const double exchange = 2 * price.all_to_all(bytes, price.group(job.ep, job.etp), m.top_k);
        layer.ep = {exchange, exchange};
    }

    // Ranks that share an expert gather its rows and reduce its output.
    if (experts && job.etp > 1) {
        const double gathered = 2 * price.collective(2 * moved * job.etp, price.group(job.etp, 1), 1);
        layer.ep += {gathered, gathered};
    }

    // Launches: the host runs ahead unless the layer is too small for it.
    double launches = job.stack == Stack::eager      ? k.host_eager
                      : job.stack == Stack::compiled ? k.host_compiled
                                                     : k.host_megatron;
    if (job.tp > 1) launches += k.host_tp;
    if (job.recompute == Recompute::full) launches *= 1.5;
    if (job.stack == Stack::xla) launches = 0;
    if (job.stack == Stack::nanotron) {
        launches = job.tp > 1 ? k.host_nanotron_tp : k.host_nanotron;
        if (price.domain() < job.tp) launches += k.host_nanotron_nodes * job.tp;
        if (job.tp > 1 && job.pp > 1 && job.ranks > price.domain()) launches += k.host_nanotron_far * job.tp;
    }
    if (experts) launches += job.token_drop ? k.host_expert_drop : k.host_expert;
    layer.host = launches;
    return layer;
}

PassPrice pass_price(const Job& job, const Prices& price, const Constants& k) {
    const Sizes& m = job.model;
    const double mixtures = m.mixtures();
    const double rows = job.micro_batch * job.seq / job.cp;
    PassPrice pass;
    if (mixtures < m.layers) pass.dense = layer_price(job, price, k, false);
    if (mixtures > 0) pass.mixture = layer_price(job, price, k, true);
    pass.head = price.linear(rows, m.hidden, m.vocab / job.tp, false).sum();
    pass.loss = price.memory(14 * rows * m.vocab / job.tp);
    return pass;
}

// `pass` times all layers, microbatches and stages together.
StepTime whole_step(const Job& job, const Prices& price, const hardware::Cluster& cluster, const Constants& k,
                    const PassPrice& pass) {
    const Sizes& m = job.model;
    const double p = job.pp, microbatches = job.microbatches(), bytes_of_value = job.wide() ? 4 : 2;
    const double mixtures = m.mixtures();
    const double per_stage = m.layers / p;

    // Adds `count` layers of a kind to the time of one microbatch on one stage, kind by kind.
    StepTime micro;
    double forward = 0, backward = 0;  // seconds of compute of a microbatch on a stage
    const auto add_layers = [&](const LayerPrice& layer, double count) {
        Cost again;
        if (job.recompute == Recompute::full) {
            again = {0, layer.products.forward + layer.attention.forward + layer.elementwise.forward +
                            layer.tp.forward + layer.ep.forward + layer.cp.forward};
        } else if (job.recompute == Recompute::selective) {
            if (job.attention == Attention::unfused) again = {0, layer.attention.forward};
            if (job.stack == Stack::compiled || job.stack == Stack::eager)
                again = {0, 0.5 * layer.products.forward + layer.elementwise.forward};
            if (job.stack == Stack::tutti) again = {0, layer.elementwise.forward};
        }
        micro.products += count * layer.products.sum();
        micro.attention += count * layer.attention.sum();
        micro.elementwise += count * layer.elementwise.sum();
        micro.recompute += count * again.sum();
        micro.tp += count * layer.tp.sum();
        micro.cp += count * layer.cp.sum();
        micro.ep += count * layer.ep.sum();
        const double busy = layer.compute() + again.sum() + layer.tp.sum() + layer.ep.sum() + layer.cp.sum();
        micro.host += count * std::max(0.0, layer.host - busy);
        forward += count * (layer.products.forward + layer.attention.forward + layer.elementwise.forward);
        backward += count * (layer.products.backward + layer.attention.backward + layer.elementwise.backward);
    };
    if (mixtures < m.layers) add_layers(pass.dense, (m.layers - mixtures) / p);
    if (mixtures > 0) add_layers(pass.mixture, mixtures / p);
    if (job.offload.activations) {
        // Saved tensors leave beside the forward and return beside the backward.
        const double copies = per_stage * price.host(footprint(job).offloaded_layer);
        micro.offload = std::max(0.0, copies - forward) + std::max(0.0, copies - backward - micro.recompute);
    }
    const double layers_only = micro.total();

    // The head and the loss, on the last stage; without a pipeline on every rank.
    const double rows = job.micro_batch * job.seq / job.cp;
    const double head = pass.head, loss = pass.loss;
    micro.products += head;
    micro.elementwise += loss;
    forward += head / 3;
    backward += head * 2 / 3 + loss;

    // The slowest stage sets the pace; the pipeline fills and drains at that of the others.
    const double one_layer = layers_only / per_stage;
    double pace = layers_only + head + loss;
    if (job.pp > 1 && job.stack == Stack::nanotron) {
        pace = 0;
        for (const NanotronStage& stage : nanotron_stages(m, job.pp))
            pace = std::max(pace, stage.layers * one_layer + (stage.head ? head + loss : 0));
    }
    const double uneven = pace - (layers_only + head + loss);
    StepTime step = micro;
    for (double* part : {&step.products, &step.attention, &step.elementwise, &step.recompute, &step.host, &step.tp,
                         &step.cp, &step.ep, &step.offload})
        *part *= microbatches;
    if (job.pp > 1) {
        const bool hides = job.year >= 2023 && job.stack != Stack::nanotron;
        const int stride = job.ranks / job.pp;
        const double boundary = 2 * rows * m.hidden / (job.sequence_parallel ? job.tp : 1);
        double message = 2 * job.virtual_stages * price.message(boundary, stride);
        if (job.stack == Stack::nanotron)
            message +=
                k.host_nanotron_message + (job.ranks >= 256 ? k.host_nanotron_stall * (job.pp >= 4 ? 1 : 0.5) : 0);
        step.pp = microbatches * (message * (hides ? k.pp_exposed : 1));
        step.bubble =
            (p - 1) * bubble_share(job) *
                ((job.stack == Stack::nanotron ? pace - micro.host : layers_only + (head + loss) / p) + message) +
            microbatches * uneven;
    }
    // Gradients and weights over the data-parallel ranks.
    const double expert_values = mixtures / p * m.experts * m.expert_parameters() / (job.ep * job.etp);
    const double dense_values =
        (per_stage * m.attention_parameters() + (m.layers - mixtures) / p * m.mlp_parameters() +
         mixtures / p * (m.mlp_matrices * m.hidden * m.shared_ffn) + m.vocab * m.hidden * (p > 1 || m.tied ? 1 : 2)) /
        job.tp;
    const double gradient = job.reduced_gradient_bytes();
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
            return units *
                   (2 * price.collective(2 * values / units, g, 1) + price.collective(gradient * values / units, g, 1));
        };
        double comm = exchange(dense_values, shards) + (expert_values > 0 ? exchange(expert_values, expert_over) : 0);
        if (job.dp_replicate > 1) {
            comm += price.collective(4 * dense_values / shard,
                                     price.group(job.dp_replicate, static_cast<int>(shard) * job.tp), 2) /
                    microbatches;
        }
        const double busy = forward + backward + micro.recompute;
        const double least =
            job.stack == Stack::eager || job.stack == Stack::compiled ? k.zero3_exposed_eager : k.zero3_exposed;
        const auto visible = [&](double copies) {
            const double exposed = std::max(least * copies, copies - k.overlap * busy);
            return microbatches * (exposed + k.slowdown * std::min(copies - exposed, busy));
        };
        step.dp = visible(comm);
        // Both gathers read this rank's shard in the memory of the host.
        if (job.offload.weights) step.offload += visible(comm + 2 * price.host(bytes_of_value * owned)) - step.dp;
    } else if (replicas > 1) {
        // In buckets of 25 MB, or a few layers at a time.
        const auto bucketed = [&](double bytes, Group g) {
            // nanotron reduces bucket by bucket and gathers all updated weights in one call. Its reduce-scatters, which
            // copy each bucket before and after, take as long as all-reduces: rows that differ in ZeRO alone.
            if (job.stack == Stack::nanotron) {
                const double buckets = std::max(1.0, bytes / 25e6);
                return buckets * price.all_reduce(bytes / buckets, g) / 2;
            }
            const bool small = job.stack == Stack::eager;
            const double buckets = std::max(1.0, small ? (job.zero > 0 ? 9 * per_stage : bytes / 25e6) : per_stage);
            // This system's all-reduce is a reduce-scatter and an all-gather.
            const bool rings = job.zero > 0 || job.stack == Stack::tutti;
            return buckets *
                   (rings ? price.collective(bytes / buckets, g, 1) : price.all_reduce(bytes / buckets, g) / 2);
        };
        // This system reduces into the shards of ZeRO-2 after each microbatch; the others keep whole gradients until
        // the last one.
        const double reductions = job.stack == Stack::tutti && job.zero == 2 ? microbatches : 1;
        double comm = reductions * bucketed(gradient * dense_values, over) +
                      bucketed((job.zero > 0 ? 2 : gradient) * dense_values, over);
        if (job.stack == Stack::nanotron && job.zero > 0)
            comm = 2 * bucketed(gradient * dense_values, over) + price.collective(2 * dense_values, over, 1);
        if (expert_values > 0)
            comm +=
                reductions * bucketed(gradient * expert_values, expert_over) + bucketed(2 * expert_values, expert_over);
        const bool overlaps =
            job.year >= 2023 && job.stack != Stack::nanotron && (job.pp == 1 || job.virtual_stages > 1);
        const double window =
            (forward + backward) / (job.pp > 1 ? job.virtual_stages : 1) * (job.pp > 1 ? job.virtual_stages - 1 : 1);
        const double exposed = overlaps ? std::max(k.dp_exposed * comm, comm - k.overlap * window) : comm;
        step.dp = exposed + k.slowdown * (comm - exposed);
    }
    // The constant is that of AdamW; another rule reads and writes other state.
    step.optimizer = price.memory((k.optimizer_bytes + 2 * (job.rule_bytes - adamw_bytes())) * owned);
    // Master weights and the rule's state come from the host and go back; rounded weights go there.
    if (job.offload.optimizer) step.offload += price.host(2 * job.optimizer_bytes() * owned);
    if (job.offload.weights) step.offload += price.host((job.wide() ? 2 * 4 : 2) * owned);
    step.other = k.step_fixed;
    const double sum = step.total();
    if (job.ranks > cluster.per_node) step.other += sum * k.straggle * std::log2(double(job.ranks) / cluster.per_node);
    // An allocator that returns memory to the system and takes it again stalls the device.
    if (job.stack == Stack::nanotron && footprint(job).total() > 5.0 / 6 * cluster.memory)
        step.other += k.nanotron_full * sum;
    return step;
}

}  // namespace

double bubble_share(const Job& job) {
    const std::string& s = job.schedule;
    // For this system's schedules, from the first forward to the last rank's end: an update waits for all ranks, as the
    // norm of the gradient does. Other systems let the fill of one step overlap the drain of the other.
    if (job.stack == Stack::tutti) {
        if (s == "zb-v") return 1.0 / 6;
        if (s == "zb-h2" || s.starts_with("dualpipe")) return 1.0 / 3;
        if (s == "v-half") return 0.65;
    }
    if (s == "zb-h1") return 1.0 / 3;
    if (s == "zb-h2" || s == "zb-v") return 0.03;
    if (s == "v-half") return 0.5;
    if (s == "v-min") return 2.0 / 3;
    if (s.starts_with("dualpipe")) return 0.45;
    return 1.0 / job.virtual_stages;
}

StepTime step_time(const Job& job, const hardware::Cluster& cluster, const Constants& k) {
    const Prices price(job, cluster, k);
    return whole_step(job, price, cluster, k, pass_price(job, price, k));
}

StepPricer::StepPricer(const Job& job, const hardware::Cluster& cluster, const Constants& constants)
    : job_(job), cluster_(cluster), constants_(constants) {
    prices_ = std::make_unique<const Prices>(job_, cluster_, constants_);
}
StepPricer::~StepPricer() = default;

PassPrice StepPricer::pass(const Job& job) const { return pass_price(job, *prices_, constants_); }

StepTime StepPricer::step(const Job& job, const PassPrice& pass) const {
    return whole_step(job, *prices_, cluster_, constants_, pass);
}

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
    Cost attention = prices_->attention(2 * rows * m.attention_span(job.seq) * m.attention_width() / job.tp,
                                        rows * job.seq * m.heads / job.tp);
    if (job.recompute == Recompute::full) attention.backward += attention.forward;
    const double layers = (6 * again * values / prices_->fastest() + m.layers * attention.sum()) / p;
    const double head = 6 * rows * m.hidden * m.vocab / job.tp / prices_->fastest();
    const double pipeline = job.pp > 1 ? (p - 1) * bubble_share(job) * (layers + head / p) : 0;
    const double seconds = microbatches * (layers + head) + pipeline + constants_.step_fixed;
    // Rounding must not make the bound exceed the bounded time.
    return seconds * (1 - 1e-9);
}

}  // namespace tutti::simulate
