// kernels/cpu/isa/optimizer.cpp: AdamW and SGD in one pass over memory; the same pass writes the bf16 copy that the
// model reads.
#include "tutti/kernels/cpu/isa/loops.h"
#include "tutti/kernels/cpu/isa/parts.h"

namespace tutti::kernels::TUTTI_ISA {
namespace {

// update(i, part) returns the new master values [i, ...); stores them, and their rounded bf16 copy if the piece has
// one.
template <class Update>
void update_weights(const Stream& stream, const OptimizerPiece& piece, Update update) {
    float* master = piece.master.as<float>();
    if (piece.value.defined()) {
        bf16* value = piece.value.as<bf16>();
        for_vectors_parallel(stream, numel(piece.master), [=](int64_t i, auto part) {
            const Vec p = update(i, part);
            store(p, master + i, part);
            store(p, value + i, part);
        });
    } else {
        for_vectors_parallel(stream, numel(piece.master),
                             [=](int64_t i, auto part) { store(update(i, part), master + i, part); });
    }
}

// m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  p -= lr (m / c1 / (sqrt(v / c2) + eps) + decay p)
void adamw(const Stream& stream, const AdamW& a) {
    const Vec b1 = broadcast(a.beta1), b2 = broadcast(a.beta2);
    const Vec rest1 = broadcast(1 - a.beta1), rest2 = broadcast(1 - a.beta2);
    const Vec c1 = broadcast(a.correction1), c2 = broadcast(a.correction2);
    const Vec eps = broadcast(a.eps), lr = broadcast(a.lr), grad_scale = broadcast(a.grad_scale);
    for (const OptimizerPiece& piece : a.pieces) {
        const float *gradient = piece.gradient.as<float>(), *master = piece.master.as<float>();
        float *first = piece.m.as<float>(), *second = piece.v.as<float>();
        const Vec decay = broadcast(piece.weight_decay);
        update_weights(stream, piece, [=](int64_t i, auto part) {
            const Vec g = load(gradient + i, part) * grad_scale, p = load(master + i, part);
            const Vec m = fma(b1, load(first + i, part), rest1 * g);
            const Vec v = fma(b2, load(second + i, part), rest2 * (g * g));
            store(m, first + i, part);
            store(v, second + i, part);
            const Vec direction = m / c1 / (sqrt(v / c2) + eps);
            return fma_negative(lr, fma(decay, p, direction), p);
        });
    }
}

// m = momentum m + (g + decay p);  p -= lr m
void sgd(const Stream& stream, const Sgd& s) {
    const Vec momentum = broadcast(s.momentum), lr = broadcast(s.lr), grad_scale = broadcast(s.grad_scale);
    for (const OptimizerPiece& piece : s.pieces) {
        const float *gradient = piece.gradient.as<float>(), *master = piece.master.as<float>();
        float* first = piece.m.as<float>();
        const Vec decay = broadcast(piece.weight_decay);
        update_weights(stream, piece, [=](int64_t i, auto part) {
            const Vec g = load(gradient + i, part) * grad_scale, p = load(master + i, part);
            const Vec m = fma(momentum, load(first + i, part), fma(decay, p, g));
            store(m, first + i, part);
            return fma_negative(lr, m, p);
        });
    }
}

}  // namespace

void fill_optimizer(KernelTable& table) {
    table.adamw = adamw;
    table.sgd = sgd;
}

}  // namespace tutti::kernels::TUTTI_ISA
