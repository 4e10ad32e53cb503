#include "tutti/nn/collectives.h"

#include <utility>

namespace tutti::nn {

namespace {

using comm::Communicator;
using Tensors = std::vector<Tensor>;

// In place where no other handle holds x.
Tensor all_reduce(ops::Context& ctx, const Tensor& x, Communicator& ranks) {
    const Tensor sum = x.unique() ? x : ops::cast(ctx, x, x.dtype());
    ranks.all_reduce(sum).wait();
    return sum;
}

Tensor all_gather(ops::Context& ctx, const Tensor& part, Communicator& ranks) {
    Shape shape = part.shape();
    shape[1] *= ranks.size();
    const Tensor x = ops::empty(ctx, shape, part.dtype());
    ranks.all_gather(part, x).wait();
    return x;
}

Tensor reduce_scatter(ops::Context& ctx, const Tensor& x, Communicator& ranks) {
    Shape shape = x.shape();
    check(shape[1] % ranks.size() == 0, "a sequence of ", shape[1], " tokens does not divide over the ", ranks.size(),
          " ranks of group ", ranks.name());
    shape[1] /= ranks.size();
    const Tensor part = ops::empty(ctx, shape, x.dtype());
    ranks.reduce_scatter(x, part).wait();
    return part;
}

}  // namespace

Var copy_to_region(Tape& tape, const Var& x, Communicator& ranks) {
    Var y = tape.record("copy_to_region", {x}, x.value, [&ctx = tape.context(), &ranks](const Tensor& dy, Tensors&) {
        return Tensors{all_reduce(ctx, dy, ranks)};
    });
    y.again = x.again;
    return y;
}

Var reduce_from_region(Tape& tape, Var x, Communicator& ranks) {
    const Var input{{}, x.id};
    const Tensor sum = all_reduce(tape.context(), std::exchange(x.value, {}), ranks);
    return tape.record("reduce_from_region", {input}, sum, [](const Tensor& dy, Tensors&) { return Tensors{dy}; });
}

Var gather_from_sequence(Tape& tape, const Var& x, Communicator& ranks) {
    return tape.record("gather_from_sequence", {x}, all_gather(tape.context(), x.value, ranks),
                       [&ctx = tape.context(), &ranks](const Tensor& dy, Tensors&) {
                           return Tensors{reduce_scatter(ctx, dy, ranks)};
                       });
}

Var reduce_scatter_to_sequence(Tape& tape, const Var& x, Communicator& ranks) {
    return tape.record(
        "reduce_scatter_to_sequence", {x}, reduce_scatter(tape.context(), x.value, ranks),
        [&ctx = tape.context(), &ranks](const Tensor& dy, Tensors&) { return Tensors{all_gather(ctx, dy, ranks)}; });
}

}  // namespace tutti::nn
