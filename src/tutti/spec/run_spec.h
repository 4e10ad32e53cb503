// spec/run_spec.h: the config of a run as plain data with units in the names, one struct per section of the TOML file.
// field_list.cpp describes each field once (key, range, help); parsing, printing, --set and --help follow that
// description.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "tutti/base/dtype.h"
#include "tutti/spec/model_spec.h"

namespace tutti::spec {

struct DataSpec {
    std::vector<std::string> train;  // text, JSONL, Megatron, nanoGPT or llm.c files; "0.7 PATH": a blend
    std::vector<std::string> valid;  // held out; or take valid_fraction from the end of the training data
    double valid_fraction = 0;
    std::string tokenizer = "bytes";
    std::string format = "auto";       // auto | text | jsonl | megatron | nanogpt | llmc | llmq
    std::string documents = "packed";  // packed | respected
    std::string eod = "";              // end-of-document token: id or text; "": the tokenizer's
    std::string text_field = "text";   // of a JSONL record
    bool operator==(const DataSpec&) const = default;
};

struct TrainSpec {
    int64_t steps = 300;        // optimizer updates
    int64_t seq_len = 256;      // T
    int64_t global_batch = 32;  // sequences per step over all ranks
    int64_t micro_batch = 8;    // sequences per forward on one rank
    int64_t seed = 1234;
    int64_t eval_every = 0;               // steps; 0: only at the end when validation data exists
    int64_t eval_batches = 16;            // of global_batch windows per evaluation
    int64_t max_skipped = 10;             // stop after this many non-finite steps in a row
    int64_t threads = 0;                  // CPU threads of a rank; 0: cores / ranks
    std::string device = "auto";          // auto | cpu | cuda
    std::string packed_weights = "auto";  // auto | always | never
    bool cuda_graphs = false;
    std::string gemm_tuning = "";       // a file of `tutti bench step --tune`
    std::string attention = "own";      // own | cudnn | fastest | tensor | plain
    std::string attention_tuning = "";  // a file of `tutti bench attention --tune`
    bool operator==(const TrainSpec&) const = default;
};

// Numbers of the optimizer for parameters whose name contains a match of an expression (ECMAScript). The first group
// that matches a name counts.
struct ParameterGroup {
    std::string match;
    std::optional<double> weight_decay;  // of all these parameters; nothing: as without the group
    double lr_scale = 1;
    bool operator==(const ParameterGroup&) const = default;
};

struct OptimizerSpec {
    std::string name = "adamw";  // adamw | sgd | lion | muon
    std::string m = "f32";       // f32 | bf16 | u8: storage of the first moment, or the momentum
    std::string v = "f32";       // of the second moment
    bool u8_embedding = false;   // u8 for tables of words and positions, too
    double lr = 3e-4;
    double min_lr = 3e-5;
    std::string schedule = "cosine";  // cosine | linear | constant | wsd
    int64_t warmup_steps = 20;
    int64_t decay_steps = 0;  // wsd: length of the final decay; 0: a tenth of the steps
    double beta1 = 0.9;
    double beta2 = 0.95;
    double eps = 1e-8;
    double momentum = 0.9;  // sgd
    double muon_momentum = 0.95;
    std::string muon_scale = "match_adamw";    // match_adamw | shape
    std::string muon_coefficients = "simple";  // simple | quintic | polar_express
    double weight_decay = 0.1;                 // on parameters with two dims or more
    double expert_bias_rate = 1e-3;
    double clip = 1.0;  // global gradient norm; 0: off
    std::vector<ParameterGroup> groups = {};
    bool operator==(const OptimizerSpec&) const = default;
};

struct ParallelSpec {
    int64_t dp_replicate = 1;
    int64_t dp_shard = -1;  // -1: the ranks left over by the other axes
    int64_t zero = 1;
    std::string strategy = "collective";  // collective | parameter_server
    std::string accumulate = "auto";      // auto | full | shard: gradients between the microbatches of a step
    int64_t reductions = 1;               // of gradients in flight at once
    int64_t tp = 1;
    bool sequence_parallel = true;
    int64_t tp_overlap = 1;  // pieces; 1: off
    int64_t cp = 1;
    std::string cp_method = "ring";  // ring | all_gather | ulysses
    int64_t cp_ulysses = 0;          // 0: cp with the method ulysses, else 1
    int64_t pp = 1;
    std::string schedule = "1f1b";  // a generator of schedule/, auto, or FILE.csv
    int64_t virtual_stages = 1;
    int64_t microbatch_group = 0;   // 0: min(pp, microbatches)
    int64_t live_chunks = 0;        // 0: no limit
    std::string stage_layers = "";  // "11,11,10"; "": balanced
    int64_t unsharded_stages = 0;   // 0: weights are unsharded unit by unit
    int64_t ep = 1;
    int64_t etp = 1;
    bool operator==(const ParallelSpec&) const = default;
};

struct RecomputeSpec {
    std::string policy = "none";  // none | selective | full | every:N | sqrt
    bool operator==(const RecomputeSpec&) const = default;
};

struct OffloadSpec {
    bool optimizer = false;
    bool params = false;
    bool activations = false;
    std::string dir = "";  // of a CPU rank; "": OUT/offload
    bool operator==(const OffloadSpec&) const = default;
};

struct PrecisionSpec {
    std::string compute = "bf16";   // bf16 | f16 | f32 | tf32
    std::string master = "f32";     // f32 | none
    std::string gradients = "f32";  // f32 | bf16
    std::string reduce = "auto";    // auto | f32 | bf16
    // Codes of 8 bits in the products of blocks (spec/recipe.h).
    std::string recipe = "none";        // none | tensor | delayed | block | mxfp8
    std::string formats = "auto";       // auto | hybrid | e4m3
    std::string scales = "pow2";        // pow2 | f32
    std::string scale_over = "tensor";  // tensor | rank
    int64_t bf16_first = 1;             // blocks that keep their products in bf16, from the first and from the last
    int64_t bf16_last = 1;
    int64_t amax_history = 16;    // delayed: steps
    std::string amax_of = "max";  // delayed: max | most_recent
    std::string gather = "none";  // none | weights | sequences | all: what is gathered as codes
    bool emulate = false;         // codes are decoded before products, on GPUs without such products
    std::string fp8 = "none";     // refused: recipe has taken its place
    // The factor S of all gradients (engine/loss_scale.h), a power of two.
    std::string loss_scale = "auto";     // auto | dynamic | a number
    double loss_scale_initial = 65536;   // dynamic: the first S
    double loss_scale_least = 1;         // below which S does not fall
    int64_t loss_scale_interval = 1000;  // steps without a skip, after which S doubles
    int64_t loss_scale_hysteresis = 2;   // skips since S last grew, from which on each halves S
    bool operator==(const PrecisionSpec&) const = default;
};

struct CheckpointSpec {
    std::string dir = "";  // "": OUT/checkpoints
    int64_t every = 100;   // steps; 0: only at the end
    int64_t keep = 3;
    int64_t memory_every = 0;  // steps between copies in the memory of the hosts; 0: none
    bool async = true;
    double last_wait_s = 300;  // retries of the last save of a run, when it fails
    bool operator==(const CheckpointSpec&) const = default;
};

struct LogSpec {
    int64_t every = 10;
    bool tensorboard = false;
    bool trace = false;
    int64_t trace_first = 0;  // step; 0: the third after the start or a resume
    int64_t trace_steps = 3;
    int64_t sample_tokens = 0;  // of a sample of the trained model in the report; 0: none
    bool operator==(const LogSpec&) const = default;
};

struct CommSpec {
    std::string backend = "auto";  // auto | mpi | tcp
    std::string gpu = "auto";      // auto | nccl | host
    std::string order = "tree";    // tree | fast | auto
    int64_t max_ctas = 16;         // of NCCL; 0: its own choice
    bool spare_multiprocessors = true;
    double timeout_s = 300;
    std::string secret = "auto";  // auto | none | the path of a file
    bool progress_thread = false;
    bool operator==(const CommSpec&) const = default;
};

// One [[stage]]: the keys that it sets, by path; the others are those of the stage before.
struct StageSpec {
    using Value = std::variant<bool, int64_t, double, std::string, std::vector<std::string>>;
    int64_t until = 0;  // its last step; 0: that of the run, in the last stage
    std::map<std::string, Value> set;
    bool operator==(const StageSpec&) const = default;
};

// Where a run that is a stage of another stands in it; stages_of() fills it in (stages.h). No key of a config.
struct StagePlace {
    int64_t number = 0;           // from 1; 0: a whole run, which begins with step 1
    int64_t first = 1, last = 0;  // its steps; last 0: train.steps
    // Step s reads samples [(s - 1) * global_batch + sample_shift, ... + global_batch) of the data.
    int64_t sample_shift = 0;
    // The course of the learning rate: it begins behind step course_begin, with a rate, and ends with step course_end;
    // 0: train.steps.
    int64_t course_begin = 0, course_end = 0;
    double course_from = 0;
    bool operator==(const StagePlace&) const = default;
};

struct RunSpec {
    ModelSpec model;
    DataSpec data;
    TrainSpec train;
    OptimizerSpec optimizer;
    ParallelSpec parallel;
    RecomputeSpec recompute;
    OffloadSpec offload;
    PrecisionSpec precision;
    CheckpointSpec checkpoint;
    LogSpec log;
    CommSpec comm;
    std::vector<StageSpec> stages;  // none: the whole run is as the sections say
    StagePlace place;
    bool operator==(const RunSpec&) const = default;
};

// The arithmetic of the forward and backward of a validated run, and the type of weights and activations.
inline ComputeType compute_type_of(const RunSpec& run) {
    return compute_type_from(run.precision.compute).value_or(ComputeType::bf16);
}
inline DType compute_dtype(const RunSpec& run) { return storage_of(compute_type_of(run)); }
// precision.loss_scale of a validated run; nothing: dynamic.
std::optional<double> fixed_loss_scale(const RunSpec& run);
// In which gradients are stored, and in which they are communicated.
inline DType gradient_dtype(const RunSpec& run) { return run.precision.gradients == "bf16" ? DType::bf16 : DType::f32; }
inline DType reduce_dtype(const RunSpec& run) {
    return run.precision.reduce == "bf16" ? DType::bf16 : gradient_dtype(run);
}

}  // namespace tutti::spec
