// kernels/reference/optimizer.cpp: one optimizer update of flat parameters.
#include <algorithm>
#include <cmath>
#include <vector>

#include "tutti/base/dynamic_map.h"
#include "tutti/base/stochastic.h"
#include "tutti/kernels/reference/element.h"
#include "tutti/kernels/reference/fill.h"

namespace tutti::kernels::reference {

namespace {

void store_rounded(const View& y, const OptimizerPiece& piece, int64_t i, double value, RandomKey key) {
    if (y.dtype == DType::bf16 && key != 0)
        y.as<uint16_t>()[i] = stochastic_bf16_bits(static_cast<float>(value),
                                                   rounding_bits(key, static_cast<uint64_t>(piece.elements.at(i))));
    else
        store(y, i, value);
}

// A moment of the piece in double, read from its type and written back.
class Wide {
  public:
    Wide(const OptimizerPiece& piece, const Moment& moment, const DynamicMap& map)
        : piece_(piece),
          moment_(moment),
          map_(map),
          values_(static_cast<size_t>(moment.values.defined() ? moment.values.numel() : 0)) {
        for (int64_t i = 0; i < static_cast<int64_t>(values_.size()); ++i)
            (*this)[i] = codes() ? static_cast<double>(map.values[moment.values.as<uint8_t>()[i]]) *
                                       load(moment.largest, i / kStateBlock)
                                 : load(moment.values, i);
    }
    double& operator[](int64_t i) { return values_[static_cast<size_t>(i)]; }

    void write() {
        const auto n = static_cast<int64_t>(values_.size());
        for (int64_t begin = 0; codes() && begin < n; begin += kStateBlock) {
            const int64_t end = std::min(n, begin + kStateBlock);
            double largest = 0;
            for (int64_t i = begin; i < end; ++i) largest = std::max(largest, std::abs((*this)[i]));
            store(moment_.largest, begin / kStateBlock, largest);
            for (int64_t i = begin; i < end; ++i) moment_.values.as<uint8_t>()[i] = map_.code_of((*this)[i], largest);
        }
        for (int64_t i = 0; !codes() && i < n; ++i) store_rounded(moment_.values, piece_, i, (*this)[i], moment_.key);
    }

  private:
    bool codes() const { return moment_.values.dtype == DType::u8; }

    const OptimizerPiece& piece_;
    const Moment& moment_;
    const DynamicMap& map_;
    std::vector<double> values_;
};

// update(p, g, m, v) returns the new master value of an element, and changes its moments.
template <class Update>
void update_pieces(std::span<const OptimizerPiece> pieces, double grad_scale, Update update) {
    for (const OptimizerPiece& piece : pieces) {
        Wide m(piece, piece.m, kSignedMap), v(piece, piece.v, kUnsignedMap);
        double none = 0;
        for (int64_t i = 0; i < piece.master.numel(); ++i) {
            const double p = update(piece, load(piece.master, i), grad_scale * load(piece.gradient, i), m[i],
                                    piece.v.values.defined() ? v[i] : none);
            store_rounded(piece.master, piece, i, p, piece.master_key);
            if (piece.value.defined()) store(piece.value, i, load(piece.master, i));
        }
        m.write();
        v.write();
    }
}

// m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  p -= lr (m / c1 / (sqrt(v / c2) + eps) + decay p)
void adamw(const Stream&, const AdamW& a) {
    const double b1 = a.beta1, b2 = a.beta2;
    update_pieces(a.pieces, a.grad_scale, [&](const OptimizerPiece& piece, double p, double g, double& m, double& v) {
        m = b1 * m + (1 - b1) * g;
        v = b2 * v + (1 - b2) * g * g;
        const double direction = m / a.correction1 / (std::sqrt(v / a.correction2) + a.eps);
        return p - a.lr * (direction + piece.weight_decay * p);
    });
}

// m = momentum m + (g + decay p);  p -= lr m
void sgd(const Stream&, const Sgd& s) {
    update_pieces(s.pieces, s.grad_scale, [&](const OptimizerPiece& piece, double p, double g, double& m, double&) {
        m = s.momentum * m + (g + piece.weight_decay * p);
        return p - s.lr * m;
    });
}

// u = sign(b1 m + (1 - b1) g);  p -= lr (u + decay p);  m = b2 m + (1 - b2) g
void lion(const Stream&, const Lion& l) {
    const double b1 = l.beta1, b2 = l.beta2;
    update_pieces(l.pieces, l.grad_scale, [&](const OptimizerPiece& piece, double p, double g, double& m, double&) {
        const double mixed = b1 * m + (1 - b1) * g, u = mixed > 0 ? 1 : mixed < 0 ? -1 : 0;
        m = b2 * m + (1 - b2) * g;
        return p - l.lr * (u + piece.weight_decay * p);
    });
}

void muon_momentum(const Stream&, const MuonMomentum& a) {
    for (const OptimizerPiece& piece : a.pieces) {
        Wide m(piece, piece.m, kSignedMap);
        for (int64_t i = 0; i < piece.update.numel(); ++i) {
            const double g = a.grad_scale * load(piece.gradient, i);
            m[i] = a.momentum * m[i] + g;
            store(piece.update, i, g + a.momentum * m[i]);
        }
        m.write();
    }
}

void muon_descent(const Stream&, const MuonDescent& a) {
    for (const OptimizerPiece& piece : a.pieces)
        for (int64_t i = 0; i < piece.update.numel(); ++i) {
            const double p = load(piece.master, i), x = piece.update_scale * load(piece.update, i);
            store_rounded(piece.master, piece, i, p - a.lr * (x + piece.weight_decay * p), piece.master_key);
            if (piece.value.defined()) store(piece.value, i, load(piece.master, i));
        }
}

}  // namespace

void fill_optimizer(KernelTable& table) {
    table.adamw = adamw;
    table.sgd = sgd;
    table.lion = lion;
    table.muon_momentum = muon_momentum;
    table.muon_descent = muon_descent;
}

}  // namespace tutti::kernels::reference
