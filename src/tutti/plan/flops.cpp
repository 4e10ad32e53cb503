#include "tutti/plan/flops.h"

#include "tutti/base/error.h"
#include "tutti/spec/layers.h"

namespace tutti::plan {
namespace {

// Values of the feed-forward matrices of a block: of a mixture those of the router and of a token's experts.
int64_t feed_forward_matrices(const spec::ModelSpec& m, int64_t layer) {
    const spec::MixtureSpec& e = m.moe;
    if (!spec::has_experts(m, layer)) return 3 * m.width * m.ffn;  // gate, up, down
    const int64_t router = e.experts + (e.shared_gate ? 1 : 0);
    return m.width * (3 * (e.top_k * e.ffn + e.shared_ffn) + router);
}

// The same of all blocks.
int64_t block_matrices(const spec::ModelSpec& m) {
    const int64_t C = m.width, query = m.heads * m.head_dim, key = m.kv_heads * m.head_dim;
    const auto [attention, windowed, convolutions] = spec::count_layers(m);
    switch (m.family) {
        case spec::Family::mlp: return m.layers * C * C;
        case spec::Family::gpt2:
            return m.layers * (C * 3 * query + query * C + 2 * C * m.ffn);  // c_attn, c_proj; c_fc, c_proj
        case spec::Family::llama:
        case spec::Family::lfm2: {  // q, o; k, v; in, out of a convolution
            int64_t all = attention * (2 * C * query + 2 * C * key) + convolutions * 4 * C * C;
            for (int64_t layer = 0; layer < m.layers; ++layer) all += feed_forward_matrices(m, layer);
            return all;
        }
    }
    throw Error("unknown model family");
}

int64_t head_matrix(const spec::ModelSpec& m) { return m.family == spec::Family::mlp ? 0 : m.vocab * m.width; }

// Without the causal mask: all s keys, or the band |i - j| < W, which is 2 W - W^2 / s of them on average.
double keys_per_query(int64_t window, int64_t seq_len) {
    const auto s = static_cast<double>(seq_len), W = static_cast<double>(window);
    return window == 0 || window >= seq_len ? s : 2 * W - W * W / s;
}

// All blocks, without embedding and head.
TokenFlops blocks_forward(const spec::ModelSpec& m, int64_t seq_len) {
    const spec::LayerCounts layers = spec::count_layers(m);
    const auto attention_width = static_cast<double>(m.heads * m.head_dim);  // 0 for the mlp
    const auto windowed = static_cast<double>(layers.windowed),
               whole = static_cast<double>(layers.attention) - windowed;
    const double keys = whole * keys_per_query(0, seq_len) + windowed * keys_per_query(m.window, seq_len);
    return {2 * static_cast<double>(block_matrices(m)), 4 * keys * attention_width};
}

}  // namespace

TokenFlops forward_flops(const spec::ModelSpec& model, int64_t seq_len) {
    check(seq_len > 0, "FLOPs per token: seq_len must be positive, got ", seq_len);
    TokenFlops flops = blocks_forward(model, seq_len);
    flops.matmul += 2 * static_cast<double>(head_matrix(model));
    return flops;
}

TokenFlops model_flops(const spec::ModelSpec& model, int64_t seq_len) {
    const TokenFlops forward = forward_flops(model, seq_len);
    return {3 * forward.matmul, 3 * forward.full_attention};
}

TokenFlops hardware_flops(const spec::ModelSpec& model, int64_t seq_len, const std::string& recompute_policy) {
    TokenFlops flops = model_flops(model, seq_len);
    if (spec::recompute_of(recompute_policy, model.layers).segment > 0) {
        const TokenFlops again = blocks_forward(model, seq_len);
        flops.matmul += again.matmul;
        flops.full_attention += again.full_attention;
    }
    return flops;
}

double mfu(double flops_per_token, double tokens_per_s, double peak_flops) {
    check(peak_flops > 0, "MFU: the peak must be positive FLOP/s, got ", peak_flops);
    return flops_per_token * tokens_per_s / peak_flops;
}

}  // namespace tutti::plan
