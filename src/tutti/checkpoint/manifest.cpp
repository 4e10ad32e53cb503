#include "tutti/checkpoint/manifest.h"

#include <charconv>
#include <map>
#include <set>

#include "tutti/base/json.h"
#include "tutti/base/to_size.h"

namespace tutti::checkpoint {

namespace {

constexpr std::string_view kFormat = "tutti-checkpoint";
constexpr int64_t kVersion = 2;  // 1 had no tensors; a manifest without any is still written as 1
// The same in every version, which distinguishes a newer manifest from a damaged one.
constexpr std::string_view kDigestKey = ",\n \"digest\": \"", kEnd = "\"\n}\n";
constexpr size_t kTailBytes = kDigestKey.size() + 32 + kEnd.size();

Digest128 digest_of(std::string_view text) { return xxh3_128(std::as_bytes(std::span(text))); }

// "3:12,0:4,5": in file 3, sizes (4, 5) at (12, 0). Short, because a manifest has many of them.
std::string to_text(const StoredBlock& stored) {
    return concat(stored.file, ':', joined(stored.block.offset, ","), ':', joined(stored.block.sizes, ","));
}

std::optional<StoredBlock> block_from(std::string_view text) {
    StoredBlock stored;
    const auto number = [&](int64_t& value) {
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        text.remove_prefix(to_size(end - text.data()));
        return error == std::errc();
    };
    if (!number(stored.file)) return std::nullopt;
    for (Shape* numbers : {&stored.block.offset, &stored.block.sizes}) {
        if (!text.starts_with(':')) return std::nullopt;
        do {
            text.remove_prefix(1);
            int64_t value = 0;
            if (text.empty() || text.front() == ':') break;  // of a scalar
            if (numbers->rank() == Shape::kMaxDims || !number(value)) return std::nullopt;
            numbers->push_back(value);
        } while (text.starts_with(','));
    }
    return text.empty() ? std::optional(stored) : std::nullopt;
}

Json to_json(const TensorRecord& tensor) {
    Json blocks = Json::array();
    for (const StoredBlock& stored : tensor.blocks) blocks.push_back(to_text(stored));
    return {{"name", tensor.name},
            {"dtype", name_of(tensor.dtype)},
            {"shape", joined(tensor.shape, ",")},
            {"blocks", blocks}};
}

TensorRecord tensor_from(const Json& json) {
    TensorRecord tensor;
    tensor.name = json.at("name").text();
    const auto dtype = dtype_from(json.at("dtype").text());
    check<DamagedError>(dtype.has_value(), "tensor '", tensor.name, "' has the unknown type ", json.at("dtype").dump());
    tensor.dtype = *dtype;
    const auto shape = block_from(concat("0::", json.at("shape").text()));
    check<DamagedError>(shape.has_value(), "tensor '", tensor.name, "' has the shape ", json.at("shape").dump());
    tensor.shape = shape->block.sizes;
    for (const Json& text : json.at("blocks")) {
        const auto stored = block_from(text.text());
        check<DamagedError>(stored.has_value(), "tensor '", tensor.name, "': ", text.dump(), " is not a block");
        tensor.blocks.push_back(*stored);
    }
    return tensor;
}

// Why this tensor is impossible, or "".
std::string problem_of(const TensorRecord& tensor, size_t files) {
    int64_t bytes = size_of(tensor.dtype);
    for (int64_t size : tensor.shape)
        if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes))
            return concat("tensor '", tensor.name, "' has the shape ", tensor.shape);
    for (const StoredBlock& stored : tensor.blocks)
        if (stored.file < 0 || stored.file >= static_cast<int64_t>(files) || !lies_in(tensor.shape, stored.block))
            return concat("tensor '", tensor.name, "' of shape ", tensor.shape, " cannot have the block ",
                          to_text(stored), " in ", files, " files");
    return "";
}

// The members before the digest: "{ … " without the closing brace.
std::string write_members(const Manifest& manifest) {
    Json files = Json::array();
    for (const FileRecord& file : manifest.files) {
        Json chunks = Json::array();
        for (uint64_t chunk : file.chunks) chunks.push_back(to_hex(chunk));
        files.push_back(
            {{"name", file.name}, {"size", file.size}, {"xxh3_128", to_hex(file.digest)}, {"chunks_xxh3_64", chunks}});
    }
    Json members = {{"format", kFormat},
                    {"version", manifest.tensors.empty() ? 1 : kVersion},
                    {"step", manifest.step},
                    {"config_digest", manifest.config_digest},
                    {"data_fingerprint", manifest.data_fingerprint},
                    {"chunk_bytes", kChunkBytes},
                    {"files", files},
                    {"state", manifest.state}};
    for (const TensorRecord& tensor : manifest.tensors) members["tensors"].push_back(to_json(tensor));
    try {
        std::string text = members.dump(1);
        text.resize(text.size() - 2);  // "\n}"
        return text;
    } catch (const DataError& error) {
        throw Error(concat("a checkpoint's manifest: ", error.what()));
    }
}

// Why this manifest is impossible, or "".
std::string problem_of(const Manifest& manifest) {
    if (manifest.step < 0) return concat("step ", manifest.step, " is negative");
    std::set<std::string> names;
    for (const FileRecord& file : manifest.files) {
        if (!is_plain_file_name(file.name) || file.name == kManifestName)
            return concat("'", file.name, "' is not a file name that a checkpoint may have");
        if (!names.insert(file.name).second) return concat("file '", file.name, "' occurs twice");
        if (file.size < 0) return concat("file '", file.name, "' has the size ", file.size);
        if (static_cast<int64_t>(file.chunks.size()) != chunk_count(file.size))
            return concat("file '", file.name, "' of ", file.size, " bytes has ", file.chunks.size(), " chunk digests");
    }
    names.clear();
    for (const TensorRecord& tensor : manifest.tensors) {
        if (!names.insert(tensor.name).second) return concat("tensor '", tensor.name, "' occurs twice");
        if (std::string problem = problem_of(tensor, manifest.files.size()); !problem.empty()) return problem;
    }
    return "";
}

Manifest from_json(const Json& json) {
    Manifest manifest;
    manifest.step = json.at("step").get<int64_t>();
    manifest.config_digest = json.at("config_digest").text();
    manifest.data_fingerprint = json.at("data_fingerprint").text();
    manifest.state = json.at("state").text();
    for (const Json& entry : json.at("files")) {
        FileRecord file;
        file.name = entry.at("name").text();
        file.size = entry.at("size").get<int64_t>();
        const auto digest = hex128_from(entry.at("xxh3_128").text());
        check<DamagedError>(digest.has_value(), "the digest of file '", file.name, "' is not 32 hexadecimal digits");
        file.digest = *digest;
        for (const Json& text : entry.at("chunks_xxh3_64")) {
            const auto chunk = hex64_from(text.text());
            check<DamagedError>(chunk.has_value(), "a chunk digest of '", file.name, "' is not 16 hexadecimal digits");
            file.chunks.push_back(*chunk);
        }
        manifest.files.push_back(std::move(file));
    }
    if (json.contains("tensors"))
        for (const Json& entry : json.at("tensors")) manifest.tensors.push_back(tensor_from(entry));
    return manifest;
}

}  // namespace

std::string entry_name(std::string_view tensor, const Shape& shape, const Block& block) {
    std::string name(tensor);
    return block == mesh::whole_block(shape) ? name : name + kBlockSeparator + joined(block.offset, ",");
}

std::string write_manifest(const Manifest& manifest) {
    const std::string problem = problem_of(manifest);
    check(problem.empty(), "a checkpoint's manifest: ", problem);
    std::string text = write_members(manifest);
    const std::string digest = to_hex(digest_of(text));
    text.append(kDigestKey).append(digest).append(kEnd);
    check(static_cast<int64_t>(text.size()) <= kMaxManifestBytes, "a checkpoint's manifest has ", text.size(),
          " bytes; at most ", kMaxManifestBytes, " are allowed: use fewer or smaller files, or less trainer state");
    return text;
}

Manifest parse_manifest(std::string_view text, const std::string& path) {
    check<DamagedError>(text.size() > kTailBytes && static_cast<int64_t>(text.size()) <= kMaxManifestBytes, path, ": ",
                        text.size(), " bytes, cannot be a manifest");
    const std::string_view members = text.substr(0, text.size() - kTailBytes);
    const std::string_view tail = text.substr(members.size());
    check<DamagedError>(tail.starts_with(kDigestKey) && tail.ends_with(kEnd), path, ": byte ", members.size(),
                        ": the manifest does not end with its digest: it is cut off or damaged");
    const auto wanted = hex128_from(tail.substr(kDigestKey.size(), 32));
    const Digest128 actual = digest_of(members);
    check<DamagedError>(wanted == actual, path, ": bytes 0 to ", members.size(), ": the digest is ", actual,
                        ", the manifest says ", tail.substr(kDigestKey.size(), 32));
    // A file with a correct digest can still be hostile.
    std::string version;
    try {
        constexpr int kMaxDepth = 4;
        const Json json = Json::parse(std::string(members) + "}", kMaxDepth);
        version = concat("format ", json.at("format"), " version ", json.at("version"));
        if (json["format"] == kFormat && json["version"].is_integer(INT64_MIN, kVersion)) {
            Manifest manifest = from_json(json);
            const std::string problem = problem_of(manifest);
            check<DamagedError>(problem.empty(), problem);
            // One manifest has one spelling, which also refuses unknown keys.
            check<DamagedError>(write_manifest(manifest) == text, "it is not written as Tutti writes it");
            return manifest;
        }
    } catch (const DamagedError& error) {
        throw DamagedError(concat(path, ": ", error.what()));
    } catch (const DataError& error) {
        throw DamagedError(concat(path, ": not a manifest: ", error.what()));
    }
    throw DataError(concat(path, ": ", version, "; this Tutti reads ", kFormat, " up to version ", kVersion,
                           ": use the Tutti that wrote it, or a newer one"));
}

Manifest merge(const std::vector<Manifest>& parts) {
    Manifest whole = parts.at(0);
    std::map<std::string, size_t> places;
    for (size_t i = 0; i < whole.tensors.size(); ++i) places[whole.tensors[i].name] = i;
    for (auto part = parts.begin() + 1; part != parts.end(); ++part) {
        check(part->step == whole.step, "ranks save step ", whole.step, " and step ", part->step, " as one checkpoint");
        const auto files = static_cast<int64_t>(whole.files.size());
        whole.files.insert(whole.files.end(), part->files.begin(), part->files.end());
        for (const TensorRecord& tensor : part->tensors) {
            const auto [place, is_new] = places.emplace(tensor.name, whole.tensors.size());
            if (is_new) whole.tensors.push_back({tensor.name, tensor.dtype, tensor.shape, {}});
            TensorRecord& known = whole.tensors[place->second];
            check(known.dtype == tensor.dtype && known.shape == tensor.shape, "ranks save ", tensor.name, " as ",
                  known.shape, " ", known.dtype, " and as ", tensor.shape, " ", tensor.dtype);
            for (StoredBlock stored : tensor.blocks) {
                stored.file += files;
                known.blocks.push_back(stored);
            }
        }
    }
    return whole;
}

void check_complete(const Manifest& manifest) {
    for (const TensorRecord& tensor : manifest.tensors) {
        std::vector<Block> blocks;
        for (const StoredBlock& stored : tensor.blocks) blocks.push_back(stored.block);
        const std::string problem = tiling_problem(tensor.shape, blocks);
        check(problem.empty(), "a checkpoint would not hold ", tensor.name, " of shape ", tensor.shape, ": ", problem);
    }
}

}  // namespace tutti::checkpoint
