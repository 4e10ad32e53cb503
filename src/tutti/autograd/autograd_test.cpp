// Initial values: any placement holds the one-rank values at its global indices. The tape's own rules, on single nodes.
#include <gtest/gtest.h>

#include "tutti/autograd/tape.h"
#include "tutti/base/philox.h"
#include "tutti/base/to_size.h"
#include "tutti/ops/ops.h"

namespace tutti::autograd {
namespace {

// A matrix and stacks of matrices, over placements with sections, padding and two axes on one dim.
TEST(InitialValues, AreNormalsOfTheGlobalIndexWhateverThePlacement) {
    const auto device = make_cpu_device(2);
    ops::Context ctx{*device, kernels::cpu_table(kernels::best_isa())};
    constexpr mesh::Axis tp = mesh::Axis::tp_part, shard = mesh::Axis::dp_shard;
    const mesh::Mesh mesh({{tp, 2}, {shard, 3}});
    const std::vector<mesh::Placement> placements = {{},
                                                     {{tp, 0}},
                                                     {{tp, 0, 1, 3}},
                                                     {{shard, 0}},
                                                     {{{tp, shard}, 0}},
                                                     {{tp, 1}},
                                                     {{tp, 1}, {shard, 0}},
                                                     {{.axes = {tp, shard}, .grain = 4, .padded = true}}};
    for (const Shape& shape : {Shape{12, 10}, Shape{12, 4, 5}, Shape{12, 2, 3, 5}, Shape{12, 1000}}) {
        const Parameter p{.name = "h.0.w", .shape = shape, .init = {.std = 0.5}};
        for (const mesh::Placement& placement : placements) {
            for (int rank = 0; rank < mesh.size(); ++rank) {
                const mesh::Part part = mesh::part_of(mesh, rank, shape, placement, p.name);
                const Tensor x = ops::empty(ctx, {part.shape.numel()}, DType::f32);
                ops::fill(ctx, x, NAN);
                draw(ctx, p, 42, part.blocks, x);
                std::vector<float> expected(to_size(x.numel()), 0);
                for (const auto& held : part.blocks)
                    mesh::for_each_run(
                        held.block, mesh::whole_block(shape), held.block, [&](int64_t from, int64_t to, int64_t n) {
                            for (int64_t i = 0; i < n; ++i)
                                expected[to_size(held.begin + to + i)] =
                                    0.5f * normal(random_key(42, "h.0.w"), static_cast<uint64_t>(from + i));
                        });
                ASSERT_EQ(x.to_host<float>(), expected) << shape << ", rank " << rank;
            }
        }
    }
}

class TapeTest : public ::testing::Test {
  protected:
    TapeTest() : device_(make_cpu_device(1)), ctx_{*device_, kernels::reference_table()} {}
    Tensor tensor(std::vector<float> values) {
        return Tensor::from_host<float>(*device_, {static_cast<int64_t>(values.size())}, values, Purpose::activations);
    }
    std::unique_ptr<Device> device_;
    ops::Context ctx_;
};

// y = x + x + x: three contributions to one leaf, none of which may overwrite another's memory.
TEST_F(TapeTest, SumsTheGradientsOfAValueThatIsUsedTwice) {
    Tape tape(ctx_, true);
    const Var x = tape.input(tensor({1, 2}));
    const auto twice = [](const Tensor& dy, std::vector<Tensor>&) { return std::vector<Tensor>{dy, dy}; };
    const Var a = tape.record("add", {x, x}, ops::add(ctx_, x.value, x.value), twice);
    const Var y = tape.record("add", {a, x}, ops::add(ctx_, a.value, x.value), twice);
    const Tensor seed = tensor({1, 10});
    tape.backward(y, seed);
    EXPECT_EQ(tape.take_gradient(x).to_host<float>(), (std::vector<float>{3, 30}));
    EXPECT_EQ(seed.to_host<float>(), (std::vector<float>{1, 10}));  // the caller's tensor is as it was
    EXPECT_THROW(tape.take_gradient(Var{}), Error);                 // not of this tape
    EXPECT_THROW(tape.take_gradient(Var{.value = x.value, .id = 1000}), Error);
}

// y = f(x) + g(x): f, which runs last in the backward, is given g's gradient, to add to where nothing else holds it.
TEST_F(TapeTest, HandsOverWhatLaterUsesOfAnInputGave) {
    const Tensor seed = tensor({1, 10});
    for (const bool held : {false, true}) {
        Tape tape(ctx_, true);
        const Var x = tape.input(tensor({1, 2}));
        Tensor of_g;
        bool unique = false;
        const Var f = tape.record("f", {x}, x.value, [&](const Tensor& dy, std::vector<Tensor>& sums) {
            const Tensor sum = std::move(sums[0]);
            unique = sum.unique();
            return std::vector<Tensor>{ops::add(ctx_, sum, dy)};
        });
        const Var g = tape.record("g", {x}, x.value, [&](const Tensor& dy, std::vector<Tensor>& sums) {
            EXPECT_FALSE(sums[0].defined());
            const Tensor twice = ops::add(ctx_, dy, dy);
            if (held) of_g = twice;
            return std::vector<Tensor>{twice};
        });
        const Var y =
            tape.record("add", {f, g}, ops::add(ctx_, f.value, g.value), [](const Tensor& dy, std::vector<Tensor>&) {
                return std::vector<Tensor>{dy, dy};
            });
        tape.backward(y, seed);
        EXPECT_EQ(unique, !held);
        EXPECT_EQ(tape.take_gradient(x).to_host<float>(), (std::vector<float>{3, 30}));
    }
}

// x -> y = f(x), z = x + y, where f saves 7 values. What f saved is freed before the two gradients of x are added.
TEST_F(TapeTest, FreesWhatWasSavedAsSoonAsItWasUsed) {
    const auto held = [&] { return device_->memory().usage(Purpose::activations).current / 4; };
    const auto values = [&](int64_t n) { return ops::zeros(ctx_, {n}, DType::f32); };
    Tape tape(ctx_, true);
    const Var x = tape.input(values(10));
    Var y = tape.record("f", {x}, values(10), [&, saved = values(7)](const Tensor&, std::vector<Tensor>&) {
        return std::vector<Tensor>{values(10)};
    });
    const Var z = tape.record("add", {x, y}, values(10), [](const Tensor& dy, std::vector<Tensor>&) {
        return std::vector<Tensor>{dy, dy};
    });
    EXPECT_EQ(held(), 37);
    y = {};
    EXPECT_EQ(held(), 27);  // addition saves nothing
    device_->memory().reset_peaks();
    tape.backward(z);
    // z is its own gradient too and is held here, so the sum of x's two gradients is new memory.
    EXPECT_EQ(held(), 30);
    EXPECT_EQ(device_->memory().usage(Purpose::activations).peak / 4, 40);  // x, z, f's gradient, the sum
}

TEST_F(TapeTest, AValueThatIsNotUsedCostsNothing) {
    Tape tape(ctx_, true);
    const Var x = tape.input(tensor({1}));
    int ran = 0;
    tape.record("unused", {x}, tensor({5}), [&](const Tensor&, std::vector<Tensor>&) {
        ++ran;
        return std::vector<Tensor>{Tensor{}};
    });
    const Var y = tape.record("used", {x}, tensor({2}),
                              [](const Tensor& dy, std::vector<Tensor>&) { return std::vector<Tensor>{dy}; });
    tape.backward(y, tensor({1}));
    EXPECT_EQ(ran, 0);
}

TEST_F(TapeTest, ChecksTheNumberOfGradients) {
    Tape tape(ctx_, true);
    const Var x = tape.input(tensor({1}));
    const Var y = tape.record("wrong", {x}, tensor({2}), [](const Tensor& dy, std::vector<Tensor>&) {
        return std::vector<Tensor>{dy, dy};
    });
    EXPECT_THROW(tape.backward(y, tensor({1})), Error);
    Tape silent(ctx_, false);
    EXPECT_THROW(silent.backward(silent.input(tensor({1})), tensor({1})), Error);
}

// Two units y = 2 x that save their input, and a loss: the first unit's leaves when the second begins, the last one's
// stays; the backward finds every one of them.
TEST_F(TapeTest, SendsAwayWhatAUnitSavedUntilItsBackward) {
    const auto offload_device = make_file_device(testing::TempDir() + "tutti_tape", 1);
    const auto offloaded = [&] { return offload_device->memory().usage(Purpose::activations).current; };
    Tape tape(ctx_, true, nullptr, offload_device.get());
    Unit unit;
    std::vector<std::vector<float>> seen;
    const auto forward = [&](const Var& x) {
        const Tensor inner = ops::add(ctx_, x.value, x.value);
        const Var h = tape.record("double", {x}, inner, [&, saved = inner](const Tensor& dy, std::vector<Tensor>&) {
            seen.push_back(saved.to_host<float>());
            return std::vector<Tensor>{ops::add(ctx_, dy, dy)};
        });
        return tape.record("copy", {h}, ops::add(ctx_, h.value, tensor({0, 0})),
                           [](const Tensor& dy, std::vector<Tensor>&) { return std::vector<Tensor>{dy}; });
    };
    const Var x = tape.input(tensor({1, 2}));
    const Var a = tape.unit(unit, x, forward);
    EXPECT_EQ(offloaded(), 0);
    const Var b = tape.unit(unit, a, forward);
    EXPECT_EQ(offloaded(), 16) << "the input, which this test still holds, and what the first unit saved";
    const Var c = tape.recompute(b, [&](Tape& t, const Var& in) {
        return t.record(
            "double", {in}, ops::add(ctx_, in.value, in.value),
            [&](const Tensor& dy, std::vector<Tensor>&) { return std::vector<Tensor>{ops::add(ctx_, dy, dy)}; });
    });
    EXPECT_EQ(offloaded(), 32) << "and the second, and its input, which this test still holds";
    tape.backward(c, tensor({1, 10}));
    EXPECT_EQ(offloaded(), 0);
    EXPECT_EQ(seen, (std::vector<std::vector<float>>{{4, 8}, {2, 4}}));
    EXPECT_EQ(tape.take_gradient(x).to_host<float>(), (std::vector<float>{8, 80}));
}

// B in parts does what B does as a whole: a unit or a recomputed part at a time, from the last one.
TEST_F(TapeTest, RunsBackwardInParts) {
    Tape tape(ctx_, true);
    std::string order;
    const auto doubled = [&](Tape& t, const Var& x, char name) {
        return t.record("double", {x}, ops::add(ctx_, x.value, x.value),
                        [&, name](const Tensor& dy, std::vector<Tensor>&) {
                            order += name;
                            return std::vector<Tensor>{ops::add(ctx_, dy, dy)};
                        });
    };
    Unit first, second;
    const Var x = tape.input(tensor({1, 2}));
    const Var a = tape.unit(first, x, [&](const Var& in) { return doubled(tape, doubled(tape, in, 'a'), 'b'); });
    const Var b = tape.recompute(a, [&](Tape& t, const Var& in) { return doubled(t, doubled(t, in, 'c'), 'd'); });
    const Var c = tape.unit(second, b, [&](const Var& in) { return doubled(tape, in, 'e'); });
    tape.begin_backward(doubled(tape, c, 'f'), tensor({1, 10}));
    EXPECT_EQ(order, "");
    for (const char* so_far : {"fe", "fedc", "fedcba"}) {
        EXPECT_EQ(tape.backward_part(), so_far != std::string("fedcba"));
        EXPECT_EQ(order, so_far);
    }
    EXPECT_FALSE(tape.backward_part());
    EXPECT_EQ(tape.take_gradient(x).to_host<float>(), (std::vector<float>{64, 640}));
}

// A node with all three functions: B calls the one of both gradients, I and W the two others, and neither computes the
// gradient of a frozen parameter. The parameter is ready once.
TEST_F(TapeTest, BothGradientsInOnePassWhereNoneWaits) {
    struct Ready final : Hooks {
        void gradient_ready(Parameter&, const Pass&) override { ++count; }
        int count = 0;
    };
    for (const bool frozen : {false, true})
        for (const bool split : {false, true}) {
            Parameter p{.name = "w"};
            if (frozen) p.training = Training::frozen;
            Ready ready;
            Tape tape(ctx_, true, &ready);
            std::string called;
            const auto input_gradient = [&](char name) {
                return [&, name](const Tensor& dy, std::vector<Tensor>&) {
                    called += name;
                    return std::vector<Tensor>{ops::add(ctx_, dy, dy)};
                };
            };
            const Var x = tape.input(tensor({1, 2}));
            const Var y = tape.record(
                "f", {x}, x.value, input_gradient('i'), [&](const Tensor&) { called += 'w'; }, {&p},
                input_gradient('b'));
            if (split) {
                tape.backward_input(y, tensor({1, 10}));
                tape.backward_weight();
            } else {
                tape.backward(y, tensor({1, 10}));
            }
            EXPECT_EQ(called, frozen ? "i" : split ? "iw" : "b");
            EXPECT_EQ(ready.count, frozen ? 0 : 1);
            EXPECT_EQ(tape.take_gradient(x).to_host<float>(), (std::vector<float>{2, 20}));
        }
}

// A recomputed value is computed once for all nodes that need it, and freed after the last.
TEST_F(TapeTest, MakesAgainWhatIsNotKept) {
    int made = 0;
    const Var cheap{tensor({3}), 0, Recomputable([&] {
                        ++made;
                        return tensor({3});
                    })};
    const SavedTensor first(cheap), second(cheap), plain(Var{tensor({4}), 1});
    EXPECT_EQ(made, 0);
    EXPECT_EQ(first.take().to_host<float>(), std::vector<float>{3});
    EXPECT_EQ(second.take().to_host<float>(), std::vector<float>{3});
    EXPECT_EQ(plain.take().to_host<float>(), std::vector<float>{4});
    EXPECT_EQ(made, 1);
}

TEST_F(TapeTest, SaysWhichKernelIsMissing) {
    const kernels::KernelTable empty{.name = "empty"};
    ops::Context bare{*device_, empty};
    try {
        ops::add(bare, tensor({1}), tensor({1}));
        FAIL();
    } catch (const Error& e) {
        EXPECT_STREQ(e.what(), "add has no empty kernel");
    }
}

}  // namespace
}  // namespace tutti::autograd
