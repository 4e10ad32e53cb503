// The figures of the precision lab beside those computed here in double precision from the numbers of the formats; and
// the tensor that is to blame, which is known because one layer alone is far off.
#include "tutti/train/precision_lab.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tutti/base/float8.h"
#include "tutti/base/to_size.h"
#include "tutti/nn/product_rule.h"
#include "tutti/ops/ops.h"
#include "tutti/train/testing/small_run.h"
#include "tutti/train/verify.h"

namespace tutti::train {
namespace {

using report::FormatLoss;
using report::PrecisionReading;
using report::TensorNumbers;

const TensorNumbers& tensor(const PrecisionReading& reading, const std::string& layer, const std::string& factor) {
    for (const TensorNumbers& t : reading.tensors)
        if (t.layer == layer && t.factor == factor) return t;
    throw Error("no figures of " + layer + ", " + factor);
}

const FormatLoss& format(const TensorNumbers& t, const std::string& name) {
    for (const FormatLoss& f : t.formats)
        if (f.format == name) return f;
    throw Error("no format " + name);
}

// The number of `values` that is nearest to x.
double nearest(const std::vector<double>& values, double x) {
    double best = values.front();
    for (const double v : values)
        if (std::abs(v - x) < std::abs(best - x)) best = v;
    return best;
}

class PrecisionLab : public SmallRun {
  protected:
    static LabOptions lab(const TrainOptions& o, const std::string& checkpoints = "") {
        return {.run = one_rank_of(o.run), .checkpoints = checkpoints};
    }
    // A parameter of the newest checkpoint, rounded to bf16.
    static std::vector<float> weight(const TrainOptions& o, const std::string& name) {
        const std::vector<std::byte> bytes = weights(o).at(name);
        std::vector<float> values(bytes.size() / sizeof(float));
        std::memcpy(values.data(), bytes.data(), bytes.size());
        for (float& v : values) v = static_cast<float>(bf16(v));
        return values;
    }
};

TEST_F(PrecisionLab, MeasuresTheWeightsOfACheckpoint) {
    const TrainOptions o = options("run", {"train.steps=3", "precision.compute=bf16"});
    EXPECT_EQ(train(o).step, 3);
    const PrecisionReading reading = measure_precision(lab(o, o.out + "/checkpoints"));
    EXPECT_EQ(reading.step, 4);
    const std::string name = "model.layers.1.mlp.gate_proj.weight";
    const TensorNumbers& w = tensor(reading, name, "w");
    const std::vector<float> values = weight(o, name);

    std::vector<double> e4m3;
    for (int code = 0; code < 256; ++code)
        if (const float v = float8_value(static_cast<uint8_t>(code), kE4m3); std::isfinite(v))
            e4m3.push_back(static_cast<double>(v));
    double largest = 0, squares = 0, errors = 0;
    int64_t nonzero = 0, flushed = 0;
    std::map<int, int64_t> exponents;
    for (const float v : values) largest = std::max(largest, std::abs(static_cast<double>(v)));
    const double factor = std::exp2(std::floor(std::log2(448 / largest)));
    for (const float value : values) {
        const double v = static_cast<double>(value);
        const double rounded = nearest(e4m3, v * factor) / factor;
        squares += v * v;
        errors += (v - rounded) * (v - rounded);
        if (v == 0) continue;
        ++nonzero;
        flushed += rounded == 0 ? 1 : 0;
        ++exponents[static_cast<int>(std::floor(std::log2(std::abs(v))))];
    }
    EXPECT_EQ(w.values, static_cast<int64_t>(values.size()));
    EXPECT_EQ(w.values - w.zeros, nonzero);
    EXPECT_EQ(w.not_finite, 0);
    EXPECT_EQ(w.largest, largest);
    EXPECT_NEAR(w.rms, std::sqrt(squares / static_cast<double>(values.size())), 1e-12);
    EXPECT_EQ(w.exponents, exponents);
    EXPECT_FALSE(format(w, "as run").snr_db.has_value());  // bf16 multiplies these numbers
    EXPECT_FALSE(format(w, "bf16").snr_db.has_value());
    ASSERT_TRUE(format(w, "tensor").snr_db.has_value());
    EXPECT_NEAR(*format(w, "tensor").snr_db, 10 * std::log10(squares / errors), 1e-6);
    EXPECT_EQ(format(w, "tensor").flushed, static_cast<double>(flushed) / static_cast<double>(nonzero));
    EXPECT_EQ(format(w, "tensor").saturated, 0);
}

// x and dy of all microbatches are counted, and the measured step is the step of training.
TEST_F(PrecisionLab, ChangesNothing) {
    for (const char* recipe : {"none", "tensor", "delayed", "block", "mxfp8"}) {
        const std::vector<std::string> set = {"train.steps=2",
                                              "model.layers=3",
                                              "precision.compute=bf16",
                                              "model.head_dim=128",
                                              "model.ffn=256",
                                              "model.kv_heads=2",
                                              concat("precision.recipe=", recipe),
                                              "optimizer.warmup_steps=0",
                                              "optimizer.schedule=constant"};
        const TrainOptions o = options(recipe, set);
        const TrainOutcome trained = train(o);
        LabOptions two = lab(o);
        two.steps = 2;
        const PrecisionReading reading = measure_precision(two);
        EXPECT_EQ(reading.loss, trained.loss) << recipe;
        EXPECT_EQ(reading.step, 2);
        const auto tokens = o.run.train.global_batch * o.run.train.seq_len;
        const std::string up = "model.layers.1.mlp.down_proj.weight";
        EXPECT_EQ(tensor(reading, up, "x").values, tokens * o.run.model.ffn);
        EXPECT_EQ(tensor(reading, up, "dy").values, tokens * o.run.model.width);
        const std::optional<double> snr = format(tensor(reading, up, "dy"), "as run").snr_db;
        EXPECT_EQ(snr.has_value(), std::string(recipe) != "none") << recipe;
        // What the run does is one of the formats, unless its scales are of earlier steps.
        if (snr && std::string(recipe) != "delayed") {
            EXPECT_EQ(*snr, *format(tensor(reading, up, "dy"), recipe).snr_db);
        }
    }
}

TEST_F(PrecisionLab, CountsWhatF16Loses) {
    // Gradients of a mean over many tokens are small, and the loss scale is 1.
    const TrainOptions o = options("run", {"train.steps=1", "precision.compute=f32", "train.global_batch=64"});
    const PrecisionReading reading = measure_precision(lab(o));
    double flushed = 0;
    for (const TensorNumbers& t : reading.tensors) {
        const double below = static_cast<double>([&] {  // certainly to zero: less than half of the least number
            int64_t n = 0;
            for (const auto& [exponent, count] : t.exponents) n += exponent < -25 ? count : 0;
            return n;
        }());
        const double share = format(t, "f16").flushed;
        const auto nonzero = static_cast<double>(std::max<int64_t>(t.values - t.zeros, 1));
        EXPECT_GE(share, below / nonzero - 1e-12) << t.layer << t.factor;
        flushed = std::max(flushed, share);
        ASSERT_TRUE(format(t, "bf16").snr_db.has_value());
        EXPECT_GT(*format(t, "bf16").snr_db, 48);  // 8 bits
    }
    EXPECT_GT(flushed, 0.01);
}

// Multiplies by a weight that is sixteen times too large.
class Coarse final : public nn::ProductRule {
  public:
    ops::Operand weight(ops::Context& ctx, nn::Parameter& w, const nn::Use&) const override {
        const Tensor larger = ops::cast(ctx, w.value, w.value.dtype(), Purpose::workspace);
        ops::scale(ctx, larger, 16);
        return larger;
    }
};

TEST_F(PrecisionLab, BlamesTheLayerThatRoundsMost) {
    for (const char* name : {"model.layers.0.self_attn.o_proj.weight", "model.layers.2.mlp.gate_proj.weight",
                             "model.layers.3.self_attn.v_proj.weight"}) {
        const TrainOptions o =
            options(name, {"train.steps=1", "precision.compute=f32", "model.layers=5", "precision.recipe=block",
                           "model.width=128", "model.head_dim=128", "model.kv_heads=2", "model.ffn=256"});
        LabOptions l = lab(o);
        l.steps = 2;
        l.factories.products = [&](models::Model& model, const spec::RunSpec& run, parallel::Groups& groups) {
            engine::choose_products(model, run, groups);
            model.parameter(name).rule = std::make_shared<Coarse>();
        };
        const Blame blamed = blame(l);
        ASSERT_GT(blamed.first, 0) << name;
        EXPECT_EQ(blamed.tried[to_size(blamed.first)].last, concat(name, ", w"));
        for (size_t i = 1; i < blamed.tried.size(); ++i)
            EXPECT_LT(blamed.tried[i - 1].tensors, blamed.tried[i].tensors);
    }
}

TEST_F(PrecisionLab, RefusesToBlameWhatDoesNotRound) {
    const TrainOptions o = options("run", {"train.steps=1", "precision.compute=f32"});
    EXPECT_THROW(blame(lab(o)), UsageError);
}

// A mixture: rows of experts, and a bisection in bf16.
TEST_F(PrecisionLab, TakesMixtures) {
    const TrainOptions o = options("run", {"train.steps=1", "precision.compute=bf16", "model.layers=3",
                                           "model.moe.experts=4", "model.moe.top_k=2", "model.moe.ffn=128"});
    const PrecisionReading reading = measure_precision(lab(o));
    const TensorNumbers& x = tensor(reading, "model.layers.1.mlp.experts.gate_proj.weight", "x");
    EXPECT_EQ(x.values, o.run.train.global_batch * o.run.train.seq_len * 2 * o.run.model.width);
    const Blame blamed = blame(lab(o));
    EXPECT_GE(blamed.tried.size(), 2u);
}

}  // namespace
}  // namespace tutti::train
