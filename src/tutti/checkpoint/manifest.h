// checkpoint/manifest.h: MANIFEST.json, the last file of a checkpoint. A checkpoint exists when its manifest is valid:
// it lists every file with size and digests, and ends with a digest of itself.
// Below it: file_writer.h (FileRecord). Called by store.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/checkpoint/file_writer.h"

namespace tutti::checkpoint {

constexpr std::string_view kManifestName = "MANIFEST.json";
constexpr int64_t kMaxManifestBytes = int64_t{64} << 20;

struct Manifest {
    int64_t step = 0;
    std::string config_digest;     // of the run's config; the trainer compares it
    std::string data_fingerprint;  // of the data; the trainer compares it
    std::string state;             // the trainer's own small state, JSON, kept to the byte
    std::vector<FileRecord> files;
    bool operator==(const Manifest&) const = default;
};

std::string write_manifest(const Manifest& manifest);

// DamagedError if one bit is not as written; DataError if a newer version of Tutti wrote it.
Manifest parse_manifest(std::string_view text, const std::string& path);

}  // namespace tutti::checkpoint
