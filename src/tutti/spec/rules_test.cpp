// validate() refuses a run exactly when its layout breaks a predicate, and each predicate alone makes it refuse.
#include "tutti/spec/rules.h"

#include <gtest/gtest.h>

#include <random>

#include "tutti/base/error.h"
#include "tutti/spec/toml.h"
#include "tutti/spec/validate.h"

namespace tutti::spec {
namespace {

// Every predicate of keeps_rules(), to count which of them a test broke.
using Predicate = bool (*)(const RunSpec&, int ranks);
const Predicate kPredicates[] = {
    [](const RunSpec& r, int ranks) { return axes_fill_ranks(r.parallel, ranks); },
    batch_divides,
    [](const RunSpec& r, int) { return offloaded_weights_are_gathered(r); },
    [](const RunSpec& r, int) { return divides(r.parallel.tp, r.model.heads); },
    [](const RunSpec& r, int) { return divides(r.parallel.tp, r.model.ffn); },
    [](const RunSpec& r, int) { return divides(r.parallel.tp, r.model.moe.shared_ffn); },
    [](const RunSpec& r, int) { return divides(r.parallel.tp, conv_width(r.model)); },
    [](const RunSpec& r, int) { return tp_fits_kv_heads(r); },
    [](const RunSpec& r, int) { return sequence_parallel_fits(r); },
    [](const RunSpec& r, int) { return ulysses_fits_method(r.parallel); },
    [](const RunSpec& r, int) { return ulysses_divides_cp(r.parallel); },
    [](const RunSpec& r, int) { return cp_divides_sequence(r); },
    [](const RunSpec& r, int) { return cp_leaves_tokens_of_convolution(r); },
    [](const RunSpec& r, int) { return ulysses_divides_heads(r); },
    [](const RunSpec& r, int) { return ulysses_fits_kv_heads(r); },
    [](const RunSpec& r, int) { return ep_has_experts(r); },
    [](const RunSpec& r, int) { return divides(r.parallel.ep, r.model.moe.experts); },
    [](const RunSpec& r, int) { return divides(r.parallel.etp, r.model.moe.ffn); },
    [](const RunSpec& r, int ranks) { return ep_divides_ranks(r.parallel, ranks); },
    [](const RunSpec& r, int) { return stages_have_layers(r); },
    [](const RunSpec& r, int) { return aux_loss_fits_schedule(r); },
};

bool accepted(const RunSpec& run, int ranks) {
    try {
        validate(run, ranks);
        return true;
    } catch (const UsageError&) {
        return false;
    }
}

std::vector<RunSpec> models() {
    std::vector<RunSpec> runs;
    for (const std::vector<std::string>& set :
         {std::vector<std::string>{"model.preset=llama-tiny", "model.kv_heads=2"},
          {"model.preset=llama-tiny", "model.heads=12", "model.kv_heads=6", "model.ffn=447"},
          {"model.preset=gpt2-124m", "model.layers=6"},
          {"model.preset=moe-tiny", "model.moe.shared_ffn=6", "model.moe.ffn=9"},
          {"model.preset=moe-tiny", "model.moe.aux_loss=global", "model.moe.experts=6", "model.heads=12",
           "model.kv_heads=6"},
          {"model.preset=lfm2-tiny", "model.width=130", "model.conv_kernel=6"}}) {
        runs.push_back(parse_text("", "model", set));
        runs.back().data.train = {"a.bin"};
    }
    return runs;
}

TEST(Rules, ValidateRefusesWhatBreaksOne) {
    std::mt19937_64 random(36);
    const auto one_of = [&]<class T>(std::initializer_list<T> values) {
        return values.begin()[random() % values.size()];
    };
    const std::vector<RunSpec> runs = models();
    std::vector<int> broken_alone(std::size(kPredicates));
    int kept = 0;
    for (int i = 0; i < 20000; ++i) {
        RunSpec run = runs[random() % runs.size()];
        ParallelSpec& p = run.parallel;
        run.train.seq_len = one_of({4, 12, 24, 36, 48, 50});
        run.train.global_batch = one_of({6, 8, 12, 16});
        run.train.micro_batch = one_of({1, 2, 3});
        // Mostly one rank of an axis, or no layout would keep all rules, or all but one.
        p.tp = one_of({1, 1, 1, 2, 3, 4, 8});
        p.cp = one_of({1, 1, 1, 2, 4, 6});
        p.pp = one_of({1, 1, 1, 2, 3, 6});
        p.cp_method = one_of({"ring", "all_gather", "ulysses"});
        p.cp_ulysses = one_of({0, 0, 0, 1, 2, 3});
        p.sequence_parallel = random() % 2 == 0;
        if (run.model.moe.experts > 0 || random() % 8 == 0) {
            p.ep = one_of({1, 1, 2, 3, 4});
            p.etp = one_of({1, 1, 2, 5});
        }
        p.dp_replicate = one_of({1, 1, 2});
        p.dp_shard = one_of({-1, -1, 1, 2});
        p.zero = one_of({1, 3});
        p.virtual_stages = one_of({1, 1, 2});
        p.schedule = one_of({"1f1b", "gpipe", "zb-v"});
        if (random() % 4 == 0) p.stage_layers = "0,1,2";  // that the list fits is the pipeline's to check
        run.offload.params = random() % 4 == 0;
        const int64_t axes = p.tp * p.cp * p.pp * p.dp_replicate * std::max<int64_t>(p.dp_shard, 1);
        const int ranks = random() % 4 == 0 ? one_of({1, 2, 4, 8, 12, 24}) : static_cast<int>(axes);

        const bool keeps = keeps_rules(run, ranks);
        ASSERT_EQ(accepted(run, ranks), keeps) << to_toml(run) << ranks;
        size_t broken = 0, which = 0;
        for (size_t k = 0; k < std::size(kPredicates); ++k)
            if (!kPredicates[k](run, ranks)) {
                ++broken;
                which = k;
            }
        ASSERT_EQ(keeps, broken == 0);
        if (broken == 1) ++broken_alone[which];
        kept += broken == 0 ? 1 : 0;
    }
    EXPECT_GT(kept, 200);
    for (size_t k = 0; k < std::size(kPredicates); ++k) EXPECT_GT(broken_alone[k], 0) << "predicate " << k;
}

TEST(DataParallelRanks, AreWhatTheOtherAxesLeave) {
    ParallelSpec p;
    EXPECT_EQ(data_parallel_ranks(p, 8), 8);
    p.tp = 2;
    p.dp_replicate = 2;
    EXPECT_EQ(data_parallel_ranks(p, 8), 4);  // 2 replicas of 2 shards
    p.dp_shard = 3;
    EXPECT_EQ(data_parallel_ranks(p, 8), 6);
    p.dp_shard = -1;
    EXPECT_EQ(data_parallel_ranks(p, 6), 0);
}

}  // namespace
}  // namespace tutti::spec
