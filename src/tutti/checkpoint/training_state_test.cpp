// Tensors through a checkpoint and back; a copied state keeps its values while training goes on, a borrowed one costs
// no memory.
#include "tutti/checkpoint/training_state.h"

#include <gtest/gtest.h>

#include "tutti/base/testing/scratch.h"
#include "tutti/checkpoint/testing/sample.h"

namespace tutti::checkpoint {
namespace {

using testing::contains;

class TrainingState : public ::testing::Test {
  protected:
    Tensor tensor(const std::vector<float>& values) {
        return Tensor::from_host<float>(*device_, {static_cast<int64_t>(values.size())}, values, Purpose::weights);
    }
    void save(int64_t step, const HostState& state) {
        store_.save({.step = step,
                     .files = {state.file(0, 1)},
                     .config_digest = {},
                     .data_fingerprint = {},
                     .state = "{}",
                     .tensors = state.tensors()});
    }
    // What a checkpoint holds that is written after `tensor` has changed.
    std::vector<float> written_after_a_change(HostMemory memory) {
        const Tensor weight = tensor({1, 2, 3});
        const HostState state({whole_piece("weight", weight)}, memory);
        copied_bytes_ = state.copied_bytes();
        weight.view().as<float>()[1] = 7;
        save(1, state);
        const Tensor back = tensor({0, 0, 0});
        store_.load_newest([&](const CheckpointReader& reader) { load_pieces(reader, {whole_piece("weight", back)}); },
                           OnDamage::stop);
        return back.to_host<float>();
    }

    ScratchFolder scratch_;
    PosixFileSystem files_;
    Store store_{files_, scratch_.path(), Access::write, [](const std::string&) {}};
    std::unique_ptr<Device> device_ = make_cpu_device(1);
    int64_t copied_bytes_ = 0;
};

TEST_F(TrainingState, ACopyIsOfTheMomentItWasMade) {
    EXPECT_EQ(written_after_a_change(HostMemory::copy), (std::vector<float>{1, 2, 3}));
    EXPECT_EQ(copied_bytes_, 12);
}

TEST_F(TrainingState, ALoanOfTheHostsMemoryCopiesNothing) {
    EXPECT_EQ(written_after_a_change(HostMemory::borrow), (std::vector<float>{1, 7, 3}));
    EXPECT_EQ(copied_bytes_, 0);
}

TEST_F(TrainingState, NamesWhatIsMissingWhatIsTooMuchAndWhatHasAnotherShape) {
    save(1, HostState({whole_piece("a", tensor({1, 2})), whole_piece("b", tensor({3}))}, HostMemory::borrow));
    const auto error = [&](const std::vector<Piece>& wanted) -> std::string {
        try {
            store_.load(store_.list().front().path,
                        [&](const CheckpointReader& reader) { load_pieces(reader, wanted); });
        } catch (const DataError& e) {
            return e.what();
        }
        return "";
    };
    EXPECT_EQ(error({whole_piece("a", tensor({0, 0}))}), "");
    EXPECT_TRUE(contains(error({whole_piece("c", tensor({0}))}), "has no tensor 'c' among its 2"));
    EXPECT_TRUE(contains(error({whole_piece("b", tensor({0, 0}))}), "b is (1) f32, the model needs (2) f32"));
    const Piece half{.name = "a",
                     .shape = {2},
                     .blocks = {{{{1}, {1}}, 0}},
                     .values = Tensor::empty(*device_, {1}, DType::bf16, {})};
    EXPECT_TRUE(contains(error({half}), "a is (2) f32, the model needs (2) bf16"));
    store_.load(store_.list().front().path, [&](const CheckpointReader& reader) {
        EXPECT_EQ(unwanted_tensors(reader, {whole_piece("a", tensor({0, 0}))}), std::vector<std::string>{"b"});
    });
}

TEST_F(TrainingState, WhatIsHeldTwiceOrByNobodyIsNotSaved) {
    const auto piece = [&](int64_t begin, const std::vector<float>& values) {
        const auto end = begin + static_cast<int64_t>(values.size());
        return Piece{.name = "a",
                     .shape = {2, 2},
                     .blocks = mesh::blocks_of_range(mesh::whole_part({2, 2}), begin, end),
                     .values = tensor(values)};
    };
    EXPECT_THROW(save(1, HostState({piece(0, {1, 2, 3})}, HostMemory::borrow)), Error);
    EXPECT_THROW(save(1, HostState({piece(0, {1, 2, 3}), piece(1, {2})}, HostMemory::borrow)), Error);
    EXPECT_THROW(HostState({piece(2, {1, 2, 3})}, HostMemory::borrow), Error);  // beyond the end
    EXPECT_THROW(HostState({whole_piece("a@b", tensor({1}))}, HostMemory::borrow), Error);
    EXPECT_TRUE(store_.list().empty());
    EXPECT_TRUE(testing::debris_in(files_, scratch_.path()).empty());
    // What another rank owns is left to it.
    Piece other = piece(2, {0, 0});
    other.owned = false;
    save(1, HostState({piece(0, {1, 2}), piece(2, {3, 4})}, HostMemory::borrow));
    EXPECT_EQ(HostState({piece(0, {1, 2}), other}, HostMemory::borrow).file(0, 1).body.size(), 1u);
}

// As one rank wrote before the manifest knew tensors: whole ones, moments flat.
TEST_F(TrainingState, VersionOneLoads) {
    const std::vector<float> weight = {1, 2, 3, 4, 5, 6}, moment = {7, 8, 9, 10, 11, 12};
    store_.save({.step = 1,
                 .files = {safetensors_file(rank_file_name(0, 1),
                                            {{"w", DType::f32, {2, 3}, std::as_bytes(std::span(weight))},
                                             {"m.w", DType::f32, {6}, std::as_bytes(std::span(moment))}})},
                 .config_digest = {},
                 .data_fingerprint = {},
                 .state = "{}"});
    const Tensor w = tensor({0, 0, 0, 0}), m = tensor({0, 0, 0, 0});
    const auto load = [&](const Shape& shape) {
        store_.load(store_.list().front().path, [&](const CheckpointReader& reader) {
            const auto blocks = mesh::blocks_of_range(mesh::whole_part(shape), 1, 5);
            load_pieces(reader, {{.name = "w", .shape = shape, .blocks = blocks, .values = w},
                                 {.name = "m.w", .shape = shape, .blocks = blocks, .values = m}});
        });
    };
    load({2, 3});
    EXPECT_EQ(w.to_host<float>(), (std::vector<float>{2, 3, 4, 5}));
    EXPECT_EQ(m.to_host<float>(), (std::vector<float>{8, 9, 10, 11}));
    EXPECT_THROW(load({3, 2}), DataError);
}

}  // namespace
}  // namespace tutti::checkpoint
