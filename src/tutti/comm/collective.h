// comm/collective.h: one communication as plain data: the operation, its tensors, and the bytes sent over links.
// Backends execute a Collective; the flight recorder, the counters and the fault injector of the tests read it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/tensor/tensor.h"

namespace tutti::comm {

enum class Kind : uint8_t {
    all_reduce,
    reduce_scatter,
    all_gather,
    broadcast,
    all_to_all,
    barrier,
    send,
    receive,
};
inline constexpr int kKinds = 8;
std::string_view name_of(Kind kind);  // "all_reduce"
inline bool is_message(Kind kind) { return kind == Kind::send || kind == Kind::receive; }
inline bool is_reduction(Kind kind) { return kind == Kind::all_reduce || kind == Kind::reduce_scatter; }

enum class Reduce : uint8_t { sum, max };

// The properties that ranks must agree on and that messages print.
struct Summary {
    Kind kind = Kind::barrier;
    Reduce reduce = Reduce::sum;
    DType dtype = DType::u8;  // of the input, or of the output of an operation without input
    int64_t count = 0;        // elements of the same tensor
    int64_t bytes = 0;        // of the larger of the two tensors
    int peer = 0;
    std::string text() const;  // "all_reduce of 4096 f32"
};

// n = ranks of the group, r = own rank in it. All tensors contiguous, seen as flat.
//   all_reduce      output = input (in place): reduced over the ranks
//   reduce_scatter  input (n s) -> output (s): part r, reduced; f32 takes f32 or 16-bit input unrounded.
//                   output may be part r of input, and no other
//   all_gather      input (s) -> output (n s), in rank order; input may be part r of output, and no other
//   broadcast       output = input (in place): the values of rank `peer`
//   all_to_all      input: send_counts[p] elements for each rank p, one after another;
//                   output: receive_counts[p] from each
//   send, receive   input to, output from rank `peer`; messages between two ranks arrive in the order of the sends
// Sums add in f32 (f64 and integers in their own type) along one fixed binary tree over the ranks (tree_reduce.h).
struct Collective {
    Kind kind = Kind::barrier;
    Tensor input, output;
    Reduce reduce = Reduce::sum;
    int peer = 0;
    std::vector<int64_t> send_counts, receive_counts;

    Summary summary() const;
};

// Whether two ranks of a group call the same operation. Only all_to_all may differ in the number of elements.
bool agree(const Summary& operation, const Summary& other);
// Error, naming both calls, unless the two ranks agree on their operation `sequence`.
void check_agree(std::string_view group, uint64_t sequence, int rank, const Summary& operation, int other_rank,
                 const Summary& other);

// Bytes that one rank sends over links in the best algorithm, as the literature counts them: all_reduce 2 (n-1)/n S,
// reduce_scatter, all_gather, broadcast and all_to_all (n-1)/n S, S = bytes of the full tensor (parallelism.md, 8). For
// all_to_all with unequal counts: the bytes for other ranks. The planner predicts with the same function.
int64_t bytes_sent(Kind kind, int64_t bytes, int64_t ranks);

}  // namespace tutti::comm
