#include "tutti/nn/context_attention.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <utility>

#include "tutti/base/to_size.h"

namespace tutti::nn {

namespace {

using comm::Communicator;
using comm::Work;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The results of attention for half 0 or 1 of a rank's queries.
ops::Attention half_of(ops::Context& ctx, const ops::Attention& whole, int i) {
    const int64_t half = whole.lse.dim(2) / 2;
    return {ops::contiguous(ctx, whole.y.narrow(1, i * half, half)),
            ops::contiguous(ctx, whole.lse.narrow(2, i * half, half))};
}

// --- ring ------------------------------------------------------------------------------------------------------------

struct KeyValues {
    Tensor k, v;
};

// The ranks that divide a sequence, from the point of view of this rank.
class Ring {
  public:
    Ring(ops::Context& ctx, const Batch& batch, int64_t tokens, int64_t window)
        : ctx_(ctx),
          ranks_(*batch.context.ring),
          order_{{ranks_.size(), tokens / 2}, window},
          first_key_(batch.first_key) {}

    int hops() const { return ranks_.size(); }
    int source(int hop) const { return order_.source(ranks_.rank(), hop); }
    int destination(int hop) const { return order_.destination(ranks_.rank(), hop); }

    Tensor half(const Tensor& x, int i) const { return order_.chunks.half(x, i); }

    // Calls visit(query half, key half, mask) for each pair of which a query of this rank may see a key of `source`.
    void for_each_pair(int source, const std::function<void(int, int, const kernels::AttentionMask&)>& visit) const {
        const Chunks& chunks = order_.chunks;
        Tensor first_key;  // keeps the view in `mask` alive
        int of_half = -1;  // whose it is
        order_.for_each_pair(ranks_.rank(), source, [&](int i, int j) {
            if (first_key_.defined() && std::exchange(of_half, i) != i)
                first_key = ops::contiguous(ctx_, half(first_key_, i));
            visit(i, j, {true, chunks.begin(ranks_.rank(), i), chunks.begin(source, j), order_.window, first_key});
        });
    }

    // Starts to receive the keys and values of hop `hop`; undefined when this rank needs none of them.
    KeyValues start(int hop, const KeyValues& own, std::vector<Work>& messages) const {
        const int from = source(hop), to = destination(hop);
        return exchange(order_.needs(to, ranks_.rank()) ? own : KeyValues{}, to, order_.needs(ranks_.rank(), from),
                        from, own, own.k.dtype(), messages);
    }
    // In the backward: sends the gradients of the keys of `source(hop)` and starts to receive those of this rank's
    // keys.
    KeyValues start_back(int hop, const KeyValues& found, const KeyValues& own, std::vector<Work>& messages) const {
        const int from = destination(hop);
        return exchange(found, source(hop), order_.needs(from, ranks_.rank()), from, own, DType::f32, messages);
    }

    // Calls visit(hop, keys) for each hop while the keys of the next hop are being received.
    void for_each_hop(const KeyValues& own, const std::function<void(int, const KeyValues&)>& visit) const {
        KeyValues here = own;
        for (int hop = 0; hop < hops(); ++hop) {
            std::vector<Work> messages;
            const KeyValues next = hop + 1 < hops() ? start(hop + 1, own, messages) : KeyValues{};
            visit(hop, here);
            comm::wait_all(messages);
            here = next;
        }
    }

  private:
    // Sends `sent`, if defined, to rank `to`. With `comes`, receives tensors of the shapes of `own` and this type from
    // rank `from`.
    KeyValues exchange(const KeyValues& sent, int to, bool comes, int from, const KeyValues& own, DType type,
                       std::vector<Work>& messages) const {
        if (sent.k.defined())
            for (const Tensor* x : {&sent.k, &sent.v}) messages.push_back(ranks_.send(*x, to));
        KeyValues received;
        if (comes)
            for (const auto member : {&KeyValues::k, &KeyValues::v}) {
                received.*member = ops::empty(ctx_, (own.*member).shape(), type, Purpose::communication);
                messages.push_back(ranks_.receive(received.*member, from));
            }
        ranks_.start_messages();  // before the attention that they run beside
        return received;
    }

    ops::Context& ctx_;
    Communicator& ranks_;
    RingOrder order_;
    Tensor first_key_;
};

}  // namespace

ops::Attention ring_attention(ops::Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, const Batch& batch,
                              const AttentionOptions& options) {
    const int64_t B = q.dim(0), T = q.dim(1), H = q.dim(2), Dv = v.dim(3);
    check(T % 2 == 0, "ring attention: a rank has two chunks of a sequence, got ", T, " tokens");
    const Ring ring(ctx, batch, T, options.window);
    std::array<ops::Attention, 2> sums;
    for (ops::Attention& sum : sums) {
        sum = {ops::zeros(ctx, {B, T / 2, H, Dv}, DType::f32), ops::empty(ctx, {B, H, T / 2}, DType::f32)};
        ops::fill(ctx, sum.lse, -kInfinity);
    }
    ring.for_each_hop({ops::contiguous(ctx, k), ops::contiguous(ctx, v)}, [&](int hop, const KeyValues& here) {
        ring.for_each_pair(ring.source(hop), [&](int i, int j, const kernels::AttentionMask& mask) {
            ops::attention_merge(ctx, sums[to_size(i)],
                                 ops::attention(ctx, ring.half(q, i), ring.half(here.k, j), ring.half(here.v, j), mask,
                                                options.scores, DType::f32));
        });
    });
    ops::Attention r{ops::empty(ctx, {B, T, H, Dv}, q.dtype()), ops::empty(ctx, {B, H, T}, DType::f32)};
    for (int i = 0; i < 2; ++i) {
        const ops::Attention& sum = sums[to_size(i)];
        ops::cast_into(ctx, sum.y, ring.half(r.y, i));
        ops::copy(ctx, sum.lse, r.lse.narrow(2, i * T / 2, T / 2));
    }
    return r;
}

void ring_attention_backward(ops::Context& ctx, const Tensor& dy, const Tensor& q, const Tensor& k, const Tensor& v,
                             const ops::Attention& forward, const Batch& batch, const AttentionOptions& options,
                             const Tensor& dq, const Tensor& dk, const Tensor& dv) {
    const int64_t T = q.dim(1);
    const Ring ring(ctx, batch, T, options.window);
    std::array<Tensor, 2> dq_halves, dy_halves;
    std::array<ops::Attention, 2> of_half;
    for (int i = 0; i < 2; ++i) {
        const auto h = to_size(i);
        dq_halves[h] = ops::zeros(ctx, ring.half(q, i).shape(), DType::f32);
        dy_halves[h] = ops::contiguous(ctx, ring.half(dy, i));
        of_half[h] = half_of(ctx, forward, i);
    }
    KeyValues sum, arriving, leaving;  // gradients in f32: of this rank's keys; from and to others
    std::vector<Work> messages;
    const auto add_arrived = [&] {
        comm::wait_all(messages);
        leaving = {};
        if (!arriving.k.defined()) return;
        ops::accumulate(ctx, arriving.k, sum.k);
        ops::accumulate(ctx, arriving.v, sum.v);
        arriving = {};
    };
    // Adds the gradients of the pairs of halves that `wanted` names to dq and `found`.
    const auto add_pairs = [&](int hop, const KeyValues& here, const KeyValues& found, auto wanted) {
        ring.for_each_pair(ring.source(hop), [&](int i, int j, const kernels::AttentionMask& mask) {
            if (!wanted(i, j)) return;
            const auto h = to_size(i);
            ops::attention_backward(ctx, dy_halves[h], ring.half(q, i), ring.half(here.k, j), ring.half(here.v, j),
                                    of_half[h], mask, dq_halves[h], ring.half(found.k, j), ring.half(found.v, j), true,
                                    options.scores);
        });
    };
    // Of the rank's own keys, the first hop computes the pairs on the diagonal. The other pair is the last of all: the
    // gradients of the last hop travel meanwhile.
    const KeyValues own{ops::contiguous(ctx, k), ops::contiguous(ctx, v)};
    const auto diagonal = [](int i, int j) { return i == j; };
    ring.for_each_hop(own, [&](int hop, const KeyValues& here) {
        KeyValues found;
        if (here.k.defined())
            found = {ops::zeros(ctx, here.k.shape(), DType::f32), ops::zeros(ctx, here.v.shape(), DType::f32)};
        add_pairs(hop, here, found, [&](int i, int j) { return hop > 0 || diagonal(i, j); });
        if (hop == 0) {
            sum = found;
            return;
        }
        add_arrived();
        leaving = found;
        arriving = ring.start_back(hop, found, {k, v}, messages);
    });
    add_pairs(0, own, sum, std::not_fn(diagonal));
    add_arrived();
    for (int i = 0; i < 2; ++i) ops::cast_into(ctx, dq_halves[to_size(i)], ring.half(dq, i));
    ops::cast_into(ctx, sum.k, dk);
    ops::cast_into(ctx, sum.v, dv);
}

// --- gathered keys ---------------------------------------------------------------------------------------------------

namespace {

// The keys and values of a sequence, gathered from the ranks that divide it.
class Gathered {
  public:
    Gathered(ops::Context& ctx, const Tensor& q, const Batch& batch, int64_t window = 0)
        : ctx_(ctx),
          ranks_(*batch.context.ring),
          chunks_{ranks_.size(), q.dim(1) / 2},
          window_(window),
          first_key_(batch.first_key) {
        check(q.dim(1) % 2 == 0, "attention to gathered keys: a rank has two chunks of a sequence, got ", q.dim(1),
              " tokens");
    }

    // Gathers x (B, T / P, Hkv, D), keys or values, to those of the whole sequences, (B, T, Hkv, D).
    Tensor gather(const Tensor& x) const {
        const Tensor by_rank = ops::empty(ctx_, by_rank_shape(x), x.dtype(), Purpose::communication);
        ranks_.all_gather(ops::contiguous(ctx_, x), by_rank).wait();
        const Tensor whole = ops::empty(ctx_, whole_shape(x), x.dtype());
        for_each_chunk(whole, by_rank,
                       [&](const Tensor& in_order, const Tensor& chunk) { ops::copy(ctx_, chunk, in_order); });
        return whole;
    }
    // The inverse for gradients, f32: writes this rank's part of their sum over the ranks to dx.
    void scatter(const Tensor& whole, const Tensor& dx) const {
        const Tensor by_rank = ops::empty(ctx_, by_rank_shape(dx), DType::f32, Purpose::communication);
        for_each_chunk(whole, by_rank,
                       [&](const Tensor& in_order, const Tensor& chunk) { ops::copy(ctx_, in_order, chunk); });
        const Tensor sum = ops::empty(ctx_, dx.shape(), DType::f32);
        ranks_.reduce_scatter(by_rank, sum).wait();
        ops::cast_into(ctx_, sum, dx);
    }
    Tensor half(const Tensor& x, int i) const { return chunks_.half(x, i); }
    // visit(half of the queries, [first, end) of the keys that some query of the half sees, mask)
    void for_each_half(const std::function<void(int, int64_t, int64_t, const kernels::AttentionMask&)>& visit) const {
        for (int i = 0; i < 2; ++i) {
            const int64_t query = chunks_.begin(ranks_.rank(), i);
            const int64_t first = window_ == 0 ? 0 : std::max<int64_t>(query - window_ + 1, 0);
            Tensor first_key;  // keeps the view in the mask alive
            if (first_key_.defined()) first_key = ops::contiguous(ctx_, half(first_key_, i));
            visit(i, first, query + chunks_.size, {true, query, first, window_, first_key});
        }
    }

  private:
    Shape whole_shape(const Tensor& x) const { return {x.dim(0), x.dim(1) * chunks_.ranks, x.dim(2), x.dim(3)}; }
    Shape by_rank_shape(const Tensor& x) const { return {x.dim(0) * chunks_.ranks, x.dim(1), x.dim(2), x.dim(3)}; }

    // visit(chunk of `whole` (B, T, ...), the same chunk of `by_rank` (P B, T / P, ...))
    template <class Visit>
    void for_each_chunk(const Tensor& whole, const Tensor& by_rank, const Visit& visit) const {
        const int64_t B = whole.dim(0);
        for (int rank = 0; rank < chunks_.ranks; ++rank)
            for (int i = 0; i < 2; ++i)
                visit(whole.narrow(1, chunks_.begin(rank, i), chunks_.size), half(by_rank.narrow(0, rank * B, B), i));
    }

    ops::Context& ctx_;
    Communicator& ranks_;
    Chunks chunks_;
    int64_t window_;
    Tensor first_key_;
};

}  // namespace

ops::Attention attention_to_whole(ops::Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                                  const Batch& batch, const AttentionOptions& options) {
    const int64_t B = q.dim(0), T = q.dim(1), H = q.dim(2);
    const Gathered ranks(ctx, q, batch, options.window);
    const ops::Attention r{ops::empty(ctx, {B, T, H, v.dim(3)}, q.dtype()), ops::empty(ctx, {B, H, T}, DType::f32)};
    ranks.for_each_half([&](int i, int64_t first, int64_t end, const kernels::AttentionMask& mask) {
        const auto half = ops::attention(ctx, ranks.half(q, i), k.narrow(1, first, end - first),
                                         v.narrow(1, first, end - first), mask, options.scores);
        ops::copy(ctx, half.y, ranks.half(r.y, i));
        ops::copy(ctx, half.lse, r.lse.narrow(2, i * T / 2, T / 2));
    });
    return r;
}

namespace {

// Adds to dk and dv, f32.
void add_gradients(ops::Context& ctx, const Gathered& ranks, const Tensor& dy, const Tensor& q, const Tensor& k,
                   const Tensor& v, const ops::Attention& forward, const AttentionOptions& options, const Tensor& dq,
                   const Tensor& dk, const Tensor& dv) {
    ranks.for_each_half([&](int i, int64_t first, int64_t end, const kernels::AttentionMask& mask) {
        const auto seen = [&](const Tensor& x) { return x.narrow(1, first, end - first); };
        const Tensor dq_half = ops::zeros(ctx, ranks.half(q, i).shape(), DType::f32);
        ops::attention_backward(ctx, ops::contiguous(ctx, ranks.half(dy, i)), ranks.half(q, i), seen(k), seen(v),
                                half_of(ctx, forward, i), mask, dq_half, seen(dk), seen(dv), true, options.scores);
        ops::cast_into(ctx, dq_half, ranks.half(dq, i));
    });
}

}  // namespace

void attention_to_whole_backward(ops::Context& ctx, const Tensor& dy, const Tensor& q, const Tensor& k, const Tensor& v,
                                 const ops::Attention& forward, const Batch& batch, const AttentionOptions& options,
                                 const Tensor& dq, const Tensor& dk, const Tensor& dv) {
    const Tensor k_sum = ops::zeros(ctx, k.shape(), DType::f32), v_sum = ops::zeros(ctx, v.shape(), DType::f32);
    add_gradients(ctx, {ctx, q, batch, options.window}, dy, q, k, v, forward, options, dq, k_sum, v_sum);
    ops::cast_into(ctx, k_sum, dk);
    ops::cast_into(ctx, v_sum, dv);
}

Var gather_from_context(Tape& tape, const Var& x, const Batch& batch) {
    ops::Context& ctx = tape.context();
    const Gathered ranks(ctx, x.value, batch);
    return tape.record("gather_from_context", {x}, ranks.gather(x.value),
                       [&ctx, ranks, shape = x.value.shape()](const Tensor& dy, std::vector<Tensor>&) {
                           const Tensor dx = ops::empty(ctx, shape, dy.dtype());
                           ranks.scatter(dy.dtype() == DType::f32 ? dy : ops::cast(ctx, dy, DType::f32), dx);
                           return std::vector<Tensor>{dx};
                       });
}

ops::Attention gathered_attention(ops::Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                                  const Batch& batch, const AttentionOptions& options) {
    const Gathered ranks(ctx, q, batch);
    return attention_to_whole(ctx, q, ranks.gather(k), ranks.gather(v), batch, options);
}

void gathered_attention_backward(ops::Context& ctx, const Tensor& dy, const Tensor& q, const Tensor& k, const Tensor& v,
                                 const ops::Attention& forward, const Batch& batch, const AttentionOptions& options,
                                 const Tensor& dq, const Tensor& dk, const Tensor& dv) {
    const Gathered ranks(ctx, q, batch, options.window);
    const Tensor keys = ranks.gather(k), values = ranks.gather(v);
    const Tensor k_sum = ops::zeros(ctx, keys.shape(), DType::f32), v_sum = ops::zeros(ctx, values.shape(), DType::f32);
    add_gradients(ctx, ranks, dy, q, keys, values, forward, options, dq, k_sum, v_sum);
    ranks.scatter(k_sum, dk);
    ranks.scatter(v_sum, dv);
}

// ---------------------------------------------------------------------------------------------------------------------

namespace {

ops::Attention attend_to_keys(ops::Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, const Batch& batch,
                              const AttentionOptions& options) {
    if (batch.context.ring)
        return (batch.context.gather ? gathered_attention : ring_attention)(ctx, q, k, v, batch, options);
    return ops::attention(ctx, q, k, v, {.window = options.window, .first_key = batch.first_key}, options.scores);
}

}  // namespace

ops::Attention attend(ops::Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, const Batch& batch,
                      const AttentionOptions& options) {
    const ops::Attention all = attend_to_keys(ctx, q, k, v, batch, options);
    if (options.sinks) ops::attention_sinks(ctx, all, sinks_of(options.sinks->value, batch, q.dim(2)));
    return all;
}

Tensor sinks_of(const Tensor& all, const Batch& batch, int64_t heads) {
    const int64_t place = batch.context.ulysses ? batch.context.ulysses->rank() : 0;
    check(all.rank() == 1 && (place + 1) * heads <= all.dim(0), "sinks: ", all.shape(), " for heads ", place * heads,
          " to ", (place + 1) * heads - 1);
    return all.narrow(0, place * heads, heads);
}

void attend_backward(ops::Context& ctx, const Tensor& dy, const Tensor& q, const Tensor& k, const Tensor& v,
                     const ops::Attention& forward, const Batch& batch, const AttentionOptions& options,
                     const Tensor& dq, const Tensor& dk, const Tensor& dv) {
    if (batch.context.ring)
        return (batch.context.gather ? gathered_attention_backward : ring_attention_backward)(
            ctx, dy, q, k, v, forward, batch, options, dq, dk, dv);
    ops::attention_backward(ctx, dy, q, k, v, forward, {.window = options.window, .first_key = batch.first_key}, dq, dk,
                            dv, false, options.scores);
}

}  // namespace tutti::nn
