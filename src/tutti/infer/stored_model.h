// infer/stored_model.h: a model where it is stored: a Hugging Face directory, a run directory, the checkpoints of a run
// or one of them.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tutti/checkpoint/store.h"
#include "tutti/hf/weights.h"
#include "tutti/parallel/groups.h"
#include "tutti/spec/run_spec.h"

namespace tutti::infer {

struct StoredModel {
    bool hugging_face = false;
    std::string path;        // of the directory or of the checkpoint
    std::string side_files;  // directory with tokenizer and generation config, "" when there is none
    std::string tokenizer;   // what data::make_tokenizer takes: the run's copy or what it named; "": none is known
    spec::RunSpec run;       // of the run; of a Hugging Face directory the model only
    int64_t step = 0;

    // The longest context that the weights were made for: the run's seq_len, the directory's max_position_embeddings.
    int64_t max_positions() const { return hugging_face ? run.model.max_positions : run.train.seq_len; }
    // Ids that end a text, from generation_config.json, else from config.json; none when there are no such files.
    std::vector<int32_t> eos_tokens() const;
};

// Called with a model whose parameters have no memory yet. May be called again with an older checkpoint, when a newer
// one proves damaged while its weights are read and `on_damage` is fall_back, which `warn` is told.
using UseStored = std::function<void(const StoredModel&, models::Model, const hf::StoredWeights&)>;
// `longest`: tokens of the longest text that the model will see; its RoPE table ends there.
void open_stored_model(const std::string& path, ops::Context& ctx, int64_t longest, checkpoint::OnDamage on_damage,
                       const checkpoint::Warn& warn, const UseStored& use);

// A model with weights, ready to run.
struct LoadedModel {
    std::unique_ptr<Device> device;
    std::unique_ptr<ops::Context> ctx;
    std::unique_ptr<parallel::Groups> groups;  // of the ranks that share out the model; null: this one has all of it
    std::unique_ptr<models::Model> model;
    DType compute = DType::f32;
    int64_t max_positions = 0;  // of the texts that it may see
    StoredModel stored;
};
struct LoadOptions {
    std::string device = "auto";  // as in [train]
    int threads = 0;
    // f32, bf16, or auto: as the run computed; of a Hugging Face directory f32 when it stores f32, else bf16.
    std::string compute = "auto";
    int64_t longest = std::numeric_limits<int64_t>::max();  // as above
    checkpoint::Warn warn = [](const std::string&) {};      // a damaged checkpoint was passed over
    // Ranks that share out the model by tensor parallelism; null: none. Must outlive the model.
    comm::World* world = nullptr;
    LocalRank local = {};
};
// Collective over the ranks of the world. UsageError when the model cannot be cut into so many.
LoadedModel load_model(const std::string& path, const LoadOptions& options = {});

}  // namespace tutti::infer
