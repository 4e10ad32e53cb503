// The first exercise of a course (examples/course): its three configs, for a few steps, are one run; and what its page
// says of bytes is so.
#include <cmath>

#include "program.h"
#include "tutti/base/json.h"

namespace tutti::testing {
namespace {

class Course : public ProgramTest {
  protected:
    struct Trained {
        std::vector<Json> steps;  // metrics.jsonl
        Json totals;              // run.json

        int64_t bytes(const char* purpose) const { return totals.at("memory").at(purpose).get<int64_t>(); }
        int64_t sent(const std::string& group, const std::string& operation) const {
            for (const Json& t : totals.at("communication"))
                if (t.at("group") == group && t.at("operation") == operation) return t.at("sent").get<int64_t>();
            ADD_FAILURE() << "no " << operation << " over " << group;
            return -1;
        }
    };

    Trained train_course(const std::string& name, int ranks) const {
        const Result r = run({"train", TUTTI_SOURCE "/examples/course/" + name + ".toml", "--out", path(name),
                              "--ranks", std::to_string(ranks), "--set", "data.train=" TUTTI_SOURCE "/LICENSE", "--set",
                              concat("train.steps=", kSteps), "--set", "log.every=1"});
        EXPECT_EQ(r.exit_code, 0) << name << r.err;
        std::istringstream lines(read_file(path(name) + "/metrics.jsonl"));
        Trained trained;
        for (std::string line; std::getline(lines, line);) trained.steps.push_back(Json::parse(line));
        EXPECT_EQ(trained.steps.size(), kSteps) << name;
        trained.totals = Json::parse(read_file(path(name) + "/run.json"));
        return trained;
    }
    // The weights at the end, as bytes of a file.
    std::string weights(const std::string& name) const {
        const Result r = run({"convert", "--from", path(name), "--to", path(name + "-exported")});
        EXPECT_EQ(r.exit_code, 0) << r.err;
        return read_file(path(name + "-exported") + "/model.safetensors");
    }

    static constexpr size_t kSteps = 5;
};

TEST_F(Course, ThreeLayoutsAreOneRun) {
    const Trained one = train_course("one-rank", 1), data_parallel = train_course("data-parallel", 4),
                  fsdp = train_course("fsdp", 4);
    for (size_t i = 0; i < kSteps; ++i) {
        const double loss = one.steps.at(i).at("loss").get<double>();
        EXPECT_NEAR(data_parallel.steps.at(i).at("loss").get<double>(), loss, 1e-5 * loss) << i;
        for (const char* key : {"loss", "grad_norm"})
            EXPECT_EQ(data_parallel.steps.at(i).at(key), fsdp.steps.at(i).at(key)) << i << key;
    }
    const std::string bits = weights("fsdp");
    EXPECT_GT(bits.size(), 4 << 20);
    EXPECT_TRUE(weights("data-parallel") == bits) << "data parallel and FSDP end with other weights";

    // N values of 4 bytes; a shard is whole blocks of 256 values, in each of seven flat buffers.
    const auto n = one.totals.at("parameters").get<int64_t>(), padding = int64_t{7} * 256 * 4;
    for (const Trained* run : {&one, &data_parallel}) {
        EXPECT_EQ(run->bytes("weights"), 4 * n);
        EXPECT_EQ(run->bytes("optimizer"), 8 * n);
    }
    EXPECT_NEAR(fsdp.bytes("weights"), n, padding);
    EXPECT_NEAR(fsdp.bytes("optimizer"), 2 * n, 2 * padding);
    EXPECT_EQ(one.totals.at("communication").size(), 0u);
    EXPECT_EQ(data_parallel.sent("dp", "all_reduce"), 2 * 3 * (4 * n + 8) / 4);  // 8 bytes: the gradient's norm
    EXPECT_NEAR(fsdp.sent("dp_shard", "reduce_scatter"), 3 * n, 3 * padding);
    // Forward all, backward the four blocks again, which are all but embeddings and the last norm.
    const int64_t outside = (256 + 128 + 2) * 192;
    EXPECT_NEAR(fsdp.sent("dp_shard", "all_gather"), 3 * (n + n - outside), 6 * padding);
}

// The bias of GPT-2's keys has no true gradient: with a small eps AdamW makes whole updates of its rounding. Verify
// compares updates of the same gradients.
TEST_F(Course, UpdatesOfRoundingAreNoDifference) {
    const Result r = run({"verify", TUTTI_SOURCE "/examples/course/fsdp.toml", "--ranks", "4", "--set",
                          "data.train=" TUTTI_SOURCE "/LICENSE", "--set", "optimizer.eps=1e-8", "--json"});
    EXPECT_EQ(r.exit_code, 0) << r.err;
    const Json steps = Json::parse(r.out).at("steps");
    ASSERT_FALSE(steps.empty());
    for (const Json& step : steps) {
        EXPECT_LE(step.at("gradient_difference").get<double>(), 1e-5);
        EXPECT_LE(step.at("weight_difference").get<double>(), step.at("weight_bound").get<double>());
    }
}

}  // namespace
}  // namespace tutti::testing
