#include "tutti/nn/collectives.h"

#include <utility>

#include "tutti/base/to_size.h"

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

Tensor reduce_scatter(ops::Context& ctx, const Tensor& x, Communicator& ranks) {
    Shape shape = x.shape();
    check(shape[1] % ranks.size() == 0, "a sequence of ", shape[1], " tokens does not divide over the ", ranks.size(),
          " ranks of group ", ranks.name());
    shape[1] /= ranks.size();
    const Tensor part = ops::empty(ctx, shape, x.dtype());
    ranks.reduce_scatter(x, part).wait();
    return part;
}

// One rank's side of an exchange of heads for tokens (all_to_all_sp2hp).
class HeadExchange {
  public:
    // x: (B, T, sum of `heads`, D)
    HeadExchange(ops::Context& ctx, Communicator& ranks, const Shape& x, const std::vector<int64_t>& heads)
        : ctx_(ctx), ranks_(ranks), P_(ranks.size()), B_(x[0]), T_(x[1]), D_(x[3]) {
        for (const int64_t H : heads) {
            check<UsageError>(H % P_ == 0 || P_ % H == 0, "an exchange of heads for tokens: ", H, " heads over the ",
                              P_, " ranks of group ", ranks.name(), "; one must divide the other");
            const int64_t share = std::max<int64_t>(H / P_, 1);
            sections_.push_back({heads_, H, share_, share, P_ / (H / share)});
            heads_ += H;
            share_ += share;
        }
        check(heads_ == x[2], "all_to_all: sections of ", heads_, " heads, x ", x);
    }

    // (B, T, heads, D) to (B, T P, share, D)
    Tensor to_heads(const Tensor& x) const {
        const Tensor sent = of_ranks(x.dtype()), received = of_ranks(x.dtype());
        for_each_section(
            [&](int64_t rank, const Section& s) { ops::copy(ctx_, heads(x, rank, s), section(sent, rank, s)); });
        exchange(sent, received);
        const Shape shape{B_, T_ * P_, share_, D_};
        if (B_ == 1) return received.reshape(shape);
        const Tensor y = ops::empty(ctx_, shape, x.dtype());
        for (int64_t rank = 0; rank < P_; ++rank) ops::copy(ctx_, of_rank(received, rank), y.narrow(1, rank * T_, T_));
        return y;
    }
    // And back; heads that several ranks have are summed over them, in f32.
    Tensor to_tokens(const Tensor& y) const {
        Tensor sent = y;
        if (B_ > 1 || !y.contiguous()) {
            sent = of_ranks(y.dtype());
            for (int64_t rank = 0; rank < P_; ++rank) ops::copy(ctx_, y.narrow(1, rank * T_, T_), of_rank(sent, rank));
        }
        const Tensor received = of_ranks(y.dtype());
        exchange(sent, received);
        const Tensor x = ops::empty(ctx_, {B_, T_, heads_, D_}, y.dtype());
        for_each_section([&](int64_t rank, const Section& s) {
            if (s.copies == 1) return ops::copy(ctx_, section(received, rank, s), heads(x, rank, s));
            if (rank % s.copies != 0) return;
            const Tensor sum = ops::zeros(ctx_, {B_, T_, 1, D_}, DType::f32);
            for (int64_t copy = 0; copy < s.copies; ++copy)
                ops::accumulate(ctx_, ops::contiguous(ctx_, section(received, rank + copy, s)), sum);
            ops::cast_into(ctx_, sum, heads(x, rank, s));
        });
        return x;
    }

  private:
    struct Section {
        int64_t first_head, heads;   // of x
        int64_t first_share, share;  // of the heads that a rank gets, those of this section
        int64_t copies;              // ranks that get the same
    };
    // The parts sent to, or received from, the ranks one after another.
    Tensor of_ranks(DType type) const {
        return ops::empty(ctx_, {P_ * B_, T_, share_, D_}, type, Purpose::communication);
    }
    Tensor of_rank(const Tensor& all, int64_t rank) const { return all.narrow(0, rank * B_, B_); }
    Tensor section(const Tensor& all, int64_t rank, const Section& s) const {
        return of_rank(all, rank).narrow(2, s.first_share, s.share);
    }
    // The heads of rank `rank` of a section of x.
    Tensor heads(const Tensor& x, int64_t rank, const Section& s) const {
        return x.narrow(2, s.first_head + rank / s.copies * s.share, s.share);
    }
    template <class Visit>
    void for_each_section(const Visit& visit) const {
        for (int64_t rank = 0; rank < P_; ++rank)
            for (const Section& s : sections_) visit(rank, s);
    }
    void exchange(const Tensor& sent, const Tensor& received) const {
        const std::vector<int64_t> counts(to_size(P_), sent.numel() / P_);
        ranks_.all_to_all(sent, counts, received, counts).wait();
    }

    ops::Context& ctx_;
    Communicator& ranks_;
    int64_t P_, B_, T_, D_;
    int64_t heads_ = 0, share_ = 0;  // of all sections
    std::vector<Section> sections_;
};

}  // namespace

Tensor gather_rows(ops::Context& ctx, const Tensor& part, Communicator& ranks) {
    Shape shape = part.shape();
    shape[1] *= ranks.size();
    const Tensor x = ops::empty(ctx, shape, part.dtype());
    ranks.all_gather(part, x).wait();
    return x;
}

Var copy_to_region(Tape& tape, const Var& x, Communicator& ranks) {
    Var y = tape.record("copy_to_region", {x}, x.value, [&ctx = tape.context(), &ranks](const Tensor& dy, Tensors&) {
        return Tensors{all_reduce(ctx, dy, ranks)};
    });
    y.recomputable = x.recomputable;
    return y;
}

Var reduce_from_region(Tape& tape, Var x, Communicator& ranks) {
    const Var input{{}, x.id};
    const Tensor sum = all_reduce(tape.context(), std::exchange(x.value, {}), ranks);
    return tape.record("reduce_from_region", {input}, sum, [](const Tensor& dy, Tensors&) { return Tensors{dy}; });
}

ops::Operand all_gather_codes(ops::Context& ctx, ops::Operand part, Communicator& ranks) {
    check(part.scales.numel() == 1, "gathered codes have one scale, got ", part.scales.numel());
    part.values = gather_rows(ctx, part.values, ranks);
    part.coding.shape = part.values.shape();
    return part;
}

Var gather_from_sequence(Tape& tape, const Var& x, Communicator& ranks) {
    return tape.record("gather_from_sequence", {x}, gather_rows(tape.context(), x.value, ranks),
                       [&ctx = tape.context(), &ranks](const Tensor& dy, Tensors&) {
                           return Tensors{reduce_scatter(ctx, dy, ranks)};
                       });
}

Var reduce_scatter_to_sequence(Tape& tape, const Var& x, Communicator& ranks,
                               std::function<Tensor(const Tensor& dy)> gather) {
    return tape.record("reduce_scatter_to_sequence", {x}, reduce_scatter(tape.context(), x.value, ranks),
                       [gather = std::move(gather)](const Tensor& dy, Tensors&) { return Tensors{gather(dy)}; });
}

Var reduce_scatter_to_sequence(Tape& tape, const Var& x, Communicator& ranks) {
    return reduce_scatter_to_sequence(
        tape, x, ranks, [&ctx = tape.context(), &ranks](const Tensor& dy) { return gather_rows(ctx, dy, ranks); });
}

Var all_to_all_sp2hp(Tape& tape, const Var& x, Communicator& ranks, const std::vector<int64_t>& heads) {
    const HeadExchange exchange(tape.context(), ranks, x.value.shape(), heads);
    return tape.record("all_to_all_sp2hp", {x}, exchange.to_heads(x.value),
                       [exchange](const Tensor& dy, Tensors&) { return Tensors{exchange.to_tokens(dy)}; });
}

Var all_to_all_hp2sp(Tape& tape, const Var& x, Communicator& ranks) {
    const Tensor& v = x.value;
    check(v.dim(1) % ranks.size() == 0, "all_to_all_hp2sp: ", v.dim(1), " tokens over the ", ranks.size(),
          " ranks of group ", ranks.name());
    const Shape tokens{v.dim(0), v.dim(1) / ranks.size(), v.dim(2) * ranks.size(), v.dim(3)};
    const HeadExchange exchange(tape.context(), ranks, tokens, {tokens[2]});
    return tape.record("all_to_all_hp2sp", {x}, exchange.to_tokens(v),
                       [exchange](const Tensor& dy, Tensors&) { return Tensors{exchange.to_heads(dy)}; });
}

}  // namespace tutti::nn
