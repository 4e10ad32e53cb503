// Whole runs with an update rule of a program's own that needs whole matrices: under each layout as one rank, to the
// byte as rehearsed, and resumed under another layout.
#include <gtest/gtest.h>

#include <filesystem>

#include "tutti/base/to_size.h"
#include "tutti/comm/launcher.h"
#include "tutti/optim/testing/normalised.h"
#include "tutti/rehearsal/present.h"
#include "tutti/train/testing/small_run.h"
#include "tutti/train/verify.h"

namespace tutti::train {
namespace {

const engine::Factories kNormalised{
    .update_rule = [](const auto&) { return std::make_unique<optim::testing::Normalised>(); }};

class UpdateRuleTest : public SmallRun {
  protected:
    TrainOptions run(const std::string& out, const std::vector<std::string>& layout, int ranks = 4) const {
        std::vector<std::string> set = {
            "train.steps=2",         "train.global_batch=4",        "train.micro_batch=1",
            "precision.compute=f32", "optimizer.schedule=constant", "optimizer.warmup_steps=0"};
        set.insert(set.end(), layout.begin(), layout.end());
        TrainOptions o = options(out, set, ranks);
        o.factories = kNormalised;
        return o;
    }

    // The checkpoint's tensors, whole.
    static std::map<std::string, std::vector<float>> state(const TrainOptions& o) {
        checkpoint::PosixFileSystem files;
        checkpoint::Store store(files, o.out + "/checkpoints", checkpoint::Access::read, [](const std::string&) {});
        const auto device = make_cpu_device(1);
        std::vector<checkpoint::TensorSlice> slices;
        store.load_newest(
            [&](const checkpoint::CheckpointReader& reader) {
                for (const checkpoint::TensorRecord& r : stored_tensors(reader))
                    slices.push_back({r.name,
                                      r.shape,
                                      {{mesh::whole_block(r.shape), 0}},
                                      Tensor::empty(*device, {r.shape.numel()}, r.dtype, Purpose::weights)});
                load_slices(reader, slices);
            },
            checkpoint::OnDamage::stop);
        std::map<std::string, std::vector<float>> all;
        for (const checkpoint::TensorSlice& slice : slices) all[slice.name] = slice.values.to_floats();
        return all;
    }

    static void expect_as_rehearsed(const TrainOptions& o, const std::string& what) {
        const auto json = Json::parse(read_file(o.out + "/run.json"));
        const engine::Machine machine = engine::machine_of(o.run, comm::local_rank({}, 0, o.ranks), "");
        for (int rank = 0; rank < o.ranks; ++rank) {
            const auto r = rehearsal::rehearse(o.run, rehearsal::target_of(machine), o.ranks, rank, o.factories);
            EXPECT_EQ(json.at("ranks")[to_size(rank)].at("memory"), rehearsal::to_json(r.memory.at_peak))
                << what << ", rank " << rank;
        }
    }
};

// One data-parallel degree: the same sums of gradients, so the same bits.
TEST_F(UpdateRuleTest, WholeMatricesHaveTheBitsOfAnyZero) {
    const auto reference = run("zero0", {"parallel.zero=0"});
    train(reference);
    const auto expected = state(reference);
    EXPECT_TRUE(std::any_of(expected.begin(), expected.end(),
                            [](const auto& t) { return t.first.starts_with("optimizer.momentum."); }));
    for (const std::vector<std::string>& layout :
         std::vector<std::vector<std::string>>{{"parallel.zero=1"},
                                               {"parallel.zero=2"},
                                               {"parallel.zero=3"},
                                               {"parallel.zero=3", "parallel.dp_replicate=2"},
                                               {"parallel.zero=1", "offload.optimizer=true"}}) {
        const auto o = run("many", layout);
        std::filesystem::remove_all(o.out);
        train(o);
        EXPECT_EQ(state(o), expected) << layout.back();
        expect_as_rehearsed(o, layout.back());
    }
}

TEST_F(UpdateRuleTest, WholeMatricesFollowOneRank) {
    // Each token goes to all experts: loads are even, as a rehearsal assumes.
    const std::vector<std::string> mixture = {"model.moe.experts=4", "model.moe.top_k=4", "model.moe.ffn=24",
                                              "model.moe.expert_bias=true"};
    for (std::vector<std::string> layout : std::vector<std::vector<std::string>>{
             {"parallel.tp=2", "parallel.zero=3"},
             {"parallel.tp=2", "parallel.pp=2"},
             {"parallel.pp=2", "parallel.zero=2", "parallel.schedule=zb-h1"},
             {"parallel.cp=2", "parallel.zero=3"},
             {"parallel.ep=2", "parallel.zero=3"},
             {"parallel.ep=2", "parallel.etp=2", "parallel.tp=2", "parallel.zero=1"}}) {
        const bool experts = layout.front() == "parallel.ep=2";
        if (experts) layout.insert(layout.end(), mixture.begin(), mixture.end());
        TrainOptions o = run("many", layout);
        const VerifyOutcome verified = verify({.run = o.run, .ranks = o.ranks, .steps = 3, .factories = o.factories});
        EXPECT_TRUE(verified.within()) << layout.front() << layout[1] << ": weights "
                                       << verified.worst().weight_difference << " of " << verified.worst().weight;
        std::filesystem::remove_all(o.out);
        train(o);
        expect_as_rehearsed(o, layout.front() + layout[1]);
    }
}

TEST_F(UpdateRuleTest, ResumesUnderAnotherLayout) {
    const auto straight = run("straight", {"train.steps=4", "parallel.zero=1"});
    train(straight);
    train(run("moved", {"parallel.zero=3"}));
    const auto moved = run("moved", {"train.steps=4", "parallel.zero=2", "parallel.dp_replicate=2"});
    train(moved);
    EXPECT_EQ(state(moved), state(straight));
}

TEST_F(UpdateRuleTest, AParameterServerUpdatesAlone) {
    const auto o = run("server", {"parallel.zero=0", "parallel.strategy=parameter_server"});
    try {
        train(o);
        FAIL();
    } catch (const UsageError& error) {
        EXPECT_NE(std::string(error.what()).find("the server updates alone"), std::string::npos) << error.what();
    }
}

}  // namespace
}  // namespace tutti::train
