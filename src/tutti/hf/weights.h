// hf/weights.h: the stored weights of a model by Tutti's names, in a Hugging Face directory or in a Tutti checkpoint of
// any number of ranks. A weight is read only when a caller asks for it.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tutti/checkpoint/checkpoint_reader.h"
#include "tutti/checkpoint/safetensors.h"
#include "tutti/hf/values.h"
#include "tutti/models/model.h"

namespace tutti::hf {

// One parameter's stored values, in Tutti's shape and orientation once read.
struct StoredWeight {
    DType dtype = DType::f32;
    std::function<void(int64_t offset, std::span<std::byte>)> read;  // bytes of the file's tensor or tensors
    bool transposed = false;                                         // the file holds the other orientation
};

// One of `parts` equal runs of a parameter's elements: the tensor of one of the stacked experts.
struct PartOf {
    int64_t part = 0, parts = 1;
};

// The tensors of files that hold a parameter (Parameter::stored_as): one, or one for each expert; and their shape.
std::vector<std::string> tensor_names(const autograd::Parameter& parameter);
Shape shape_in_file(const autograd::Parameter& parameter);

// Tensors of files that repeat a parameter: the embedding and the head in each block that predicts later tokens.
struct TensorCopy {
    std::string name;
    const autograd::Parameter* of;
};
std::vector<TensorCopy> copies_in_files(const models::Model& model);

// The values that a narrower type cannot hold, and those that are not finite, by parameter.
using Losses = std::map<std::string, Loss>;
// A line for each parameter: "\n  model.norm.weight: 1 value becomes infinite, 3 values become 0, 2 values are not
// finite".
std::string describe(const Losses& losses);
bool any_infinite(const Losses& losses);

class StoredWeights {
  public:
    // DataError that lists all tensors that are missing, unexpected, of another shape or of a type that is no weight's.
    // Files of a model without its head may lack the first part of all names ("model.", "transformer."). Of files for
    // images and text ("model.language_model.", "language_model.") the text's tensors are read. The file of a
    // tied model may contain the head, if it equals the embedding. Tensors of old files that are no weights (attention
    // masks, RoPE frequencies) are ignored.
    static StoredWeights in_directory(checkpoint::FileSystem& file_system, const std::string& directory,
                                      const models::Model& model);
    // Weights of a Tutti checkpoint, which also holds moments. The reader must outlive the reading of the weights.
    static StoredWeights in_checkpoint(const checkpoint::CheckpointReader& reader, const models::Model& model);

    const std::string& path() const { return path_; }
    DType dtype(const std::string& parameter) const { return weights_.at(parameter).dtype; }
    // The type of most values of the model.
    DType main_dtype(const models::Model& model) const;
    // The bytes of the parameter, or of a part of it, as `dtype`, in Tutti's orientation or transposed. Adds the values
    // that `dtype` cannot hold, and those that are not finite, to `losses`. Error for one of several parts transposed.
    std::vector<std::byte> read(const autograd::Parameter& parameter, DType dtype, Losses& losses,
                                bool transposed = false, const PartOf& part = {}) const;
    // Reads these blocks of the parameter into `values`, flat, f32 or bf16. DataError for a value that is not finite,
    // as stored or in the type of `values`. Values may round to 0.
    void load(const autograd::Parameter& parameter, const std::vector<mesh::HeldBlock>& blocks,
              const Tensor& values) const;
    // Reads all parameters into their value, and into their master where they have one; one parameter at a time passes
    // through host memory.
    void load(ops::Context& ctx, models::Model& model) const;

  private:
    // In Tutti's orientation, or transposed.
    std::vector<std::byte> stored_bytes(const autograd::Parameter& parameter, bool transposed,
                                        const PartOf& part = {}) const;

    std::string path_;
    std::map<std::string, StoredWeight> weights_;
};

}  // namespace tutti::hf
