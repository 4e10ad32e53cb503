// models/mamba2.h: the layer of Mamba-2 (Dao and Gu 2024, "Transformers are SSMs"), as Granite 4, Nemotron-H and
// Falcon-H1 have it.
#pragma once

#include <optional>
#include <string>

#include "tutti/models/model.h"

namespace tutti::models {

// W_o N(o silu(W_z u)), o the scan of conv(W_x u), conv(W_B u), conv(W_C u) and the steps of W_dt u
// (kernels::DeltaRule), with short convolutions. N is an RMS norm of each group of heads; or of o alone, or missing. In
// files the projections are rows of one tensor, and so are the convolutions. Must not be moved once a unit owns it.
class Mamba2 {
  public:
    // `name`: "model.layers.3.mamba".
    Mamba2(const spec::ModelSpec& spec, int64_t layer, const std::string& name);

    nn::Var operator()(nn::Tape& tape, const nn::Var& u, const nn::Batch& batch);  // u, y (B, T, C)

  private:
    friend void own(autograd::Unit& unit, Mamba2& part);
    nn::Var normed(nn::Tape& tape, const nn::Var& o, const nn::Var& z);
    // Of channels of all groups those of the group to which the heads of this rank belong, where ranks share groups.
    nn::Var own_groups(nn::Tape& tape, const nn::Var& x) const;

    int64_t layer_;
    spec::ScanSpec spec_;
    nn::Linear z_, x_, b_, c_, dt_, out_;
    nn::WeightAndBias taps_x_, taps_b_, taps_c_;  // (channels, 1, K) and (channels)
    nn::Parameter a_log_, dt_bias_, skip_;        // (H)
    std::optional<nn::Norm> norm_;                // of all heads, (H P)
};

}  // namespace tutti::models
