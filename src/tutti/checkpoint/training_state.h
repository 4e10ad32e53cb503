// checkpoint/training_state.h: named tensors to and from a checkpoint: the part of this room that knows tensors. Values
// are stored by global parameter name; the compute-type weights are not stored, because they are the rounded masters.
// Below: store.h, safetensors.h. Called by train/checkpointing.cpp and by whoever reads weights (generate, inspect).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/checkpoint/store.h"
#include "tutti/tensor/tensor.h"

namespace tutti::checkpoint {

// The tensors' values on the host, to be written. `copy`: training may go on meanwhile. `borrow`: nobody changes the
// tensors until the file is written, so a device that is the host lends its memory and only other devices are copied.
enum class HostMemory : uint8_t { copy, borrow };

class HostState {
  public:
    HostState(const std::vector<NamedTensor>& tensors, HostMemory memory);
    // The file of rank `rank`; points into this state, which must live until the file is written.
    FileToWrite file(int rank, int ranks) const;
    int64_t copied_bytes() const;

  private:
    struct Piece {
        NamedTensor source;
        std::unique_ptr<std::byte[]> copy;  // null: borrowed
    };
    std::vector<Piece> pieces_;
};

std::string rank_file_name(int rank, int ranks);  // "rank-00000-of-00001.safetensors"

// Fills every tensor from the checkpoint, verified as it is read. DataError names what is missing or has another shape
// or type; with `whole`, also what is there and was not asked for.
void load_tensors(const CheckpointReader& reader, const std::vector<NamedTensor>& tensors, bool whole);

}  // namespace tutti::checkpoint
