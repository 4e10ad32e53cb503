// nn/latent_attention.h: causal attention whose keys and values are made from a latent (DeepSeek-AI 2024, DeepSeek-V2,
// section 2.1): a key is the head's own channels, and behind them a rotated key that all heads share.
//
// With context parallelism by all_gather the ranks exchange the latent and the shared key, and each rank makes the keys
// and values of whole sequences (gather_from_context). With the ring or Ulysses the heads' own keys and values travel,
// since a ring that made them hop by hop would have weight gradients inside of attention, which a pipeline could not
// delay.
#pragma once

#include "tutti/nn/functions.h"

namespace tutti::nn {

// Whether keys_and_values and shared_key of latent_attention() are those of whole sequences.
bool latents_are_gathered(const Batch& batch);

// q (B, T, H, D), rotated; keys_and_values (B, Tk, H, D - R + Dv), of each head its channels of the key and its value;
// shared_key (B, Tk, 1, R), rotated. Returns (B, T, H, Dv). Caches hold the keys and values of heads.
Var latent_attention(Tape& tape, const Var& q, const Var& keys_and_values, const Var& shared_key, const Batch& batch,
                     int64_t layer, const AttentionOptions& options = {});

}  // namespace tutti::nn
