// checkpoint/testing/whole_slice.h: a whole tensor as a slice of itself.
#pragma once

#include <string>

#include "tutti/checkpoint/training_state.h"

namespace tutti::checkpoint::testing {

inline TensorSlice whole_slice(const std::string& name, const Tensor& tensor) {
    return {.name = name,
            .shape = tensor.shape(),
            .blocks = mesh::whole_part(tensor.shape()).blocks,
            .values = tensor.reshape({tensor.numel()})};
}

}  // namespace tutti::checkpoint::testing
