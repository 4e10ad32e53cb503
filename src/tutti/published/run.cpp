// published/run.cpp: JSON rows into runs. Missing fields follow from the row's software.
#include "tutti/published/run.h"

#include <algorithm>
#include <optional>
#include <regex>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/strings.h"
#include "tutti/published/memory.h"
#include "tutti/simulate/prediction.h"

namespace tutti::published {
namespace {

// Other spellings of a field.
constexpr std::pair<std::string_view, std::string_view> kSpellings[] = {
    {"micro_batch", "mbs"}, {"grad_accum", "gas"}, {"global_batch", "gbs"}, {"zero_stage", "zero"}};

// Fields by name; null and missing are alike. A field that the row lacks is looked up in the table's meta: in
// meta.models under the row's model, then in meta itself. UsageError for a field of another type.
class Row {
  public:
    Row(const Json& row, const Json* meta) {
        tables_.push_back(&row);
        if (meta == nullptr) return;
        const Json *model = row.find("model"), *models = meta->find("models");
        if (model != nullptr && model->is_string() && models != nullptr)
            if (const Json* sizes = models->find(model->text())) tables_.push_back(sizes);
        tables_.push_back(meta);
    }
    std::optional<double> number(const char* key) const {
        const Json* field = given(key);
        if (field == nullptr) return std::nullopt;
        check<UsageError>(field->is_number(), key, ": required a number, got ", field->shown());
        const double value = field->get<double>();
        check<UsageError>(value >= 0 && value <= kMost, key, ": required a number from 0 to ", kMost, ", got ", value);
        return value;
    }
    // 0 counts as missing.
    double number(const char* key, double otherwise) const {
        const double value = number(key).value_or(0);
        return value != 0 ? value : otherwise;
    }
    int integer(const char* key, int otherwise) const {
        const double value = number(key, otherwise);
        check<UsageError>(value == std::floor(value) && value <= 1 << 30, key,
                          ": required a whole number of at most 2^30, got ", value);
        return static_cast<int>(value);
    }
    std::string text(const char* key) const {
        const Json* field = given(key);
        if (field == nullptr) return "";
        return field->is_string() ? field->text() : field->shown();
    }
    std::optional<bool> flag(const char* key) const {
        const Json* field = given(key);
        if (field == nullptr) return std::nullopt;
        check<UsageError>(field->is_boolean(), key, ": required true or false, got ", field->shown());
        return field->get<bool>();
    }

  private:
    static constexpr double kMost = 1e15;

    const Json* given(std::string_view key) const {
        for (const Json* table : tables_) {
            const Json* field = table->find(key);
            for (const auto& [name, other] : kSpellings)
                if (field == nullptr && name == key) field = table->find(other);
            if (field != nullptr && !field->is_null()) return field;
        }
        return nullptr;
    }
    std::vector<const Json*> tables_;  // the row first
};

// A device as rows name it: "NVIDIA H100 80GB HBM3", "A100-SXM4-40GB", "TPU v5p", "GB200 NVL72". What follows a
// parenthesis or a comma is a remark. UsageError for a device that the catalog lacks.
hardware::Cluster device_named(const std::string& text) {
    const std::vector<std::string> names = hardware::cluster_names();
    const auto is_known = [&](const std::string& name) {  // reads no description for a name of the catalog
        return std::ranges::find(names, lower_case(name)) != names.end() || hardware::is_cluster(name);
    };
    if (is_known(text)) return hardware::cluster_named(text);
    static const std::regex kWord("[a-z0-9.]+");
    static const std::regex kRest(
        "nvidia|amd|google|aws|instinct|tesla|geforce|gpus?|dgx|hgx|oam|"
        "sxm[0-9]?|hbm[0-9]?e?|nvl[0-9]+|[0-9]+g(b|ib)?");
    const std::string named = lower_case(text.substr(0, text.find_first_of("(,")));
    std::string name;
    for (auto word = std::sregex_iterator(named.begin(), named.end(), kWord); word != std::sregex_iterator(); ++word) {
        const std::string each = word->str();
        if (name == "a100" && each.starts_with("40")) name += "-40";  // the memory tells two devices apart
        if (!std::regex_match(each, kRest)) name += (name.empty() ? "" : "-") + each;
    }
    std::string joined = name;
    std::erase(joined, '-');
    for (const std::string& tried : {name, joined, concat("tpu-", name)})
        if (is_known(tried)) return hardware::cluster_named(tried);
    return hardware::cluster_named(text);
}

// "8 x 400 Gb/s", "3200 Gb/s per node", "400 Gb/s RDMA per GPU", "4 x 25 GB/s": bytes per second of a device; 0: not
// said.
double network_of(const std::string& text, int per_node) {
    static const std::regex kRate(R"((?:(\d+)\s*x\s*)?(\d{1,6})\s*G(?:([bB])/s|bps|bit/s))");
    std::smatch found;
    if (!std::regex_search(text, found, kRate)) return 0;
    const double rate = std::stod(found[2]) * (found[3] == "B" ? 1e9 : 1e9 / 8);
    if (found[1].matched) return std::stod(found[1]) * rate / per_node;
    return text.find("per GPU") != std::string::npos ? rate : rate / per_node;
}

void read_model(const Row& row, const std::string& name, int tp, Model& m) {
    m.layers = row.number("layers", 0);
    m.hidden = row.number("hidden", 0);
    check<UsageError>(m.layers >= 1 && m.hidden >= 1, "layers and hidden must be given");
    m.heads = row.number("heads", std::max(1.0, std::floor(m.hidden / 128)));
    m.kv_heads = row.number("kv_heads", m.heads);
    m.head_dim = row.number("head_dim", std::floor(m.hidden / m.heads));
    const std::string mlp = lower_case(row.text("mlp"));
    m.ffn = row.number("ffn", row.number("moe_ffn", 4 * m.hidden));
    // Where the row does not say: a gated part that has as many values as an ungated one of 4 h is narrower.
    const bool gated =
        has(mlp, {"glu"}) || (mlp.empty() && (m.ffn != 4 * m.hidden ||
                                              has(name, {"llama", "mistral", "qwen", "deepseek", "grok", "mixtral"})));
    m.mlp_matrices = gated || has(name, {"oss"}) ? 3 : 2;
    const double part = 128.0 * tp;  // padded so that the ranks' shares are multiples of 128
    m.vocab = std::ceil(row.number("vocab", 50257) / part) * part;
    m.tied = row.flag("tied").value_or(has(name, {"gpt", "mpt", "megatron", "bloom", "mt-nlg"}));
    m.latent = has(name, {"deepseek"}) && m.heads >= 16;
    m.experts = row.number("num_experts", 0);
    m.top_k = row.number("top_k", 0);
    if (m.experts <= 1 || m.top_k <= 0) m.experts = m.top_k = 0;
    if (m.experts > 0) {
        m.expert_ffn = row.number("moe_ffn", m.ffn);
        if (m.latent) {
            m.shared_ffn = m.expert_ffn;
            m.dense_layers = m.layers > 20 ? 3 : 1;
        }
    }
    if (has(name, {"gpt oss", "gpt-oss", "gpt_oss"})) m.window = 128;
}

Recompute recompute_of(const std::string& text) {
    if (text.starts_with("full")) return Recompute::full;
    if (has(text, {"op-level"})) return Recompute::operations;
    if (has(text, {"every k-th"})) return Recompute::every_second;
    if (has(text, {"selective"})) return Recompute::selective;
    if (has(text, {"norm"})) return Recompute::norms;
    const bool all = text == "yes" || text == "true" || text == "on" ||
                     has(text, {"uniform", "block", "activation checkpointing", "gradient checkpointing"});
    return all && !text.starts_with("no") ? Recompute::full : Recompute::none;
}

// The stage of ZeRO that a row's software has where the row does not say.
int zero_of(const std::string& software) {
    if (has(software, {"zero-3", "zero3", "fsdp", "torchtitan", "maxtext"})) return 3;
    if (has(software, {"zero-2", "zero2"})) return 2;
    return has(software, {"zero-1", "zero1", "nemo", "dgxc"}) ? 1 : 0;
}

// Families of one maker share software, machines and recipes.
std::string house_of(const std::string& family) {
    for (const char* of : {"dgxc", "nemo", "mcore"})
        if (family.starts_with(of)) return "nemo and dgxc";
    return family;
}

void read_machine(const Row& row, hardware::Cluster& c) {
    check<UsageError>(!row.text("gpu").empty(), "gpu must be given, in the row or in meta");
    c = device_named(row.text("gpu"));
    const bool nodes = c.domain <= 8;  // the link ends at the node
    const int usual = c.per_node;
    c.per_node = row.integer("gpus_per_node", usual);
    // A DGX-2 has the 8 adapters of a DGX-1 for 16 GPUs (data sheets).
    if (c.generation == "volta" && c.per_node > usual) c.network_bandwidth *= double(usual) / c.per_node;
    c.segment = 0;  // a row says what its job took
    if (const auto domain = row.number("nvl_domain"))
        c.domain = std::max(1, static_cast<int>(*domain));
    else if (nodes)
        c.domain = c.per_node;
    if (const double rate = network_of(row.text("network"), c.per_node)) c.network_bandwidth = rate;
    const std::string note = row.text("hw_note");
    if (note.find("2.4 TB/s") != std::string::npos) c.memory_bandwidth = 2.4e12;
    if (note.find("500 W") != std::string::npos) c.power_limit = 500;
}

void read_run(const Row& row, PublishedRun& run) {
    const std::string name = lower_case(row.text("model"));
    read_machine(row, run.cluster);
    run.ranks = row.integer("num_gpus", std::max(1, row.integer("nodes", 0) * run.cluster.per_node));
    run.tp = row.integer("tp", 1);
    run.cp = row.integer("cp", 1);
    run.pp = row.integer("pp", 1);
    run.ep = row.integer("ep", 1);
    read_model(row, name, run.tp, run.model);
    const Model& m = run.model;
    run.virtual_stages = std::max(1, row.integer("vpp", 1));
    // The embedding and the loss may count as layers of the first and the last chunk (Megatron-LM's
    // account_for_embedding_in_pipeline_split); more chunks than that are layers of a chunk, as some sources give them.
    if (run.virtual_stages * run.pp > m.layers + 2)
        run.virtual_stages = std::max(1, static_cast<int>(m.layers / run.pp));
    run.dp = std::max(1, row.integer("dp", run.ranks / std::max(1, run.tp * run.cp * run.pp)));
    run.zero = row.number("zero_stage") ? row.integer("zero_stage", 0) : zero_of(lower_case(row.text("software")));
    check<UsageError>(run.zero <= 3, "zero_stage: required 0 to 3, got ", run.zero);
    run.seq = row.number("seq_len", 2048);
    run.micro_batch_given = row.number("micro_batch").value_or(0) > 0;
    run.micro_batch = row.number("micro_batch", 1);
    run.global_batch = row.number("global_batch", run.micro_batch * run.dp * row.number("grad_accum", 1));
    run.local_batch = row.number("local_batch", 0);
    run.schedule = lower_case(row.text("schedule"));
    run.offload_optimizer = row.flag("offload").value_or(false);
    run.precision = lower_case(row.text("precision"));
    if (run.precision.empty()) run.precision = run.cluster.sixteen_bits();
    if (run.has("float8")) run.precision = "fp8";
    check<UsageError>(has(run.precision, {"16", "half", "mixed", "amp", "fp8", "fp4", "32"}),
                      "precision: required fp32, tf32, fp16, bf16, fp8 or fp4, with or without a recipe, got ",
                      run.precision);
    run.estimated = row.text("tier") == "3";

    Named named{.software = lower_case(row.text("software")),
                .model = name,
                .attention = lower_case(row.text("attn_impl")),
                .recompute = lower_case(row.text("recompute")),
                .family = run.family,
                .experts = m.experts > 0,
                .blackwell = run.cluster.generation.starts_with("blackwell"),
                .volta = run.cluster.generation == "volta",
                .tp = run.tp > 1,
                .bf16 = run.has("bf16")};
    run.software = traits_of(named);
    if (const auto given = row.flag("sequence_parallel"))
        if (run.software.attention != simulate::Attention::unfused) run.software.sequence_parallel = *given;
    run.recompute = recompute_of(*run.software.recompute != 0 ? run.software.recompute : named.recompute);

    run.seconds = row.number("iter_time_s", 0);
    if (run.seconds <= 0) {
        const double flops = m.product_flops() + m.attention_flops(run.seq);
        const double rate = row.number("tokens_per_sec_per_gpu", 0), reported = row.number("tflops_per_gpu", 0);
        if (rate > 0)
            run.seconds = run.tokens() / (rate * run.ranks);
        else if (reported > 0)
            run.seconds = run.tokens() * flops / (reported * 1e12 * run.ranks);
    }
    run.memory_bytes = row.number("memory_gib", 0) * 1024 * 1024 * 1024;
    if (run.memory_bytes == 0) run.memory_bytes = 1e9 * row.number("memory_gb", 0);
    run.problem = layout_problem(run);
}

PublishedRun read_row(const Json& json, const Json* meta) {
    const Row row(json, meta);
    PublishedRun run;
    run.id = row.text("id");
    run.family = row.text("family");
    run.house = row.text("house").empty() ? house_of(run.family) : row.text("house");
    try {
        read_run(row, run);
    } catch (const UsageError& error) {
        run.problem = error.what();
    }
    return run;
}

}  // namespace

std::vector<Model::Matrix> Model::attention(double tp) const {
    // DeepSeek-V3: queries by a rank of 1536, keys and values by one of 512, and 64 rotated dimensions.
    if (latent)
        return {{1536, hidden},
                {std::floor(heads * 192 / tp), 1536},
                {576, hidden},
                {std::floor(heads * 256 / tp), 512},
                {hidden, std::floor(heads * 128 / tp)}};
    const double queries = std::floor(heads * head_dim / tp);
    const double keys = std::max(head_dim, std::floor(kv_heads * head_dim / tp));
    return {{queries + 2 * keys, hidden}, {hidden, queries}};
}

std::vector<Model::Matrix> Model::mlp(double width, double tp) const {
    return {{std::floor((mlp_matrices - 1) * width / tp), hidden}, {hidden, std::floor(width / tp)}};
}

double Model::values_of(const std::vector<Matrix>& matrices) {
    double values = 0;
    for (const Matrix& matrix : matrices) values += matrix.values();
    return values;
}

double Model::product_flops() const {
    double values = vocab * hidden;
    for (const Matrix& matrix : attention(1)) values += layers * matrix.values();
    values += (layers - expert_layers()) * mlp_matrices * hidden * ffn;
    values += expert_layers() * (mlp_matrices * hidden * (top_k * expert_ffn + shared_ffn) + hidden * experts);
    return 6 * values;
}

double Model::attention_flops(double seq) const {
    const double seen = window > 0 && window < seq ? (seq + 2 * window - window * window / seq) / 2 : seq;
    return 6 * layers * heads * (query_dim() + value_dim()) * seen;
}

std::vector<PublishedRun> read_runs(std::string_view text, const std::string& source_name) {
    Json document;
    try {
        document = Json::parse(text);
    } catch (const JsonError& error) {
        throw DataError(concat(source_name, ": ", error.what()));
    }
    const Json* rows = document.is_array() ? &document : document.find("rows");
    check<DataError>(rows != nullptr && rows->is_array(), source_name,
                     ": required a list of rows, or an object with a list \"rows\", got ",
                     document.is_object() ? "an object without one" : document.type_name());
    check<DataError>(rows->begin() != rows->end(), source_name, ": \"rows\" is empty; required at least one run");
    std::vector<PublishedRun> runs;
    for (const Json& row : *rows) runs.push_back(read_row(row, document.find("meta")));
    return runs;
}

const std::vector<PublishedRun>& calibration_runs() {
    static const std::vector<PublishedRun> runs = read_runs(calibration_rows(), "tests/published/runs.json");
    return runs;
}

std::vector<std::string> kinds_of(const PublishedRun& run) {
    const int domain = run.cluster.domain;
    std::vector<std::string> kinds = {simulate::kind_of(run.cluster)};
    const auto add = [&](bool is, const char* name) {
        if (is) kinds.emplace_back(name);
    };
    add(run.tp > 1 && run.tp <= domain, "tp in a node");
    add(run.tp > domain, "tp across nodes");
    add(run.cp > 1 && run.cp * run.tp <= domain, "cp in a node");
    add(run.cp > 1 && run.cp * run.tp > domain, "cp across nodes");
    add(run.pp > 1, run.virtual_stages > 1 ? "pp interleaved" : "pp");
    add(run.model.experts > 0, "experts");
    add(run.ep > 1 && run.ep > domain, "ep across nodes");
    add(run.zero == 3, "zero 3");
    add(run.recompute == Recompute::full, "full recompute");
    add(run.microbatches() <= 1, "one microbatch");
    add(run.has("fp8"), "8 bits");
    add(run.has("fp4"), "4 bits");
    add(run.ranks >= 256, "256 devices and more");
    add(run.software.attention == simulate::Attention::unfused, "unfused attention");
    kinds.push_back(run.software.name);
    const bool across = run.ranks > domain, pipeline = run.pp > 1;
    if (run.software.tp_stall > 0) {  // a system whose groups between nodes stall
        add(across && (pipeline || run.tp > domain), "nanotron across nodes");
        add(run.ranks >= (pipeline ? 256 : 512), "nanotron on 256 devices and more");
    }
    return kinds;
}

}  // namespace tutti::published
