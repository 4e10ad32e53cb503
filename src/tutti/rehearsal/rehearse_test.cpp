// Rehearsals against closed formulas: activations by what each op keeps, state by bytes per parameter, FLOPs by the
// model, traffic by the algorithms. N rows of a microbatch, C width, H heads of D, A = H D, K = kv heads times D, F
// ffn, V vocab, e bytes of a value.
#include "tutti/rehearsal/rehearse.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <tuple>

#include "tutti/base/error.h"
#include "tutti/models/flops.h"
#include "tutti/optim/rules.h"
#include "tutti/spec/toml.h"
#include "tutti/spec/validate.h"

namespace tutti::rehearsal {
namespace {

spec::RunSpec run_of(const std::string& preset, const std::string& compute, int64_t batch, int64_t seq_len) {
    spec::RunSpec run;
    run.model = spec::preset(preset);
    run.precision.compute = compute;
    run.train.micro_batch = batch;
    run.train.seq_len = seq_len;
    return run;
}

// A machine whose kernels need no workspace.
Target plain_machine() { return {&kernels::reference_table(), {.name = "reference"}}; }

MemoryPlan memory_of(const spec::RunSpec& run, int ranks = 1, int rank = 0) {
    return rehearse(run, plain_machine(), ranks, rank).memory;
}

// Activations at the peak that one more block adds.
int64_t activations_of_a_block(spec::RunSpec run) {
    const MemoryPlan before = memory_of(run);
    ++run.model.layers;
    return memory_of(run).at_peak[Purpose::activations] - before.at_peak[Purpose::activations];
}

// Bytes per value, ZeRO paper's table with f32 gradients: 2 + 4 + (4 + 4 + 4) in bf16, 4 + 4 + 8 in f32.
TEST(RehearsedMemory, StateOfAParameter) {
    const auto expect = [](const char* compute, const char* optimizer, int64_t weights, int64_t gradients,
                           int64_t state) {
        const MemoryByPurpose bytes =
            optim::state_bytes(1000, {.optimizer = {.name = optimizer}, .precision = {.compute = compute}});
        EXPECT_EQ(bytes[Purpose::weights], 1000 * weights) << compute << optimizer;
        EXPECT_EQ(bytes[Purpose::gradients], 1000 * gradients) << compute << optimizer;
        EXPECT_EQ(bytes[Purpose::optimizer], 1000 * state) << compute << optimizer;
        EXPECT_EQ(bytes.total(), 1000 * (weights + gradients + state)) << compute << optimizer;
    };
    expect("bf16", "adamw", 2, 4, 12);
    expect("f32", "adamw", 4, 4, 8);
    expect("bf16", "sgd", 2, 4, 8);
    expect("f32", "sgd", 4, 4, 4);
}

// gpt2-124m has 124439808 values. Memory holds 50304 rows for its 50257 words: whole tiles of 64 (parallel::apply).
constexpr int64_t kGpt2Values = 124439808, kGpt2Words = 50304, kGpt2Held = kGpt2Values + (kGpt2Words - 50257) * 768;

// 2.24 GB of state in bf16.
TEST(RehearsedMemory, StateOfGpt2) {
    const MemoryPlan plan = memory_of(run_of("gpt2-124m", "bf16", 1, 64));
    EXPECT_EQ(plan.at_peak[Purpose::weights], 2 * kGpt2Held);
    EXPECT_EQ(plan.at_peak[Purpose::gradients], 4 * kGpt2Held);
    EXPECT_EQ(plan.at_peak[Purpose::optimizer], 12 * kGpt2Held);
    EXPECT_EQ(plan.at_peak[Purpose::data], 64 * 20);  // tokens, targets, positions i32; row index i64
    EXPECT_EQ(plan.at_peak[Purpose::communication], 0);
}

// Saved by a Llama block: x, its norm, h, its norm: 4 C; q and the output of attention: 2 A; k, v: 2 K; gate, up and
// their product: 3 F; in f32 two rstd and H log-sum-exps.
TEST(RehearsedMemory, LlamaBlock) {
    spec::RunSpec run = run_of("llama-110m", "bf16", 2, 128);
    run.model.kv_heads = 4;
    const int64_t N = 2 * 128, C = 768, A = 768, K = 4 * 64, F = 2048, H = 12;
    EXPECT_EQ(activations_of_a_block(run), N * (2 * (4 * C + 2 * A + 2 * K + 3 * F) + 4 * (2 + H)));
    run.precision.compute = "f32";
    EXPECT_EQ(activations_of_a_block(run), N * (4 * (4 * C + 2 * A + 2 * K + 3 * F) + 4 * (2 + H)));
    run.model.dropout = 0.1;  // masks are computed anew, not saved
    EXPECT_EQ(activations_of_a_block(run), N * (4 * (4 * C + 2 * A + 2 * K + 3 * F) + 4 * (2 + H)));
}

// Qwen3 also keeps q and k before their norms, and an rstd for each head; biases keep nothing.
TEST(RehearsedMemory, HeadNormsAndBiases) {
    spec::RunSpec run = run_of("llama-110m", "bf16", 2, 128);
    const int64_t plain = activations_of_a_block(run);
    run.model.qkv_bias = run.model.output_bias = run.model.mlp_bias = true;
    EXPECT_EQ(activations_of_a_block(run), plain);
    run.model.head_norm = true;
    run.model.kv_heads = 4;
    run.model.head_dim = 128;
    const int64_t N = 2 * 128, C = 768, A = 12 * 128, K = 4 * 128, F = 2048;
    EXPECT_EQ(activations_of_a_block(run), N * (2 * (4 * C + 2 * A + 2 * K + A + K + 3 * F) + 4 * (2 + 12 + 12 + 4)));
}

// GPT-2: 4 C as above; q, k, v and the output of attention: 4 A; before and after GELU: 2 F; mean and rstd twice.
TEST(RehearsedMemory, Gpt2Block) {
    const int64_t N = 2 * 128, C = 768, A = 768, F = 3072, H = 12;
    EXPECT_EQ(activations_of_a_block(run_of("gpt2-124m", "bf16", 2, 128)),
              N * (2 * (4 * C + 4 * A + 2 * F) + 4 * (4 + H)));
}

// A recomputed block saves its input only. One more block is one more segment.
TEST(RehearsedMemory, RecomputedBlock) {
    spec::RunSpec run = run_of("llama-110m", "bf16", 2, 128);
    run.recompute.policy = "full";
    EXPECT_EQ(activations_of_a_block(run), 2 * 128 * 2 * 768);
}

// Selective: neither the outputs of norms nor those of SwiGLU and GELU.
TEST(RehearsedMemory, SelectiveBlock) {
    spec::RunSpec run = run_of("llama-110m", "bf16", 2, 128);
    run.recompute.policy = "selective";
    const int64_t N = 2 * 128, C = 768, F = 2048, H = 12;
    EXPECT_EQ(activations_of_a_block(run), N * (2 * (2 * C + 4 * C + 2 * F) + 4 * (2 + H)));
    spec::RunSpec gpt2 = run_of("gpt2-124m", "bf16", 2, 128);
    gpt2.recompute.policy = "selective";
    EXPECT_EQ(activations_of_a_block(gpt2), N * (2 * (2 * C + 4 * C + 3072) + 4 * (4 + H)));
}

// The whole peak, where it is in the loss: L blocks, the final norm's input, output and rstd, the gradient of its
// output, the losses; the logits of all 1024 rows (118 MiB, 60032 words wide), the RoPE table and the 68 words of the
// sum of losses in workspace.
TEST(RehearsedMemory, PeakInTheLoss) {
    spec::RunSpec run = run_of("llama-tiny", "bf16", 2, 512);
    run.model.vocab = 59990;
    const int64_t N = 1024, L = 4, C = 128, A = 128, K = 128, F = 448, H = 4, e = 2;
    const int64_t block = e * (4 * C + 2 * A + 2 * K + 3 * F) + 4 * (2 + H);
    const MemoryPlan plan = memory_of(run);
    EXPECT_EQ(plan.peak_place, "forward of head");
    EXPECT_EQ(plan.at_peak[Purpose::activations], N * (L * block + 3 * e * C + 4 + 4));
    EXPECT_EQ(plan.at_peak[Purpose::workspace], N * 60032 * e + 512 * 32 * 4 + 68 * 8);
    EXPECT_EQ(plan.peak(), plan.at_peak.total());
}

// One layer, f32: the ReLU's gradient is made while its output and the loss's gradient are there; the first layer's
// input is data and wants no gradient. Of the data the features are kept for a weight gradient, the targets are not.
TEST(RehearsedMemory, MlpOfOneLayer) {
    spec::RunSpec run = run_of("mlp-8192", "f32", 2, 8);
    run.model.layers = 1;
    run.model.width = 100;
    const int64_t N = 16, C = 100;
    const MemoryPlan plan = memory_of(run);
    EXPECT_EQ(plan.peak_place, "backward of layers.0");
    EXPECT_EQ(plan.at_peak[Purpose::activations], 3 * N * C * 4 + N * 4);
    EXPECT_EQ(plan.at_peak[Purpose::data], N * C * 4);
    EXPECT_EQ(plan.at_peak[Purpose::weights], C * C * 4);
    run.precision.compute = "bf16";  // data: 2 + 2 bytes; while the targets are rounded 2 + 2 + 4
    EXPECT_EQ(memory_of(run).at_peak[Purpose::data], N * C * 2);
    EXPECT_EQ(memory_of(run).peaks[Purpose::data], N * C * (2 + 2 + 4));
}

TEST(RehearsedMemory, AttentionWorkspaceIsThereWhileAttentionRuns) {
    const spec::RunSpec run = run_of("llama-tiny", "f32", 1, 64);
    const int64_t always = 64 * 32 * 4 + 68 * 8, chunk = 64 * 256 * 4;
    EXPECT_EQ(memory_of(run).peaks[Purpose::workspace], always + chunk);
    kernels::KernelTable table = kernels::reference_table();
    const Target target{&table, {.name = "a machine with workspaces"}};
    table.attention_workspace = [](const Stream&, const Shape&, const Shape&, bool backward) -> int64_t {
        return (backward ? 3 << 20 : 1 << 20) / 4;
    };
    EXPECT_EQ(rehearse(run, target, 1, 0).memory.peaks[Purpose::workspace], always + (3 << 20));
    table.attention_workspace = [](const Stream&, const Shape&, const Shape&, bool backward) -> int64_t {
        return (backward ? 1 << 20 : 3 << 20) / 4;
    };
    EXPECT_EQ(rehearse(run, target, 1, 0).memory.peaks[Purpose::workspace], always + (3 << 20));
}

// Longer segments keep fewer inputs and more of one segment; with blocks much larger than their input, full is least.
TEST(RehearsedMemory, RecomputePoliciesInOrder) {
    const auto activations = [](const char* policy) {
        spec::RunSpec run = run_of("llama-110m", "bf16", 8, 1024);
        run.recompute.policy = policy;
        return memory_of(run).peaks[Purpose::activations];
    };
    EXPECT_LT(activations("full"), activations("sqrt"));
    EXPECT_LT(activations("sqrt"), activations("every:6"));
    EXPECT_LT(activations("every:6"), activations("none"));
    EXPECT_EQ(activations("every:1"), activations("full"));
}

// Twice the batch: twice the activations, the same state.
TEST(RehearsedMemory, ActivationsGrowWithTheBatch) {
    const MemoryPlan one = memory_of(run_of("gpt2-124m", "bf16", 4, 256));
    const MemoryPlan two = memory_of(run_of("gpt2-124m", "bf16", 8, 256));
    EXPECT_EQ(two.peaks[Purpose::activations], 2 * one.peaks[Purpose::activations]);
    EXPECT_EQ(two.peaks[Purpose::optimizer], one.peaks[Purpose::optimizer]);
}

// 2 + 4 + 12 bytes per value in bf16: parallelism.md, section 2.
TEST(RehearsedMemory, ShardsDivideWhatTheirStageCuts) {
    spec::RunSpec run = run_of("gpt2-124m", "bf16", 1, 64);
    const auto state = [&](int64_t zero, Purpose purpose) {
        run.parallel.zero = zero;
        return memory_of(run, 4).peaks[purpose];
    };
    // Embedding with positions, 12 blocks, the last norm; each in shards of whole blocks of 256.
    const int64_t P = kGpt2Held;
    const auto padded = [](int64_t shards) {
        const auto one = [&](int64_t values) { return (values + shards * 256 - 1) / (shards * 256) * shards * 256; };
        return one((kGpt2Words + 1024) * 768) + 12 * one(7087872) + one(2 * 768);
    };
    EXPECT_EQ(state(0, Purpose::weights), 2 * P);
    EXPECT_EQ(state(0, Purpose::gradients), 4 * P);
    EXPECT_EQ(state(0, Purpose::optimizer), 12 * P);
    for (const int64_t zero : {1, 2, 3}) {
        EXPECT_EQ(state(zero, Purpose::weights), zero == 3 ? 0 : 2 * padded(4));  // masters alone
        EXPECT_EQ(state(zero, Purpose::gradients), zero >= 2 ? 4 * padded(4) / 4 : 4 * padded(4));
        EXPECT_EQ(state(zero, Purpose::optimizer), 12 * padded(4) / 4);  // the first rank's shards have no padding
    }
    run.parallel.dp_replicate = 2;  // and so two shards
    EXPECT_EQ(state(3, Purpose::optimizer), 12 * padded(2) / 2);
}

// Masters and two moments of every value, each of which one rank writes; padding is not saved.
TEST(RehearsedMemory, RanksTogetherSaveTheStateOnce) {
    spec::RunSpec run = run_of("gpt2-124m", "bf16", 1, 64);
    for (const int64_t zero : {0, 1, 3})
        for (const int64_t replicas : {1, 2}) {
            run.parallel.zero = zero;
            run.parallel.dp_replicate = replicas;
            int64_t saved = 0;
            for (int rank = 0; rank < 4; ++rank) saved += memory_of(run, 4, rank).saved;
            EXPECT_EQ(saved, 12 * kGpt2Values) << zero << replicas;
        }
}

// Offloaded state is beside the peak, not in it.
TEST(RehearsedMemory, OffloadedStateIsElsewhere) {
    spec::RunSpec run = run_of("gpt2-124m", "bf16", 1, 64);
    run.train.global_batch = 1;
    run.offload.optimizer = true;
    MemoryPlan plan = memory_of(run);
    EXPECT_EQ(plan.peaks[Purpose::optimizer], 0);
    EXPECT_EQ(plan.offloaded, 12 * kGpt2Held);
    run.offload.params = true;
    run.parallel.zero = 3;
    plan = memory_of(run);
    EXPECT_EQ(plan.peaks[Purpose::weights], 0);
    EXPECT_EQ(plan.offloaded, 14 * kGpt2Held);
    // At once the weights and the gradients of the token embedding, which is the head too, and of two blocks.
    EXPECT_EQ(plan.peaks[Purpose::communication], (2 + 4) * (kGpt2Words * 768 + 2 * 7087872));
}

// Offloaded weights are read on the host by the ranks that share them, along whatever axes, or by one rank alone: as
// many bytes in all. Shards along cp alone were copied in no time, and so were those of one rank.
TEST(RehearsedMemory, GathersOfOffloadedWeightsReadTheHost) {
    const auto read = [](int64_t dp, int64_t cp) {
        spec::RunSpec run = run_of("llama-tiny", "bf16", 1, 64);
        run.train.global_batch = 2 * dp;
        run.parallel.dp_shard = dp;
        run.parallel.cp = cp;
        run.parallel.zero = 3;
        run.offload.params = true;
        double bytes = 0;
        for (const Action& action : rehearse(run, plain_machine(), static_cast<int>(dp * cp), 0).program.actions)
            if (const auto* begin = std::get_if<BeginOperation>(&action.what)) bytes += begin->host_bytes;
        return bytes * static_cast<double>(dp * cp);
    };
    const double alone = read(1, 1);
    EXPECT_GT(alone, 0);
    EXPECT_NEAR(read(2, 1), alone, 0.01 * alone);
    EXPECT_NEAR(read(1, 2), alone, 0.01 * alone);
    EXPECT_NEAR(read(2, 2), alone, 0.01 * alone);
}

// Activations too: of L blocks only one and the input of the next remain. Of a microbatch that waits for its backward
// nothing of the layers stays; on the last stage what the head and its loss made: the gradient of its input.
TEST(RehearsedMemory, OffloadedActivationsOfWaitingMicrobatches) {
    spec::RunSpec run = run_of("llama-tiny", "bf16", 1, 64);
    run.parallel.pp = 2;
    run.parallel.schedule = "gpipe";
    for (const bool away : {false, true}) {
        run.offload.activations = away;
        const auto peak = [&](int64_t microbatches, int rank) {
            run.train.global_batch = microbatches;
            return rehearse(run, plain_machine(), 2, rank).memory.peaks[Purpose::activations];
        };
        const int64_t hidden = 64 * run.model.width * 2;
        for (const int rank : {0, 1}) {
            const int64_t of_a_microbatch = (peak(16, rank) - peak(8, rank)) / 8;
            if (away)
                EXPECT_LE(of_a_microbatch, hidden / 4 + (rank == 0 ? 0 : hidden)) << rank;
            else
                EXPECT_GT(of_a_microbatch, 20 * hidden) << rank;
        }
    }
}

TEST(RehearsedMemory, OffloadedActivationsAreElsewhere) {
    spec::RunSpec run = run_of("llama-110m", "bf16", 2, 128);
    const int64_t here = memory_of(run).peaks[Purpose::activations];
    run.offload.activations = true;
    const MemoryPlan plan = memory_of(run);
    const int64_t block = activations_of_a_block(run_of("llama-110m", "bf16", 2, 128));
    EXPECT_LT(plan.peaks[Purpose::activations], here - 10 * block * 8 / 10);
    EXPECT_GT(plan.offloaded, 10 * block * 9 / 10);
    EXPECT_LE(plan.offloaded, 12 * block);
}

// --- FLOPs: the formula of the model, which knows nothing of kernels ---

// FLOPs of a step. The formula counts T / 2 keys a query where (T + 1) / 2 are visible, and four products backward
// where a kernel that keeps no scores makes five. Products of the head are of whole tiles of 64 words.
double flops_by_formula(spec::RunSpec run, bool recomputed) {
    run.model.vocab = (run.model.vocab + 63) / 64 * 64;
    const models::Model outline = models::outline(run.model);
    const models::TokenFlops model = models::model_flops(outline, run.train.seq_len);
    const auto T = static_cast<double>(run.train.seq_len), tokens = static_cast<double>(run.train.global_batch) * T;
    const double attention_forward = model.full_attention / 3 * (T + 1) / (2 * T);
    const models::TokenFlops again = models::hardware_flops(outline, run.train.seq_len, run.recompute.policy);
    const double more = recomputed ? again.matmul - model.matmul + attention_forward : 0;
    return tokens * (model.matmul + 3.5 * attention_forward + more);
}

// GPUs add values of other ranks along a tree: 64 MiB for each group that adds, from before the step to its end. The
// same runs through the memory of the host have none.
TEST(RehearsedMemory, SumsOfGpusTakeMemoryBeforeTheStep) {
    using Names = std::vector<std::string>;
    struct Layout {
        int ranks;
        Names groups, set;
        int64_t fast = 0;  // groups that add along the tree with comm.order = "fast"
    };
    const auto mixture = [](Names set) {
        for (const char* key : {"model.preset=moe-tiny", "model.moe.aux_loss=global", "model.moe.capacity_factor=1.25"})
            set.emplace_back(key);
        return set;
    };
    const Layout layouts[] = {
        {1, {}, {}},
        {2, {"dp"}, {"parallel.zero=0"}},
        {2, {"dp_shard"}, {"parallel.zero=1"}},
        {2, {"dp_shard"}, {"parallel.zero=2", "parallel.accumulate=shard"}},
        {2, {"dp_shard"}, {"parallel.zero=3"}},
        {2, {"dp_shard"}, {"parallel.zero=2", "precision.reduce=bf16"}, 1},
        {4, {"dp_shard", "dp_replicate"}, {"parallel.zero=2", "parallel.dp_replicate=2"}},
        {2, {"tp"}, {"parallel.tp=2"}},
        {2, {"tp"}, {"parallel.tp=2", "parallel.sequence_parallel=false"}},
        {4, {"dp_shard", "tp"}, {"parallel.tp=2"}},
        {2, {"cp"}, {"parallel.cp=2"}},
        {2, {"cp", "cp_ring"}, {"parallel.cp=2", "parallel.cp_method=all_gather"}},
        {2, {}, {"parallel.pp=2", "model.tie_embeddings=false"}},
        {2, {"pp 0,1"}, {"parallel.pp=2"}},  // the matrix of both stages
        {4, {"dp_shard", "pp 0,1"}, {"parallel.pp=2", "parallel.schedule=zb-h1"}},
        {2, {}, {"parallel.strategy=parameter_server", "parallel.zero=0"}},  // the server adds what messages bring
        {2, {"dp_shard", "world"}, {"precision.recipe=delayed"}},
        {4, {"dp_shard", "tp", "tp+cp", "world"}, {"precision.recipe=delayed", "parallel.tp=2"}},
        {4, {"cp", "tp", "tp+cp"}, {"precision.recipe=tensor", "parallel.tp=2", "parallel.cp=2"}},
        {2, {"dp_shard", "edp", "tp+cp+dp", "world"}, mixture({})},
        {4, {"dp_shard", "edp", "tp+cp+dp", "world"}, mixture({"parallel.ep=2"})},
        {4, {"dp_shard", "edp", "tp", "tp+cp", "tp+cp+dp", "world"}, mixture({"parallel.tp=2", "parallel.etp=2"})},
    };
    const Target direct = target_named("h100", ComputeType::bf16, 1);
    Target through_host = direct;
    through_host.through_host = true;
    for (const Layout& layout : layouts)
        for (const std::string order : {"tree", "auto", "fast"}) {
            Names set = {"model.preset=llama-tiny", "train.seq_len=64",    "train.micro_batch=2",
                         "train.global_batch=16",   "comm.order=" + order, "data.train=unread.txt"};
            set.insert(set.end(), layout.set.begin(), layout.set.end());
            SCOPED_TRACE(testing::PrintToString(set));
            spec::RunSpec run = spec::parse_text("", "test", set);
            spec::validate(run, layout.ranks);
            const Rehearsal sums = rehearse(run, direct, layout.ranks, 0);
            const Rehearsal none = rehearse(run, through_host, layout.ranks, 0);
            const auto groups = order == "fast" ? layout.fast : static_cast<int64_t>(layout.groups.size());
            const int64_t bytes = groups * comm::kReductionBytes;
            const auto more = [](const MemoryByPurpose& a, const MemoryByPurpose& b) {
                return a[Purpose::communication] - b[Purpose::communication];
            };
            EXPECT_EQ(more(sums.program.memory.front().bytes, none.program.memory.front().bytes), bytes);
            EXPECT_EQ(more(sums.program.memory.back().bytes, none.program.memory.back().bytes), bytes);
            EXPECT_EQ(sums.memory.peak() - none.memory.peak(), bytes);
            run.comm.gpu = "host";
            EXPECT_EQ(rehearse(run, direct, layout.ranks, 0).memory.peak(), none.memory.peak());
            // The groups that add in the step, besides those that add numbers of the host alone.
            std::set<std::string> adding(layout.groups.begin(), layout.groups.end());
            for (const Action& action : sums.program.actions)
                if (const auto* begin = std::get_if<BeginOperation>(&action.what);
                    begin != nullptr && comm::is_reduction(begin->operation.kind))
                    adding.insert(sums.program.groups[begin->group].name);
            std::set<std::string> expected(layout.groups.begin(), layout.groups.end());
            for (const char* of_host : {"dp", "world"})
                if (adding.contains(of_host)) expected.insert(of_host);
            EXPECT_EQ(adding, expected);
        }
}

TEST(RehearsedFlops, AreThoseOfTheModel) {
    for (const char* preset : {"llama-tiny", "gpt2-124m", "llama3.2-1b"}) {
        spec::RunSpec run = run_of(preset, "bf16", 1, 512);
        run.train.global_batch = 2;
        EXPECT_NEAR(rehearse(run, plain_machine(), 1, 0).flops, flops_by_formula(run, false),
                    1e-12 * flops_by_formula(run, false))
            << preset;
        run.recompute.policy = "full";
        EXPECT_NEAR(rehearse(run, plain_machine(), 1, 0).flops, flops_by_formula(run, true),
                    1e-12 * flops_by_formula(run, true))
            << preset;
    }
}

// Many microbatches are three and repetitions of the one between.
TEST(RehearsedFlops, OfManyMicrobatches) {
    spec::RunSpec run = run_of("llama-tiny", "bf16", 1, 64);
    for (const int64_t microbatches : {1, 2, 3, 4, 100}) {
        run.train.global_batch = microbatches;
        EXPECT_DOUBLE_EQ(rehearse(run, plain_machine(), 1, 0).flops, flops_by_formula(run, false)) << microbatches;
    }
}

// --- loads of experts ---

// Two ranks with four of eight experts each. Of the 2 N choices of a rank the first expert has 3 times the mean, and
// the others share the rest: by hand, 6 N / 8 and 10 N / 56 each.
TEST(RehearsedLoads, AreThoseThatWereGiven) {
    spec::RunSpec run = run_of("moe-tiny", "f32", 1, 224);
    run.parallel.ep = 2;
    run.train.global_batch = 2;
    Target even = plain_machine(), uneven = plain_machine();
    uneven.expert_loads = parse_expert_loads("--expert-loads", "3", run);
    ASSERT_EQ(uneven.expert_loads.size(), 8U);
    const int64_t N = 224, C = 128, L = 4;
    const int64_t others = 10 * N / 56, first = 6 * N / 8 + 3 * others, second = 4 * others;
    ASSERT_EQ(first + second, 2 * N);
    const auto sent = [&](const Target& target, int rank) {
        int64_t bytes = 0;
        for (const parallel::GroupTraffic& t : rehearse(run, target, 2, rank).communication)
            if (t.operation == comm::Kind::all_to_all) bytes += t.traffic.sent;
        return bytes;
    };
    // Rows and their gradients: to the other rank forward, back from it, and both again backward. Counts: 4 of 4 bytes.
    const auto formula = [&](int64_t to_other, int64_t from_other) {
        return L * (4 * C * 2 * (to_other + from_other) + 4 * 4);
    };
    for (const int rank : {0, 1}) EXPECT_EQ(sent(even, rank), formula(N, N)) << rank;
    EXPECT_EQ(sent(uneven, 0), formula(second, first));
    EXPECT_EQ(sent(uneven, 1), formula(first, second));

    const double of_even = rehearse(run, even, 2, 0).flops, hot = rehearse(run, uneven, 2, 0).flops,
                 cold = rehearse(run, uneven, 2, 1).flops;
    // Three matrices of C x 224 values: 6 FLOPs a value and row, forward and backward.
    const double of_row = 6.0 * 3 * C * 224 * L;
    EXPECT_NEAR(hot - of_even, of_row * static_cast<double>(2 * first - 2 * N), 1e-9 * hot);
    EXPECT_NEAR(cold - of_even, of_row * static_cast<double>(2 * second - 2 * N), 1e-9 * hot);
    EXPECT_GT(rehearse(run, uneven, 2, 0).memory.peak(), rehearse(run, even, 2, 0).memory.peak());
}

TEST(RehearsedLoads, SaysWhatIsWrong) {
    const spec::RunSpec mixture = run_of("moe-tiny", "f32", 1, 64), dense = run_of("llama-tiny", "f32", 1, 64);
    const auto error = [&](const std::string& text, const spec::RunSpec& run) -> std::string {
        try {
            Target target = plain_machine();
            target.expert_loads = parse_expert_loads("--expert-loads", text, run);
            rehearse(run, target, 1, 0);
        } catch (const UsageError& e) {
            return e.what();
        }
        return "";
    };
    EXPECT_EQ(error("", dense), "");
    EXPECT_EQ(error("4", mixture), "");
    EXPECT_NE(error("2", dense).find("no experts"), std::string::npos);
    EXPECT_NE(error("2,1", mixture).find("2 loads for 8 experts"), std::string::npos);
    EXPECT_NE(error("2,x", mixture).find("\"x\" is not a load"), std::string::npos);
    EXPECT_NE(error("9", mixture).find("8 times the mean at most"), std::string::npos);
    EXPECT_NE(error("0,0,0,0,0,0,0,0", mixture).find("all loads are 0"), std::string::npos);
    EXPECT_NE(error("5", mixture).find("every token chooses it"), std::string::npos);
}

// --- traffic: parallelism.md, section 2; values are padded to whole blocks of 256 a shard ---

const parallel::GroupTraffic* find(const Rehearsal& r, const std::string& group, comm::Kind kind) {
    for (const parallel::GroupTraffic& t : r.communication)
        if (t.group == group && t.operation == kind) return &t;
    return nullptr;
}

TEST(RehearsedTraffic, OfZeroStagesIsWhatTheFormulasSay) {
    const int n = 1024;
    spec::RunSpec run = run_of("gpt2-124m", "bf16", 1, 64);
    const auto padded = [&](int64_t values) { return (values + n * 256 - 1) / (n * 256) * (n * 256); };
    const int64_t tokens = padded(kGpt2Words * 768), positions = padded(int64_t{1024} * 768);
    const int64_t block = padded(7087872), head = padded(2 * 768), all = tokens + positions + 12 * block + head;
    for (const int64_t microbatches : {1, 7}) {
        run.train.global_batch = n * microbatches;
        run.parallel.zero = 1;
        Rehearsal r = rehearse(run, plain_machine(), n, 5);
        EXPECT_EQ(find(r, "dp_shard", comm::Kind::reduce_scatter)->traffic.bytes, 4 * all);  // once a step
        EXPECT_EQ(find(r, "dp_shard", comm::Kind::reduce_scatter)->traffic.calls, 15);
        EXPECT_EQ(find(r, "dp_shard", comm::Kind::all_gather)->traffic.bytes, 2 * all);
        run.parallel.zero = 3;
        r = rehearse(run, plain_machine(), n, 5);
        const parallel::GroupTraffic* reduced = find(r, "dp_shard", comm::Kind::reduce_scatter);
        EXPECT_EQ(reduced->traffic.bytes, 4 * all * microbatches);
        EXPECT_EQ(reduced->traffic.calls, 15 * microbatches);
        EXPECT_EQ(reduced->traffic.sent, 4 * all / n * (n - 1) * microbatches);
        // Every block is gathered twice, positions and the last norm once; once a step the tied embedding, with which
        // one microbatch ends and the next begins.
        EXPECT_EQ(find(r, "dp_shard", comm::Kind::all_gather)->traffic.bytes,
                  2 * (tokens + (24 * block + positions + head) * microbatches));
        EXPECT_EQ(find(r, "dp", comm::Kind::all_reduce)->traffic.calls, 1);     // valid tokens
        EXPECT_EQ(find(r, "world", comm::Kind::all_reduce)->traffic.calls, 2);  // the loss, the norm
    }
}

// ZeRO-3 in a pipeline: unit by unit each pass gathers its blocks, except the last one, which stays where a backward
// follows its forward. Stages that stay unsharded are gathered once a step.
TEST(RehearsedTraffic, OfUnshardedStagesIsWhatTheFormulasSay) {
    const int n = 2, m = 8;
    spec::RunSpec run = run_of("llama-tiny", "bf16", 1, 64);
    run.model.layers = 8;
    run.model.tie_embeddings = false;
    run.train.global_batch = n * m;
    run.parallel.pp = 2;
    run.parallel.zero = 3;
    const spec::ModelSpec& w = run.model;
    const int64_t block = w.width * (2 * w.head_dim * (w.heads + w.kv_heads) + 3 * w.ffn + 2);
    const int64_t padded = (block + n * 256 - 1) / (n * 256) * (n * 256);
    const auto gathered = [&](const char* schedule, int64_t chunks, int64_t unsharded, int rank) {
        run.parallel.schedule = schedule;
        run.parallel.virtual_stages = chunks;
        run.parallel.unsharded_stages = unsharded;
        return find(rehearse(run, plain_machine(), 2 * n, rank), "dp_shard", comm::Kind::all_gather)->traffic.bytes;
    };
    const int64_t blocks = 4 * 2 * padded;  // of a rank; in addition: embedding or head
    const int64_t first = gathered("gpipe", 1, 1, 0) - blocks, last = gathered("gpipe", 1, 1, n) - blocks;
    EXPECT_EQ(first, 2 * run.model.vocab * run.model.width);
    for (const int64_t unsharded : {1, 3}) {
        EXPECT_EQ(gathered("1f1b", 1, unsharded, 0), blocks + first);
        EXPECT_EQ(gathered("zb-h1", 1, unsharded, n), blocks + last);
    }
    EXPECT_EQ(gathered("interleaved", 2, 2, 0), blocks + first);
    // Eight forwards, then eight backwards: the last forward's last block stays for the first backward.
    EXPECT_EQ(gathered("gpipe", 1, 0, 0), m * (2 * blocks + first) - 2 * padded);
    // Breadth first: a stage is left after its forwards and gathered again for its backwards; the last one turns round.
    EXPECT_EQ(gathered("looped-bfs", 2, 1, 0), blocks + first + blocks / 2 + first);
}

// b s h of parallelism.md, 3: what a tensor-parallel layer communicates, one operation for attention and one for the
// MLP in each direction, and one each for the embedding and the head.
TEST(RehearsedTraffic, OfTensorParallelismIsWhatTheFormulasSay) {
    spec::RunSpec run = run_of("llama-tiny", "bf16", 1, 64);
    run.train.global_batch = 1;
    const int64_t L = run.model.layers, bsh = 64 * run.model.width * 2, operations = 4 * L + 2;
    for (const int64_t tp : {2, 4}) {
        run.parallel.tp = tp;
        run.parallel.sequence_parallel = false;
        Rehearsal r = rehearse(run, plain_machine(), static_cast<int>(tp), 0);
        const parallel::GroupTraffic* reduced = find(r, "tp", comm::Kind::all_reduce);
        EXPECT_EQ(reduced->traffic.calls, operations);
        EXPECT_EQ(reduced->traffic.bytes, operations * bsh);
        EXPECT_EQ(reduced->traffic.sent, operations * 2 * bsh / tp * (tp - 1));

        run.parallel.sequence_parallel = true;
        r = rehearse(run, plain_machine(), static_cast<int>(tp), 0);
        const int64_t losses = tp * 3 * 64 * 4;  // of all ranks: maximum, sum and target of each row
        EXPECT_EQ(find(r, "tp", comm::Kind::reduce_scatter)->traffic.bytes, operations * bsh);
        EXPECT_EQ(find(r, "tp", comm::Kind::all_gather)->traffic.bytes, operations * bsh + losses);
        EXPECT_EQ(find(r, "tp", comm::Kind::reduce_scatter)->traffic.sent, operations * bsh / tp * (tp - 1));
    }
}

TEST(RehearsedTraffic, OfContextParallelismIsWhatTheFormulasSay) {
    spec::RunSpec run = run_of("llama-tiny", "bf16", 1, 64);
    run.model.kv_heads = 2;
    run.train.global_batch = 1;
    const int64_t L = run.model.layers, D = run.model.head_dim;
    for (const int64_t cp : {2, 4}) {
        run.parallel.cp = cp;
        const auto traffic = [&](const char* method, const char* group, comm::Kind kind) {
            run.parallel.cp_method = method;
            const Rehearsal r = rehearse(run, plain_machine(), static_cast<int>(cp), 0);
            const parallel::GroupTraffic* found = find(r, group, kind);
            return found ? found->traffic : comm::Traffic{};
        };
        const int64_t q = 64 / cp * run.model.heads * D, kv = 64 / cp * 2 * D;  // elements of a rank
        // Keys and values of cp - 1 hops in bf16, in the backward once more, and their gradients in f32.
        EXPECT_EQ(traffic("ring", "cp_ring", comm::Kind::send).bytes, L * (cp - 1) * 2 * kv * (2 + 2 + 4));
        EXPECT_EQ(traffic("all_gather", "cp_ring", comm::Kind::all_gather).bytes, L * 2 * cp * kv * (2 + 2));
        EXPECT_EQ(traffic("all_gather", "cp_ring", comm::Kind::reduce_scatter).bytes, L * 2 * cp * kv * 4);
        // Queries, keys, values and outputs, and the gradients of all four; with 4 ranks two share a key head.
        const int64_t exchanged = 2 * q + 2 * kv * std::max<int64_t>(cp / 2, 1);
        EXPECT_EQ(traffic("ulysses", "cp_ulysses", comm::Kind::all_to_all).bytes, L * 2 * exchanged * 2);
        EXPECT_EQ(traffic("ulysses", "cp_ulysses", comm::Kind::all_to_all).sent, L * 2 * exchanged * 2 / cp * (cp - 1));
    }
}

// Traffic of rank 0, which has the first and the last chunk of a sequence: the state of the last K - 1 tokens of the
// first chunk goes to its neighbour in the forward, the gradient of the state before the last chunk in the backward,
// both in f32.
TEST(RehearsedTraffic, OfConvolutionsOverContextParallelRanksIsWhatTheFormulasSay) {
    spec::RunSpec run = run_of("lfm2-tiny", "bf16", 1, 64);
    run.train.global_batch = 1;
    const int64_t D = run.model.head_dim, convolutions = 3, state = (run.model.conv_kernel - 1) * run.model.width * 4;
    for (const int64_t cp : {2, 4}) {
        run.parallel.cp = cp;
        const auto sends = [&](const char* method, const char* group) {
            run.parallel.cp_method = method;
            const Rehearsal r = rehearse(run, plain_machine(), static_cast<int>(cp), 0);
            const parallel::GroupTraffic* found = find(r, group, comm::Kind::send);
            return found ? found->traffic.bytes : 0;
        };
        const int64_t kv = 64 / cp * run.model.kv_heads * D;
        EXPECT_EQ(sends("ring", "cp_ring"), (cp - 1) * 2 * kv * (2 + 2 + 4) + convolutions * 2 * state);
        EXPECT_EQ(sends("all_gather", "cp_ring"), convolutions * 2 * state);
        EXPECT_EQ(sends("ulysses", "cp_ulysses"), convolutions * state);  // it has the first tokens alone
    }
}

// b s h for each microbatch and edge between stages on different ranks, in each direction (Narayanan et al. 2021, 3.2).
TEST(RehearsedTraffic, OfAPipelineIsWhatTheFormulasSay) {
    spec::RunSpec run = run_of("llama-tiny", "bf16", 2, 64);
    run.model.layers = 8;
    run.train.global_batch = 2 * 8;
    run.parallel.pp = 4;
    const int64_t bsh = 2 * 64 * run.model.width * 2, m = 8;
    const std::tuple<const char*, int64_t, int64_t> cases[] = {
        {"1f1b", 1, 6}, {"zb-h1", 1, 6}, {"interleaved", 2, 14}, {"zb-v", 1, 12}, {"dualpipe", 1, 6}};
    for (const auto& [schedule, chunks, edges] : cases) {
        run.parallel.schedule = schedule;
        run.parallel.virtual_stages = chunks;
        comm::Traffic sent, received;
        for (int rank = 0; rank < 4; ++rank)
            for (const parallel::GroupTraffic& t : rehearse(run, plain_machine(), 4, rank).communication) {
                comm::Traffic& sum = t.operation == comm::Kind::send ? sent : received;
                if (!t.group.starts_with("pp ") || t.ranks.size() != 2 || t.operation == comm::Kind::all_reduce)
                    continue;
                sum.calls += t.traffic.calls;
                sum.bytes += t.traffic.bytes;
            }
        EXPECT_EQ(sent.calls, edges * m) << schedule;
        EXPECT_EQ(sent.bytes, edges * m * bsh) << schedule;
        EXPECT_EQ(received.bytes, sent.bytes) << schedule;
    }
}

TEST(RehearsedTraffic, OneRankSendsNothing) {
    EXPECT_TRUE(rehearse(run_of("llama-tiny", "bf16", 1, 64), plain_machine(), 1, 0).communication.empty());
}

// Where a reduction is first awaited among the operations of a program, and where its last message begins.
struct FirstWaitAndLastSend {
    size_t wait = SIZE_MAX, send = 0;
};
FirstWaitAndLastSend first_wait_and_last_send(const Program& program) {
    FirstWaitAndLastSend found;
    using Operation = std::tuple<size_t, uint64_t, comm::Kind>;
    std::set<Operation> reductions;
    for (size_t i = 0; i < program.actions.size(); ++i) {
        const auto* begin = std::get_if<BeginOperation>(&program.actions[i].what);
        const auto* wait = std::get_if<WaitForOperation>(&program.actions[i].what);
        if (begin != nullptr && begin->operation.kind == comm::Kind::send) found.send = i;
        if (begin != nullptr && begin->operation.dtype == DType::f32 && begin->operation.kind != comm::Kind::all_gather)
            reductions.emplace(begin->group, begin->sequence, begin->operation.kind);
        if (wait != nullptr && reductions.contains({wait->group, wait->sequence, wait->kind}))
            found.wait = std::min(found.wait, i);
    }
    return found;
}

// In a pipeline an earlier stage waits for the gradient that a backward sends: with whole gradients, which bound no
// memory, no reduction is awaited before the last message of the step has begun.
TEST(Rehearsal, AReductionNeverHoldsUpASend) {
    std::mt19937 random(1);
    const auto any = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
    const char* kSchedules[] = {"gpipe", "1f1b",  "interleaved", "looped-bfs", "zb-h1",    "zb-h2",
                                "zb-v",  "v-min", "v-half",      "chimera",    "dualpipe", "dualpipe-v"};
    std::set<std::string> rehearsed;
    for (int draw = 0; draw < 120; ++draw) {
        spec::RunSpec run = run_of("llama-tiny", "bf16", 1, 16);
        spec::ParallelSpec& p = run.parallel;
        p.schedule = kSchedules[any(std::ssize(kSchedules))];
        p.pp = 2 << any(2);
        p.virtual_stages = p.schedule == "interleaved" || p.schedule == "looped-bfs" ? 2 : 1;
        p.zero = any(4);
        p.dp_replicate = 1 + any(2);
        p.accumulate = "full";
        run.model.layers = p.pp * (2 + 2 * any(2));
        run.model.width = 32;
        run.model.ffn = 48;
        const int64_t ranks = 2 * p.dp_replicate * p.pp, microbatches = 2 * p.pp + 2 * p.pp * any(2);
        run.train.global_batch = microbatches * 2 * p.dp_replicate;
        const std::string what = concat(p.schedule, ", pp ", p.pp, ", ZeRO-", p.zero, ", replicas ", p.dp_replicate,
                                        ", ", microbatches, " microbatches");
        for (int64_t position = 0; position < p.pp; ++position) {
            const int rank = static_cast<int>(position * (ranks / p.pp));
            const Program program = rehearse(run, plain_machine(), static_cast<int>(ranks), rank).program;
            const FirstWaitAndLastSend found = first_wait_and_last_send(program);
            EXPECT_GT(found.wait, found.send) << what << ", rank " << rank;
        }
        rehearsed.insert(concat(p.schedule, p.zero));
    }
    EXPECT_GT(rehearsed.size(), 30u);
}

// --- machines that are not here ---

TEST(Rehearsal, ARunThatIsTooLargeSaysSo) {
    spec::RunSpec run = run_of("gpt2-124m", "bf16", 1, 64);
    Target small = plain_machine();
    small.device.memory_bytes = int64_t{1} << 30;
    const Rehearsal r = rehearse(run, small, 1, 0);
    EXPECT_FALSE(r.fits);
    EXPECT_EQ(r.memory_capacity, int64_t{1} << 30);
    EXPECT_EQ(r.memory.peak(), memory_of(run).peak());  // and how much it would be
    small.device.memory_bytes = int64_t{4} << 30;
    EXPECT_TRUE(rehearse(run, small, 1, 0).fits);
}

TEST(Rehearsal, OfEveryMachineThatHasAName) {
    const spec::RunSpec run = run_of("llama-tiny", "bf16", 2, 64);
    for (const std::string& name : target_names()) {
        if (!name.starts_with("cpu-")) continue;
        const Rehearsal r = rehearse(run, target_named(name, ComputeType::bf16, 8), 1, 0);
        EXPECT_EQ(r.memory.at_peak[Purpose::weights], memory_of(run).at_peak[Purpose::weights]) << name;
        EXPECT_DOUBLE_EQ(r.flops, flops_by_formula(run, false)) << name;
    }
    EXPECT_THROW(target_named("cpu-avx513", ComputeType::bf16, 1), UsageError);
    EXPECT_THROW(target_named("cpu-avx2", ComputeType::tf32, 1), UsageError);
}

TEST(Rehearsal, AKernelThatTheMachineLacksIsNamed) {
    kernels::KernelTable table = kernels::reference_table();
    table.name = "odd";
    table.rope = nullptr;
    try {
        rehearse(run_of("llama-tiny", "f32", 1, 64), {&table, {}}, 1, 0);
        FAIL() << "a rehearsal without RoPE";
    } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find("rope has no odd kernel"), std::string::npos) << e.what();
    }
}

// --- layouts ---

TEST(LayoutRehearsal, ShowsTheRankWithTheMostMemoryAndFindsNoDifference) {
    spec::RunSpec run = run_of("llama-tiny", "bf16", 1, 64);
    run.train.global_batch = 8;
    run.parallel.dp_replicate = 2;
    for (const int64_t zero : {0, 1, 2, 3}) {
        run.parallel.zero = zero;
        const LayoutRehearsal all = rehearse_layout(run, plain_machine(), 8, std::nullopt);
        EXPECT_EQ(all.rehearsed, (std::vector<int>{0, 1, 3, 4}))
            << zero;  // along dp_shard 0, 1 and 3, dp_replicate 0 and 4
        EXPECT_EQ(all.difference, "") << zero;
        for (int rank = 0; rank < 8; ++rank)
            EXPECT_GE(all.shown.memory.peak(), memory_of(run, 8, rank).peak()) << zero << ", rank " << rank;
    }
    EXPECT_EQ(rehearse_layout(run, plain_machine(), 8, 6).shown.rank, 6);
    EXPECT_THROW(rehearse_layout(run, plain_machine(), 8, 8), UsageError);
}

TEST(LayoutRehearsal, FindsNoDifferenceAlongAnyAxis) {
    spec::RunSpec run = run_of("llama-tiny", "bf16", 1, 64);
    run.train.global_batch = 8;
    run.parallel.tp = run.parallel.cp = 2;
    for (const int64_t zero : {0, 1, 2, 3})
        for (const int64_t ulysses : {1, 2})
            for (const int replicas : {1, 2}) {
                run.parallel.zero = zero;
                run.parallel.cp_ulysses = ulysses;
                run.parallel.dp_replicate = replicas;
                EXPECT_EQ(rehearse_layout(run, plain_machine(), 8 * replicas, std::nullopt).difference, "")
                    << "zero " << zero << ", ulysses " << ulysses << ", replicas " << replicas;
            }
}

TEST(LayoutRehearsal, FindsNoDifferenceAlongAPipeline) {
    spec::RunSpec run = run_of("llama-tiny", "bf16", 1, 64);
    run.model.layers = 8;
    run.train.global_batch = 32;
    run.parallel.pp = 4;
    for (const char* schedule : {"gpipe", "1f1b", "zb-h2", "zb-v", "chimera", "dualpipe", "dualpipe-v"})
        for (const int64_t zero : {1, 3}) {
            run.parallel.schedule = schedule;
            run.parallel.zero = zero;
            const LayoutRehearsal all = rehearse_layout(run, plain_machine(), 8, std::nullopt);
            std::set<int> expected = {
                0, 2, 4, 6, all.shown.rank, all.shown.rank ^ 1};  // and the fullest one's neighbour
            EXPECT_EQ(std::set<int>(all.rehearsed.begin(), all.rehearsed.end()), expected) << schedule;
            EXPECT_EQ(all.difference, "") << schedule;
        }
}

TEST(LayoutRehearsal, OfALargeWorldComparesAFew) {
    spec::RunSpec run = run_of("llama-tiny", "bf16", 1, 64);
    run.train.global_batch = 4096;
    run.parallel.zero = 3;
    const LayoutRehearsal all = rehearse_layout(run, plain_machine(), 4096, std::nullopt);
    EXPECT_EQ(all.rehearsed, (std::vector<int>{0, 2047, 4095}));
    EXPECT_EQ(all.difference, "");
}

// A step of one rank is linear in its layers, forwards and backwards: with a pass over all of them for each one, or
// over all free memory for each tensor, this would take hours.
TEST(Rehearsal, IsLinearInTheLayers) {
    spec::RunSpec run = run_of("llama-tiny", "f32", 1, 32);
    run.train.global_batch = 1;
    run.model.width = run.model.ffn = 32;
    run.model.heads = run.model.kv_heads = 1;
    run.model.layers = 10'000;
    const MemoryPlan whole = memory_of(run);
    run.model.layers = 1000;
    const MemoryPlan tenth = memory_of(run);
    run.model.layers = 2000;
    const MemoryPlan fifth = memory_of(run);
    EXPECT_EQ(whole.at_peak.total() - tenth.at_peak.total(), 9 * (fifth.at_peak.total() - tenth.at_peak.total()));
}

class ProgramDifference : public ::testing::Test {
  protected:
    // The program of one of two ranks: an all_reduce over both, then a message from 0 to 1.
    static Program program_of(int rank) {
        Program p{.groups = {{"dp", {0, 1}}}, .places = {"step"}};
        p.actions.push_back({BeginOperation{0, 1, {.kind = comm::Kind::all_reduce, .dtype = DType::f32, .count = 8}}});
        p.actions.push_back({BeginOperation{0,
                                            1,
                                            {.kind = rank == 0 ? comm::Kind::send : comm::Kind::receive,
                                             .dtype = DType::bf16,
                                             .count = 4,
                                             .peer = 1 - rank}}});
        return p;
    }
    static BeginOperation& operation(Program& p, size_t i) { return std::get<BeginOperation>(p.actions[i].what); }
    Program zero_ = program_of(0), one_ = program_of(1);
};

TEST_F(ProgramDifference, ThereIsNone) { EXPECT_EQ(first_difference(0, zero_, 1, one_), ""); }

TEST_F(ProgramDifference, AnotherSizeIsFound) {
    operation(one_, 0).operation.count = 9;
    EXPECT_EQ(first_difference(0, zero_, 1, one_),
              "group dp, operation 1: rank 0 calls all_reduce of 8 f32, rank 1 calls all_reduce of 9 f32");
}

TEST_F(ProgramDifference, AnOperationMoreIsFound) {
    zero_.actions.push_back(zero_.actions.front());
    EXPECT_EQ(first_difference(0, zero_, 1, one_),
              "group dp, operation 2: rank 0 calls all_reduce of 8 f32, rank 1 calls nothing");
}

TEST_F(ProgramDifference, AMessageThatIsNotReceivedIsFound) {
    one_.actions.pop_back();
    EXPECT_EQ(first_difference(0, zero_, 1, one_),
              "group dp, message 1: rank 0 calls send of 4 bf16 to rank 1, rank 1 calls nothing");
    EXPECT_NE(first_difference(1, one_, 0, zero_), "");
}

TEST_F(ProgramDifference, AGroupThatTheOtherDoesNotMakeIsFound) {
    zero_.groups.push_back({"tp", {0, 1}});
    EXPECT_NE(first_difference(0, zero_, 1, one_).find("group tp"), std::string::npos);
    zero_.groups.back().ranks = {0, 2};  // none of its business
    EXPECT_EQ(first_difference(0, zero_, 1, one_), "");
}

}  // namespace
}  // namespace tutti::rehearsal
