#include "tutti/rehearsal/card.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"
#include "tutti/base/units.h"
#include "tutti/spec/layers.h"
#include "tutti/spec/recipe.h"
#include "tutti/spec/rules.h"
#include "tutti/spec/variants.h"

namespace tutti::rehearsal {
namespace {

// --- The text of the lines ---

// ", 2 of 8 experts of 14336"
std::string mixture(const spec::ModelSpec& m) {
    const spec::MixtureSpec& e = m.moe;
    if (e.experts == 0) return "";
    std::string text = concat(", ", e.top_k, " of ", e.experts, " experts of ", e.ffn);
    if (!e.layers.empty()) text += concat(" in layers ", e.layers);
    if (e.shared_ffn > 0) text += concat(" and a shared one of ", e.shared_ffn);
    if (e.capacity_factor > 0) text += concat(", capacity ", e.capacity_factor);
    return text;
}

// "46.7B", "46.7B, of which a token passes 12.9B"
std::string parameters(const models::ModelCounts& counts) {
    const std::string all = format_count(static_cast<double>(counts.parameters));
    if (counts.active == counts.parameters) return all;
    return concat(all, ", of which a token passes ", format_count(static_cast<double>(counts.active)));
}

std::string architecture(const spec::ModelSpec& m) {
    const bool named = m.variant != spec::kAutoVariant;
    std::string text =
        concat(named ? m.variant : std::string(name_of(m.family)), ", ", m.layers, " layers, width ", m.width);
    if (!spec::traits_of(m).tokens) return text;
    text += concat(", ", m.heads, " heads of ", m.head_dim);
    if (m.kv_heads != m.heads) text += concat(" (", m.kv_heads, " kv)");
    if (m.head_norm) text += ", head norms";
    if (m.window > 0) text += concat(", window ", m.window);
    if (!m.window_layers.empty()) text += concat(" in layers ", m.window_layers);
    if (!m.conv_layers.empty()) text += concat(", convolutions of ", m.conv_kernel, " in layers ", m.conv_layers);
    if (!m.delta_layers.empty())
        text += concat(", delta rule of ", m.delta_value_heads, " heads of ", m.delta_value_dim, " in layers ",
                       m.delta_layers);
    if (spec::has_scan(m))
        text += concat(", scans of ", m.scan_heads, " heads of ", m.scan_head_dim, " and state ", m.scan_state,
                       m.pattern.empty() ? " in layers " + m.scan_layers : ", layers " + m.pattern,
                       m.scan_beside ? " beside attention" : "");
    if (static_cast<int64_t>(spec::layers_with_experts(m).size()) < m.layers) text += concat(", ffn ", m.ffn);
    return text + mixture(m) + concat(", vocab ", m.vocab, m.tie_embeddings ? ", tied" : "");
}

std::string optimizer(const spec::OptimizerSpec& o) {
    std::string text = concat(o.name, ", lr ", o.lr, " ", o.schedule);
    if (o.schedule != "constant") text += concat(" to ", o.min_lr);
    text += concat(", warm-up ", o.warmup_steps, " steps, weight decay ", o.weight_decay);
    return text + (o.clip > 0 ? concat(", clip ", o.clip) : ", no clipping");
}

std::string precision(const spec::RunSpec& run) {
    const spec::PrecisionSpec& p = run.precision;
    std::string text;
    switch (spec::compute_type_of(run)) {
        case ComputeType::f32:
            text = p.gradients != "f32" ? "f32, bf16 gradients" : spec::recipe_of(p) ? "f32" : "f32 throughout";
            break;
        case ComputeType::tf32:
            text = concat("f32, matrix products in TF32", p.gradients == "f32" ? "" : ", bf16 gradients");
            break;
        case ComputeType::bf16:
        case ComputeType::f16:
            text = concat(p.compute, p.master == "none"     ? concat(", no master weights, ", p.gradients, " gradients")
                                     : p.gradients == "f32" ? ", f32 master weights and gradients"
                                                            : ", f32 master weights, bf16 gradients");
    }
    if (spec::recipe_of(p))
        text += concat(", 8-bit products (", p.recipe, ") in ", run.model.layers - p.bf16_first - p.bf16_last, " of ",
                       counted(run.model.layers, "block"));
    const auto scale = spec::fixed_loss_scale(run);
    if (scale != 1) text += scale ? concat(", loss scale ", *scale) : ", dynamic loss scale";
    if (p.gradients == "f32" && p.reduce == "bf16") text += " sent in bf16";
    for (const auto& [name, type] : {std::pair{"m", run.optimizer.m}, {"v", run.optimizer.v}})
        if (type != "f32") text += concat(", ", name, " in ", type);
    return text;
}

std::string recompute(const spec::RunSpec& run) {
    const std::string& policy = run.recompute.policy;
    const int64_t segment = spec::recompute_of(policy, run.model.layers).segment;
    if (segment == 0) return policy;
    return concat(policy, ": segments of ", counted(segment, "block"));
}

double tokens_per_step(const spec::TrainSpec& train) {
    return static_cast<double>(train.global_batch) * static_cast<double>(train.seq_len);
}

std::string step_line(const spec::TrainSpec& train, const models::ModelCounts& counts) {
    const double flops = counts.model.causal() * tokens_per_step(train);
    return concat(format_count(tokens_per_step(train)), " tokens: ", counted(train.global_batch, "sequence"), " of ",
                  train.seq_len, ", ", counted(train.global_batch / train.micro_batch, "microbatch"), " of ",
                  train.micro_batch, ", ", format_flops(flops));
}

// "ring", "ulysses", "ulysses 2 x ring 4"
std::string context_method(const spec::ParallelSpec& parallel) {
    const int64_t ulysses = spec::ulysses_ranks(parallel);
    if (ulysses == 1) return parallel.cp_method;
    if (ulysses == parallel.cp) return "ulysses";
    return concat("ulysses ", ulysses, " x ", parallel.cp_method, " ", parallel.cp / ulysses);
}

// "8 ranks: tp 2 with sequence parallelism x dp_replicate 2 x dp_shard 2, ZeRO-3"
std::string mesh(const spec::RunSpec& run, int ranks, int64_t parameters) {
    const spec::ParallelSpec& parallel = run.parallel;
    if (ranks == 1) return "1 rank";
    if (parallel.strategy == "parameter_server") {
        const int64_t P = parameters, n = ranks;
        const int64_t gradients = 4 * P, weights = size_of(spec::compute_dtype(run)) * P;
        return concat(ranks, " ranks, a parameter server: in a step rank 0 receives and sends ",
                      format_bytes((n - 1) * (gradients + weights)), ", another rank ",
                      format_bytes(gradients + weights), "; with collectives each would send ",
                      format_bytes(2 * gradients / n * (n - 1)));
    }
    const std::string tp =
        parallel.tp == 1
            ? ""
            : concat("tp ", parallel.tp, parallel.sequence_parallel ? " with sequence parallelism x " : " x ");
    const std::string cp = parallel.cp == 1 ? "" : concat("cp ", parallel.cp, " (", context_method(parallel), ") x ");
    const std::string pp = parallel.pp == 1 ? "" : concat(" x pp ", parallel.pp);
    const int64_t experts = parallel.ep * parallel.etp;
    const std::string ep =
        experts == 1 ? ""
                     : concat("; experts: ", parallel.etp > 1 ? concat("etp ", parallel.etp, " x ") : "", "ep ",
                              parallel.ep, " x edp ", ranks / parallel.dp_replicate / parallel.pp / experts);
    return concat(ranks, " ranks: ", tp, cp, "dp_replicate ", parallel.dp_replicate, " x dp_shard ",
                  spec::data_parallel_shards(parallel, ranks), pp, ep, ", ZeRO-", parallel.zero);
}

// --- The box ---

std::string repeated(const std::string& piece, size_t times) {
    std::string text;
    for (size_t i = 0; i < times; ++i) text += piece;
    return text;
}

class Box {
  public:
    static constexpr size_t kInner = kCardColumns - 4, kLabel = 15;  // columns between "| " and " |"

    void top(const std::string& title) { rule(title, "┌", "┐"); }
    void middle(const std::string& title) { rule(title, "├", "┤"); }
    void bottom() { rule("", "└", "┘"); }

    // "name        text", the text wrapped below itself, a longer word cut.
    void field(const std::string& name, const std::string& text) {
        std::string label = name;
        for (std::string rest : lines_of(text, kInner - kLabel)) {
            do {
                const std::string part(first_columns(rest, kInner - kLabel));
                line(left(label, kLabel) + part);
                label.clear();
                rest.erase(0, part.size());
            } while (!rest.empty());
        }
    }
    void line(const std::string& text) { text_ += concat("│ ", left(text, kInner), " │\n"); }
    const std::string& text() const { return text_; }

  private:
    void rule(const std::string& title, const std::string& left, const std::string& right) {
        const std::string head = title.empty() ? "" : concat(" ", title, " ");
        text_ += left + "─" + head + repeated("─", kInner + 1 - columns_of(head)) + right + "\n";
    }

    std::string text_;
};

void add_flops(Box& box, const models::ModelCounts& counts) {
    const models::TokenFlops &flops = counts.model, &hardware = counts.hardware;
    const bool attention = flops.full_attention > 0;
    box.field("FLOPs", concat(format_flops(flops.causal()), " per token, forward and backward",
                              attention ? concat(", causal attention (", format_flops(flops.full()), " full)") : ""));
    if (hardware != flops) box.field("", concat(format_flops(hardware.causal()), " with what is recomputed"));
}

void add_memory(Box& box, const Rehearsal& r) {
    const MemoryPlan& memory = r.memory;
    constexpr size_t kBytes = 11, kShare = 9;
    const int64_t total = memory.peak();
    // Each purpose's own largest value, at whatever moment, where that is more than at the peak of the sum.
    std::array<std::string, kPurposes> largest;
    size_t column = 0;
    for (const Purpose purpose : kAllPurposes) {
        if (memory.peaks[purpose] <= memory.at_peak[purpose]) continue;
        largest[to_size(purpose)] = concat("  at most ", format_bytes(memory.peaks[purpose]));
        column = std::max(column, columns_of(largest[to_size(purpose)]));
    }
    const size_t width = Box::kInner - Box::kLabel - kBytes - kShare - 2 - column;
    for (const Purpose purpose : kAllPurposes) {
        const int64_t bytes = memory.at_peak[purpose];
        const double share = total > 0 ? static_cast<double>(bytes) / static_cast<double>(total) : 0;
        box.line(concat(left(std::string(name_of(purpose)), Box::kLabel), right(format_bytes(bytes), kBytes),
                        right(format_percent(share), kShare), "  ",
                        left(repeated("█", static_cast<size_t>(std::lround(share * double(width)))), width),
                        largest[to_size(purpose)]));
    }
    box.line(concat(left("peak", Box::kLabel), right(format_bytes(total), kBytes), "  in the ", memory.peak_place));
    if (memory.offloaded > 0)
        box.line(
            concat(left("offloaded", Box::kLabel), right(format_bytes(memory.offloaded), kBytes), "  beside these"));
    if (r.memory_capacity > 0)
        box.line(concat(left("machine", Box::kLabel), right(format_bytes(r.memory_capacity), kBytes),
                        r.fits ? "  it fits" : "  IT DOES NOT FIT"));
}

void add_communication(Box& box, const std::vector<parallel::GroupTraffic>& communication) {
    constexpr size_t kOperation = 16, kCalls = 8, kBytes = 12;
    std::string group;
    int64_t sent = 0;
    for (const parallel::GroupTraffic& c : communication) {
        sent += c.traffic.sent;
        if (c.group != group) box.field(c.group, concat(c.ranks.size(), " ranks: ", ranks_text(c.ranks)));
        group = c.group;
        box.line(concat(left("", Box::kLabel), left(std::string(name_of(c.operation)), kOperation),
                        right(counted(c.traffic.calls, "call"), kCalls + 2),
                        right(format_bytes(c.traffic.bytes), kBytes), right(format_bytes(c.traffic.sent), kBytes),
                        " sent"));
    }
    if (communication.size() > 1)
        box.line(concat(left("in all", Box::kLabel + kOperation + kCalls + 2 + kBytes),
                        right(format_bytes(sent), kBytes), " sent"));
}

std::string difference(int64_t predicted, int64_t measured) {
    if (predicted == measured) return format_difference(0);
    if (predicted == 0) return "unforeseen";
    return format_difference(static_cast<double>(measured) / static_cast<double>(predicted) - 1);
}

}  // namespace

std::string render_card(const spec::RunSpec& run, const Rehearsal& r, const std::vector<std::string>& stages,
                        const std::string& tokenizer) {
    const spec::ModelSpec& model = run.model;
    const std::string title = concat("plan: ", name_of(model));
    Box box;
    const bool fits = columns_of(title) + 2 <= Box::kInner;
    box.top(fits ? title : "plan");
    if (!fits) box.field("name", name_of(model));
    box.field("model", architecture(model));
    box.field("parameters", parameters(r.counts));
    add_flops(box, r.counts);
    box.field("step", step_line(run.train, r.counts));
    box.field("run",
              concat(run.train.steps, " steps, ",
                     format_count(static_cast<double>(run.train.steps) * tokens_per_step(run.train)), " tokens"));
    for (size_t i = 0; i < stages.size(); ++i) box.field(i == 0 ? "stages" : "", stages[i]);
    box.field("mesh", mesh(run, r.ranks, r.counts.parameters));
    if (!r.pipeline.empty()) box.field("pipeline", r.pipeline);
    box.field("precision", precision(run));
    box.field("recompute", recompute(run));
    box.field("optimizer", optimizer(run.optimizer));
    for (const std::string& line : r.optimizer) box.field("", line);
    if (spec::traits_of(model).tokens) box.field("tokenizer", tokenizer.empty() ? run.data.tokenizer : tokenizer);
    box.field("machine", r.machine);
    const std::string rank = r.ranks == 1 ? "" : concat(" of rank ", r.rank);
    box.middle(concat("memory", rank, ", rehearsed"));
    add_memory(box, r);
    if (!r.communication.empty()) box.middle(concat("communication", rank, " in a step, rehearsed"));
    add_communication(box, r.communication);
    box.bottom();
    return box.text();
}

std::string render_measured(const MemoryPlan& plan, const MemoryByPurpose& measured) {
    constexpr size_t kColumn = 13;
    const MemoryByPurpose& predicted = plan.at_peak;
    const auto row = [](std::string_view name, const std::string& a, const std::string& b, const std::string& c) {
        return concat(left(std::string(name), Box::kLabel), right(a, kColumn), right(b, kColumn), right(c, kColumn));
    };
    const auto bytes_row = [&](std::string_view name, int64_t a, int64_t b) {
        return row(name, format_bytes(a), format_bytes(b), difference(a, b));
    };
    Box box;
    box.top("memory of a rank at its peak, after the first step");
    box.line(row("", "rehearsed", "measured", "difference"));
    for (const Purpose purpose : kAllPurposes)
        box.line(bytes_row(name_of(purpose), predicted[purpose], measured[purpose]));
    box.line(bytes_row("peak", predicted.total(), measured.total()));
    box.bottom();
    return box.text();
}

}  // namespace tutti::rehearsal
