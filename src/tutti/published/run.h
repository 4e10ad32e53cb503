// published/run.h: runs of other systems, as papers and benchmarks publish them: rows of JSON, read into sizes, layout,
// machine and the traits of their software.
#pragma once

#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/hardware/cluster.h"
#include "tutti/published/traits.h"

namespace tutti::published {

// Sizes are those of the published rows and may belong to models that the engine lacks, such as those with multi-head
// latent attention, which are told by their products.
struct Model {
    double layers = 0, hidden = 0, ffn = 0, heads = 0, kv_heads = 0, head_dim = 0, vocab = 0;
    int mlp_matrices = 3;  // 3: gated, 2: GELU, squared ReLU
    bool tied = false;
    double window = 0;                              // a sliding window in every other layer
    double experts = 0, top_k = 0, expert_ffn = 0;  // no experts: 0
    double shared_ffn = 0;                          // of experts that all tokens take
    double dense_layers = 0;                        // of a model with experts: the layers without
    bool latent = false;                            // DeepSeek's attention, with the ranks of V3

    double expert_layers() const { return experts > 0 ? layers - dense_layers : 0; }
    double query_dim() const { return latent ? 192 : head_dim; }
    double value_dim() const { return latent ? 128 : head_dim; }
    // (rows of the output, depth) of the products of attention, and of the feed-forward part, cut over `tp` ranks.
    struct Matrix {
        double out = 0, in = 0;
        double values() const { return out * in; }
    };
    static double values_of(const std::vector<Matrix>& matrices);
    std::vector<Matrix> attention(double tp) const;
    std::vector<Matrix> mlp(double width, double tp) const;
    // FLOPs of a token, forward and backward: of products with weights, and of attention to all tokens.
    double product_flops() const;
    double attention_flops(double seq) const;
};

enum class Recompute { none, norms, selective, operations, every_second, full };

struct PublishedRun {
    std::string id, family, house;  // house: of all families of one maker
    Model model;
    hardware::Cluster cluster;
    Traits software;

    double seq = 0, global_batch = 0, micro_batch = 1;
    double local_batch = 0;  // sequences of a replica in one pass through its pipeline, which fills and drains; 0: all
    bool micro_batch_given = true;
    int ranks = 1, tp = 1, cp = 1, pp = 1, ep = 1, virtual_stages = 1, dp = 1, zero = 0;
    Recompute recompute = Recompute::none;
    std::string schedule;
    std::string precision = "bf16";  // as the row gives it: fp16, bf16, fp8 with its recipe, nvfp4
    bool offload_optimizer = false;

    double seconds = 0;       // measured, of a step; 0: not given
    double memory_bytes = 0;  // measured, of a rank; 0: not given
    bool estimated = false;   // the row says that sizes or layout were guessed: it takes part in no fit and no error
    std::string problem;      // why the row cannot be predicted; ""

    double microbatches() const { return std::max(1.0, global_batch / dp / micro_batch); }
    double pipelines() const { return local_batch > 0 ? std::max(1.0, global_batch / dp / local_batch) : 1; }
    double tokens() const { return global_batch * seq; }
    bool measured() const { return problem.empty() && seconds > 0; }
    bool counts() const { return measured() && !estimated; }
    bool wide() const { return has("fp32") || has("tf32"); }
    bool has(std::string_view word) const { return precision.find(word) != std::string::npos; }
};

// A list of rows, or {"rows": [{...}]}, with the fields of tests/published/runs.json; what all rows share may stand in
// "meta": {"gpu": ..., "models": {MODEL: sizes}}. A field that is missing or null takes the usual value for the
// software; one of a wrong type, or no size, becomes the row's problem. DataError for text that is no such document,
// or that has no rows.
std::vector<PublishedRun> read_runs(std::string_view json, const std::string& source_name);

// The rows that the constants were fitted to, tests/published/runs.json: the program carries them.
const std::vector<PublishedRun>& calibration_runs();
std::string_view calibration_rows();  // as text

// Kinds of a run by which errors are reported: "hopper", "tp in node", "zero3", "full recompute", ...
std::vector<std::string> kinds_of(const PublishedRun& run);

}  // namespace tutti::published
