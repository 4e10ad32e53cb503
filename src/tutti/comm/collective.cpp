#include "tutti/comm/collective.h"

#include <algorithm>

namespace tutti::comm {

std::string_view name_of(Kind kind) {
    switch (kind) {
        case Kind::all_reduce: return "all_reduce";
        case Kind::reduce_scatter: return "reduce_scatter";
        case Kind::all_gather: return "all_gather";
        case Kind::broadcast: return "broadcast";
        case Kind::all_to_all: return "all_to_all";
        case Kind::barrier: return "barrier";
        case Kind::send: return "send";
        case Kind::receive: return "receive";
    }
    return "?";
}

std::string Summary::text() const {
    if (kind == Kind::barrier) return "barrier";
    std::string text = concat(name_of(kind), reduce == Reduce::max ? " (max)" : "", " of ", count, " ", dtype);
    if (kind == Kind::broadcast || kind == Kind::receive) text += concat(" from rank ", peer);
    if (kind == Kind::send) text += concat(" to rank ", peer);
    return text;
}

Summary Collective::summary() const {
    const Tensor& main = input.defined() ? input : output;
    if (!main.defined()) return {.kind = kind};
    return {.kind = kind,
            .reduce = reduce,
            .dtype = main.dtype(),
            .count = main.numel(),
            .bytes = std::max(main.bytes(), output.defined() ? output.bytes() : 0),
            .peer = peer};
}

bool agree(const Summary& operation, const Summary& other) {
    return operation.kind == other.kind && operation.reduce == other.reduce && operation.dtype == other.dtype &&
           operation.peer == other.peer && (operation.kind == Kind::all_to_all || operation.count == other.count);
}

void check_agree(std::string_view group, uint64_t sequence, int rank, const Summary& operation, int other_rank,
                 const Summary& other) {
    check(agree(operation, other), "the ranks of group ", group, " disagree on its operation ", sequence, ": rank ",
          std::min(rank, other_rank), " calls ", (rank < other_rank ? operation : other).text(), ", rank ",
          std::max(rank, other_rank), " calls ", (rank < other_rank ? other : operation).text());
}

int64_t bytes_sent(Kind kind, int64_t bytes, int64_t ranks) {
    switch (kind) {
        case Kind::all_reduce: return 2 * (ranks - 1) * bytes / ranks;
        case Kind::reduce_scatter:
        case Kind::all_gather:
        case Kind::broadcast:
        case Kind::all_to_all: return (ranks - 1) * bytes / ranks;
        case Kind::send: return bytes;
        case Kind::barrier:
        case Kind::receive: return 0;
    }
    return 0;
}

}  // namespace tutti::comm
