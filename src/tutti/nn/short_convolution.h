// nn/short_convolution.h: the gated short convolution of LFM2 as a differentiable function.
#pragma once

#include "tutti/nn/functions.h"

namespace tutti::nn {

// p (B, T, 3 C), b | c | x of each token side by side; taps: weight (C, 1, K), bias (C) or none; returns c conv(b x),
// (B, T, C). A token sees nothing of another document: batch.positions say where its own begins. With batch.context the
// ranks exchange the states between their runs of tokens (K - 1 tokens each, f32), in both directions; every run must
// have K - 1 tokens. With caches, layer `layer` of them has the state before the tokens, and then the one after them.
Var short_convolution(Tape& tape, const Var& p, Affine taps, const Batch& batch, int64_t layer);

}  // namespace tutti::nn
