// lectures/tables.cpp: one function for each table.
#include "tutti/lectures/tables.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "tutti/base/error.h"
#include "tutti/base/units.h"
#include "tutti/optim/rules.h"
#include "tutti/published/calibration.h"
#include "tutti/published/memory.h"
#include "tutti/published/step.h"
#include "tutti/rehearsal/rehearse.h"
#include "tutti/schedule/generators.h"
#include "tutti/schedule/timeline.h"
#include "tutti/spec/toml.h"
#include "tutti/spec/validate.h"

namespace tutti::lectures {

namespace {

using published::Model;
using published::PublishedRun;

// `billions` layers of 1e9 parameters each, and no embedding.
Model round_model(double billions) {
    Model m;
    m.layers = billions;
    m.hidden = 10000;
    m.heads = m.kv_heads = m.head_dim = 100;
    m.ffn = 20000;
    return m;
}

// Under Megatron-LM as it is now, or with the scores of attention in memory as in 2022.
PublishedRun run_of(const Model& model, int ranks, const char* software = "megatron-lm core") {
    PublishedRun run;
    run.model = model;
    run.seq = 2048;
    run.ranks = run.dp = ranks;
    run.global_batch = ranks;
    run.software = published::traits_of({.software = software});
    return run;
}

double state_of(const PublishedRun& run) {
    const published::Memory m = memory(run);
    return m.weights + m.gradients + m.optimizer;
}

// A combination of types, told by the keys of a run, and the sum that F.1 of the reference and the papers give it.
struct StateRecipe {
    const char* name;
    std::vector<std::string> keys;
    double textbook;  // bytes of a value of a matrix
};

std::vector<StateRecipe> state_recipes() {
    const std::string gradients = "precision.gradients=bf16", no_master = "precision.master=none",
                      m = "optimizer.m=", v = "optimizer.v=";
    const double u8 = 1 + 4.0 / 256;  // a code, and a share of its block's largest magnitude
    return {{"all f32 (\"16 N\")", {"precision.compute=f32"}, 16},
            {"bf16, the rest f32 (\"18 N\")", {}, 18},
            {"bf16 gradients", {gradients}, 16},
            {"bf16 gradients and m, masters alone (\"12 N\")", {gradients, m + "bf16", "parallel.zero=3"}, 12},
            {"no masters, bf16 gradients (\"2 + 2 + 8\")", {gradients, no_master}, 12},
            {"all bf16 (\"4 x 2\")", {gradients, no_master, m + "bf16", v + "bf16"}, 8},
            {"8-bit AdamW", {m + "u8", v + "u8"}, 10 + 2 * u8},
            {"8-bit AdamW, bf16 gradients", {gradients, m + "u8", v + "u8"}, 8 + 2 * u8},
            {"8-bit AdamW, no masters", {gradients, no_master, m + "u8", v + "u8"}, 4 + 2 * u8},
            {"Muon", {"optimizer.name=muon"}, 14},
            {"Muon, bf16 momentum", {"optimizer.name=muon", m + "bf16"}, 12},
            {"SGD with momentum", {"optimizer.name=sgd"}, 14},
            {"Lion", {"optimizer.name=lion"}, 14}};
}

spec::RunSpec run_of_recipe(const StateRecipe& recipe) { return spec::parse_text("", recipe.name, recipe.keys); }

// Adds columns that are shown alike.
void add(Table& t, Show show, const std::vector<const char*>& names) {
    for (const char* name : names) t.columns.push_back({name, show});
}

Model gpt(double layers, double hidden, double heads) {
    Model m;
    m.layers = layers;
    m.hidden = hidden;
    m.heads = m.kv_heads = heads;
    m.head_dim = hidden / heads;
    m.ffn = 4 * hidden;
    m.vocab = 51200;
    m.mlp_matrices = 2;
    m.tied = true;
    return m;
}

}  // namespace

Table bytes_of_a_parameter() {
    Table t{"bytes_of_a_parameter",
            "Bytes of a parameter in a matrix of a layer: weights + gradients + optimizer state",
            "Rajbhandari et al. 2020 (ZeRO), section 3.1; Dettmers et al. 2022; Jordan et al. 2024",
            {{"recipe"}},
            {},
            "optimizer: state of the rule, and f32 masters of bf16 weights. Masters alone: ZeRO-3 rounds them for each "
            "gather"};
    add(t, Show::bytes_per_value, {"weights", "gradients", "optimizer", "sum", "textbook"});
    t.columns.push_back({"keys"});
    for (const StateRecipe& recipe : state_recipes()) {
        constexpr int64_t kMany = 1 << 20;
        const MemoryByPurpose state = optim::state_bytes(kMany, run_of_recipe(recipe));
        const auto bytes = [&](int64_t all) { return Json(double(all) / kMany); };
        t.rows.push_back({recipe.name, bytes(state[Purpose::weights]), bytes(state[Purpose::gradients]),
                          bytes(state[Purpose::optimizer]), bytes(state.total()), recipe.textbook,
                          recipe.keys.empty() ? "-" : joined(recipe.keys, " ")});
    }
    return t;
}

Table state_of_a_device(const std::string& name, const std::vector<autograd::Parameter*>& parameters, int64_t devices) {
    int64_t values = 0;
    for (const autograd::Parameter* p : parameters) values += p->shape.numel();
    Table t{
        "state_of_a_device",
        concat("State of a device: ", name, ", ", format_count(double(values)), " parameters on ",
               counted(devices, "device")),
        "optim::state_bytes, for each parameter by its role and shape",
        {{"recipe"}, {"bytes of a parameter", Show::bytes_per_value}},
        {},
        "GB = 1e9 bytes, without activations and what is gathered. 8 bits are not for small parameters and tables of "
        "words, Muon is for matrices of layers; the rest has AdamW in f32"};
    add(t, Show::gigabytes, {"ZeRO-0, GB", "ZeRO-1, GB", "ZeRO-2, GB", "ZeRO-3, GB"});
    for (const StateRecipe& recipe : state_recipes()) {
        spec::RunSpec run = run_of_recipe(recipe);
        std::vector<Json> row = {recipe.name, double(optim::state_bytes(parameters, run).total()) / double(values)};
        for (int zero = 0; zero < 4; ++zero) {
            run.parallel.zero = zero;
            const MemoryByPurpose state = optim::state_bytes(parameters, run);
            const auto held = [&](Purpose purpose, int cut_from) {
                return double(state[purpose]) / double(zero >= cut_from ? devices : 1);
            };
            row.emplace_back(held(Purpose::weights, 3) + held(Purpose::gradients, 2) + held(Purpose::optimizer, 1));
        }
        t.rows.push_back(std::move(row));
    }
    return t;
}

Table zero_stages() {
    constexpr int n = 64;
    Table t{"zero_stages",
            "State of a device, 16-bit mixed precision, 64 devices",
            "Rajbhandari et al. 2020 (ZeRO), figure 1: 2 + 2 + 12 bytes of a parameter",
            {{"parameters", Show::count},
             {"stage"},
             {"formula"},
             {"bytes of a parameter", Show::ratio},
             {"formula, GB", Show::gigabytes},
             {"simulator, GB", Show::gigabytes}},
            {},
            "GB = 1e9 bytes"};
    for (const double billions : {1.0, 70.0}) {
        const std::pair<const char*, double> stages[] = {
            {"16", 16}, {"4 + 12/n", 4 + 12.0 / n}, {"2 + 14/n", 2 + 14.0 / n}, {"16/n", 16.0 / n}};
        for (int zero = 0; zero < 4; ++zero) {
            PublishedRun run = run_of(round_model(billions), n);
            run.software.gradient_bytes = 2;
            run.zero = zero;
            const auto& [formula, bytes] = stages[zero];
            t.rows.push_back(
                {billions * 1e9, concat("ZeRO-", zero), formula, bytes, bytes * billions * 1e9, state_of(run)});
        }
    }
    return t;
}

Table activations_of_a_layer() {
    Table t{"activations_of_a_layer",
            "Activations that a layer saves: GPT-3 175B, 16 bits, s 2048, b 1, t 8",
            "Korthikanti et al. 2022, table 2",
            {{"case"}, {"formula"}, {"formula, GB", Show::gigabytes}, {"simulator, GB", Show::gigabytes}},
            {},
            "simulator: a layer without dropout, whose masks are 2 of the 34 bytes"};
    const double s = 2048, b = 1, h = 12288, a = 96, tp = 8, sbh = s * b * h, scores = 5 * a * s / h;
    const auto simulated = [&](int ranks, bool sequence_parallel, simulate::Attention attention,
                               published::Recompute recompute) {
        const auto activations = [&](double layers) {
            PublishedRun run = run_of(gpt(layers, h, a), ranks);
            run.tp = ranks;
            run.dp = 1;
            run.software.sequence_parallel = sequence_parallel;
            run.software.attention = attention;
            run.recompute = recompute;
            return memory(run).activations;
        };
        return activations(2) - activations(1);
    };
    const auto unfused = simulate::Attention::unfused, flash = simulate::Attention::newest;
    const auto row = [&](const char* name, const char* formula, double bytes, double ours) {
        t.rows.push_back({name, formula, bytes, ours});
    };
    row("one device", "sbh (34 + 5as/h)", sbh * (34 + scores), simulated(1, true, unfused, published::Recompute::none));
    row("tensor parallel", "sbh (10 + 24/t + 5as/ht)", sbh * (10 + 24 / tp + scores / tp),
        simulated(8, false, unfused, published::Recompute::none));
    row("tensor and sequence parallel", "sbh (34/t + 5as/ht)", sbh * (34 + scores) / tp,
        simulated(8, true, unfused, published::Recompute::none));
    row("... attention recomputed", "sbh 34/t", sbh * 34 / tp,
        simulated(8, true, unfused, published::Recompute::selective));
    row("... or fused attention", "sbh 34/t", sbh * 34 / tp, simulated(8, true, flash, published::Recompute::none));
    row("... everything recomputed", "sbh 2/t", sbh * 2 / tp, simulated(8, true, unfused, published::Recompute::full));
    return t;
}

namespace {

// A chain of layers, layer by layer: a forward and a backward of a layer each compute one unit, and the input of a
// layer takes one. The inputs of `segments` equal parts are kept; inside a part the inputs are computed again for every
// backward, or once and then kept too.
struct Played {
    int compute = 0, memory = 0;
};
Played play_chain(int layers, int segments, bool keep_inside) {
    Played played;
    std::set<int> held;
    const int length = layers / segments;
    // From the input of layer `from` to that of layer `to`.
    const auto forward = [&](int from, int to, bool keep) {
        for (int layer = from; layer < to; ++layer) {
            ++played.compute;
            if (layer + 1 < layers) held.insert(layer + 1);
            if (layer % length != 0 && !keep) held.erase(layer);
            played.memory = std::max(played.memory, static_cast<int>(held.size()));
        }
    };
    held.insert(0);
    forward(0, layers, length == 1);
    for (int layer = layers - 1; layer >= 0; --layer) {
        const int begin = layer / length * length;
        if (!held.contains(layer)) forward(begin, layer, keep_inside);
        ++played.compute;  // the backward
        held.erase(layer);
    }
    return played;
}

}  // namespace

Table checkpointed_chain() {
    Table t{"checkpointed_chain",
            "Activation checkpointing of a chain of N layers: units of compute, inputs of layers in memory",
            "Stanford CS231n 2025, lecture 11; Chen et al. 2016",
            {{"layers"}, {"kept"}, {"compute", Show::text}},
            {},
            "played: layer by layer; a forward and a backward of a layer compute one unit each. A transformer differs: "
            "its layer is a block of some 15 tensors, so a segment of k blocks that is built again takes more than one "
            "input for each block, and `full` needs less than `sqrt`"};
    add(t, Show::count, {"units", "played compute"});
    add(t, Show::text, {"memory"});
    add(t, Show::count, {"inputs", "played memory"});
    const auto row = [&](int n, const std::string& kept, int segments, bool inside, const char* compute, int units,
                         const char* memory, int inputs) {
        const Played played = play_chain(n, segments, inside);
        t.rows.push_back({n, kept, compute, units, played.compute, memory, inputs, played.memory});
    };
    for (const auto& [n, c] : {std::pair{4, 2}, std::pair{64, 8}}) {
        const int l = n / c;
        row(n, "all", n, false, "2N", 2 * n, "N", n);
        row(n, "the first", 1, false, "N + N(N+1)/2", n + n * (n + 1) / 2, "2", 2);
        row(n, concat(c, " of N, root N"), c, false, "N + N(N/C+1)/2", n + n * (l + 1) / 2, "C + 1", c + 1);
        row(n, concat(c, " and one segment"), c, true, "3N - C", 3 * n - c, "C + N/C - 1", c + l - 1);
    }
    return t;
}

Table pipeline_bubbles() {
    constexpr int p = 8, m = 32;
    Table t{"pipeline_bubbles",
            "Bubble over ideal time: 8 ranks, 32 microbatches, two virtual stages where a schedule has them",
            "Narayanan et al. 2021; Qi et al. 2023 and 2024; DeepSeek-AI 2024",
            {{"schedule"}, {"formula"}},
            {},
            "timeline: the schedule that the trainer runs, forward = input gradient = weight gradient, from the first "
            "start to the last end. Published zero bubbles leave out the wait of the last update"};
    add(t, Show::percent, {"published", "timeline"});
    const double one = double(p - 1) / m;
    const auto row = [&](const char* kind, int v, const char* formula, double published) {
        const auto timeline = schedule::simulate<double>(schedule::generate(kind, {p, v, m}), {});
        const double ideal = 3.0 * v * m;
        t.rows.push_back({kind, formula, published, timeline.makespan / ideal - 1});
    };
    row("gpipe", 1, "(p-1)/m", one);
    row("1f1b", 1, "(p-1)/m", one);
    row("interleaved", 2, "(p-1)/vm", one / 2);
    row("zb-h1", 1, "(p-1)/3m", one / 3);
    row("zb-v", 2, "0", 0);
    row("v-half", 2, "(p-1)/2m", one / 2);
    row("v-min", 2, "2(p-1)/3m", one * 2 / 3);
    return t;
}

Table ring_volumes() {
    constexpr int n = 4;
    Table t{
        "ring_volumes",
        "Values that a rank sends in a step, as multiples of the parameters: 4 data-parallel ranks, rings",
        "Rajbhandari et al. 2020 (ZeRO), section 7",
        {{"stage"}, {"operations"}, {"formula", Show::ratio}, {"rehearsed", Show::ratio}},
        {},
        "rehearsed: all that rank 0 sends in a step of llama-tiny in f32, padded shards and sums of norms included. "
        "Of ZeRO-3 the last unit stays gathered between forward and backward"};
    const std::pair<const char*, double> stages[] = {
        {"all-reduce: 2 (n-1)/n", 2.0},
        {"reduce-scatter + all-gather: 2 (n-1)/n", 2.0},
        {"reduce-scatter + all-gather: 2 (n-1)/n", 2.0},
        {"two all-gathers + reduce-scatter: 3 (n-1)/n", 3.0},
    };
    for (int zero = 0; zero < 4; ++zero) {
        spec::RunSpec run;
        run.data.train = {"none.bin"};
        run.model = spec::preset("llama-tiny");
        run.precision.compute = "f32";
        run.train.global_batch = n;
        run.train.micro_batch = 1;
        run.train.seq_len = 64;
        run.parallel.zero = zero;
        spec::validate(run, n);
        const auto rehearsal = rehearsal::rehearse(run, rehearsal::target_named("cpu-avx2", ComputeType::f32, 1), n, 0);
        double sent = 0;
        for (const parallel::GroupTraffic& traffic : rehearsal.communication) sent += double(traffic.traffic.sent);
        t.rows.push_back({concat("ZeRO-", zero), stages[zero].first, stages[zero].second * (n - 1) / n,
                          sent / 4 / double(rehearsal.counts.parameters)});
    }
    return t;
}

Table utilisation() {
    Table t{
        "utilisation",
        "MFU and HFU: sequence parallelism and selective recompute on A100",
        "Korthikanti et al. 2022, table 5. MFU = 72 B L s h^2 (1 + s/6h + V/12hL) / (time x devices x peak); HFU "
        "counts the recomputed attention: s/3h in place of s/6h",
        {{"model"}, {"devices", Show::count}, {"measured", Show::seconds}, {"simulator", Show::seconds}},
        {},
        "shares of the peak at the measured time. The paper's s/3h counts the recomputed forward of attention three "
        "times (it is a third of s/6h); the simulator counts it once"};
    for (const char* published : {"MFU published", "HFU published"})
        add(t, Show::percent, {published, "by formula", "simulator's FLOPs"});
    const hardware::Cluster a100 = hardware::cluster_named("a100");
    const auto row = [&](const char* name, const Model& m, int ranks, int pp, int v, double b, double batch,
                         double measured, double mfu, double hfu) {
        PublishedRun run = run_of(m, ranks, "megatron-lm 2021");
        run.cluster = a100;
        run.software.sequence_parallel = true;
        run.tp = 8;
        run.pp = pp;
        run.dp = ranks / (8 * pp);
        run.virtual_stages = v;
        run.micro_batch = b;
        run.global_batch = batch;
        run.recompute = published::Recompute::selective;
        run.precision = "fp16";
        const double s = run.seq, h = m.hidden, L = m.layers, V = m.vocab;
        const double base = 72 * batch * L * s * h * h, device_peak = measured * ranks * a100.peak("fp16");
        // The paper's attention is the full one; the recomputed forward is a third of it.
        const double attention = run.tokens() * m.attention_flops(s),
                     full = run.tokens() * m.product_flops() + attention;
        t.rows.push_back({name, double(ranks), measured, step_time(run, {}).total(), mfu,
                          base * (1 + s / (6 * h) + V / (12 * h * L)) / device_peak, full / device_peak, hfu,
                          base * (1 + s / (3 * h) + V / (12 * h * L)) / device_peak,
                          (full + attention / 3) / device_peak});
    };
    row("22B", gpt(48, 6144, 64), 8, 1, 1, 4, 4, 1.10, 0.415, 0.437);
    row("175B", gpt(96, 12288, 96), 64, 8, 3, 1, 64, 13.75, 0.514, 0.528);
    row("530B", gpt(105, 20480, 128), 280, 35, 3, 1, 280, 37.83, 0.560, 0.570);
    row("1T", gpt(128, 25600, 160), 512, 64, 1, 1, 512, 71.49, 0.563, 0.570);
    return t;
}

Table llama3() {
    Table t{"llama3",
            "Llama 3 405B on H100: published rates beside the simulator's",
            "Llama Team 2024 (arXiv 2407.21783), table 4",
            {},
            {},
            "The paper gives no virtual stages and no convention of attention: here 8 (a layer each), ZeRO-2, micro "
            "batch 1, software as the paper tells it, nothing tuned to these rows. low, high: causal, 8 of 10 runs"};
    add(t, Show::count, {"devices", "tp", "cp", "pp", "dp", "sequence", "batch"});
    add(t, Show::percent, {"MFU published", "simulator, causal", "full attention", "low", "high"});
    add(t, Show::count, {"TFLOP/s published", "TFLOP/s, causal"});
    const hardware::Cluster h100 = hardware::cluster_named("h100");
    Model llama;
    llama.layers = 126;
    llama.hidden = 16384;
    llama.ffn = 53248;
    llama.heads = 128;
    llama.kv_heads = 8;
    llama.head_dim = 128;
    llama.vocab = 128256;
    const auto row = [&](int ranks, int cp, double seq, double batch, double published, double tflops) {
        PublishedRun run = run_of(llama, ranks, "llama team 2024");
        run.cluster = h100;
        run.tp = 8;
        run.pp = 16;
        run.cp = cp;
        run.dp = ranks / (8 * 16 * cp);
        run.virtual_stages = 8;
        run.seq = seq;
        run.global_batch = batch;
        run.zero = 2;
        const double seconds = step_time(run, {}).total(), high = std::exp(half_width(run));
        const double full = run.tokens() * (llama.product_flops() + llama.attention_flops(seq));
        const double causal = full - run.tokens() * llama.attention_flops(seq) / 2;
        const double peak = seconds * ranks * h100.peak("bf16"), mfu = causal / peak;
        t.rows.push_back({double(ranks), 8, double(cp), 16, double(run.dp), seq, batch, published, mfu, full / peak,
                          mfu / high, mfu * high, tflops, std::round(mfu * h100.peak("bf16") / 1e12)});
    };
    row(8192, 1, 8192, 2048, 0.43, 430);
    row(16384, 1, 8192, 2048, 0.41, 400);
    row(16384, 16, 131072, 128, 0.38, 380);
    return t;
}

std::vector<Table> all_tables() {
    return {bytes_of_a_parameter(),
            zero_stages(),
            activations_of_a_layer(),
            checkpointed_chain(),
            pipeline_bubbles(),
            ring_volumes(),
            utilisation(),
            llama3()};
}

namespace {

std::string shown(const Json& cell, Show show) {
    if (cell.is_null()) return "-";
    if (cell.is_string()) return cell.text();
    const auto value = cell.get<double>();
    switch (show) {
        case Show::text:
        case Show::count: return value < 1e6 ? concat(value) : format_count(value);
        case Show::bytes_per_value: return format_fixed(value, 2);
        case Show::gigabytes: return format_fixed(value / 1e9, 3);
        case Show::percent: return format_percent(value);
        case Show::seconds: return format_time(value);
        case Show::ratio: return format_fixed(value, 3);
    }
    return "";
}

}  // namespace

std::string render(const Table& t) {
    std::vector<std::vector<std::string>> lines = {{}};
    for (const Table::Column& column : t.columns) lines[0].push_back(column.name);
    for (const auto& row : t.rows) {
        lines.emplace_back();
        for (size_t c = 0; c < row.size(); ++c) lines.back().push_back(shown(row[c], t.columns[c].show));
    }
    std::string text = concat(t.title, '\n');
    for (const auto& line : lines) {
        text += "  ";
        for (size_t c = 0; c < line.size(); ++c) {
            size_t width = 0;
            for (const auto& other : lines) width = std::max(width, columns_of(other[c]));
            text += t.columns[c].show == Show::text ? left(line[c], width + 2) : right(line[c], width) + "  ";
        }
        text.erase(text.find_last_not_of(' ') + 1);
        text += '\n';
    }
    return concat(text, "  [", t.source, "]\n  ", t.note, '\n');
}

Json to_json(const Table& t) {
    Json rows = Json::array(), columns = Json::array();
    for (const Table::Column& column : t.columns) columns.push_back(column.name);
    for (const auto& row : t.rows) rows.push_back(Json(Json::Array(row)));
    return {{"id", t.id},         {"title", t.title}, {"source", t.source},
            {"columns", columns}, {"rows", rows},     {"note", t.note}};
}

}  // namespace tutti::lectures
