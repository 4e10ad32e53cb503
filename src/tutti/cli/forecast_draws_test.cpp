// Drawn questions to `train --dry-run`, `rehearse`, `simulate` and `plan`: layouts of all axes, and machines,
// precisions and features in all combinations. The four give one answer, or one refusal. Many more at night
// (base/testing/draws.h).
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/base/testing/draws.h"
#include "tutti/cli/testing/run.h"
#include "tutti/hardware/cluster.h"
#include "tutti/schedule/generators.h"
#include "tutti/spec/recipe.h"

namespace tutti::cli::forecast_draws_test {
namespace {

using Words = std::vector<std::string>;

struct ForecastDraws : CommandTest {
    std::mt19937 random{20261128};

    template <class T>
    T one_of(const std::vector<T>& values) {
        return values[random() % values.size()];
    }
    bool once_in(unsigned n) { return random() % n == 0; }

    // The answer of a command, or why it has none.
    struct Answer {
        int code = 0;
        Json document;
        std::string refusal;
    };
    Answer ask(const std::string& command, Words words) {
        words.emplace_back("--json");
        Answer a{.code = run_words(command, std::move(words))};
        if (a.code == 0) a.document = Json::parse(out);
        a.refusal = a.code == 0 ? "" : err;
        return a;
    }
};

Words joined_words(Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
}

// A layout of small models: mixtures, states that pass through the tokens, latent attention, and plain ones.
Words drawn_layout(ForecastDraws& d) {
    const int ranks = d.one_of<int>({4, 8, 16, 32});
    Words words = {"--model",
                   d.one_of<std::string>({"llama-tiny", "moe-tiny", "moe-tiny", "deepseek-v3-tiny", "qwen3-next-tiny",
                                          "gpt-oss-tiny", "granite4-tiny", "lfm2-tiny"}),
                   "--cluster",
                   d.one_of<std::string>({"h100", "a100", "mi300x"}),
                   "--ranks",
                   std::to_string(ranks)};
    const auto set = [&](const std::string& key, const auto& value) {
        words.insert(words.end(), {"--set", concat(key, '=', value)});
    };
    int left = ranks;
    const auto axis = [&](const char* key, std::vector<int> sizes) {
        std::erase_if(sizes, [&](int n) { return left % n != 0; });
        const int n = d.one_of(sizes);
        left /= n;
        set(key, n);
        return n;
    };
    axis("parallel.tp", {1, 1, 2, 4});
    if (axis("parallel.cp", {1, 1, 2, 4}) > 1) set("parallel.cp_method", d.one_of<std::string>({"ring", "all_gather"}));
    const int pp = axis("parallel.pp", {1, 1, 2, 4});
    const int replicas = axis("parallel.dp_replicate", {1, 1, 2});
    if (words[1].starts_with("moe") || words[1].starts_with("deepseek")) {
        set("parallel.ep", d.one_of<int>({1, 2, 4}));
        if (d.once_in(3)) set("parallel.etp", 2);
        if (d.once_in(3)) words.insert(words.end(), {"--expert-loads", "1.5"});
    }
    const int microbatches = d.one_of<int>({1, 3, 8});
    const int micro = d.one_of<int>({1, 2});
    set("train.micro_batch", micro);
    set("train.global_batch", micro * microbatches * left * replicas);
    set("train.seq_len", 96);
    if (pp > 1) {
        const auto kinds = schedule::kinds();
        const schedule::Kind& kind = kinds[d.random() % kinds.size()];
        set("parallel.schedule", kind.name);
        set("parallel.virtual_stages", kind.chunks > 0 ? kind.chunks : 2);
        set("model.layers", 8);
    }
    set("parallel.zero", d.random() % 4);
    set("parallel.reductions", d.one_of<int>({1, 2}));
    set("recompute.policy", d.one_of<std::string>({"none", "selective", "full"}));
    if (d.once_in(3)) set("offload.optimizer", "true");
    if (d.once_in(4)) set("offload.activations", "true");
    if (d.once_in(4)) set("offload.params", "true");
    if (d.once_in(6)) set("optimizer.name", "muon");
    if (d.once_in(5)) set("precision.recipe", d.one_of<std::string>({"tensor", "delayed"}));
    return words;
}

TEST_F(ForecastDraws, OfALayoutSayOneMemory) {
    int answered = 0;
    const int most = tutti::testing::draws(40, 1500);
    for (int i = 0; i < most; ++i) {
        const Words words = drawn_layout(*this);
        const std::string question = joined(words, " ");
        const Answer rehearsed = ask("rehearse", words), simulated = ask("simulate", words);
        EXPECT_EQ(simulated.refusal, rehearsed.refusal) << question;
        if (rehearsed.code != 0) continue;
        ++answered;
        for (const char* key : {"peak_bytes", "capacity_bytes", "fits", "offloaded_bytes", "host_memory"})
            EXPECT_EQ(simulated.document[key].dump(), rehearsed.document[key].dump()) << key << " of " << question;
        if (i % 8 != 0 && most < 100) continue;
        const Answer dry = ask("train", joined_words(words, {"--dry-run"}));
        EXPECT_EQ(dry.document["peak_bytes"].dump(), rehearsed.document["peak_bytes"].dump()) << question;
        const Answer planned = ask("plan", joined_words({write("c.toml", "")}, joined_words(words, {"--top", "1"})));
        if (planned.code != 0) continue;  // no layout of a search
        const Json& mine = planned.document["mine"];
        EXPECT_EQ(mine["peak_bytes"].dump(), rehearsed.document["peak_bytes"].dump()) << question;
        EXPECT_EQ(mine["fits"].dump(), rehearsed.document["fits"].dump()) << question;
        EXPECT_EQ(mine["step_time_s"].dump(), simulated.document["step_time_s"].dump()) << question;
    }
    EXPECT_GT(answered, most / 3);
}

// Of each device that there is: what it lacks, all commands refuse in the same words.
TEST_F(ForecastDraws, OfAMachineHaveOneAnswer) {
    int refused = 0, answered = 0;
    for (const std::string& cluster : hardware::cluster_names())
        for (int i = 0; i < tutti::testing::draws(2, 40); ++i) {
            Words words = {"--model", "llama-tiny", "--cluster", cluster, "--ranks", "4"};
            const auto set = [&](const std::string& key, const std::string& value) {
                words.insert(words.end(), {"--set", key + "=" + value});
            };
            set("train.global_batch", "8");
            set("train.micro_batch", "2");
            set("train.seq_len", "128");
            set("model.ffn", "384");
            set("precision.compute", one_of<std::string>({"bf16", "bf16", "f16", "tf32", "f32"}));
            set("precision.recipe", one_of(spec::recipe_names()));
            if (once_in(3)) set("precision.emulate", "true");
            if (once_in(4)) set("precision.gather", one_of<std::string>({"weights", "sequences", "all"}));
            set("parallel.zero", std::to_string(random() % 4));
            set("parallel.tp", one_of<std::string>({"1", "2"}));
            for (const char* what : {"params", "optimizer", "activations"})
                if (once_in(6)) set(concat("offload.", what), "true");
            if (once_in(6)) set("train.cuda_graphs", "true");
            const std::string question = joined(words, " ");
            const Answer rehearsed = ask("rehearse", words);
            for (const Answer& other : {ask("simulate", words), ask("train", joined_words(words, {"--dry-run"}))}) {
                EXPECT_EQ(other.refusal, rehearsed.refusal) << question;
                if (rehearsed.code != 0) continue;
                EXPECT_EQ(other.document["peak_bytes"].dump(), rehearsed.document["peak_bytes"].dump()) << question;
            }
            if (i == 0) {
                const Answer planned =
                    ask("plan", joined_words({write("c.toml", "")}, joined_words(words, {"--top", "1"})));
                EXPECT_EQ(planned.refusal, rehearsed.refusal) << question;
            }
            ++(rehearsed.code == 0 ? answered : refused);
        }
    EXPECT_GT(refused, 5);
    EXPECT_GT(answered, 5);
}

}  // namespace
}  // namespace tutti::cli::forecast_draws_test
