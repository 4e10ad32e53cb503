// hf/names.h: where a parameter of Tutti is in the files of a Hugging Face model: one rule per family. Below: spec/.
// Called by load.cpp and export.cpp.
#pragma once

#include <string>
#include <string_view>

#include "tutti/spec/model_spec.h"

namespace tutti::hf {

struct TensorName {
    std::string name;
    bool transposed = false;  // the file holds (in, out) where Tutti holds (out, in)
};

// `parameter` as models/ names it. gpt2: with "transformer." in front and the four Conv1D matrices of a block turned;
// the published gpt2 files lack the prefix, which the caller finds out. llama and its relatives: the same name.
TensorName tensor_name(spec::Family family, std::string_view parameter, bool with_prefix = true);

// Tensors that old files carry beside the weights and that say nothing: attention masks of gpt2, RoPE frequencies.
bool is_legacy_buffer(spec::Family family, std::string_view tensor);

}  // namespace tutti::hf
