// checkpoint/training_state.h: saves and loads a rank's part of the training state. Values are stored by global
// parameter name, in blocks of global tensors (mesh/block.h), so that a checkpoint of any layout loads under any other.
// Weights in the compute type are not stored, because they are the rounded master weights.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/checkpoint/store.h"
#include "tutti/tensor/tensor.h"

namespace tutti::checkpoint {

using mesh::HeldBlock;

// The part of a tensor that one rank holds.
struct TensorSlice {
    std::string name;
    Shape shape;                    // of the global tensor
    std::vector<HeldBlock> blocks;  // with their places in the values; other values are padding
    Tensor values;                  // (n), contiguous
    bool owned = true;              // false: another rank saves these elements
};

// Memory of the values to be written. copy: a copy; training may continue. borrow: in the tensors' memory where the
// host can read it, which must not change until the file is written; values of other devices are copied.
enum class HostMemory : uint8_t { copy, borrow };

class HostState {
  public:
    HostState(const std::vector<TensorSlice>& slices, HostMemory memory);  // takes the slices that are owned
    // The values of the same slices as they are now, in the memory of the copies before: new memory of the system costs
    // more time than the copy. Error for other slices.
    void update(const std::vector<TensorSlice>& slices);
    // The file of rank `rank`. The file points into this state, which must live until the file is written.
    FileToWrite file(int rank, int ranks) const;
    std::vector<TensorRecord> tensors() const;  // the manifest's records if this is the only file

  private:
    struct Held {
        TensorSlice slice;
        std::unique_ptr<std::byte[]> copy;  // null: borrowed
    };
    std::vector<Held> held_;
};

std::string rank_file_name(int rank, int ranks);  // "rank-00000-of-00001.safetensors"

// Fills every slice from the blocks of the checkpoint, which are verified as they are read. Reads only files with a
// needed block. DataError names a tensor that is missing, held twice, or of another shape or type.
void load_slices(const CheckpointReader& reader, const std::vector<TensorSlice>& slices);

// The tensors of the checkpoint, sorted by name; and the names of those that no slice holds a part of.
std::vector<TensorRecord> stored_tensors(const CheckpointReader& reader);
std::vector<std::string> unwanted_tensors(const CheckpointReader& reader, const std::vector<TensorSlice>& slices);

}  // namespace tutti::checkpoint
