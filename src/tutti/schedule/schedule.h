// schedule/schedule.h: a pipeline schedule as data: for every rank the ordered list of its actions in one step.
// Generators (generators.h), a search (automatic.h) and CSV files give schedules, validate() proves them (validate.h),
// lowering adds messages and unshards (lowering.h), a timeline gives times and drawings (timeline.h). No tensors.
//
// p ranks, S stages, m microbatches. A chunk is one stage of one replica; a rank holds S * replicas / p chunks.
// Bidirectional schedules (Chimera, DualPipe) have two replicas of the model in one pipeline, all others have one.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/base/to_size.h"

namespace tutti::schedule {

enum class Op : uint8_t {
    forward,          // F
    backward,         // B: both gradients
    backward_input,   // I: the gradient of the chunk's input, for which the previous stage waits
    backward_weight,  // W: the gradients of its weights, at any time after I
    overlap,  // a forward and the full backward of another work, run together so that each hides the other's messages
    send_activation,     // the output of this chunk to the next stage
    receive_activation,  // the input of this chunk from the previous stage
    send_gradient,       // the gradient of this chunk's input to the previous stage
    receive_gradient,    // the gradient of this chunk's output from the next stage
    unshard,             // gathers the chunk's weights (FSDP)
    reshard,             // frees the gathered weights
};

// One microbatch on one chunk.
struct Work {
    int replica = 0;
    int stage = 0;
    int microbatch = -1;  // -1: all of them (unshard, reshard)
    auto operator<=>(const Work&) const = default;
};

struct Action {
    Op op = Op::forward;
    int replica = 0;
    int stage = 0;
    int microbatch = -1;
    Work backward;  // overlap: the work of the backward; (replica, stage, microbatch) is the work of the forward

    Work work() const { return {replica, stage, microbatch}; }
    bool operator==(const Action&) const = default;
};
using ChunkKey = std::pair<int, int>;  // (replica, stage)
inline ChunkKey chunk_of(const Action& part) { return {part.replica, part.stage}; }
inline Action action(Op op, const Work& work) { return {op, work.replica, work.stage, work.microbatch, {}}; }

// Whether an action is F, B, I, W or overlap.
inline bool is_compute(Op op) { return op <= Op::overlap; }
inline bool is_message(Op op) { return op >= Op::send_activation && op <= Op::receive_gradient; }
inline bool is_send(Op op) { return op == Op::send_activation || op == Op::send_gradient; }

// The simple actions of an action: a forward and a backward for an overlap, else the action itself.
class Parts {
  public:
    explicit Parts(const Action& whole);
    const Action* begin() const { return parts_; }
    const Action* end() const { return parts_ + count_; }

  private:
    Action parts_[2];
    int count_ = 1;
};

// Which rank holds which chunk. Whether two neighbouring stages need a message follows from the placement alone.
struct Placement {
    int ranks = 1;
    int stages = 1;
    int replicas = 1;
    std::vector<int> rank_of_chunk;  // [replica * stages + stage]

    int rank_of(int replica, int stage) const {
        return rank_of_chunk[to_size(replica) * to_size(stages) + to_size(stage)];
    }
    int chunks_per_rank() const { return stages * replicas / ranks; }
    bool operator==(const Placement&) const = default;
};
Placement loop_placement(int ranks, int chunks);  // stage s on rank s % ranks
Placement v_placement(int ranks);                 // stages r and 2 * ranks - 1 - r on rank r
Placement bidirectional_placement(int ranks);     // replica 0: stage s on rank s; replica 1: on rank ranks - 1 - s

using Program = std::vector<Action>;

struct Schedule {
    std::string name;
    Placement placement;
    std::vector<std::vector<int>> microbatches;  // [replica], ascending: which of 0 ... m-1 the replica works on
    std::vector<Program> programs;               // [rank]

    // Promises of the schedule that validate() proves.
    std::vector<int> peak_bound;  // [rank]: chunks whose saved tensors live at once, until their W; empty: no promise
    bool ascending = true;        // each chunk adds its weight gradients in ascending order of microbatches

    bool updates_each = false;  // PipeDream: a stage updates its weights behind each backward, not once a step

    int total_microbatches() const;
    bool has_messages() const;  // true after insert_messages()
    bool operator==(const Schedule&) const = default;
};

// Whether each chunk adds its weight gradients in ascending order of microbatches, as one rank does.
bool adds_in_ascending_order(const Schedule& schedule);

// PipeDream's weights: [rank][i] is the number of updates in the weights of the rank's i-th compute action. A forward
// takes the newest weights, a backward those of its forward, which the rank has kept.
std::vector<std::vector<int>> weight_versions(const Schedule& schedule);
// [rank]: versions that a rank holds at once, the newest among them.
std::vector<int> versions_held(const Schedule& schedule);

// A schedule without actions; replica 0 works on all microbatches.
Schedule empty_schedule(std::string name, Placement placement, int microbatches);

// The notation of the CSV files of torch.distributed.pipelining: "2F0", "3SEND_F1", "1UNSHARD", "(0F7;7B3)OVERLAP_F_B";
// replica 1 has an apostrophe after the stage: "3'F4".
std::string to_string(const Action& action);
// "rank 2, action 7 (3SEND_F1)", for messages.
std::string place_of(int rank, size_t index, const Action& action);
// "2F0" -> forward of stage 2, microbatch 0. UsageError with the expected form when the text is not an action.
Action parse_action(std::string_view text);

// A file in that format: one row per rank, one cell per action, compute only or with messages (compute_comms). Blank
// cells are idle time and are skipped, as are REDUCE_GRAD and REPLICA_REDUCE: a gradient is summed over ranks and
// replicas after its last contribution (parallel::DataParallel). The placement follows from the actions: a chunk
// belongs to the rank that computes with the chunk. `name` is for messages. UsageError, naming row and cell, for text
// that is no schedule; validate() checks the order.
Schedule parse_csv(std::string_view text, const std::string& name);
Schedule read_csv(const std::string& path);
// All actions in their order. For the compute-only form pass a schedule without messages, or compute_only() of one.
std::string to_csv(const Schedule& schedule);

}  // namespace tutti::schedule
