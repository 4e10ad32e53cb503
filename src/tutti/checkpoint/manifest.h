// checkpoint/manifest.h: MANIFEST.json, the last file of a checkpoint. A checkpoint exists when its manifest is valid:
// it lists every file with size and digests, every tensor with the blocks that the files hold of it, and ends with a
// digest of itself. A rank's part of a checkpoint travels to rank 0 as a manifest, too.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/dtype.h"
#include "tutti/checkpoint/file_writer.h"
#include "tutti/mesh/block.h"

namespace tutti::checkpoint {

constexpr std::string_view kManifestName = "MANIFEST.json";
constexpr int64_t kMaxManifestBytes = int64_t{64} << 20;

using mesh::Block;

// The name of a block in a file: "wte.weight" for all of the tensor, else "wte.weight@12,0", with its offset. No tensor
// has kBlockSeparator in its name.
constexpr char kBlockSeparator = '@';
std::string entry_name(std::string_view tensor, const Shape& shape, const Block& block);

// A block of a tensor and where it is: the entry entry_name() of a safetensors file.
struct StoredBlock {
    int64_t file = 0;  // in Manifest::files
    Block block;
    bool operator==(const StoredBlock&) const = default;
};

struct TensorRecord {
    std::string name;
    DType dtype = DType::f32;
    Shape shape;  // global
    std::vector<StoredBlock> blocks;
    bool operator==(const TensorRecord&) const = default;
};

struct Manifest {
    int64_t step = 0;
    std::string config_digest;     // of the run's config; the trainer compares it
    std::string data_fingerprint;  // of the data; the trainer compares it
    std::string state;             // the trainer's own small state, JSON, kept to the byte
    std::vector<FileRecord> files;
    std::vector<TensorRecord> tensors;  // none in version 1: there every entry of a file is a whole tensor
    bool operator==(const Manifest&) const = default;
};

std::string write_manifest(const Manifest& manifest);

// DamagedError if one bit is not as written; DataError if a newer version of Tutti wrote it.
Manifest parse_manifest(std::string_view text, const std::string& path);

// One manifest of the parts that the ranks wrote; step and state are those of the first. Error when they do not belong
// together.
Manifest merge(const std::vector<Manifest>& parts);
// Error when the files together do not hold every element of every tensor exactly once.
void check_complete(const Manifest& manifest);

}  // namespace tutti::checkpoint
