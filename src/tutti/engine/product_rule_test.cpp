// Product rules under every layout: a rule whose operands are copies gives the bits of the plain rule, so every product
// asks its rule, the copies live as long as their products, and no copy of a weight outlives the update.
#include "tutti/nn/product_rule.h"

#include <gtest/gtest.h>

#include "tutti/comm/threads/thread_world.h"
#include "tutti/engine/step.h"
#include "tutti/engine/testing/tiny.h"

namespace tutti::engine::product_rule_test {
namespace {

using nn::Parameter, nn::Use, ops::Operand;

// Copies every operand, and saves copies of inputs that are not recomputed.
class Copies final : public nn::ProductRule {
  public:
    explicit Copies(bool saves) : saves_(saves) {}
    Operand input(ops::Context& ctx, const Tensor& x, const Use&) const override { return copy(ctx, x); }
    Operand weight(ops::Context& ctx, Parameter& w, const Use& use) const override {
        return w.forms.kept(ctx, use.role, [&] { return Operand(copy(ctx, w.value)); });
    }
    Operand gradient(ops::Context& ctx, const Tensor& dy, const Use&) const override { return copy(ctx, dy); }
    std::function<Operand()> save(nn::Tape& tape, const nn::Var& x, const Operand& forward,
                                  const Use& use) const override {
        if (!saves_) return ProductRule::save(tape, x, forward, use);
        tape.saves(forward.values);
        return [forward] { return forward; };
    }

  private:
    static Tensor copy(ops::Context& ctx, const Tensor& x) {
        Tensor y = ops::empty(ctx, x.shape(), x.dtype());
        ops::copy(ctx, x, y);
        return y;
    }
    bool saves_;
};

struct Outcome {
    std::vector<double> losses, norms;  // exact sums: equal bits mean equal terms
    bool operator==(const Outcome&) const = default;
};

Outcome two_steps(const spec::RunSpec& run, int ranks, const std::shared_ptr<const nn::ProductRule>& rule) {
    Outcome outcome;
    comm::run_ranks(ranks, {.timeout_s = 60}, [&](comm::World& world) {
        Engine engine(run, world, machine_of(run, {}, ::testing::TempDir()),
                      [&](ops::Context& ctx, const BatchShard& share) { return fixed_batches(ctx, run, share); },
                      {.products = [&](models::Model& model, const spec::RunSpec&, parallel::Groups&) {
                          for (Parameter* p : model.parameters()) p->rule = rule;
                      }});
        for (int step = 1; step <= 2; ++step) {
            const StepResult r = train_step(engine, step);
            if (world.rank() > 0) continue;
            outcome.losses.push_back(r.loss);
            outcome.norms.push_back(r.grad_norm);
        }
        engine.data_parallel->wait_for_weights();
    });
    return outcome;
}

TEST(ProductRules, OfCopiesHaveTheBitsOfThePlainRule) {
    using Change = std::function<void(spec::RunSpec&)>;
    struct Layout {
        const char* name;
        int ranks;
        Change change;
    };
    const auto gpt2 = [](spec::RunSpec& r) { r.model.family = spec::Family::gpt2, r.model.tie_embeddings = true; };
    const auto lfm2 = [](spec::RunSpec& r) {
        r.model.family = spec::Family::lfm2, r.model.conv_layers = "0", r.model.conv_kernel = 3;
        r.model.tie_embeddings = true;
    };
    const auto moe = [](spec::RunSpec& r) { r.model.moe = {.experts = 4, .top_k = 2, .ffn = 24}; };
    const Layout layouts[] = {
        {"one rank", 1, [](spec::RunSpec&) {}},
        {"selective", 1, [](spec::RunSpec& r) { r.recompute.policy = "selective"; }},
        {"recompute", 1, [](spec::RunSpec& r) { r.recompute.policy = "full"; }},
        {"offload", 1, [](spec::RunSpec& r) { r.offload.activations = r.offload.optimizer = true; }},
        {"zero 3", 2, [](spec::RunSpec& r) { r.parallel.zero = 3; }},
        {"tp", 2, [](spec::RunSpec& r) { r.parallel.tp = 2; }},
        {"tp x pp x zero 3", 8,
         [](spec::RunSpec& r) {
             r.parallel.tp = r.parallel.pp = 2, r.parallel.zero = 3;
             r.recompute.policy = "selective";
         }},
        {"zb-h1, zero 3", 4,
         [](spec::RunSpec& r) {
             r.parallel.pp = 2, r.parallel.zero = 3, r.parallel.schedule = "zb-h1";
             r.recompute.policy = "selective";
         }},
        {"dualpipe-v", 2, [](spec::RunSpec& r) { r.parallel.pp = 2, r.parallel.schedule = "dualpipe-v"; }},
    };
    const std::pair<const char*, Change> models[] = {
        {"llama", [](spec::RunSpec&) {}}, {"gpt2", gpt2}, {"lfm2", lfm2}, {"moe", moe}};
    for (const auto& [model, change_model] : models)
        for (const Layout& layout : layouts) {
            spec::RunSpec run = testing::tiny_llama(4, 8);
            change_model(run);
            layout.change(run);
            const Outcome plain = two_steps(run, layout.ranks, nullptr);
            for (const bool saves : {false, true})
                EXPECT_EQ(two_steps(run, layout.ranks, std::make_shared<Copies>(saves)), plain)
                    << model << ", " << layout.name << ", saves copies: " << saves;
        }
}

// Rows of an input that are still to arrive cannot be copied.
TEST(ProductRules, ThatReadWholeInputsNeedProductsThatWait) {
    class Converts final : public nn::ProductRule {
        bool converts() const override { return true; }
    };
    spec::RunSpec run = testing::tiny_llama(1, 1);
    run.parallel.tp = 2;
    run.parallel.tp_overlap = 2;
    EXPECT_THROW(two_steps(run, 2, std::make_shared<Converts>()), UsageError);
    run.parallel.tp_overlap = 1;
    EXPECT_EQ(two_steps(run, 2, std::make_shared<Converts>()), two_steps(run, 2, nullptr));
}

}  // namespace
}  // namespace tutti::engine::product_rule_test
