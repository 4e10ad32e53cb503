// comm/collective.h: a collective or message as plain data: the operation, its tensors, and the bytes that it sends
// over links.
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

// The properties of an operation on which ranks must agree, and which error messages print.
struct Summary {
    Kind kind = Kind::barrier;
    Reduce reduce = Reduce::sum;
    DType dtype = DType::u8;  // of the input, or of the output if there is no input
    int64_t count = 0;        // elements of that tensor
    int64_t bytes = 0;        // of the larger tensor
    int peer = 0;
    std::string text() const;  // "all_reduce of 4096 f32"
};

// n = ranks of the group, r = own rank. All tensors are contiguous and seen as flat.
//   all_reduce      output = input (in place): reduced over the ranks
//   reduce_scatter  input (n s) -> output (s): part r, reduced. An f32 output of 16-bit input is not rounded.
//                   output may be part r of input, but no other part
//   all_gather      input (s) -> output (n s), in rank order; input may be part r of output, but no other part
//   broadcast       output = input (in place): the values of rank `peer`
//   all_to_all      input: send_counts[p] elements for each rank p, in rank order;
//                   output: receive_counts[p] elements from each
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

// Whether two ranks of a group call the same operation. Only in all_to_all may the numbers of elements differ.
bool agree(const Summary& operation, const Summary& other);
// Error, naming both calls, unless the ranks agree on operation `sequence` of the group.
void check_agree(std::string_view group, uint64_t sequence, int rank, const Summary& operation, int other_rank,
                 const Summary& other);

// Bytes that one rank sends over links under the bandwidth-optimal algorithm, S = `bytes` of the full tensor:
// 2 (n-1)/n S for all_reduce; (n-1)/n S for reduce_scatter, all_gather, broadcast, and all_to_all with equal counts.
int64_t bytes_sent(Kind kind, int64_t bytes, int64_t ranks);

}  // namespace tutti::comm
