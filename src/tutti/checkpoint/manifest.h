// checkpoint/manifest.h: MANIFEST.json, the last file of a checkpoint. A checkpoint exists when its manifest is valid.
// The manifest lists every file with size and digests, every tensor with the blocks of it that the files hold, and ends
// with a digest of itself. A rank sends its part of a checkpoint to rank 0 as a manifest too.
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

// The name of a block in a file: "wte.weight" for the whole tensor, else "wte.weight@12,0", with the block's offset. No
// tensor's name contains kBlockSeparator.
constexpr char kBlockSeparator = '@';
std::string entry_name(std::string_view tensor, const Shape& shape, const Block& block);

// A block of a tensor and the file that holds it, as the entry entry_name().
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
    std::string config_digest;     // of the run's config
    std::string data_fingerprint;  // of the data
    std::string state;             // the trainer's state as JSON, kept to the byte
    std::vector<FileRecord> files;
    std::vector<TensorRecord> tensors;  // empty in version 1, where every entry of a file is a whole tensor
    bool operator==(const Manifest&) const = default;
};

std::string write_manifest(const Manifest& manifest);

// DamagedError if one bit differs from the written bytes; DataError if a newer version of Tutti wrote it.
Manifest parse_manifest(std::string_view text, const std::string& path);

// One manifest from the parts of all ranks; step and state are those of the first part. Error when the parts belong to
// different checkpoints.
Manifest merge(const std::vector<Manifest>& parts);
// Error unless the files together hold every element of every tensor exactly once.
void check_complete(const Manifest& manifest);

}  // namespace tutti::checkpoint
