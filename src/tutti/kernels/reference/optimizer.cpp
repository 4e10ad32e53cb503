// kernels/reference/optimizer.cpp: one optimizer update of flat parameters.
#include <cmath>

#include "tutti/kernels/reference/element.h"
#include "tutti/kernels/reference/fill.h"

namespace tutti::kernels::reference {

namespace {

// update(p, g, i) returns the new master value i of a piece.
template <class Update>
void update_master(const OptimizerPiece& piece, double grad_scale, Update update) {
    for (int64_t i = 0; i < piece.master.numel(); ++i) {
        store(piece.master, i, update(load(piece.master, i), grad_scale * load(piece.gradient, i), i));
        if (piece.value.defined()) store(piece.value, i, load(piece.master, i));
    }
}

// m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  p -= lr (m / c1 / (sqrt(v / c2) + eps) + decay p)
void adamw(const Stream&, const AdamW& a) {
    const double b1 = a.beta1, b2 = a.beta2;
    for (const OptimizerPiece& piece : a.pieces)
        update_master(piece, a.grad_scale, [&](double p, double g, int64_t i) {
            const double m = b1 * load(piece.m, i) + (1 - b1) * g;
            const double v = b2 * load(piece.v, i) + (1 - b2) * g * g;
            store(piece.m, i, m);
            store(piece.v, i, v);
            const double direction = m / a.correction1 / (std::sqrt(v / a.correction2) + a.eps);
            return p - a.lr * (direction + piece.weight_decay * p);
        });
}

// m = momentum m + (g + decay p);  p -= lr m
void sgd(const Stream&, const Sgd& s) {
    for (const OptimizerPiece& piece : s.pieces)
        update_master(piece, s.grad_scale, [&](double p, double g, int64_t i) {
            const double m = s.momentum * load(piece.m, i) + (g + piece.weight_decay * p);
            store(piece.m, i, m);
            return p - s.lr * m;
        });
}

}  // namespace

void fill_optimizer(KernelTable& table) {
    table.adamw = adamw;
    table.sgd = sgd;
}

}  // namespace tutti::kernels::reference
