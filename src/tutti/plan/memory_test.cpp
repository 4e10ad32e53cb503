// The memory plan against sums made by hand from what each op keeps. N rows of a microbatch, C width, H heads of D,
// A = H D, K = kv heads times D, F ffn, V vocab, e bytes of a value.
#include "tutti/plan/memory.h"

#include <gtest/gtest.h>

#include "tutti/base/error.h"

namespace tutti::plan {
namespace {

spec::RunSpec run_of(const std::string& preset, const std::string& compute, int64_t batch, int64_t seq_len) {
    spec::RunSpec run;
    run.model = spec::preset(preset);
    run.precision.compute = compute;
    run.train.micro_batch = batch;
    run.train.seq_len = seq_len;
    return run;
}

// What one more block adds to the activations at the peak.
int64_t activations_of_a_block(spec::RunSpec run) {
    const MemoryPlan before = predict_memory(run);
    ++run.model.layers;
    return predict_memory(run).at_peak[Purpose::activations] - before.at_peak[Purpose::activations];
}

TEST(Ledger, CountsUntilTheLastOwnerIsGone) {
    Ledger ledger;
    ledger.enter("here");
    Ghost a(ledger, 100);
    Ghost b = a;
    EXPECT_FALSE(a.unique());
    a = {};
    EXPECT_TRUE(b.unique());
    EXPECT_EQ(ledger.current().total(), 100);
    {
        ledger.enter("there");
        const Ghost c(ledger, 30, Purpose::workspace);
    }
    ledger.enter("later");
    const Ghost d(ledger, 30, Purpose::data);  // as high, not higher: the first peak stays
    b = {};
    EXPECT_EQ(ledger.at_peak().total(), 130);
    EXPECT_EQ(ledger.at_peak()[Purpose::workspace], 30);
    EXPECT_EQ(ledger.peak_place(), "there");
    EXPECT_EQ(ledger.peaks()[Purpose::data], 30);
    EXPECT_EQ(ledger.current().total(), 30);
    EXPECT_THROW(Ghost(ledger, -1), Error);
}

// A value with two users: the first gradient is kept, the second added in place, or anew while someone else holds the
// first. x -> y = f(x), z = x + y, where f saves 7 bytes.
TEST(GhostTape, FreesWhatWasSavedAndAddsGradients) {
    Ledger ledger;
    GhostTape tape(ledger);
    const GhostVar x = tape.input(Ghost(ledger, 10));
    GhostVar y = tape.record({x}, Ghost(ledger, 10), [&ledger, saved = Ghost(ledger, 7)](const Ghost&, Ghosts&) {
        return Ghosts{Ghost(ledger, 10)};
    });
    const GhostVar z = tape.record({x, y}, Ghost(ledger, 10), [](const Ghost& dy, Ghosts&) { return Ghosts{dy, dy}; });
    EXPECT_EQ(ledger.current().total(), 37);
    y = {};
    EXPECT_EQ(ledger.current().total(), 27);  // addition saves nothing
    tape.backward(z);
    // z doubles as its own gradient and is still held by this test, so the sum of x's two gradients is a new block: x,
    // z, the sum; at the peak also f's gradient (7 was freed before the sum was made).
    EXPECT_EQ(ledger.current().total(), 30);
    EXPECT_EQ(ledger.at_peak().total(), 40);
}

// Bytes per value, ZeRO paper's table with f32 gradients: 2 + 4 + (4 + 4 + 4) in bf16, 4 + 4 + 8 in f32.
TEST(MemoryPlan, StateOfAParameter) {
    const auto expect = [](const char* compute, const char* optimizer, int64_t weights, int64_t gradients,
                           int64_t state) {
        const MemoryByPurpose bytes = state_bytes(1000, compute, optimizer);
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

// gpt2-124m: 124439808 values, hence 2.24 GB of state in bf16.
TEST(MemoryPlan, StateOfGpt2) {
    const MemoryPlan plan = predict_memory(run_of("gpt2-124m", "bf16", 1, 64));
    EXPECT_EQ(plan.at_peak[Purpose::weights], 248879616);
    EXPECT_EQ(plan.at_peak[Purpose::gradients], 497759232);
    EXPECT_EQ(plan.at_peak[Purpose::optimizer], 1493277696);
    EXPECT_EQ(plan.at_peak[Purpose::data], 64 * 20);  // tokens, targets, positions i32; row index i64
    EXPECT_EQ(plan.at_peak[Purpose::communication], 0);
}

// Saved by a Llama block: x, its norm, h, its norm: 4 C; q and the output of attention: 2 A; k, v: 2 K; gate, up and
// their product: 3 F; in f32 two rstd and H log-sum-exps.
TEST(MemoryPlan, LlamaBlock) {
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
TEST(MemoryPlan, HeadNormsAndBiases) {
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
TEST(MemoryPlan, Gpt2Block) {
    const int64_t N = 2 * 128, C = 768, A = 768, F = 3072, H = 12;
    EXPECT_EQ(activations_of_a_block(run_of("gpt2-124m", "bf16", 2, 128)),
              N * (2 * (4 * C + 4 * A + 2 * F) + 4 * (4 + H)));
}

// A recomputed block keeps its input only. One more block of a segment of its own.
TEST(MemoryPlan, RecomputedBlock) {
    spec::RunSpec run = run_of("llama-110m", "bf16", 2, 128);
    run.recompute.policy = "full";
    EXPECT_EQ(activations_of_a_block(run), 2 * 128 * 2 * 768);
}

// Selective: neither the outputs of norms nor those of SwiGLU and GELU.
TEST(MemoryPlan, SelectiveBlock) {
    spec::RunSpec run = run_of("llama-110m", "bf16", 2, 128);
    run.recompute.policy = "selective";
    const int64_t N = 2 * 128, C = 768, F = 2048, H = 12;
    EXPECT_EQ(activations_of_a_block(run), N * (2 * (2 * C + 4 * C + 2 * F) + 4 * (2 + H)));
    spec::RunSpec gpt2 = run_of("gpt2-124m", "bf16", 2, 128);
    gpt2.recompute.policy = "selective";
    EXPECT_EQ(activations_of_a_block(gpt2), N * (2 * (2 * C + 4 * C + 3072) + 4 * (4 + H)));
}

// The whole peak, where it is in the loss: L blocks, the final norm's input, output and rstd, the gradient of its
// output, the losses; the logits of all 1024 rows (118 MiB), the RoPE table and the 68 words of the sum of losses in
// workspace.
TEST(MemoryPlan, PeakInTheLoss) {
    spec::RunSpec run = run_of("llama-tiny", "bf16", 2, 512);
    run.model.vocab = 60000;
    const int64_t N = 1024, L = 4, C = 128, A = 128, K = 128, F = 448, H = 4, e = 2;
    const int64_t block = e * (4 * C + 2 * A + 2 * K + 3 * F) + 4 * (2 + H);
    const MemoryPlan plan = predict_memory(run);
    EXPECT_EQ(plan.peak_place, "forward of head");
    EXPECT_EQ(plan.at_peak[Purpose::activations], N * (L * block + 3 * e * C + 4 + 4));
    EXPECT_EQ(plan.at_peak[Purpose::workspace], N * 60000 * e + 512 * 32 * 4 + 68 * 8);
    EXPECT_EQ(plan.peak(), plan.at_peak.total());
}

// One layer, f32: the ReLU's gradient is made while its output and the loss's gradient are there; the first layer's
// input is data and wants no gradient.
TEST(MemoryPlan, MlpOfOneLayer) {
    spec::RunSpec run = run_of("mlp-8192", "f32", 2, 8);
    run.model.layers = 1;
    run.model.width = 100;
    const int64_t N = 16, C = 100;
    const MemoryPlan plan = predict_memory(run);
    EXPECT_EQ(plan.peak_place, "backward of block 0");
    EXPECT_EQ(plan.at_peak[Purpose::activations], 3 * N * C * 4 + N * 4);
    EXPECT_EQ(plan.at_peak[Purpose::data], 2 * N * C * 4);
    EXPECT_EQ(plan.at_peak[Purpose::weights], C * C * 4);
    run.precision.compute = "bf16";  // data: 2 + 2 bytes; while the targets are rounded 2 + 2 + 4
    EXPECT_EQ(predict_memory(run).at_peak[Purpose::data], 2 * N * C * 2);
    EXPECT_EQ(predict_memory(run).peaks[Purpose::data], N * C * (2 + 2 + 4));
}

TEST(MemoryPlan, AttentionWorkspaceIsThereWhileAttentionRuns) {
    const spec::RunSpec run = run_of("llama-tiny", "f32", 1, 64);
    const int64_t always = 64 * 32 * 4 + 68 * 8, chunk = 64 * 256 * 4;
    EXPECT_EQ(predict_memory(run).peaks[Purpose::workspace], always + chunk);
    EXPECT_EQ(predict_memory(run, {1 << 20, 3 << 20}).peaks[Purpose::workspace], always + (3 << 20));
    EXPECT_EQ(predict_memory(run, {3 << 20, 1 << 20}).peaks[Purpose::workspace], always + (3 << 20));
}

// Longer segments keep fewer inputs and more of one segment; with blocks much larger than their input, full is least.
TEST(MemoryPlan, RecomputePoliciesInOrder) {
    const auto activations = [](const char* policy) {
        spec::RunSpec run = run_of("llama-110m", "bf16", 8, 1024);
        run.recompute.policy = policy;
        return predict_memory(run).peaks[Purpose::activations];
    };
    EXPECT_LT(activations("full"), activations("sqrt"));
    EXPECT_LT(activations("sqrt"), activations("every:6"));
    EXPECT_LT(activations("every:6"), activations("none"));
    EXPECT_EQ(activations("every:1"), activations("full"));
}

// Twice the batch: twice the activations, the same state.
TEST(MemoryPlan, ActivationsGrowWithTheBatch) {
    const MemoryPlan one = predict_memory(run_of("gpt2-124m", "bf16", 4, 256));
    const MemoryPlan two = predict_memory(run_of("gpt2-124m", "bf16", 8, 256));
    EXPECT_EQ(two.peaks[Purpose::activations], 2 * one.peaks[Purpose::activations]);
    EXPECT_EQ(two.peaks[Purpose::optimizer], one.peaks[Purpose::optimizer]);
}

// 2 + 4 + 12 bytes per value in bf16: parallelism.md, section 2.
TEST(MemoryPlan, ShardsDivideWhatTheirStageCuts) {
    spec::RunSpec run = run_of("gpt2-124m", "bf16", 1, 64);
    const auto state = [&](int64_t zero, Purpose purpose) {
        run.parallel.zero = zero;
        return predict_memory(run, {}, 4).peaks[purpose];
    };
    // Embedding with positions, 12 blocks, the last norm; each in shards of whole blocks of 4096.
    const int64_t P = 124439808;
    const auto padded = [](int64_t shards) {
        const auto one = [&](int64_t values) { return (values + shards * 4096 - 1) / (shards * 4096) * shards * 4096; };
        return one((50257 + 1024) * 768) + 12 * one(7087872) + one(2 * 768);
    };
    EXPECT_EQ(state(0, Purpose::weights), 2 * P);
    EXPECT_EQ(state(0, Purpose::gradients), 4 * P);
    EXPECT_EQ(state(0, Purpose::optimizer), 12 * P);
    for (const int64_t zero : {1, 2, 3}) {
        EXPECT_EQ(state(zero, Purpose::weights), zero == 3 ? 2 * padded(4) / 4 : 2 * padded(4));
        EXPECT_EQ(state(zero, Purpose::gradients), zero >= 2 ? 4 * padded(4) / 4 : 4 * padded(4));
        // Of the first rank, whose part of the last norm is all of it: its moments have no padding.
        EXPECT_EQ(state(zero, Purpose::optimizer), 12 * padded(4) / 4 - 8 * (4096 - 2 * 768));
    }
    run.parallel.dp_replicate = 2;  // and so two shards
    EXPECT_EQ(state(3, Purpose::optimizer), 12 * padded(2) / 2 - 8 * (4096 - 2 * 768));
}

// Offloaded state is beside the peak, not in it.
TEST(MemoryPlan, OffloadedStateIsElsewhere) {
    spec::RunSpec run = run_of("gpt2-124m", "bf16", 1, 64);
    run.train.global_batch = 1;
    run.offload.optimizer = true;
    MemoryPlan plan = predict_memory(run);
    EXPECT_EQ(plan.peaks[Purpose::optimizer], 0);
    EXPECT_EQ(plan.offloaded, 12 * int64_t{124439808});
    run.offload.params = true;
    run.parallel.zero = 3;
    plan = predict_memory(run);
    EXPECT_EQ(plan.peaks[Purpose::weights], 0);
    EXPECT_EQ(plan.offloaded, 14 * int64_t{124439808});
    // At once the weights and the gradients of the embedding, which is the head too, and of two blocks.
    EXPECT_EQ(plan.peaks[Purpose::communication], (2 + 4) * (int64_t{51281} * 768 + 2 * 7087872));
}

// Activations too: what is left of L blocks is one and the input of the next.
TEST(MemoryPlan, OffloadedActivationsAreElsewhere) {
    spec::RunSpec run = run_of("llama-110m", "bf16", 2, 128);
    const int64_t here = predict_memory(run).peaks[Purpose::activations];
    run.offload.activations = true;
    const MemoryPlan plan = predict_memory(run);
    const int64_t block = activations_of_a_block(run_of("llama-110m", "bf16", 2, 128));
    EXPECT_LT(plan.peaks[Purpose::activations], here - 10 * block * 8 / 10);
    EXPECT_GT(plan.offloaded, 10 * block * 9 / 10);
    EXPECT_LE(plan.offloaded, 12 * block);
}

TEST(MemoryPlan, RefusesWhatItCannotCount) {
    const auto expect_refused = [](auto&& change) {
        spec::RunSpec run;
        change(run);
        EXPECT_THROW(predict_memory(run), UsageError);
    };
    expect_refused([](spec::RunSpec& r) { r.parallel.tp = 2; });
    expect_refused([](spec::RunSpec& r) { r.parallel.ep = 2; });
    expect_refused([](spec::RunSpec& r) { r.precision.compute = "f16"; });
    expect_refused([](spec::RunSpec& r) { r.precision.fp8 = "e4m3"; });
    expect_refused([](spec::RunSpec& r) { r.optimizer.name = "muon"; });
    expect_refused([](spec::RunSpec& r) { r.recompute.policy = "some"; });
    expect_refused([](spec::RunSpec& r) { r.train.micro_batch = 0; });
    EXPECT_NO_THROW(predict_memory(spec::RunSpec{}));
}

}  // namespace
}  // namespace tutti::plan
