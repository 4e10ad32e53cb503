#include "tutti/published/step.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tutti/published/memory.h"

namespace tutti::published {

using simulate::AttentionShape;
using simulate::beside;
using simulate::Group;
using simulate::MachinePrices;
using simulate::Operands;

namespace {

constexpr std::pair<const char*, double StepTime::*> kKinds[] = {{"matrix products", &StepTime::products},
                                                                 {"attention", &StepTime::attention},
                                                                 {"passes over memory", &StepTime::passes},
                                                                 {"experts", &StepTime::experts},
                                                                 {"recompute", &StepTime::recompute},
                                                                 {"host", &StepTime::host},
                                                                 {"head and loss", &StepTime::head},
                                                                 {"optimizer", &StepTime::optimizer},
                                                                 {"exposed tp", &StepTime::tp},
                                                                 {"exposed cp", &StepTime::cp},
                                                                 {"exposed ep", &StepTime::ep},
                                                                 {"exposed pp", &StepTime::pp},
                                                                 {"exposed dp", &StepTime::dp},
                                                                 {"pipeline bubble", &StepTime::bubble},
                                                                 {"other", &StepTime::other}};

}  // namespace

double StepTime::total() const {
    double sum = 0;
    for (const auto& [name, kind] : kKinds) sum += this->*kind;
    return sum;
}

StepTime& StepTime::operator+=(const StepTime& more) {
    for (const auto& [name, kind] : kKinds) this->*kind += more.*kind;
    return *this;
}

StepTime operator*(double factor, const StepTime& time) {
    StepTime scaled = time;
    for (const auto& [name, kind] : kKinds) scaled.*kind *= factor;
    return scaled;
}

std::vector<std::pair<const char*, double>> kinds_of(const StepTime& time) {
    std::vector<std::pair<const char*, double>> kinds;
    for (const auto& [name, kind] : kKinds) kinds.emplace_back(name, time.*kind);
    return kinds;
}

namespace {

constexpr double kVisible = 0.3;         // of tensor-parallel traffic under overlapped products
constexpr double kWindow = 0.85;         // of a backward, in which gradients of its layers are ready to be reduced
constexpr double kBackwardPasses = 1.9;  // passes over memory of a backward, in those of a forward
constexpr double kRouting = 1.3;         // bytes of a permutation over reading and writing each row once
// Bytes of a forward where each operation is a pass, by the operations of transformers' modeling_llama.py. Stream: two
// RMSNorms in f32 (cast 6, square 8, mean 4, product 8, cast 6, weight 4) and two sums of 6. Queries and keys: products
// with cosine and sine, 4 each, a turned copy of 6, their sum of 6. Inner size: SiLU 4, product 6. A score: written 2,
// scaled 4, masked 6, softmax to f32 6, cast 6, read 2. F.layer_norm and F.gelu of GPTs are one operation each.
constexpr double kEagerStream = 84, kEagerRotation = 20, kEagerInner = 10, kEagerScore = 26;
constexpr double kStep = 12e-3;  // of a step: the norm of gradients, the loss read by the host, logging
// Share of the memory beyond which an allocator of fixed segments returns memory to the device and takes it again:
// layouts of nanotron's sweep there run at a half to a third of their speed.
constexpr double kRetries = 5.0 / 6;

struct Pass {
    double forward = 0, backward = 0;
    Pass& operator+=(const Pass& o) {
        forward += o.forward;
        backward += o.backward;
        return *this;
    }
};

// One microbatch on one rank.
class Microbatch {
  public:
    Microbatch(const PublishedRun& run, const MachinePrices& price)
        : run_(run), m_(run.model), s_(run.software), price_(price) {
        tokens_ = std::max(1.0, run.micro_batch * run.seq / run.cp);
        boundary_ = 2 * tokens_ * m_.hidden;
        spread_ = s_.sequence_parallel ? run.tp : 1;
        if (run.has("fp4"))
            operands_ = Operands::four;
        else if (run.has("fp8") && run.cluster.has("fp8"))
            operands_ = Operands::eight;
        // A cast reads 2 bytes and writes 1 in each order; scales of the current tensor or of rows need a pass more.
        if (operands_ != Operands::wide) {
            cast_ = operands_ == Operands::four ? 7 : 4;
            if (run.has("rowwise") || run.has("cs") || run.has("tensorwise") || s_.gathers_once) cast_ += 2;
        }
        rowwise_ =
            operands_ == Operands::eight && run.has("rowwise") ? 1 / 0.65 : 1;  // PyTorch's row-wise products on H100
        attention_matrices_ = m_.attention(run.tp);
        attention_products_ = linear(attention_matrices_, tokens_);
        attention_ = attention();
        tensor_parallel();
        ring();
    }

    double tokens() const { return tokens_; }
    double boundary() const { return boundary_ / spread_; }
    bool has_codes() const { return operands_ == Operands::eight; }
    double attention_values() const { return Model::values_of(attention_matrices_); }

    // Of a layer on this rank.
    double mlp_values() const { return m_.mlp_matrices * m_.hidden * m_.ffn / run_.tp; }
    double expert_values() const {
        return m_.mlp_matrices * m_.hidden * (m_.experts * m_.expert_ffn / run_.ep + m_.shared_ffn / run_.tp);
    }

    // Forward and backward of a layer.
    std::pair<StepTime, StepTime> layer(bool with_experts) const {
        StepTime forward, backward;
        Pass products = attention_products_, dense, experts;
        const bool separate = s_.eager && m_.mlp_matrices == 3;
        double residual = (separate ? kEagerStream : 20) * tokens_ * m_.hidden / spread_ +
                          (separate ? kEagerRotation : 4) * tokens_ * (m_.heads + m_.kv_heads) * m_.head_dim / run_.tp;
        if (s_.dropout) residual += 3 * tokens_ * m_.hidden / spread_;
        double passes = residual;
        double launches = s_.launches + (run_.tp > 1 ? 4 : 0) + (operands_ != Operands::wide ? 8 : 0);
        double exchange = 0;
        if (with_experts) {
            experts = expert_part();
            exchange = dispatch();
            launches += s_.expert_launches;
        } else {
            dense = linear(m_.mlp(m_.ffn, run_.tp), tokens_);
            passes += (separate ? kEagerInner : 2 * activation_passes()) * tokens_ * m_.ffn / run_.tp;
        }
        products += dense;
        const double through_memory = s_.pass_factor * price_.pass(passes);
        forward.products = products.forward;
        forward.attention = attention_.forward;
        forward.passes = through_memory;
        forward.experts = experts.forward;
        backward.products = products.backward;
        backward.attention = attention_.backward;
        backward.passes = kBackwardPasses * through_memory;
        backward.experts = experts.backward;
        const double whole = forward.total();
        const double gradients = attention_values() + (with_experts ? expert_values() : mlp_values());
        backward.passes += price_.pass(s_.accumulate_bytes * gradients);
        const bool full = run_.recompute == Recompute::full;
        switch (run_.recompute) {
            case Recompute::none: break;
            case Recompute::norms: backward.recompute = 0.7 * through_memory; break;
            case Recompute::selective:
                backward.recompute =
                    s_.attention == simulate::Attention::unfused ? attention_.forward : 0.5 * through_memory;
                break;
            case Recompute::operations: backward.recompute = 0.5 * products.forward + through_memory; break;
            case Recompute::every_second: backward.recompute = 0.5 * whole; break;
            case Recompute::full: backward.recompute = whole; break;
        }
        wait_for_host(forward, launches);
        wait_for_host(backward, launches * (full ? 3 : 2));
        forward.tp = tp_;
        backward.tp = tp_ * (full ? 2 : run_.recompute == Recompute::operations ? 1.5 : 1);
        forward.cp = ring_.forward;
        backward.cp = ring_.backward + (full ? ring_.forward : 0);
        forward.ep = exchange;
        backward.ep = exchange * (full ? 2 : 1);
        return {forward, backward};
    }

    // The head and the loss, in the wide type.
    double head() const {
        const double vocab = m_.vocab / run_.tp;
        return price_.product(tokens_, vocab, m_.hidden) + price_.product(tokens_, m_.hidden, vocab) +
               price_.product(vocab, m_.hidden, tokens_) + price_.pass(tokens_ * vocab * s_.logit_bytes);
    }

  private:
    double activation_passes() const { return m_.mlp_matrices == 3 ? 3 : 2; }

    Pass linear(const std::vector<Model::Matrix>& matrices, double rows) const {
        Pass pass;
        for (const auto& [out, in] : matrices) {
            pass.forward += rowwise_ * price_.product(rows, out, in, operands_) + price_.pass(cast_ * rows * in);
            pass.backward +=
                rowwise_ * (price_.product(rows, in, out, operands_) + price_.product(in, out, rows, operands_)) +
                price_.pass(cast_ * rows * out);
        }
        return pass;
    }

    Pass attention() const {
        const double heads = m_.heads / run_.tp;
        const double all = 2 * tokens_ * run_.seq * (m_.query_dim() + m_.value_dim()) * heads;  // pairs, both products
        if (s_.attention == simulate::Attention::unfused) return unfused(all);
        double seen = all / 2;
        if (m_.window > 0) seen = seen / 2 + all / 2 * std::min(0.5, m_.window / run_.seq);
        const AttentionShape shape{run_.micro_batch, run_.seq / run_.cp, heads, m_.head_dim, run_.seq};
        return {price_.attention(shape, seen, false), price_.attention(shape, 2.5 * seen, true)};
    }

    // Two batched products of shallow depth and the softmax of all pairs: 2 bytes read and written, likewise by dropout
    // with a mask of a byte.
    Pass unfused(double flops) const {
        const double sequences = run_.micro_batch * m_.heads / run_.tp / run_.cp, d = m_.head_dim, seq = run_.seq;
        double products =
            2 * std::max(flops / 2 / (price_.product_rate(Operands::wide) * 0.65 * std::sqrt(std::min(1.0, d / 128))),
                         price_.pass(sequences * 2 * (2 * seq * d + seq * seq)));
        const auto size = static_cast<int64_t>(d);
        products *= size % 8 != 0 ? 3 : size % 32 != 0 ? 1.4 : 1;
        const double softmax = price_.pass(sequences * seq * seq * (s_.eager ? kEagerScore : s_.dropout ? 11 : 8));
        return {products + softmax, 2 * products + 1.6 * softmax};
    }

    Pass expert_part() const {
        Pass pass;
        const double rows = tokens_ / spread_, local = std::max(1.0, std::floor(m_.experts / run_.ep));
        const double each = std::max(1.0, rows * m_.top_k * run_.ep / m_.experts);
        for (const auto& [out, in] : m_.mlp(m_.expert_ffn, 1)) {
            pass.forward += rowwise_ * price_.grouped(local, each, out, in, operands_);
            pass.backward += rowwise_ * (price_.grouped(local, each, in, out, operands_) +
                                         price_.grouped_gradient(local, each, out, in, operands_));
        }
        const double routed = rows * m_.top_k;
        double moved = 8 * routed * m_.hidden + 2 * activation_passes() * routed * m_.expert_ffn;
        if (operands_ != Operands::wide) moved += 4 * routed * (m_.hidden + m_.expert_ffn);
        const double permutation = kRouting * price_.pass(moved);
        const double router = price_.product(rows, m_.experts, m_.hidden) + price_.pass(16 * rows * m_.experts);
        pass += {permutation + router, 2 * (permutation + router)};
        if (m_.shared_ffn > 0) pass += linear(m_.mlp(m_.shared_ffn, run_.tp), tokens_);
        return pass;
    }

    // How many of `parts` equal parts of the experts hold one that a token takes: at most, or where a token's experts
    // follow one another and its first one is a multiple of what top_k and the size of a part have in common, on
    // average.
    double parts_of_token(double parts) const {
        if (!s_.next_experts) return std::min(m_.top_k, parts);
        const double part = std::floor(m_.experts / parts);
        const auto common = static_cast<double>(std::gcd(static_cast<int64_t>(m_.top_k), static_cast<int64_t>(part)));
        return std::min(parts, 1 + (m_.top_k - common) / part);
    }

    // Rows to their experts and back.
    double dispatch() const {
        if (run_.ep <= 1) return 0;
        const Group group = price_.group(run_.ep, 1);
        const double rows = tokens_ / spread_, domains = group.domains();
        const double copies = s_.one_copy ? parts_of_token(run_.ep) : m_.top_k;
        double crossing = 1 - double(group.per_domain) / run_.ep;
        if (s_.one_copy) crossing = std::min(crossing, parts_of_token(domains) * (1 - 1 / domains) / copies);
        return 2 * (1 - s_.hidden_dispatch) * price_.all_to_all(2 * rows * copies * m_.hidden, group, crossing);
    }

    // Two gathers and two reduce-scatters a pass, or two all-reduces.
    void tensor_parallel() {
        if (run_.tp <= 1) return;
        double latency_saved = 0;
        if (!s_.sequence_parallel) latency_saved = 2 * price_.physics().latency;
        tp_ =
            (4 * price_.gather(boundary_, price_.group(run_.tp, 1)) - latency_saved) * (s_.overlaps_tp ? kVisible : 1);
        if (run_.pp > 1 && run_.ranks > run_.cluster.domain) tp_ += 7 * s_.tp_stall * (run_.tp - 1);
    }

    // Keys and values around the ring beside attention to those that are here; gradients, too, in the backward.
    void ring() {
        if (run_.cp <= 1) return;
        const double heads = m_.latent ? m_.heads / run_.tp : std::max(1.0, m_.kv_heads / run_.tp);
        const double bytes = 4 * heads * m_.head_dim * tokens_, steps = run_.cp - 1;
        const Group group = price_.group(run_.cp, run_.tp);
        if (s_.gathers_context) {
            const double gathered = price_.gather(bytes * run_.cp, group);
            ring_ = {gathered, 2 * gathered};
            return;
        }
        const auto visible = [&](double passed, double beside) {
            return steps *
                   std::max(price_.physics().latency / 2, price_.message(passed, group.reach()) - beside / run_.cp);
        };
        ring_ = {visible(bytes, attention_.forward), visible(2 * bytes, attention_.backward)};
    }

    // The host launches ahead of the device unless all kernels of the layer take less than their launches.
    void wait_for_host(StepTime& time, double launches) const {
        time.passes += launches * price_.launch_gap();
        if (s_.launches_block) time.host += launches * price_.physics().host_launch;
        if (s_.launches_block) return;
        if (!s_.graphs) time.host = std::max(0.0, launches * price_.physics().host_launch - time.total());
    }

    const PublishedRun& run_;
    const Model& m_;
    const Traits& s_;
    const MachinePrices& price_;
    double tokens_ = 0, boundary_ = 0, spread_ = 1;  // boundary: bytes of a layer's input
    Operands operands_ = Operands::wide;
    double cast_ = 0, rowwise_ = 1;
    std::vector<Model::Matrix> attention_matrices_;
    Pass attention_products_, attention_, ring_;
    double tp_ = 0;
};

// Bytes of bubble: how long a pipeline fills and drains, in passes of a microbatch through a stage, over pp - 1.
double bubble_share(const PublishedRun& run) {
    if (run.schedule.find("dual") != std::string::npos) return 0.45;  // DeepSeek-V3's timeline
    return 1.0 / run.virtual_stages;
}

// A step: microbatches through a stage of the mean layer, what a pipeline adds to them, gradients and weights of data
// parallelism, the update.
class Step {
  public:
    Step(const PublishedRun& run, const MachinePrices& price)
        : run_(run), m_(run.model), s_(run.software), price_(price), micro_(run, price) {
        const double feed_forward = m_.mlp_matrices * m_.hidden * (m_.experts > 0 ? m_.shared_ffn : m_.ffn) / run_.tp;
        dense_ = micro_.attention_values() + feed_forward;
        if (m_.experts > 0) experts_ = m_.experts * m_.mlp_matrices * m_.hidden * m_.expert_ffn / run_.ep;
    }

    StepTime time() {
        add_layers(true, m_.expert_layers());
        add_layers(false, m_.layers - m_.expert_layers());
        const double once = run_.zero == 3 && replicas_ > 1 ? gathers() : 0;
        step_ = run_.microbatches() * per_stage_ * forward_;
        step_ += run_.microbatches() * per_stage_ * backward_;
        add_head_and_pipeline();
        step_.dp += per_stage_ * once;
        if (run_.zero < 3 && replicas_ > 1) step_.dp += reductions();
        add_update();
        return step_;
    }

  private:
    void add_layers(bool with_experts, double count) {
        if (count <= 0) return;
        const auto [forward, backward] = micro_.layer(with_experts);
        forward_ += (count / m_.layers) * forward;
        backward_ += (count / m_.layers) * backward;
    }

    // ZeRO-3: adds gathers and reductions to the passes of a layer; returns what is done once a step instead.
    double gathers() {
        double gathered = price_.gather(2 * dense_, over_, s_.gathers_a_layer);
        double reduced = price_.gather(s_.gradient_bytes * dense_, over_);
        if (m_.experts > 0) {
            gathered += price_.gather(2 * experts_, expert_over_);
            reduced += price_.gather(s_.gradient_bytes * experts_, expert_over_);
        }
        const auto visible = [&](double compute, double comm) {
            return s_.prefetches ? beside(compute, comm, price_.physics().contention) : comm;
        };
        const bool again =
            run_.recompute == Recompute::full && s_.keeps_values > 0 && dense_ + experts_ > s_.keeps_values;
        if (run_.pp > 1 && s_.gathers_once)
            return visible(forward_.total(), gathered) + visible(backward_.total(), reduced);
        forward_.dp += visible(forward_.total(), gathered);
        backward_.dp += visible(backward_.total(), (again ? 2 : 1) * gathered + reduced);
        return 0;
    }

    void add_head_and_pipeline() {
        const double p = run_.pp, microbatches = run_.microbatches();
        const double head = micro_.head(), stage = step_.total() / microbatches;
        step_.head = microbatches * head;
        if (run_.pp <= 1) return;
        const double fill = run_.pipelines() * (p - 1);
        step_.bubble =
            microbatches * (fullest(stage, head) - stage - head) + fill * bubble_share(run_) * (stage + head / p);
        const auto message = [&](double bytes) { return price_.message(bytes, price_.reach(run_.ranks - 1)); };
        const double scattered = micro_.boundary() * (s_.sequence_parallel ? 1 : 1.0 / run_.tp);
        const double hop = message(scattered) + message(s_.whole_gradients ? micro_.boundary() : scattered);
        const double steady = s_.overlaps_hops ? 0 : (s_.blocking_hops ? 2 : 1) * microbatches * run_.virtual_stages;
        step_.pp = (fill + steady) * hop;
    }

    // A microbatch through the slowest stage. Where all stages have the same number of layers, the last one has the
    // head beside them; elsewhere it was balanced by giving it fewer.
    double fullest(double stage, double head) const {
        if (s_.stages_by_cost) {
            double most = 0;
            for (const Stage& each : stages_by_cost(m_, run_.pp))
                most = std::max(most, each.layers * stage / per_stage_ + (each.head ? head : 0));
            return most;
        }
        if (std::fmod(m_.layers, static_cast<double>(run_.pp)) == 0) return stage + head;
        return std::max(stage * std::ceil(per_stage_) / per_stage_, stage + head / run_.pp);
    }

    // Gradients, and weights under ZeRO-1 and 2.
    double reductions() const {
        const double dense = stage_dense(), experts = stage_experts(), bytes = s_.gradient_bytes * dense;
        // Layers have codes; the embedding and the head have none.
        const double layer_bytes = s_.gathers_codes && micro_.has_codes() ? 1 : 2;
        const double weights = 2 * dense - (2 - layer_bytes) * per_stage_ * dense_;
        const double pieces = s_.bucket_bytes > 0    ? std::max(1.0, bytes / s_.bucket_bytes)
                              : s_.bucket_bytes < 0  ? 1
                              : s_.bucket_values > 0 ? std::max(1.0, dense / s_.bucket_values)
                                                     : std::max(1.0, dense / std::max(40e6, 1e6 * run_.dp));
        double reduced = 0, gathered = 0;
        if (run_.zero == 0) {
            reduced = gathered = price_.all_reduce(bytes, over_, pieces) / 2;
        } else {
            reduced = s_.scatters_as_all_reduce ? price_.all_reduce(bytes, over_, pieces)
                                                : price_.gather(bytes, over_, pieces);
            // DDP's buckets hold gradients only.
            gathered = price_.gather(weights, over_, s_.bucket_bytes > 0 ? 1 : pieces);
        }
        if (experts > 0) {
            reduced += price_.gather(s_.gradient_bytes * experts, expert_over_);
            gathered += price_.gather(layer_bytes * experts, expert_over_);
        }
        if (!s_.overlaps_dp) return reduced + gathered;
        const auto visible = [&](double comm, double compute) {
            const double window = kWindow * compute;
            return std::max(comm / std::max(2.0, per_stage_), comm - window) +
                   price_.physics().contention * std::min(comm, window);
        };
        return visible(reduced, per_stage_ * backward_.total()) + visible(gathered, per_stage_ * forward_.total());
    }

    void add_update() {
        const bool sharded = run_.zero >= 1;
        const double owned =
            stage_dense() / (sharded ? replicas_ : 1) + stage_experts() / (sharded ? expert_replicas_ : 1);
        step_.optimizer = price_.pass(s_.optimizer_bytes * owned);
        if (run_.offload_optimizer) step_.other += price_.host_copy(24 * owned);
        step_.other += kStep;
        if (s_.allocator_retries && memory(run_).total() > kRetries * run_.cluster.memory) step_.other += step_.total();
    }

    // Values of a stage on this rank, outside of and in its experts. A first or last stage holds the embedding or the
    // head.
    double stage_dense() const { return per_stage_ * dense_ + m_.vocab * m_.hidden / run_.tp; }
    double stage_experts() const { return per_stage_ * (m_.expert_layers() / m_.layers) * experts_; }

    const PublishedRun& run_;
    const Model& m_;
    const Traits& s_;
    const MachinePrices& price_;
    const Microbatch micro_;
    const double per_stage_ = m_.layers / run_.pp;
    const int replicas_ = run_.dp * run_.cp, expert_replicas_ = std::max(1, replicas_*run_.tp / run_.ep);
    const Group over_ = price_.group(replicas_, run_.tp), expert_over_ = price_.group(expert_replicas_, run_.ep);
    double dense_ = 0, experts_ = 0;  // values of a layer on this rank, outside of and in its experts
    StepTime forward_, backward_;     // of the mean layer
    StepTime step_;
};

}  // namespace

StepTime step_time(const PublishedRun& run, const simulate::Physics& physics) {
    simulate::Physics here = physics;
    here.latency *= run.software.collective_latencies;
    here.hop *= run.software.hops;
    const std::string type(run.cluster.sixteen_bits());
    const MachinePrices price(run.cluster, here, run.wide() ? run.precision : type, run.software.attention);
    if (run.micro_batch_given) return Step(run, price).time();
    // The row does not say: the fastest micro batch whose activations fit.
    StepTime best;
    for (const double micro_batch : {1, 2, 4, 8}) {
        PublishedRun tried = run;
        tried.micro_batch = micro_batch;
        const double each = run.global_batch / run.dp;
        if (micro_batch > 1 && (std::fmod(each, micro_batch) != 0 || (run.pp > 1 && each / micro_batch < run.pp)))
            continue;
        const double of_token = run.recompute == Recompute::full ? 2 * run.model.hidden
                                                                 : (18 * run.model.hidden + 4 * run.model.ffn) / run.tp;
        if (micro_batch > 1 && micro_batch * run.seq / run.cp * run.model.layers * of_token > 25e9) continue;
        const StepTime time = Step(tried, price).time();
        if (best.total() == 0 || time.total() < best.total()) best = time;
    }
    return best;
}

}  // namespace tutti::published
