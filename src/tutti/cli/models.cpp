// cli/models.cpp: `tutti models`: the presets with their sizes, the model_types of Hugging Face that are read, and what
// of each is supported. Everything is derived: counts from the modules, export from the writer of config.json.

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/units.h"
#include "tutti/cli/commands.h"
#include "tutti/models/flops.h"
#include "tutti/spec/hf/config.h"

namespace tutti::cli {

namespace {

struct Listed {
    spec::ModelSpec spec;
    int64_t parameters, active;
    std::string model_type;  // of its config.json; "": no class of transformers has it
};

Listed listed(const std::string& preset) {
    const spec::ModelSpec spec = spec::preset(preset);
    const models::Model model = models::outline(spec);
    Listed row{spec, models::parameter_count(model), models::active_parameter_count(model), ""};
    try {
        row.model_type = Json::parse(spec::to_hf_config(spec, DType::bf16))["model_type"].text();
    } catch (const UsageError&) {  // an mlp
    }
    return row;
}

// What can be done with the model: every preset trains and is planned; texts need words.
std::vector<std::string> supported(const Listed& row) {
    std::vector<std::string> all = {"train", "plan"};
    if (spec::traits_of(row.spec).tokens) all.emplace_back("generate");
    if (!row.model_type.empty()) all.emplace_back("export");
    return all;
}

Json to_json(const Listed& row) {
    const spec::ModelSpec& m = row.spec;
    return {{"preset", m.preset},
            {"family", name_of(m.family)},
            {"model_type", row.model_type.empty() ? Json(nullptr) : Json(row.model_type)},
            {"parameters", row.parameters},
            {"active_parameters", row.active},
            {"width", m.width},
            {"layers", m.layers},
            {"heads", m.heads},
            {"kv_heads", m.kv_heads},
            {"head_dim", m.head_dim},
            {"ffn", m.ffn},
            {"vocab", m.vocab},
            {"max_positions", m.max_positions},
            {"supported", supported(row)}};
}

}  // namespace

int models(const Io& io) {
    Json presets = Json::array();
    std::vector<Listed> rows;
    for (const std::string& name : spec::preset_names()) {
        rows.push_back(listed(name));
        presets.push_back(to_json(rows.back()));
    }
    const std::vector<std::string> types = spec::hf_model_types();
    io.print(Json{{"presets", presets}, {"model_types", types}});
    if (io.json) return 0;
    io.out << left("preset", 20) << left("model_type", 17) << right("parameters", 16) << right("C", 7) << right("L", 5)
           << right("H/KV/D", 12) << right("F", 7) << right("V", 8) << "  supported\n";
    for (const Listed& row : rows) {
        const spec::ModelSpec& m = row.spec;
        io.out << left(m.preset, 20) << left(row.model_type.empty() ? "-" : row.model_type, 17)
               << right(concat(row.parameters), 16) << right(concat(m.width), 7) << right(concat(m.layers), 5)
               << right(concat(m.heads, "/", m.kv_heads, "/", m.head_dim), 12) << right(concat(m.ffn), 7)
               << right(concat(m.vocab), 8) << "  " << joined(supported(row)) << '\n';
    }
    io.out
        << "\nModels of Hugging Face (--set model.hf=DIR) are read by model_type: " << joined(types)
        << ".\nEach preset trains on every layout that its sizes allow; `tutti verify` checks one for your config.\n";
    return 0;
}

}  // namespace tutti::cli
