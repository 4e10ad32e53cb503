// simulate/published.cpp: JSON rows into jobs. Missing fields follow from the row's software and year.
#include "tutti/simulate/published.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "tutti/base/error.h"
#include "tutti/base/json.h"

namespace tutti::simulate {
namespace {

// Fields by name; null and missing are alike. UsageError for a field of another type.
class Row {
  public:
    explicit Row(const Json& row) : row_(row) {}
    std::optional<double> number(const char* key) const {
        const Json* field = row_.find(key);
        if (field == nullptr || field->is_null()) return std::nullopt;
        check<UsageError>(field->is_number(), key, ": required a number, got ", field->dump());
        return field->get<double>();
    }
    double number(const char* key, double otherwise) const { return number(key).value_or(otherwise); }
    int integer(const char* key, int otherwise) const { return static_cast<int>(number(key, otherwise)); }
    std::string text(const char* key) const {
        const Json* field = row_.find(key);
        if (field == nullptr || field->is_null()) return "";
        return field->is_string() ? field->text() : field->dump();
    }
    std::optional<bool> flag(const char* key) const {
        const Json* field = row_.find(key);
        if (field == nullptr || field->is_null()) return std::nullopt;
        check<UsageError>(field->is_boolean(), key, ": required true or false, got ", field->dump());
        return field->get<bool>();
    }

  private:
    const Json& row_;
};

std::string lower(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
    return text;
}
bool has(const std::string& text, std::initializer_list<const char*> words) {
    return std::any_of(words.begin(), words.end(), [&](const char* w) { return text.find(w) != std::string::npos; });
}

Stack stack_of(const std::string& text, const std::string& vendor) {
    if (has(text, {"maxtext", "pax", "jax", "xla", "t5x", "levanter", "praxis", "gspmd"}) || vendor == "Google")
        return Stack::xla;
    if (has(text, {"nanotron"})) return Stack::nanotron;
    if (has(text, {"eager"})) return Stack::eager;
    if (has(text, {"torchtitan", "torch.compile", "compile"})) return Stack::compiled;
    if (has(text, {"megatron", "nemo", "mcore", "dgxc", "primus", "megascale"})) return Stack::megatron;
    if (has(text, {"fsdp", "composer", "deepspeed", "llm-foundry", "fairseq", "metaseq", "transformers", "colossal"}))
        return Stack::eager;
    return Stack::megatron;
}

// The newest date that the text names, in years: "2024-12" is 2024.92, "NeMo 26.04" 2026.25.
double year_of(const std::string& text, Attention attention) {
    double year = 0;
    const auto month_at = [&](size_t i) {
        if (i + 3 > text.size() || (text[i] != '-' && text[i] != '.') || !std::isdigit(text[i + 1]) ||
            !std::isdigit(text[i + 2]))
            return 0.5;
        return std::clamp((std::stoi(text.substr(i + 1, 2)) - 1) / 12.0, 0.0, 0.92);
    };
    for (size_t i = 0; i + 4 <= text.size(); ++i) {
        if (text[i] == '2' && text[i + 1] == '0' && std::isdigit(text[i + 2]) && std::isdigit(text[i + 3])) {
            const bool whole =
                (i == 0 || !std::isdigit(text[i - 1])) && (i + 4 == text.size() || !std::isdigit(text[i + 4]));
            const int value = std::stoi(text.substr(i, 4));
            if (whole && value >= 2018 && value <= 2030) year = std::max(year, value + month_at(i + 4));
        }
    }
    if (year == 0) {
        for (size_t i = 0; i + 3 <= text.size(); ++i) {
            if (std::isdigit(text[i]) && std::isdigit(text[i + 1]) && text[i + 2] == '.' &&
                (i == 0 || !std::isdigit(text[i - 1]))) {
                const int value = 2000 + std::stoi(text.substr(i, 2));
                if (value >= 2020 && value <= 2030) year = std::max(year, value + month_at(i + 2));
            }
        }
    }
    if (year == 0) year = attention == Attention::unfused ? 2021 : attention == Attention::flash1 ? 2023 : 2024;
    return year;
}

// "3200 Gb/s per node", "400 Gb/s RDMA per GPU": bytes per second of a device; 0: not said.
double network_of(const std::string& text, int per_node) {
    const size_t at = text.find("Gb/s");
    if (at == std::string::npos) return 0;
    size_t begin = at;
    while (begin > 0 && (std::isdigit(text[begin - 1]) || text[begin - 1] == '.' || text[begin - 1] == ' ')) --begin;
    const double rate = std::atof(text.substr(begin, at - begin).c_str()) * 1e9 / 8;
    const bool each = lower(text).find("per gpu") != std::string::npos;
    return each || rate <= 100e9 ? rate : rate / per_node;
}

void read_model(const Row& row, const std::string& name, Sizes& m) {
    m.layers = row.number("layers", 0);
    m.hidden = row.number("hidden", 0);
    m.heads = row.number("heads", m.hidden / 128);
    m.kv_heads = row.number("kv_heads", m.heads);
    m.head_dim = row.number("head_dim", m.heads > 0 ? m.hidden / m.heads : 0);
    const std::string mlp = lower(row.text("mlp"));
    const bool gated =
        mlp.empty() ? has(name, {"llama", "mistral", "qwen", "deepseek", "mixtral"}) : has(mlp, {"glu", "silu"});
    m.mlp_matrices = gated ? 3 : 2;
    m.ffn = row.number("ffn", gated ? 8 * m.hidden / 3 : 4 * m.hidden);
    m.vocab = row.number("vocab", 50257);
    m.tied = row.flag("tied").value_or(has(name, {"gpt", "mpt", "megatron", "bloom", "mt-nlg"}));
    m.experts = row.number("num_experts", 0);
    m.top_k = row.number("top_k", 0);
    if (m.experts <= 1 || m.top_k <= 0) {
        m.experts = m.top_k = 0;
        return;
    }
    m.expert_ffn = row.number("moe_ffn", m.ffn);
    m.expert_layers = m.layers;
    if (has(name, {"deepseek"}) && m.heads >= 16) {
        m.kv_rank = 512;
        m.q_rank = has(name, {"lite"}) ? 0 : 1536;
        m.rope_dim = 64;
        m.value_dim = 128;
        m.head_dim = 128;
        m.expert_layers = std::max(1.0, m.layers - (has(name, {"v3"}) && m.layers > 8 ? 3 : 1));
        m.shared_ffn = (has(name, {"v2"}) ? 2 : 1) * m.expert_ffn;
    } else if (const auto active = row.number("active_params_b")) {
        // The expert of all tokens that the published count of active parameters implies.
        const double head = m.vocab * m.hidden;
        const double missing = *active * 1e9 - m.active_parameters() - (m.tied ? 0 : head);
        const double implied = missing / (m.layers * m.mlp_matrices * m.hidden);
        if (implied > 0.5 * m.expert_ffn && implied < 20 * m.expert_ffn) m.shared_ffn = implied;
    }
    if (has(name, {"gpt oss", "gpt-oss"})) {
        m.window = 128;
        m.window_layers = m.layers / 2;
    }
}

void read_run(const Row& row, PublishedRun& run) {
    const std::string name = lower(row.text("model"));
    const std::string software = lower(row.text("software") + " " + row.text("source"));
    check<UsageError>(!row.text("gpu").empty(), "gpu must be given");
    run.cluster = hardware::cluster_named(row.text("gpu"));
    Job& job = run.job;
    read_model(row, name, job.model);
    check<UsageError>(job.model.layers >= 1 && job.model.hidden >= 1, "layers and hidden must be given");
    run.cluster.per_node = row.integer("gpus_per_node", run.cluster.per_node);
    if (const auto domain = row.number("nvl_domain")) run.cluster.domain = static_cast<int>(*domain);
    if (run.cluster.vendor == "NVIDIA" && run.cluster.domain <= 8)
        run.cluster.domain = std::min(run.cluster.domain, run.cluster.per_node);
    if (const double rate = network_of(row.text("network"), run.cluster.per_node)) run.cluster.network_bandwidth = rate;
    const std::string hardware_note = row.text("hw_note");
    if (hardware_note.find("2.4 TB/s") != std::string::npos) run.cluster.memory_bandwidth = 2.4e12;
    if (hardware_note.find("500 W") != std::string::npos) run.cluster.power_limit = 500;

    job.seq = row.number("seq_len", 2048);
    job.ranks = row.integer("num_gpus", 1);
    job.tp = row.integer("tp", 1);
    job.cp = row.integer("cp", 1);
    job.pp = row.integer("pp", 1);
    job.ep = row.integer("ep", 1);
    job.micro_batch = row.number("micro_batch", 1);
    const int dp = row.integer("dp", job.dp());
    job.global_batch = row.number("global_batch", job.micro_batch * dp * row.number("grad_accum", 1));
    job.zero = row.integer("zero_stage", 1);

    const std::string recompute = lower(row.text("recompute"));
    job.recompute = recompute.starts_with("full")  ? Recompute::full
                    : recompute.starts_with("sel") ? Recompute::selective
                                                   : Recompute::none;
    const std::string attention = lower(row.text("attn_impl"));
    job.attention = attention.starts_with("unfused")  ? Attention::unfused
                    : attention.starts_with("flash1") ? Attention::flash1
                                                      : Attention::flash2;
    job.stack = stack_of(software + " " + name, run.cluster.vendor);
    job.year = year_of(lower(row.text("software")), job.attention);
    if (attention.empty() && job.year < 2022.5 && job.stack != Stack::xla) job.attention = Attention::unfused;
    job.precision = lower(row.text("precision"));
    if (job.precision.empty()) job.precision = run.cluster.has("bf16") ? "bf16" : "fp16";
    // A source may be named after asynchronous tensor parallelism and hold runs without it.
    job.tp_overlap = has(lower(row.text("software")), {"async tp", "asynctp"}) ||
                     has(software, {"nemo", "dgxc", "megatron-bridge", "megascale"});
    job.token_drop = has(name, {"tokendrop", "token drop"}) || has(software, {"simumax"});
    job.offload.optimizer = row.flag("offload").value_or(false);
    job.sequence_parallel = row.flag("sequence_parallel")
                                .value_or(job.year >= 2023 || (job.year >= 2022.4 && job.recompute != Recompute::full));
    const std::string schedule = lower(row.text("schedule"));
    if (!schedule.empty()) job.schedule = schedule;
    const double per_stage = job.model.layers / job.pp;
    if (const auto chunks = row.number("vpp"))
        job.virtual_stages = std::max(1, static_cast<int>(*chunks));
    else if (job.pp > 1 && job.stack == Stack::megatron && job.year >= 2023 && schedule.empty())
        job.virtual_stages = std::max(1, static_cast<int>(std::min(per_stage, 5.0)));  // interleaved, as recipes do
    job.gradient_bytes = job.stack == Stack::megatron || job.stack == Stack::nanotron ? 4 : 2;
    // Megatron accumulates and reduces gradients in the weights' type when that is fp16, in f32 with bf16.
    if (job.stack == Stack::megatron && job.precision == "fp16") job.reduced_bytes = 2;

    run.seconds = row.number("iter_time_s", 0);
    if (run.seconds <= 0) {
        if (const auto rate = row.number("tokens_per_sec_per_gpu"))
            run.seconds = job.global_batch * job.seq / (*rate * job.ranks);
        else if (const auto flops = row.number("tflops_per_gpu"))
            run.seconds = job.global_batch * job.seq * token_flops(job).full() / (*flops * 1e12 * job.ranks);
    }
    run.memory_bytes = row.number("memory_gib", 0) * 1024 * 1024 * 1024;
    run.problem = layout_problem(job);
}

PublishedRun read_row(const Json& json) {
    const Row row(json);
    PublishedRun run;
    run.id = row.text("id");
    run.family = row.text("family");
    try {
        read_run(row, run);
    } catch (const UsageError& error) {
        run.problem = error.what();
    }
    return run;
}

}  // namespace

std::vector<PublishedRun> read_published(std::string_view text, const std::string& source_name) {
    Json document;
    try {
        document = Json::parse(text);
    } catch (const JsonError& error) {
        throw DataError(concat(source_name, ": ", error.what()));
    }
    const Json* rows = document.find("rows");
    check<DataError>(rows != nullptr && rows->is_array(), source_name,
                     ": required an object with a list \"rows\", got ", document.type_name());
    check<DataError>(rows->begin() != rows->end(), source_name, ": \"rows\" is empty; required at least one run");
    std::vector<PublishedRun> runs;
    for (const Json& row : *rows) runs.push_back(read_row(row));
    return runs;
}

}  // namespace tutti::simulate
