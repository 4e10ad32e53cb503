// The functions follow nn/functions.cpp and models/*.cpp one by one, with the same names and the same local variables:
// what a local variable keeps alive there, it keeps alive here.
#include "tutti/plan/ghost_model.h"

#include <algorithm>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/loss_chunk.h"

namespace tutti::plan {
namespace {

constexpr int64_t kF32 = 4;

// y = x w^T of `rows` rows of x (in) and y (out).
struct Affine {
    int64_t rows, in, out;
};

Ghost activations(GhostTape& tape, int64_t bytes) { return {tape.ledger(), bytes, Purpose::activations}; }
Ghost like(GhostTape& tape, const Ghost& x) { return activations(tape, x.bytes()); }
Ghost workspace(GhostTape& tape, int64_t bytes) { return {tape.ledger(), bytes, Purpose::workspace}; }

GemmBytes bytes_of(const LocalSizes& s, Product product, Affine layer, bool keeps) {
    if (!s.workspaces.gemm) return {};
    return s.workspaces.gemm(product, layer.rows, layer.out, layer.in, keeps);
}

// ops::gemm.
void gemm(Ledger& ledger, const LocalSizes& s, Product product, Affine layer) {
    const bool keeps = s.keeps_packed && product != Product::weight_gradient;
    const Ghost scratch(ledger, bytes_of(s, product, layer, keeps).workspace, Purpose::workspace);
}

// Of the head's loss.
Affine head_chunk(const LocalSizes& s) { return {loss_chunk_rows(s.rows(), s.vocab * s.element), s.width, s.vocab}; }

template <class Make>
GhostVar cheap(const GhostTape& tape, GhostVar y, const Make& make) {
    if (tape.selective()) y.again = std::make_shared<GhostAgain>(GhostAgain{make, 0, {}});
    return y;
}

// --- nn/functions.cpp
// -------------------------------------------------------------------------------------------------

GhostVar record_add(GhostTape& tape, const GhostVar& a, const GhostVar& b, const Ghost& sum) {
    return tape.record({a, b}, sum, [](const Ghost& dy, Ghosts&) { return Ghosts{dy, dy}; });
}

GhostVar add(GhostTape& tape, const GhostVar& a, const GhostVar& b) {
    return record_add(tape, a, b, like(tape, a.value));
}

// It saves its output.
GhostVar relu(GhostTape& tape, const GhostVar& x) {
    const Ghost y = like(tape, x.value);
    return tape.record(
        {x}, y, [&ledger = tape.ledger(), y](const Ghost&, Ghosts&) { return Ghosts{Ghost(ledger, y.bytes())}; });
}

// The same bytes under another shape; rotary positions are applied in place, forward and backward: their gradient is
// copied only when somebody else holds it.
GhostVar reshape(GhostTape& tape, const GhostVar& x) {
    return tape.record({x}, x.value, [](const Ghost& dy, Ghosts&) { return Ghosts{dy}; });
}

GhostVar rope(GhostTape& tape, const GhostVar& x) {
    return tape.record({x}, x.value, [&ledger = tape.ledger()](const Ghost& dy, Ghosts&) {
        return Ghosts{dy.unique() ? dy : Ghost(ledger, dy.bytes())};
    });
}

GhostVar dropout(GhostTape& tape, const GhostVar& x, const LocalSizes& s) {
    if (!s.dropout) return x;
    return tape.record({x}, like(tape, x.value), [&ledger = tape.ledger()](const Ghost& dy, Ghosts&) {
        return Ghosts{Ghost(ledger, dy.bytes())};
    });
}

GhostWeightGradient weight_gradient_of(GhostTape& tape, const LocalSizes& s, Affine layer, const GhostVar& x) {
    return [&ledger = tape.ledger(), s, layer, kept = GhostKept(x)] {
        const Ghost saved = kept.take();
        gemm(ledger, s, Product::weight_gradient, layer);
    };
}

// ops::linear.
Ghost product_of(GhostTape& tape, const LocalSizes& s, Affine layer) {
    const Ghost y = activations(tape, layer.rows * layer.out * s.element);
    gemm(tape.ledger(), s, Product::forward, layer);
    return y;
}

// ops::linear_gelu and linear_swiglu.
struct Activated {
    Ghost z, y;
};
Activated activated_product_of(GhostTape& tape, const LocalSizes& s, Affine layer) {
    const Ghost y = activations(tape, layer.rows * layer.out * s.element);
    const Ghost z = tape.recording() ? like(tape, y) : Ghost{};
    gemm(tape.ledger(), s, Product::forward, layer);
    return {z, y};
}

GhostVar record_linear(GhostTape& tape, const GhostVar& x, const LocalSizes& s, Affine layer, const Ghost& y) {
    return tape.record(
        {x}, y,
        [&ledger = tape.ledger(), s, wanted = x.id >= 0, x_bytes = x.value.bytes(), layer](const Ghost&, Ghosts& sums) {
            if (!wanted) return Ghosts{};
            const Ghost sum = std::move(sums[0]);
            const bool in_place = sum.defined() && sum.unique();
            const Ghost dx = in_place ? sum : Ghost(ledger, x_bytes);
            gemm(ledger, s, Product::input_gradient, layer);
            return Ghosts{in_place || !sum.defined() ? dx : Ghost(ledger, x_bytes)};
        },
        weight_gradient_of(tape, s, layer, x));
}

GhostVar linear(GhostTape& tape, const GhostVar& x, int64_t in, int64_t out, const LocalSizes& s) {
    const Affine layer{x.value.bytes() / in / s.element, in, out};
    const Ghost y = product_of(tape, s, layer);
    return record_linear(tape, x, s, layer, y);
}

GhostVar gelu_mlp(GhostTape& tape, const GhostVar& x, int64_t width, int64_t ffn, const LocalSizes& s) {
    Ledger& ledger = tape.ledger();
    const Affine in{s.rows(), width, ffn}, out{s.rows(), ffn, width};
    const auto [before, y] = activated_product_of(tape, s, in);
    const GhostVar z = record_linear(tape, x, s, in, before);
    tape.saves(y);
    const GhostVar active = cheap(tape, {y, -1}, [&ledger, z = z.value] { return Ghost(ledger, z.bytes()); });
    return tape.record(
        {z}, product_of(tape, s, out),
        [&ledger, s, out, z = z.value](const Ghost&, Ghosts&) {
            Ghost dz(ledger, z.bytes());
            gemm(ledger, s, Product::input_gradient, out);
            return Ghosts{std::move(dz)};
        },
        weight_gradient_of(tape, s, out, active));
}

GhostVar swiglu_mlp(GhostTape& tape, const GhostVar& x, int64_t width, int64_t ffn, const LocalSizes& s) {
    Ledger& ledger = tape.ledger();
    const Affine up{s.rows(), width, ffn}, down{s.rows(), ffn, width};
    const GhostVar g = linear(tape, x, width, ffn, s);
    const auto [before, y] = activated_product_of(tape, s, up);
    const GhostVar u = record_linear(tape, x, s, up, before);
    tape.saves(y);
    const GhostVar active =
        cheap(tape, {y, -1}, [&ledger, g = g.value, u = u.value] { return Ghost(ledger, g.bytes()); });
    return tape.record(
        {g, u}, product_of(tape, s, down),
        [&ledger, s, down, g = g.value, u = u.value](const Ghost&, Ghosts&) {
            Ghosts d{Ghost(ledger, g.bytes()), Ghost(ledger, u.bytes())};
            gemm(ledger, s, Product::input_gradient, down);
            return d;
        },
        weight_gradient_of(tape, s, down, active));
}

GhostVar embedding(GhostTape& tape, const LocalSizes& s) {
    return tape.record({}, activations(tape, s.rows() * s.width * s.element), {}, [] {});
}

// `statistics` f32 values per row: rstd, and for LayerNorm the mean. y and the statistics are made before.
GhostVar record_norm(GhostTape& tape, const GhostVar& x, const Ghost& y, const Ghost& per_row) {
    Ledger& ledger = tape.ledger();
    const GhostVar normed = tape.record(
        {x}, y,
        [&ledger, x = x.value, per_row](const Ghost&, Ghosts& sums) {
            const Ghost sum = std::move(sums[0]);
            return Ghosts{sum.defined() && sum.unique() ? sum : Ghost(ledger, x.bytes())};
        },
        [x = x.value, per_row] {});
    return cheap(tape, normed, [&ledger, x = x.value, bytes = per_row.bytes()] {
        const Ghost again(ledger, x.bytes()), statistics_again(ledger, bytes);
        return again;
    });
}

GhostVar norm(GhostTape& tape, const GhostVar& x, int64_t rows, int64_t statistics) {
    const Ghost y = like(tape, x.value), per_row = activations(tape, statistics * rows * kF32);
    return record_norm(tape, x, y, per_row);
}

struct SumAndNorm {
    GhostVar sum, norm;
};
SumAndNorm add_norm(GhostTape& tape, const GhostVar& x, const GhostVar& residual, int64_t rows, int64_t statistics) {
    const Ghost y = like(tape, x.value), per_row = activations(tape, statistics * rows * kF32);
    const GhostVar sum = record_add(tape, x, residual, like(tape, x.value));
    return {sum, record_norm(tape, sum, y, per_row)};
}

GhostVar layer_norm(GhostTape& tape, const GhostVar& x, const LocalSizes& s) { return norm(tape, x, s.rows(), 2); }
GhostVar rms_norm(GhostTape& tape, const GhostVar& x, const LocalSizes& s) { return norm(tape, x, s.rows(), 1); }

struct Attention {
    Ghost y, lse;
};

Attention attention_forward(GhostTape& tape, const LocalSizes& s) {
    Attention r{activations(tape, s.rows() * s.heads * s.head_dim * s.element),
                activations(tape, s.rows() * s.heads * kF32)};
    const Ghost scratch = workspace(tape, s.workspaces.attention_forward);
    return r;
}

GhostVar attention(GhostTape& tape, const GhostVar& q, const GhostVar& k, const GhostVar& v, const LocalSizes& s) {
    const Attention r = attention_forward(tape, s);
    return tape.record({q, k, v}, r.y,
                       [&ledger = tape.ledger(), s, q = q.value, k = k.value, v = v.value, r](const Ghost&, Ghosts&) {
                           Ghosts d;
                           for (const Ghost* x : {&q, &k, &v}) d.emplace_back(ledger, x->bytes());
                           const Ghost scratch(ledger, s.workspaces.attention_backward, Purpose::workspace);
                           return d;
                       });
}

GhostVar packed_attention(GhostTape& tape, const GhostVar& qkv, const LocalSizes& s) {
    const Attention r = attention_forward(tape, s);
    return tape.record({qkv}, r.y, [&ledger = tape.ledger(), s, saved = qkv.value, r](const Ghost&, Ghosts&) {
        Ghost d(ledger, saved.bytes());
        const Ghost scratch(ledger, s.workspaces.attention_backward, Purpose::workspace);
        return Ghosts{d};
    });
}

// The gradients are taken in the forward, so dx is what the node saves.
GhostVar head_loss(GhostTape& tape, const GhostVar& x, const LocalSizes& s) {
    const Ghost losses = activations(tape, s.rows() * kF32), dx = like(tape, x.value);
    const Affine chunk = head_chunk(s);
    const Ghost logits = workspace(tape, chunk.rows * s.vocab * s.element);
    LocalSizes later = s;  // of the chunks after the first, which hold most
    Ghosts packed;
    if (chunk.rows < s.rows() && !s.keeps_packed) {
        later.keeps_packed = true;
        for (const Product product : {Product::forward, Product::input_gradient})
            packed.push_back(workspace(tape, bytes_of(s, product, chunk, true).packed_b));
    }
    for (const Product product : {Product::forward, Product::input_gradient, Product::weight_gradient})
        gemm(tape.ledger(), later, product, chunk);
    return tape.record(
        {x}, losses, [dx](const Ghost&, Ghosts&) { return Ghosts{dx}; }, [] {});
}

GhostVar squared_error(GhostTape& tape, const GhostVar& x, const LocalSizes& s) {
    const Ghost losses = activations(tape, s.rows() * kF32), dx = like(tape, x.value);
    return tape.record({x}, losses, [dx](const Ghost&, Ghosts&) { return Ghosts{dx}; });
}

// --- models/gpt2.cpp
// --------------------------------------------------------------------------------------------------

GhostVar gpt2_embedding(GhostTape& tape, const LocalSizes& s) {
    const GhostVar x = add(tape, embedding(tape, s), embedding(tape, s));
    return dropout(tape, x, s);
}

GhostVar gpt2_block(GhostTape& tape, const GhostVar& x, const LocalSizes& s) {
    const int64_t C = s.width, A = s.heads * s.head_dim;
    const GhostVar y = packed_attention(tape, linear(tape, layer_norm(tape, x, s), C, 3 * A, s), s);
    const GhostVar a = dropout(tape, linear(tape, y, A, C, s), s);
    const auto [h, normed] = add_norm(tape, x, a, s.rows(), 2);
    return add(tape, h, dropout(tape, gelu_mlp(tape, normed, C, s.ffn, s), s));
}

// --- models/llama.cpp
// -------------------------------------------------------------------------------------------------

GhostVar llama_attention(GhostTape& tape, const GhostVar& x, const LocalSizes& s) {
    const int64_t C = s.width, A = s.heads * s.head_dim, K = s.kv_heads * s.head_dim;
    const auto turned = [&](const GhostVar& projected, int64_t heads) {
        return rope(tape, s.head_norm ? norm(tape, projected, s.rows() * heads, 1) : projected);
    };
    const GhostVar q = turned(reshape(tape, linear(tape, x, C, A, s)), s.heads);
    const GhostVar k = turned(reshape(tape, linear(tape, x, C, K, s)), s.kv_heads);
    const GhostVar v = reshape(tape, linear(tape, x, C, K, s));
    const GhostVar y = reshape(tape, attention(tape, q, k, v, s));
    return dropout(tape, linear(tape, y, A, C, s), s);
}

GhostVar llama_mlp(GhostTape& tape, const GhostVar& x, const LocalSizes& s) {
    return dropout(tape, swiglu_mlp(tape, x, s.width, s.ffn, s), s);
}

GhostVar llama_block(GhostTape& tape, const GhostVar& x, const LocalSizes& s) {
    const auto [h, normed] = add_norm(tape, x, llama_attention(tape, rms_norm(tape, x, s), s), s.rows(), 1);
    return add(tape, h, llama_mlp(tape, normed, s));
}

// --- models/mlp.cpp and the choice among families
// ---------------------------------------------------------------------

GhostVar first(GhostTape& tape, const LocalSizes& s, const Ghost& features) {
    switch (s.family) {
        case spec::Family::gpt2: return gpt2_embedding(tape, s);
        case spec::Family::llama: return dropout(tape, embedding(tape, s), s);
        case spec::Family::mlp: return {features, -1};
    }
    throw Error("unknown model family");
}

GhostVar block(GhostTape& tape, const GhostVar& x, const LocalSizes& s) {
    switch (s.family) {
        case spec::Family::gpt2: return gpt2_block(tape, x, s);
        case spec::Family::llama: return llama_block(tape, x, s);
        case spec::Family::mlp: return relu(tape, linear(tape, x, s.width, s.width, s));
    }
    throw Error("unknown model family");
}

GhostVar last(GhostTape& tape, const GhostVar& x, const LocalSizes& s) {
    switch (s.family) {
        case spec::Family::gpt2: return head_loss(tape, layer_norm(tape, x, s), s);
        case spec::Family::llama: return head_loss(tape, rms_norm(tape, x, s), s);
        case spec::Family::mlp: return squared_error(tape, x, s);
    }
    throw Error("unknown model family");
}

}  // namespace

LocalSizes local_sizes(const spec::ModelSpec& model, int64_t batch, int64_t sequence, int64_t element_bytes,
                       const Workspaces& workspaces) {
    return {.family = model.family,
            .element = element_bytes,
            .batch = batch,
            .sequence = sequence,
            .width = model.width,
            .heads = model.heads,
            .kv_heads = model.kv_heads,
            .head_dim = model.head_dim,
            .ffn = model.ffn,
            .vocab = model.vocab,
            .layers = model.layers,
            .dropout = model.dropout > 0,
            .head_norm = model.head_norm,
            .workspaces = workspaces};
}

int64_t packed_weights_bytes(const LocalSizes& s) {
    const int64_t rows = s.rows(), C = s.width, A = s.heads * s.head_dim, K = s.kv_heads * s.head_dim;
    std::vector<Affine> block;
    switch (s.family) {
        case spec::Family::mlp: block = {{rows, C, C}}; break;
        case spec::Family::gpt2: block = {{rows, C, 3 * A}, {rows, A, C}, {rows, C, s.ffn}, {rows, s.ffn, C}}; break;
        case spec::Family::llama:
            block = {{rows, C, A},     {rows, C, K},     {rows, C, K},    {rows, A, C},
                     {rows, C, s.ffn}, {rows, C, s.ffn}, {rows, s.ffn, C}};
            break;
    }
    const auto of = [&s](Product product, Affine layer) { return bytes_of(s, product, layer, true).packed_b; };
    int64_t bytes = 0;
    for (const Affine& layer : block)
        bytes += s.layers * of(Product::forward, layer) + s.layers * of(Product::input_gradient, layer);
    if (s.family == spec::Family::mlp)  // nobody wants the gradient of its features
        return bytes - of(Product::input_gradient, block[0]);
    return bytes + of(Product::forward, head_chunk(s)) + of(Product::input_gradient, head_chunk(s));
}

// models::Model::forward.
GhostVar forward(GhostTape& tape, const LocalSizes& s, const Ghost& features, int64_t segment) {
    GhostVar x = tape.unit(0, "embedding", {}, [&](const GhostVar&) { return first(tape, s, features); });
    for (int64_t begin = 0; begin < s.layers;) {
        const int64_t end = std::min(s.layers, begin + std::max<int64_t>(segment, 1));
        const auto blocks = [begin, end, s](GhostTape& t, const GhostVar& in) {
            GhostVar h = in;
            for (int64_t i = begin; i < end; ++i)
                h = t.unit(static_cast<size_t>(i) + 1, concat("block ", i), h,
                           [&](const GhostVar& y) { return block(t, y, s); });
            return h;
        };
        x = segment > 0 ? tape.recompute(x, blocks) : blocks(tape, x);
        begin = end;
    }
    return tape.unit(static_cast<size_t>(s.layers) + 1, "head", x, [&](const GhostVar& y) { return last(tape, y, s); });
}

}  // namespace tutti::plan
