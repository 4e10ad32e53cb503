// Whole runs with frozen parameters: planned to the byte (SmallRun), saved without moments, resumed under another
// layout, and verified.
#include "tutti/train/testing/small_run.h"
#include "tutti/train/verify.h"

namespace tutti::train {
namespace {

using FrozenRun = SmallRun;

const engine::Factories kFreezes{.model = [](ops::Context& ctx, const spec::ModelSpec& spec, int64_t positions) {
    models::Model model = models::make_model(ctx, spec, positions);
    models::freeze(model, "model.embed_tokens.weight");
    models::freeze(model, "model.layers.0.*");
    return model;
}};

// The whole tensors of the newest checkpoint.
std::map<std::string, std::vector<float>> saved(const TrainOptions& o) {
    std::map<std::string, std::vector<float>> all;
    const auto host = make_cpu_device(1);
    checkpoint::PosixFileSystem files;
    checkpoint::Store store(files, o.out + "/checkpoints", checkpoint::Access::read, [](const std::string&) {});
    store.load_newest(
        [&](const checkpoint::CheckpointReader& reader) {
            for (const checkpoint::TensorRecord& t : checkpoint::stored_tensors(reader)) {
                const Tensor x = Tensor::empty(*host, {t.shape.numel()}, t.dtype, Purpose::data);
                checkpoint::load_slices(reader, {{t.name, t.shape, mesh::whole_part(t.shape).blocks, x}});
                all[t.name] = x.to_floats();
            }
        },
        checkpoint::OnDamage::stop);
    return all;
}

bool is_frozen(const std::string& tensor) {
    return tensor.find("model.embed_tokens.weight") != tensor.npos || tensor.find("model.layers.0.") != tensor.npos;
}

TEST_F(FrozenRun, KeepsItsBitsOverALayoutAndTheNext) {
    for (const std::string compute : {"f32", "bf16"}) {
        const auto run = [&](const std::string& out, int64_t steps, int ranks, std::vector<std::string> layout) {
            layout.insert(layout.end(),
                          {concat("train.steps=", steps), "precision.compute=" + compute, "optimizer.schedule=constant",
                           "train.micro_batch=1", "model.tie_embeddings=false"});
            TrainOptions o = options(compute + out, layout, ranks);
            o.factories = kFreezes;
            const TrainOutcome outcome = train(o);
            return std::pair{outcome.loss, saved(o)};
        };
        const auto [early, before] = run("run", 2, 8, {"parallel.tp=2", "parallel.pp=2", "parallel.zero=3"});
        const auto [loss, after] = run("run", 4, 2, {"parallel.zero=1"});
        const auto [one_rank, alone] = run("one", 4, 1, {});
        EXPECT_NEAR(loss / one_rank, 1, compute == "f32" ? 1e-5 : 0.01);
        EXPECT_EQ(before.size(), after.size());
        int frozen = 0;
        for (const auto& [name, values] : after) {
            if (is_frozen(name)) {
                ++frozen;
                EXPECT_EQ(values, before.at(name)) << name;
                EXPECT_EQ(values, alone.at(name)) << name;
                EXPECT_FALSE(name.starts_with("optimizer.")) << name;
            } else {
                EXPECT_NE(values, before.at(name)) << name;
            }
        }
        EXPECT_EQ(frozen, 10);
    }
}

TEST_F(FrozenRun, IsVerified) {
    TrainOptions o = options("verify", {"parallel.tp=2", "parallel.zero=3", "precision.compute=f32"}, 4);
    const VerifyOutcome outcome = verify({.run = o.run, .ranks = 4, .factories = kFreezes});
    EXPECT_TRUE(outcome.within()) << outcome.worst().gradient_difference;
}

}  // namespace
}  // namespace tutti::train
