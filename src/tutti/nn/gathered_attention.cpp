#include "tutti/nn/gathered_attention.h"

#include <algorithm>
#include <functional>

#include "tutti/comm/communicator.h"

namespace tutti::nn {

namespace {

// What the ranks of a sequence have of it, seen from one of them.
class Gathered {
  public:
    Gathered(ops::Context& ctx, const Tensor& q, const Batch& batch, int64_t window)
        : ctx_(ctx),
          ranks_(*batch.context.ring),
          chunks_{ranks_.size(), q.dim(1) / 2},
          window_(window),
          first_key_(batch.first_key) {
        check(q.dim(1) % 2 == 0, "attention to gathered keys: a rank has two chunks of a sequence, got ", q.dim(1),
              " tokens");
    }

    // Of x (B, T / P, Hkv, D), keys or values: those of the whole sequences, (B, T, Hkv, D).
    Tensor gather(const Tensor& x) const {
        const Tensor by_rank = ops::empty(ctx_, by_rank_shape(x), x.dtype(), Purpose::communication);
        ranks_.all_gather(ops::contiguous(ctx_, x), by_rank).wait();
        const Tensor whole = ops::empty(ctx_, whole_shape(x), x.dtype());
        for_each_chunk(whole, by_rank,
                       [&](const Tensor& in_order, const Tensor& chunk) { ops::copy(ctx_, chunk, in_order); });
        return whole;
    }
    // The way back: the sum over the ranks of the gradients, f32, of this rank's x.
    void scatter(const Tensor& whole, const Tensor& dx) const {
        const Tensor by_rank = ops::empty(ctx_, by_rank_shape(dx), DType::f32, Purpose::communication);
        for_each_chunk(whole, by_rank,
                       [&](const Tensor& in_order, const Tensor& chunk) { ops::copy(ctx_, in_order, chunk); });
        const Tensor sum = ops::empty(ctx_, dx.shape(), DType::f32);
        ranks_.reduce_scatter(by_rank, sum).wait();
        ops::cast_into(ctx_, sum, dx);
    }
    Tensor zero_gradient(const Tensor& x) const { return ops::zeros(ctx_, whole_shape(x), DType::f32); }

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
    comm::Communicator& ranks_;
    Chunks chunks_;
    int64_t window_;
    Tensor first_key_;
};

}  // namespace

ops::Attention gathered_attention(ops::Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                                  const Batch& batch, int64_t window) {
    const int64_t B = q.dim(0), T = q.dim(1), H = q.dim(2);
    const Gathered ranks(ctx, q, batch, window);
    const Tensor keys = ranks.gather(k), values = ranks.gather(v);
    const ops::Attention r{ops::empty(ctx, q.shape(), q.dtype()), ops::empty(ctx, {B, H, T}, DType::f32)};
    ranks.for_each_half([&](int i, int64_t first, int64_t end, const kernels::AttentionMask& mask) {
        const auto half = ops::attention(ctx, ranks.half(q, i), keys.narrow(1, first, end - first),
                                         values.narrow(1, first, end - first), mask);
        ops::copy(ctx, half.y, ranks.half(r.y, i));
        ops::copy(ctx, half.lse, r.lse.narrow(2, i * T / 2, T / 2));
    });
    return r;
}

void gathered_attention_backward(ops::Context& ctx, const Tensor& dy, const Tensor& q, const Tensor& k, const Tensor& v,
                                 const ops::Attention& forward, const Batch& batch, int64_t window, const Tensor& dq,
                                 const Tensor& dk, const Tensor& dv) {
    const int64_t T = q.dim(1);
    const Gathered ranks(ctx, q, batch, window);
    const Tensor keys = ranks.gather(k), values = ranks.gather(v);
    const Tensor key_gradient = ranks.zero_gradient(k), value_gradient = ranks.zero_gradient(v);
    ranks.for_each_half([&](int i, int64_t first, int64_t end, const kernels::AttentionMask& mask) {
        const auto seen = [&](const Tensor& x) { return x.narrow(1, first, end - first); };
        const ops::Attention half{ops::contiguous(ctx, ranks.half(forward.y, i)),
                                  ops::contiguous(ctx, forward.lse.narrow(2, i * T / 2, T / 2))};
        const Tensor dq_half = ops::zeros(ctx, ranks.half(q, i).shape(), DType::f32);
        ops::attention_backward(ctx, ops::contiguous(ctx, ranks.half(dy, i)), ranks.half(q, i), seen(keys),
                                seen(values), half, mask, dq_half, seen(key_gradient), seen(value_gradient), true);
        ops::cast_into(ctx, dq_half, ranks.half(dq, i));
    });
    ranks.scatter(key_gradient, dk);
    ranks.scatter(value_gradient, dv);
}

}  // namespace tutti::nn
