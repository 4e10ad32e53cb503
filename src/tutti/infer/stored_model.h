// infer/stored_model.h: opens a stored model: a Hugging Face directory, a run directory, the checkpoints of a run or
// one of them.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <string>

#include "tutti/checkpoint/store.h"
#include "tutti/hf/weights.h"
#include "tutti/parallel/groups.h"
#include "tutti/spec/run_spec.h"
#include "tutti/text/tokenizer.h"

namespace tutti::infer {

struct StoredModel {
    bool hugging_face = false;
    std::string path;        // of the directory or of the checkpoint
    std::string side_files;  // directory with tokenizer and generation config; "": none
    std::string tokenizer;   // a name for text::make_tokenizer(): the run's copy, else its data.tokenizer; "": unknown
    spec::RunSpec run;       // for a Hugging Face directory only `model` is set
    int64_t step = 0;

    // The context length of training: the run's seq_len, the directory's max_position_embeddings.
    int64_t max_positions() const { return hugging_face ? run.model.max_positions : run.train.seq_len; }
    // Ids that begin, fill and end texts: those of generation_config.json, else of config.json, those of the tokenizer
    // (null: unknown), and as an end the end-of-document token of training.
    text::SpecialIds special_ids(const text::Tokenizer* by) const;
    // spec::unsupported_generation_options of generation_config.json; "" without that file.
    std::string unsupported_generation_options() const;
};

// The tokenizer's file in a directory of a run or a model; "": none.
std::string tokenizer_of_run(const std::string& run);

// Where the checkpoints of a path are, and their run; one of the first two is set.
struct CheckpointPlace {
    std::string directory, step_path;
    std::string run;
};
// Of a run directory, of the directory of its checkpoints, or of one of them. DataError for a path that is no
// directory.
CheckpointPlace find_checkpoint(const std::string& path);

// Called with a model whose parameters have no memory yet. If reading the weights finds a damaged checkpoint and
// `on_damage` is fall_back, `warn` is called, and then this function again with an older checkpoint.
using UseStored = std::function<void(const StoredModel&, models::Model, const hf::StoredWeights&)>;
// `longest`: tokens of the longest text; the RoPE table of the model ends there.
void open_stored_model(const std::string& path, ops::Context& ctx, int64_t longest, checkpoint::OnDamage on_damage,
                       const checkpoint::Warn& warn, const UseStored& use);

// A model with weights, ready to run.
struct LoadedModel {
    std::unique_ptr<Device> device;
    std::unique_ptr<ops::Context> ctx;
    std::unique_ptr<parallel::Groups> groups;  // of the ranks that divide the model; null: this rank has all of it
    std::unique_ptr<models::Model> model;
    DType compute = DType::f32;
    int64_t max_positions = 0;  // of a text
    StoredModel stored;
};
struct LoadOptions {
    std::string device = "auto";  // as in [train]
    int threads = 0;
    // f32, bf16, f16, or auto: the run's; for a Hugging Face directory that of most of its values.
    std::string compute = "auto";
    int64_t longest = std::numeric_limits<int64_t>::max();  // as in open_stored_model()
    checkpoint::Warn warn = [](const std::string&) {};      // called when a damaged checkpoint is skipped
    // Tensor-parallel ranks that divide the model; null: none. Must outlive the model.
    comm::World* world = nullptr;
    LocalRank local = {};
};
// Collective over the ranks of the world. UsageError when the model cannot be divided among so many ranks.
LoadedModel load_model(const std::string& path, const LoadOptions& options = {});

}  // namespace tutti::infer
