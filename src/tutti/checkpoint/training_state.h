// checkpoint/training_state.h: a rank's part of the training state to and from a checkpoint: the part of this room that
// knows tensors. Values are stored by global parameter name, in blocks of global tensors (mesh/block.h), so that any
// layout loads under any other; the compute-type weights are not stored, because they are the rounded masters.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/checkpoint/store.h"
#include "tutti/tensor/tensor.h"

namespace tutti::checkpoint {

using mesh::HeldBlock;

// What one rank holds of a tensor.
struct Piece {
    std::string name;
    Shape shape;                    // of the global tensor
    std::vector<HeldBlock> blocks;  // where they lie in the values; what belongs to none is padding
    Tensor values;                  // (n), contiguous
    bool owned = true;              // false: another rank saves these elements, this one only loads them
};
Piece whole_piece(const std::string& name, const Tensor& tensor);

// The pieces' values on the host, to be written. `copy`: training may go on meanwhile. `borrow`: nothing changes the
// tensors until the file is written, so a device that is the host lends its memory and only other devices are copied.
enum class HostMemory : uint8_t { copy, borrow };

class HostState {
  public:
    HostState(const std::vector<Piece>& pieces, HostMemory memory);  // of those that are owned
    // The file of rank `rank`; points into this state, which must live until the file is written.
    FileToWrite file(int rank, int ranks) const;
    std::vector<TensorRecord> tensors() const;  // what a manifest says of it when it is the only file
    int64_t copied_bytes() const;

  private:
    struct Held {
        Piece piece;
        std::unique_ptr<std::byte[]> copy;  // null: borrowed
    };
    std::vector<Held> held_;
};

std::string rank_file_name(int rank, int ranks);  // "rank-00000-of-00001.safetensors"

// Fills every piece from whatever blocks the checkpoint has, verified as they are read; opens only files with a block
// that is needed. DataError names what is missing, held twice, or of another shape or type.
void load_pieces(const CheckpointReader& reader, const std::vector<Piece>& pieces);

// The tensors of the checkpoint, sorted by name, and those of them of which no piece holds anything.
std::vector<TensorRecord> stored_tensors(const CheckpointReader& reader);
std::vector<std::string> unwanted_tensors(const CheckpointReader& reader, const std::vector<Piece>& pieces);

}  // namespace tutti::checkpoint
