// tests/cuda/cudnn/fake_cudnn.cpp: cuDNN's attention for the emulated GPU, in the place of cudnn_graph.cpp, by the
// reference kernels. It refuses what cudnn-frontend 1.32 refuses on Hopper with cuDNN 9.15
// (node/sdpa_support_surface.h, node/scaled_dot_product_flash_attention.h), reads 16 bytes at a time, needs the
// workspace of the deterministic backward, writes over all of it, and has no bits in common with our own kernels.
#include "tests/cuda/cudnn/fake_cudnn.h"

#include <atomic>
#include <cstring>
#include <mutex>

#include "tests/cuda/emulation/api.h"
#include "tests/cuda/emulation/memory.h"
#include "tutti/base/error.h"
#include "tutti/kernels/cuda/cudnn_graph.h"
#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels::cuda {

namespace {

std::mutex mutex;
bool missing = false;
std::string version = "cuDNN 9.15.1";
double forward_seconds = 0, backward_seconds = 0;
int64_t more_workspace = 0;
std::atomic<int64_t> forward_runs = 0, backward_runs = 0;

int64_t whole(int64_t n, int64_t tile) { return (n + tile - 1) / tile * tile; }

std::string refusal_of(const CudnnPlace& x, const char* name) {
    if (x.strides[3] != 1) return concat("The stride for the last dimension of ", name, " should be 1");
    for (int i = 0; i < 3; ++i)
        if (x.strides[static_cast<size_t>(i)] * 2 % 16 != 0)
            return concat(name, ": stride of dimension ", i, " is no multiple of 16 bytes");
    return "";
}

std::string refusal_of(const CudnnProblem& p) {
    const int64_t D = p.q.sizes[3], Tq = p.q.sizes[2], Tk = p.k.sizes[2];
    for (const auto& [place, name] : {std::pair(&p.q, "Q"), {&p.k, "K"}, {&p.v, "V"}, {&p.o, "O"}})
        if (std::string why = refusal_of(*place, name); !why.empty()) return why;
    if (p.backward)
        for (const auto& [place, name] : {std::pair(&p.dy, "dO"), {&p.dq, "dQ"}, {&p.dk, "dK"}, {&p.dv, "dV"}})
            if (std::string why = refusal_of(*place, name); !why.empty()) return why;
    if (p.q.sizes[1] % p.k.sizes[1] != 0)
        return "For group-query attention, number of heads for key and query must be a factor of number of heads for "
               "query";
    if (D % 8 != 0 || p.v.sizes[3] % 8 != 0) return "hidden_dim should be multiple of 8";
    if (D > 256) return "hidden_dim should be less than or equal to 256";
    if (p.backward && Tq == 1 && Tk == 1) return "s_q = s_kv = 1 is not supported.";
    if (p.bottom_right && Tq > Tk) return "Bottom right causal mask does not support max_s_q > max_s_kv";
    if (p.window > 0 && Tq > Tk) return "Sliding window attention is only supported with max_s_q <= max_s_kv.";
    if (p.window > 0 && !p.causal) return "Left and right bounds are only supported with a causal mask";
    return "";
}

View view_of(void* data, const CudnnPlace& x) {
    View v(data, DType::bf16, {x.sizes[0], x.sizes[2], x.sizes[1], x.sizes[3]});
    v.strides = {x.strides[0], x.strides[2], x.strides[1], 1};
    return v;
}

template <class Attention>
void describe(Attention& a, const CudnnProblem& p, const CudnnPointers& at) {
    a.q = view_of(at.q, p.q), a.k = view_of(at.k, p.k), a.v = view_of(at.v, p.v), a.o = view_of(at.o, p.o);
    a.lse = View(at.lse, DType::f32, {p.q.sizes[0], p.q.sizes[1], p.q.sizes[2]});
    a.scale = p.scale;
    a.mask = {.causal = p.causal, .query_offset = p.bottom_right ? p.k.sizes[2] - p.q.sizes[2] : 0, .window = p.window};
}

class FakeGraph final : public CudnnGraph {
  public:
    explicit FakeGraph(const CudnnProblem& p)
        : p_(p), seconds_(p.backward ? backward_seconds : forward_seconds), more_(more_workspace) {}
    int64_t workspace_bytes() const override {
        const auto [B, H, Tq, D] = p_.q.sizes;
        const int64_t Tk = p_.k.sizes[2];
        if (!p_.backward) return 256 + more_;
        const int64_t of_heads = p_.k.sizes[1] == H ? 0 : 2 * B * H * Tk * D * 2;
        return B * H * (whole(Tq, 64) * whole(Tk, 128) * 2 + Tq * 4) + of_heads + 256 + more_;
    }
    void run(const CudnnPointers& at, void* workspace) override {
        for (const void* pointer : {at.q, at.k, at.v, at.o, at.dy, at.dq, at.dk, at.dv, workspace})
            check(reinterpret_cast<uintptr_t>(pointer) % 16 == 0, "cuDNN: misaligned address ", pointer);
        check((at.dy != nullptr) == p_.backward && workspace != nullptr, "cuDNN: tensors of another graph");
        ++(p_.backward ? backward_runs : forward_runs);
        emulation::enqueue(static_cast<cudaStream_t>(p_.stream), [this, at, workspace] {
            const emulation::DeviceAccess access;
            std::memset(workspace, 0xFF, static_cast<size_t>(workspace_bytes()));
            if (p_.backward) {
                AttentionBackward a;
                describe(a, p_, at);
                a.dy = view_of(at.dy, p_.dy);
                a.dq = view_of(at.dq, p_.dq), a.dk = view_of(at.dk, p_.dk), a.dv = view_of(at.dv, p_.dv);
                reference_table().attention_backward(Stream{}, a);
            } else {
                AttentionForward a;
                describe(a, p_, at);
                reference_table().attention_forward(Stream{}, a);
            }
            emulation::pass_time(seconds_);
        });
    }

  private:
    const CudnnProblem p_;
    const double seconds_;
    const int64_t more_;
};

}  // namespace

std::string cudnn_version() {
    const std::lock_guard lock(mutex);
    check<UsageError>(!missing, "the fake cuDNN is missing");
    return version;
}

std::unique_ptr<CudnnGraph> build_cudnn_graph(const CudnnProblem& p, std::string& why) {
    cudnn_version();
    const std::lock_guard lock(mutex);
    why = refusal_of(p);
    return why.empty() ? std::make_unique<FakeGraph>(p) : nullptr;
}

void fake_cudnn::set_missing(bool is) {
    const std::lock_guard lock(mutex);
    missing = is;
}
void fake_cudnn::set_version(const std::string& is) {
    const std::lock_guard lock(mutex);
    version = is;
}
void fake_cudnn::set_seconds(double forward, double backward) {
    const std::lock_guard lock(mutex);
    forward_seconds = forward, backward_seconds = backward;
}
void fake_cudnn::set_more_workspace(int64_t bytes) {
    const std::lock_guard lock(mutex);
    more_workspace = bytes;
}
void fake_cudnn::forget() { forward_runs = backward_runs = 0; }
int64_t fake_cudnn::forwards() { return forward_runs; }
int64_t fake_cudnn::backwards() { return backward_runs; }

}  // namespace tutti::kernels::cuda
