// Every schedule trains the model of one rank: tutti verify over pipelines of 2, 4 and 8 ranks.
#include <gtest/gtest.h>

#include "tutti/base/error.h"
#include "tutti/base/testing/scratch.h"
#include "tutti/schedule/generators.h"
#include "tutti/spec/validate.h"
#include "tutti/train/verify.h"

namespace tutti::train {
namespace {

class Pipelines : public ::testing::Test {
  protected:
    Pipelines() {
        std::string text;
        for (int i = 0; i < 500; ++i) text += concat("line ", i * i, " of a text\n");
        folder_.write("text.txt", text);
    }

    spec::RunSpec run(spec::Family family, bool tied) const {
        spec::RunSpec r;
        spec::ModelSpec& m = r.model;
        m.family = family;
        m.vocab = 256;
        m.width = 16;
        m.layers = 16;
        m.heads = 2;
        m.kv_heads = family == spec::Family::gpt2 ? 2 : 1;
        m.head_dim = 8;
        m.ffn = 24;
        m.max_positions = 8;
        m.tie_embeddings = tied;
        m.dropout = 0.1;
        m.init_std = 0.2;
        r.data.train = {folder_.path("text.txt")};
        r.train.threads = 1;
        r.train.seq_len = 8;
        r.train.micro_batch = 1;
        r.train.global_batch = 16;
        r.precision.compute = "f32";
        return r;
    }
    // Untied models under a schedule that adds gradients in ascending order: to the bit; others within 1e-6.
    void expect_same(const spec::RunSpec& r, int ranks, bool to_the_bit) const {
        SCOPED_TRACE(concat(r.parallel.schedule, " over ", r.parallel.pp, " of ", ranks, " ranks"));
        const VerifyOutcome o = verify({.run = r, .ranks = ranks, .steps = 1});
        EXPECT_EQ(o.steps[0].loss, o.steps[0].one_rank_loss);
        if (to_the_bit)
            EXPECT_TRUE(o.equal) << o.worst().gradient_difference << " " << o.worst().gradient;
        else
            EXPECT_LT(o.worst().gradient_difference, 1e-6) << o.worst().gradient;
    }
    void every_schedule(const spec::RunSpec& model) const {
        for (const int p : {2, 4, 8})
            for (const schedule::Kind& kind : schedule::kinds()) {
                spec::RunSpec r = model;
                r.parallel.pp = p;
                r.parallel.schedule = kind.name;
                r.parallel.virtual_stages = kind.chunks == 0 ? 2 : 1;
                const bool two_replicas = kind.name == "chimera" || kind.name == "dualpipe";
                const bool ascending = kind.name != "looped-bfs" && !two_replicas;
                expect_same(r, p, ascending && !r.model.tie_embeddings);
            }
    }
    ScratchFolder folder_;
};

TEST_F(Pipelines, EveryScheduleTrainsLlama) { every_schedule(run(spec::Family::llama, false)); }

TEST_F(Pipelines, EveryScheduleTrainsGpt2) { every_schedule(run(spec::Family::gpt2, true)); }

TEST_F(Pipelines, EveryScheduleTrainsQwen3) {
    spec::RunSpec qwen3 = run(spec::Family::llama, false);
    qwen3.model.head_norm = true;
    every_schedule(qwen3);
}

// Convolutions in two of three layers, so that stages differ.
spec::RunSpec with_convolutions(spec::RunSpec run) {
    run.model.family = spec::Family::lfm2;
    run.model.head_norm = true;
    run.model.conv_layers = "0-1,3-4,6-7,9-10,12-13,15";
    run.model.conv_kernel = 3;
    return run;
}

TEST_F(Pipelines, EveryScheduleTrainsLfm2) { every_schedule(with_convolutions(run(spec::Family::llama, false))); }

TEST_F(Pipelines, EveryScheduleInBf16) {
    spec::RunSpec r = run(spec::Family::llama, false);
    r.precision.compute = "bf16";
    r.parallel.pp = 4;
    for (const char* schedule : {"1f1b", "zb-h2", "zb-v", "dualpipe-v"}) {
        r.parallel.schedule = schedule;
        expect_same(r, 4, true);
    }
}

// Beside every other axis.
TEST_F(Pipelines, BesideOtherAxes) {
    struct Layout {
        const char* schedule;
        int64_t tp, cp, dp, zero;
        const char* recompute = "none";
        bool offload = false;
    };
    for (const bool convolutions : {false, true})
        for (const Layout& l : std::vector<Layout>{{"1f1b", 1, 1, 4, 1},
                                                   {"zb-h1", 1, 1, 4, 2},
                                                   {"zb-v", 1, 1, 2, 3, "full"},
                                                   {"dualpipe", 1, 1, 2, 3},
                                                   {"interleaved-zb", 2, 1, 2, 2, "selective"},
                                                   {"v-half", 2, 1, 1, 0, "sqrt", true},
                                                   {"1f1b", 1, 2, 2, 3, "selective", true},
                                                   {"chimera", 2, 2, 1, 1, "every:2"}}) {
            spec::RunSpec r = run(spec::Family::llama, convolutions);
            if (convolutions) r = with_convolutions(r);  // tied too
            r.model.kv_heads = 2;
            r.parallel.pp = 2;
            r.parallel.tp = l.tp;
            r.parallel.cp = l.cp;
            r.parallel.zero = l.zero;
            r.parallel.schedule = l.schedule;
            r.parallel.virtual_stages = l.schedule == std::string("interleaved-zb") ? 2 : 1;
            r.parallel.dp_replicate = l.dp == 4 ? 2 : 1;
            r.recompute.policy = l.recompute;
            r.offload.activations = l.offload;
            r.train.global_batch = 4 * l.dp;
            const VerifyOutcome o = verify({.run = r, .ranks = static_cast<int>(2 * l.tp * l.cp * l.dp), .steps = 1});
            EXPECT_TRUE(o.within()) << l.schedule << (convolutions ? ", lfm2" : "") << ": "
                                    << o.worst().gradient_difference << ' ' << o.worst().gradient;
        }
}

// The names that the config knows are those of the generators.
TEST_F(Pipelines, EveryKindIsKnownToTheConfig) {
    for (const schedule::Kind& kind : schedule::kinds()) {
        spec::RunSpec r = run(spec::Family::llama, false);
        r.parallel.pp = 2;
        r.parallel.schedule = kind.name;
        EXPECT_NO_THROW(spec::validate(r, 2)) << kind.name;
    }
}

// Stages of any number of layers; the first and the last may have none.
TEST_F(Pipelines, LayersAsGiven) {
    spec::RunSpec r = run(spec::Family::llama, false);
    r.parallel.pp = 4;
    for (const char* layers : {"1,2,3,10", "0,8,8,0", "7,1,1,7"}) {
        r.parallel.stage_layers = layers;
        expect_same(r, 4, true);
    }
    const auto refused = [&](const char* layers, const std::string& reason) {
        r.parallel.stage_layers = layers;
        try {
            verify({.run = r, .ranks = 4, .steps = 1});
            ADD_FAILURE() << layers;
        } catch (const UsageError& error) {
            EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
        }
    };
    refused("4,4,4,3",
            "4 stages with 15 layers; required: 4 stages (pp times the stages of a rank) with [model] layers = 16");
    refused("8,8", "2 stages with 16 layers");
    refused("8,0,4,4", "stage 1 has nothing to do");
    refused("4,4,,8", "required the number of layers of each stage");
}

// A user's CSV schedule runs; one that does not fit the run is refused before anything is allocated.
TEST_F(Pipelines, SchedulesFromFiles) {
    spec::RunSpec r = run(spec::Family::llama, false);
    r.parallel.pp = 2;
    r.train.global_batch = 2;
    const auto write = [&](const char* rows) { r.parallel.schedule = folder_.write("mine.csv", rows); };
    write("0F0,0F1,,0B0,0B1\n,1F0,1B0,1F1,1B1\n");
    expect_same(r, 2, true);
    write("0F0,0F1,0I0,0I1,0W0,0W1\n1F0,1I0,1F1,1I1,1W0,1W1\n");
    expect_same(r, 2, true);
    const auto refused = [&](const char* rows, const std::string& reason) {
        write(rows);
        try {
            verify({.run = r, .ranks = 2, .steps = 1});
            ADD_FAILURE() << rows;
        } catch (const UsageError& error) {
            EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
        }
    };
    refused("0F0,0F1,0B0\n1F0,1B0,1F1,1B1\n", "0B1");          // dropped
    refused("0F0,0F1,0B0,0B0,0B1\n1F0,1B0,1F1,1B1\n", "0B0");  // repeated
    refused("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", "");         // waits for ever
    refused("0F0,0F1,0B0,1B1\n1F0,1B0,1F1,0B1\n", "");         // of another stage
    refused("0F0,0B0\n1F0,1B0\n", "required: pp = 2 ranks and the 2 microbatches");
    // Lowered: the messages run in the order of the file.
    const char* const lowered =
        "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0RESHARD,0REDUCE_GRAD\n"
        "1UNSHARD,1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1RESHARD,1REDUCE_GRAD\n";
    write(lowered);
    expect_same(r, 2, true);
    r.parallel.zero = 3;  // UNSHARD and RESHARD gather and free the weights of their stage
    r.train.global_batch = 4;
    expect_same(r, 4, false);
    r.parallel.unsharded_stages = 1;
    r.train.global_batch = 2;
    refused(lowered, "the file has UNSHARD actions of its own");
    r.parallel.unsharded_stages = 0;
    refused("0UNSHARD,0F0,0F1,0B0,0B1,0RESHARD\n1F0,1B0,1F1,1B1\n", "stage 1 is not unsharded");
    refused("0F0,0SEND_F0,0F1,0RECV_B0,0B0,0RECV_B1,0B1\n1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n", "1RECV_F1");
}

// A delayed W needs the outputs of norms, whose weights ZeRO-3 has released by then: with selective recompute the
// differences from one rank are those without, to the bit.
TEST_F(Pipelines, SelectiveRecomputeWithDelayedWeightGradients) {
    spec::RunSpec qwen3 = run(spec::Family::llama, false);
    qwen3.model.head_norm = true;
    for (const spec::RunSpec& model : {run(spec::Family::gpt2, true), qwen3})
        for (const char* schedule : {"zb-h1", "zb-h2", "zb-v", "v-min", "interleaved-zb", "dualpipe-v"})
            for (const int unsharded : {0, 2}) {
                spec::RunSpec r = model;
                r.optimizer.eps = 1e-4;  // AdamW's first step does not magnify a rounding error far below eps
                r.parallel.zero = 3;
                r.parallel.pp = 2;
                r.parallel.schedule = schedule;
                r.parallel.virtual_stages = schedule == std::string("interleaved-zb") ? 2 : 1;
                r.parallel.unsharded_stages = unsharded;
                const VerifyOutcome saved = verify({.run = r, .ranks = 4, .steps = 2});
                r.recompute.policy = "selective";
                const VerifyOutcome o = verify({.run = r, .ranks = 4, .steps = 2});
                EXPECT_LT(o.worst().gradient_difference, 1e-6) << schedule << ": " << o.worst().gradient;
                for (size_t step = 0; step < 2; ++step) {
                    EXPECT_EQ(o.steps[step].loss, saved.steps[step].loss) << schedule;
                    EXPECT_EQ(o.steps[step].gradient_difference, saved.steps[step].gradient_difference) << schedule;
                    EXPECT_EQ(o.steps[step].weight_difference, saved.steps[step].weight_difference) << schedule;
                }
            }
}

// ZeRO-3 with whole stages unsharded: the differences from one rank are those of weights gathered unit by unit, to the
// bit.
TEST_F(Pipelines, UnshardedStages) {
    struct Layout {
        const char* schedule;
        int64_t pp, stages;
        const char* recompute = "none";
        bool offload = false;
    };
    for (const bool tied : {false, true})
        for (const Layout& l : std::vector<Layout>{{"1f1b", 1, 1},
                                                   {"1f1b", 2, 1},
                                                   {"zb-v", 2, 1, "full"},
                                                   {"zb-v", 2, 2, "none", true},
                                                   {"looped-bfs", 2, 1, "selective"},
                                                   {"dualpipe-v", 2, 2},
                                                   {"dualpipe", 2, 2}}) {
            spec::RunSpec r = run(spec::Family::llama, tied);
            r.parallel.zero = 3;
            r.parallel.pp = l.pp;
            r.parallel.schedule = l.schedule;
            r.parallel.virtual_stages = l.schedule == std::string("looped-bfs") ? 2 : 1;
            r.recompute.policy = l.recompute;
            r.offload.activations = l.offload;
            const int ranks = static_cast<int>(2 * l.pp);
            const VerifyOutcome by_unit = verify({.run = r, .ranks = ranks, .steps = 2});
            r.parallel.unsharded_stages = l.stages;
            const VerifyOutcome o = verify({.run = r, .ranks = ranks, .steps = 2});
            EXPECT_TRUE(o.within()) << l.schedule << ": " << o.worst().gradient_difference << ' ' << o.worst().gradient;
            for (size_t step = 0; step < 2; ++step) {
                EXPECT_EQ(o.steps[step].loss, by_unit.steps[step].loss) << l.schedule;
                EXPECT_EQ(o.steps[step].gradient_difference, by_unit.steps[step].gradient_difference) << l.schedule;
                EXPECT_EQ(o.steps[step].weight_difference, by_unit.steps[step].weight_difference) << l.schedule;
            }
        }
}

}  // namespace
}  // namespace tutti::train
