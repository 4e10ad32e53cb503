#include "tutti/hf/export.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "tutti/base/json.h"
#include "tutti/base/to_size.h"
#include "tutti/checkpoint/digest.h"
#include "tutti/hf/expert_tensors.h"
#include "tutti/spec/hf/config.h"
#include "tutti/spec/hf/generation.h"
#include "tutti/spec/later_names.h"

namespace tutti::hf {

using autograd::Parameter;
using checkpoint::File;
using checkpoint::FileKind;
using checkpoint::FileSystem;
using checkpoint::join;

namespace {

constexpr int64_t kMaxSideFile = int64_t{1} << 30;
constexpr const char* kConfig = "config.json";
constexpr const char* kGeneration = "generation_config.json";
constexpr const char* kTokenizer = "tokenizer.json";
constexpr const char* kTokenizerConfig = "tokenizer_config.json";

void write_file(FileSystem& disk, const std::string& directory, const checkpoint::FileToWrite& file) {
    checkpoint::NewFile(disk, join(directory, file.name), file.size()).write(file);
}

std::string read_file(FileSystem& disk, const std::string& path) {
    return checkpoint::read_text(File::open(disk, path), kMaxSideFile);
}

// Whether two specs describe the same function; initialisation and training may differ.
bool same_function(spec::ModelSpec a, const spec::ModelSpec& b) {
    a.preset = b.preset;
    a.hf = b.hf;
    a.dropout = b.dropout;
    a.init_std = b.init_std;
    a.mtp_depth = b.mtp_depth;
    a.mtp_weight = b.mtp_weight;
    a.moe.aux_loss = b.moe.aux_loss;
    a.moe.aux_coef = b.moe.aux_coef;
    a.moe.z_coef = b.moe.z_coef;
    a.moe.capacity_factor = b.moe.capacity_factor;
    a.moe.drop = b.moe.drop;
    return a == b;
}

// The original config.json has values that a ModelSpec lacks: token ids, the name of the architecture, the positions.
std::string config_text(FileSystem& disk, const spec::ModelSpec& spec, const ExportOptions& options, DType stored) {
    if (!options.config.empty()) return options.config;
    const std::string original = options.side_files.empty() ? "" : join(options.side_files, kConfig);
    if (!original.empty() && disk.kind(original) != FileKind::none) {
        const std::string text = read_file(disk, original);
        // A config.json for images and text is not that of what is written.
        if (spec::text_config(text, original)) return spec::to_hf_config(spec, stored);
        const bool has_depth = spec.mtp_depth == 0 || spec::mtp_depth_of(text) == spec.mtp_depth;
        if (has_depth && same_function(spec::model_from_hf_config(text, original), spec))
            return options.dtype || spec::names_dtype(text) ? spec::hf_config_with_dtype(text, stored) : text;
    }
    return spec::to_hf_config(spec, stored);
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

// The name by which transformers looks for the file of a tokenizer; "" for bytes and directories.
std::string name_of_tokenizer(const std::string& tokenizer) {
    if (tokenizer.ends_with(".model")) return "tokenizer.model";
    return tokenizer.ends_with(".json") ? kTokenizer : "";
}

// Whether the side files have the tokenizer of the run, or the run has none of its own.
bool has_tokenizer_of_run(FileSystem& disk, const ExportOptions& options) {
    const std::string name = name_of_tokenizer(options.tokenizer), beside = join(options.side_files, name);
    if (name.empty() || disk.kind(options.tokenizer) == FileKind::none) return true;
    return disk.kind(beside) != FileKind::none && read_file(disk, beside) == read_file(disk, options.tokenizer);
}

// Writes the tokenizer of a run, under the name by which transformers looks for it, and the files beside it.
void write_tokenizer(FileSystem& disk, const ExportOptions& options, const std::string& directory,
                     std::vector<std::string>& written) {
    const std::string& tokenizer = options.tokenizer;
    const std::string name = options.tokenizer_json.empty() ? name_of_tokenizer(tokenizer) : kTokenizer;
    if (name.empty() || contains(written, name)) return;
    const auto write = [&](const std::string& to, const std::string& text) {
        checkpoint::write_file_atomically(disk, directory, {.name = to, .head = text});
        written.push_back(to);
    };
    if (!options.tokenizer_json.empty()) {
        write(name, options.tokenizer_json);
    } else {
        write(name, read_file(disk, tokenizer));
        const size_t slash = tokenizer.rfind('/');
        const std::string folder = slash == std::string::npos ? "." : tokenizer.substr(0, slash + 1);
        for (const std::string& beside : files_beside_tokenizers())
            if (!contains(written, beside) && disk.kind(join(folder, beside)) != FileKind::none)
                write(beside, read_file(disk, join(folder, beside)));
    }
    if (name != kTokenizer) return;
    // Without a class, transformers takes that of the model, which splits texts in its own way and adds tokens.
    const bool there = contains(written, kTokenizerConfig);
    const std::string path = join(directory, kTokenizerConfig);
    Json config = Json::parse(there ? read_file(disk, path) : "{}");
    if (config.contains("tokenizer_class")) return;
    config["tokenizer_class"] = "PreTrainedTokenizerFast";
    checkpoint::write_file_atomically(disk, directory, {.name = kTokenizerConfig, .head = config.dump(2) + "\n"});
    if (!there) written.emplace_back(kTokenizerConfig);
}

// config.json and, where it is there or has a token to name, generation_config.json, from which transformers generates.
void write_with_tokens(FileSystem& disk, const std::string& directory, const std::string& config,
                       const spec::HfTokens& tokens, std::vector<std::string>& written) {
    const std::string with = spec::hf_json_with_tokens(config, kConfig, tokens);
    checkpoint::write_file_atomically(disk, directory, {.name = kConfig, .head = with});
    if (!contains(written, kConfig)) written.insert(written.begin(), kConfig);
    const std::string path = join(directory, kGeneration);
    const bool there = disk.kind(path) != FileKind::none;
    if (there || !tokens.eos.empty() || tokens.bos || tokens.pad) {
        // transformers takes ids that generation_config.json lacks from nowhere else.
        spec::HfTokens all = tokens;
        if (!there) all.eos = spec::eos_tokens(with, kConfig);
        const std::string text = there ? read_file(disk, path) : "{}\n";
        checkpoint::write_file_atomically(disk, directory,
                                          {.name = kGeneration, .head = spec::hf_json_with_tokens(text, path, all)});
        if (!contains(written, kGeneration)) written.emplace_back(kGeneration);
    }
}

// A tensor of a file, and the parameters or the part of one in it: rows in their order.
struct FileTensor {
    std::string name;
    std::vector<const Parameter*> parameters;
    PartOf part;
    DType dtype;
    Shape shape;
};

int64_t row_in_file(const autograd::StoredAs& stored, int64_t row) {
    return stored.first_row + row / stored.row_block * stored.row_step + row % stored.row_block;
}

std::vector<FileTensor> file_tensors(const models::Model& model, const StoredWeights& weights,
                                     const ExportOptions& options) {
    std::vector<FileTensor> all;
    std::map<std::string, size_t> places;  // of tensors that several parameters share
    for (const Parameter* p : model.parameters()) {
        const std::vector<std::string> names = tensor_names(*p);
        if (const auto known = places.find(names.front()); known != places.end()) {
            all[known->second].parameters.push_back(p);
            continue;
        }
        if (p->stored_as.rows > 0) places[names.front()] = all.size();
        const DType dtype = p->type(options.dtype.value_or(weights.dtype(p->name)));
        for (const std::string& name : names)
            all.push_back(
                {name, {p}, {&name - names.data(), static_cast<int64_t>(names.size())}, dtype, shape_in_file(*p)});
    }
    for (const TensorCopy& copy : copies_in_files(model))
        all.push_back({copy.name, {copy.of}, {}, options.dtype.value_or(weights.dtype(copy.of->name)), copy.of->shape});
    for (const auto& [name, place] : places) {
        std::vector<int> owners(to_size(all[place].parameters.front()->stored_as.rows));
        for (const Parameter* p : all[place].parameters)
            for (int64_t row = 0; row < p->shape[in_one_tensor(*p) ? 1 : 0]; ++row)
                ++owners.at(to_size(row_in_file(p->stored_as, row)));
        for (size_t row = 0; row < owners.size(); ++row)
            check(owners[row] == 1, name, ": row ", row, " is of ", owners[row], " parameters; required: of one");
    }
    return all;
}

// The tensor of all experts, put together of its parameters.
std::vector<std::byte> experts_of(const FileTensor& t, const StoredWeights& weights, Losses& losses) {
    const int64_t size = size_of(t.dtype);
    std::vector<std::byte> all(to_size(t.shape.numel() * size));
    for (const Parameter* p : t.parameters) {
        const ExpertLayout layout = expert_layout(*p);
        const std::vector<std::byte> values = weights.read(*p, t.dtype, losses);
        const auto each = to_size(layout.values() * size);
        const auto in_file = to_size(layout.file_values() * size);
        for (size_t e = 0; e < to_size(layout.experts); ++e)
            layout.put(size, std::span(values).subspan(e * each, each), std::span(all).subspan(e * in_file, in_file));
    }
    return all;
}

// The values of a tensor of a file.
std::vector<std::byte> bytes_of(const FileTensor& t, const StoredWeights& weights, Losses& losses) {
    if (in_one_tensor(*t.parameters.front())) return experts_of(t, weights, losses);
    const Parameter& first = *t.parameters.front();
    if (first.stored_as.rows == 0) return weights.read(first, t.dtype, losses, first.stored_as.transposed, t.part);
    const auto bytes_of_row = to_size(t.shape.numel() / t.shape[0] * size_of(t.dtype));
    std::vector<std::byte> all(to_size(t.shape[0]) * bytes_of_row);
    for (const Parameter* p : t.parameters) {
        const std::vector<std::byte> rows = weights.read(*p, t.dtype, losses);
        for (int64_t row = 0; row < p->shape[0]; ++row)
            std::copy_n(rows.begin() + row * static_cast<int64_t>(bytes_of_row), bytes_of_row,
                        all.begin() + row_in_file(p->stored_as, row) * static_cast<int64_t>(bytes_of_row));
    }
    return all;
}

// In the order of the model, cut greedily where a shard is full.
std::vector<std::vector<FileTensor>> shards(std::vector<FileTensor> tensors, int64_t max_shard_bytes) {
    std::vector<std::vector<FileTensor>> all(1);
    int64_t filled = 0;
    for (FileTensor& tensor : tensors) {
        const int64_t bytes = tensor.shape.numel() * size_of(tensor.dtype);
        if (!all.back().empty() && filled + bytes > max_shard_bytes) {
            all.emplace_back();
            filled = 0;
        }
        all.back().push_back(std::move(tensor));
        filled += bytes;
    }
    return all;
}

std::string shard_name(size_t index, size_t count) {
    if (count == 1) return std::string(checkpoint::kSingleFile);
    char text[64];
    std::snprintf(text, sizeof text, "model-%05zu-of-%05zu.safetensors", index + 1, count);
    return text;
}

}  // namespace

const std::vector<std::string>& side_files() {
    static const std::vector<std::string> kNames = {kConfig,
                                                    kGeneration,
                                                    kTokenizer,
                                                    kTokenizerConfig,
                                                    "special_tokens_map.json",
                                                    "added_tokens.json",
                                                    "vocab.json",
                                                    "merges.txt",
                                                    "tokenizer.model",
                                                    "chat_template.jinja",
                                                    "chat_template.json"};
    return kNames;
}

const std::vector<std::string>& files_beside_tokenizers() {
    static const std::vector<std::string> kNames = {
        kTokenizerConfig,      "special_tokens_map.json", kGeneration, "added_tokens.json",
        "chat_template.jinja", "chat_template.json",      kTokenizer};
    return kNames;
}

std::vector<std::string> copy_side_files(FileSystem& disk, const std::string& from, const std::string& to,
                                         std::optional<DType> dtype, bool tokenizer) {
    std::vector<std::string> copied;
    checkpoint::make_directories(disk, to);
    for (const std::string& name : side_files()) {
        const bool of_model = name == kConfig || name == kGeneration;
        if ((!tokenizer && !of_model) || disk.kind(join(from, name)) == FileKind::none) continue;
        std::string text = read_file(disk, join(from, name));
        if (dtype && name == kConfig) text = spec::hf_config_with_dtype(text, *dtype);
        checkpoint::write_file_atomically(disk, to, {.name = name, .head = text});
        copied.push_back(name);
    }
    checkpoint::write_sums(disk, to, copied);
    return copied;
}

std::vector<std::string> write_directory(FileSystem& disk, const std::string& directory, const models::Model& model,
                                         const StoredWeights& weights, const ExportOptions& options, Losses& losses) {
    const spec::ModelSpec& spec = model.spec();
    const std::string config = config_text(disk, spec, options, options.dtype.value_or(weights.main_dtype(model)));
    std::vector<std::string> written;
    if (!options.side_files.empty())
        written = copy_side_files(disk, options.side_files, directory, {}, has_tokenizer_of_run(disk, options));
    write_tokenizer(disk, options, directory, written);
    write_with_tokens(disk, directory, config, options.tokens, written);

    const auto parts = shards(file_tensors(model, weights, options), options.max_shard_bytes);
    std::map<std::string, std::string> index;
    int64_t total = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
        const std::string name = shard_name(i, parts.size());
        std::vector<std::byte> bytes;  // of the tensor that is being written
        std::vector<checkpoint::TensorToWrite> tensors;
        for (const FileTensor& t : parts[i]) {
            const int64_t size = t.shape.numel() * size_of(t.dtype);
            const auto make = [&bytes, &weights, &losses, &options, &t] {
                if (options.between_tensors) options.between_tensors();
                bytes = bytes_of(t, weights, losses);
                return std::span<const std::byte>(bytes);
            };
            tensors.push_back({t.name, t.dtype, {t.shape.begin(), t.shape.end()}, {size, make}});
            index[t.name] = name;
            total += size;
        }
        write_file(disk, directory, checkpoint::safetensors_file(name, std::move(tensors)));
        written.push_back(name);
    }
    if (parts.size() > 1) {
        written.emplace_back(checkpoint::kIndexFile);
        write_file(disk, directory, {.name = written.back(), .head = checkpoint::write_index(index, total)});
    }
    checkpoint::write_sums(disk, directory, written);
    written.emplace_back(checkpoint::kSumsName);
    return written;
}

}  // namespace tutti::hf
