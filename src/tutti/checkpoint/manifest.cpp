#include "tutti/checkpoint/manifest.h"

#include <nlohmann/json.hpp>
#include <set>

#include "tutti/checkpoint/utf8.h"

namespace tutti::checkpoint {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "tutti-checkpoint";
constexpr int64_t kVersion = 1;
// The same in every version, so that a newer manifest is told from a damaged one.
constexpr std::string_view kDigestKey = ",\n \"digest\": \"", kEnd = "\"\n}\n";
constexpr size_t kTailBytes = kDigestKey.size() + 32 + kEnd.size();

Digest128 digest_of(std::string_view text) { return xxh3_128(std::as_bytes(std::span(text))); }

// The members before the digest: "{ … " without the closing brace.
std::string write_members(const Manifest& manifest) {
    Json files = Json::array();
    for (const FileRecord& file : manifest.files) {
        Json chunks = Json::array();
        for (uint64_t chunk : file.chunks) chunks.push_back(to_hex(chunk));
        files.push_back(
            {{"name", file.name}, {"size", file.size}, {"xxh3_128", to_hex(file.digest)}, {"chunks_xxh3_64", chunks}});
    }
    const Json members = {{"format", kFormat},
                          {"version", kVersion},
                          {"step", manifest.step},
                          {"config_digest", manifest.config_digest},
                          {"data_fingerprint", manifest.data_fingerprint},
                          {"chunk_bytes", kChunkBytes},
                          {"files", files},
                          {"state", manifest.state}};
    std::string text = members.dump(1);
    text.resize(text.size() - 2);  // "\n}"
    return text;
}

// Why this manifest cannot be, or "".
std::string problem_of(const Manifest& manifest) {
    if (manifest.step < 0) return concat("step ", manifest.step, " is negative");
    std::set<std::string> names;
    for (const FileRecord& file : manifest.files) {
        if (!is_plain_file_name(file.name) || file.name == kManifestName)
            return concat("'", file.name, "' is not a file name that a checkpoint may have");
        if (!names.insert(file.name).second) return concat("file '", file.name, "' comes twice");
        if (file.size < 0) return concat("file '", file.name, "' has the size ", file.size);
        if (static_cast<int64_t>(file.chunks.size()) != chunk_count(file.size))
            return concat("file '", file.name, "' of ", file.size, " bytes has ", file.chunks.size(), " chunk digests");
    }
    return "";
}

Manifest from_json(const Json& json) {
    Manifest manifest;
    manifest.step = json.at("step").get<int64_t>();
    json.at("config_digest").get_to(manifest.config_digest);
    json.at("data_fingerprint").get_to(manifest.data_fingerprint);
    json.at("state").get_to(manifest.state);
    for (const Json& entry : json.at("files")) {
        FileRecord file;
        entry.at("name").get_to(file.name);
        file.size = entry.at("size").get<int64_t>();
        const auto digest = hex128_from(entry.at("xxh3_128").get_ref<const std::string&>());
        check<DamagedError>(digest.has_value(), "the digest of file '", file.name, "' is not 32 hexadecimal digits");
        file.digest = *digest;
        for (const Json& text : entry.at("chunks_xxh3_64")) {
            const auto chunk = hex64_from(text.get_ref<const std::string&>());
            check<DamagedError>(chunk.has_value(), "a chunk digest of '", file.name, "' is not 16 hexadecimal digits");
            file.chunks.push_back(*chunk);
        }
        manifest.files.push_back(std::move(file));
    }
    return manifest;
}

}  // namespace

std::string write_manifest(const Manifest& manifest) {
    const std::string problem = problem_of(manifest);
    check(problem.empty(), "a checkpoint's manifest: ", problem);
    for (const std::string* text : {&manifest.config_digest, &manifest.data_fingerprint, &manifest.state})
        check(find_invalid_utf8(*text) == std::string_view::npos, "a checkpoint's manifest: a text is not UTF-8");
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
    try {
        // A file with a right digest can still be hostile: limit the depth before a DOM is built of it.
        const auto shallow = [](int depth, Json::parse_event_t, const Json&) {
            check<DamagedError>(depth <= 4, "it is nested too deeply");
            return true;
        };
        const Json json = Json::parse(std::string(members) + "}", shallow);
        check<DataError>(json.at("format") == kFormat && json.at("version") == kVersion, "format ",
                         json.at("format").dump(), " version ", json.at("version").dump(), "; this Tutti reads ",
                         kFormat, " version ", kVersion, ": use the Tutti that wrote it, or a newer one");
        Manifest manifest = from_json(json);
        const std::string problem = problem_of(manifest);
        check<DamagedError>(problem.empty(), problem);
        // One manifest has one spelling. This refuses duplicate and unknown keys, too.
        check<DamagedError>(write_manifest(manifest) == text, "it is not written as Tutti writes it");
        return manifest;
    } catch (const DamagedError& error) {
        throw DamagedError(concat(path, ": ", error.what()));
    } catch (const DataError& error) {
        throw DataError(concat(path, ": ", error.what()));
    } catch (const Json::exception& error) {
        throw DamagedError(concat(path, ": not a manifest: ", error.what()));
    }
}

}  // namespace tutti::checkpoint
