// comm/mpi/parts.h: how a collective is cut: into chunks that fit a slot of shared memory, and each chunk into parts
// that different ranks work on. Plain numbers, no communication. Used by staged_operation.cpp.
#pragma once

#include <vector>

#include "tutti/comm/collective.h"
#include "tutti/comm/mpi/group_shape.h"

namespace tutti::comm::mpi {

struct Chunk {
    uint64_t number = 0;  // over all operations of the group
    int64_t begin = 0;    // in elements: of the whole vector, or of each rank's part of it
    int64_t count = 0;
};

// A range of a chunk. One rank, its owner, reduces it for all hosts, or has it and gives it to all; on every other host
// the handler of its lane works with the owner. So everybody who wants it finds it with a rank of its own host.
struct Part {
    int owner = 0, lane = 0, host = 0;
    int64_t begin = 0, count = 0;  // elements, in the slot
    int64_t home = 0;              // element of the full tensor (n parts long) where the part begins
};

class Cutting {
  public:
    // `capacity`: elements that fit a slot.
    Cutting(const GroupShape& shape, const Collective& collective, int64_t capacity);

    uint64_t chunks() const { return chunks_; }
    Chunk chunk(uint64_t index, uint64_t first_number) const;
    std::vector<Part> parts(const Chunk& chunk) const;

  private:
    const GroupShape& shape_;
    bool by_rank_;   // part r belongs to rank r: reduce_scatter, all_gather
    int64_t total_;  // elements of the vector, or of a rank's part
    int64_t per_chunk_;
    uint64_t chunks_;
};

}  // namespace tutti::comm::mpi
