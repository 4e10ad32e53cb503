// train/stored_types.h: loads a checkpoint into a run that stores the optimizer's state, or masters, in other types:
// f32, bf16, or u8 with the largest magnitude of each block (optimizer.m, optimizer.v, precision.master). Values are
// rounded to the nearest of the new type. Scales of 8-bit products ("precision.*") that the checkpoint lacks, or has of
// another number of steps, stay as they are: a run may begin or end such products; those it does not want are left.
// So do the moments of AdamW for parameters that have Muon's momentum in the checkpoint: earlier versions
// orthogonalised the taps of convolutions.
#pragma once

#include "tutti/checkpoint/training_state.h"

namespace tutti::train {

// checkpoint::load_slices(), after which tensors that the checkpoint has in another type are converted.
void load_converted(const checkpoint::CheckpointReader& reader, const std::vector<checkpoint::TensorSlice>& slices);

// Names of the parameters whose state load_converted() leaves at 0 for another rule.
std::vector<std::string> begun_anew(const checkpoint::CheckpointReader& reader,
                                    const std::vector<checkpoint::TensorSlice>& slices);

// checkpoint::unwanted_tensors() without the tensors that load_converted() has converted or begun anew.
std::vector<std::string> left_over(const checkpoint::CheckpointReader& reader,
                                   const std::vector<checkpoint::TensorSlice>& slices);

}  // namespace tutti::train
