// Tensors through a checkpoint and back; a copied state keeps its values while training goes on, a borrowed one costs
// no memory.
#include "tutti/checkpoint/training_state.h"

#include <gtest/gtest.h>

#include "tutti/checkpoint/testing/sample.h"

namespace tutti::checkpoint {
namespace {

class TrainingState : public ::testing::Test {
  protected:
    Tensor tensor(const std::vector<float>& values) {
        return Tensor::from_host<float>(*device_, {static_cast<int64_t>(values.size())}, values, Purpose::weights);
    }
    // What a checkpoint holds that is written after `tensor` has changed.
    std::vector<float> written_after_a_change(HostMemory memory) {
        const Tensor weight = tensor({1, 2, 3});
        const HostState state({{"weight", weight}}, memory);
        copied_bytes_ = state.copied_bytes();
        weight.view().as<float>()[1] = 7;
        store_.save(
            {.step = 1, .files = {state.file(0, 1)}, .config_digest = {}, .data_fingerprint = {}, .state = "{}"});
        const Tensor back = tensor({0, 0, 0});
        store_.load_newest(
            [&](const CheckpointReader& reader) {
                load_tensors(reader, {{"weight", back}}, true);
            },
            OnDamage::stop);
        return back.to_host<float>();
    }

    testing::ScratchDirectory scratch_;
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
    const HostState state({{"a", tensor({1, 2})}, {"b", tensor({3})}}, HostMemory::borrow);
    store_.save({.step = 1, .files = {state.file(0, 1)}, .config_digest = {}, .data_fingerprint = {}, .state = "{}"});
    const auto error = [&](const std::vector<NamedTensor>& wanted, bool whole) -> std::string {
        try {
            store_.load(store_.list().front().path,
                        [&](const CheckpointReader& reader) { load_tensors(reader, wanted, whole); });
        } catch (const DataError& e) {
            return e.what();
        }
        return "";
    };
    EXPECT_EQ(error({{"a", tensor({0, 0})}}, false), "");
    EXPECT_NE(error({{"a", tensor({0, 0})}}, true).find("holds b"), std::string::npos);
    EXPECT_NE(error({{"c", tensor({0})}}, false).find("c"), std::string::npos);
    EXPECT_NE(error({{"b", tensor({0, 0})}}, false).find("b is (1) f32, the model needs (2) f32"), std::string::npos);
}

}  // namespace
}  // namespace tutti::checkpoint
