// Offloading from a GPU and fetching back, by copies that overlap with other work: on a GPU, and emulated, where copies
// run as late as possible.
#include <gtest/gtest.h>

#include "tutti/device/cuda/cuda_device.h"
#include "tutti/ops/ops.h"

namespace tutti {
namespace {

class CudaOffload : public testing::Test {
  protected:
    Tensor filled(float value, int64_t n = 100'000) {
        const Tensor x = ops::empty(ctx_, {n}, DType::f32, Purpose::activations);
        ops::fill(ctx_, x, value);
        return x;
    }
    static void expect_all(const Tensor& x, float value) {
        EXPECT_EQ(x.to_host<float>(), std::vector<float>(static_cast<size_t>(x.numel()), value));
    }

    std::unique_ptr<Device> device_ = make_cuda_device(0);
    std::unique_ptr<Device> offload_device_ = device_->make_offload_device("");
    ops::Context ctx_{*device_, kernels::table_for(*device_, ComputeType::f32)};
};

TEST_F(CudaOffload, APlaceIsNotWrittenBeforeItWasRead) {
    std::vector<Tensor> away;
    for (const float value : {1.0f, 2.0f, 3.0f}) {
        away.push_back(filled(value));
        const void* place = away.back().view().data;
        away.back().buffer()->offload(*device_, *offload_device_);
        const Tensor next = filled(-value);
        EXPECT_EQ(next.view().data, place) << "the place is free at once";
        expect_all(next, -value);
    }
    EXPECT_EQ(device_->memory().usage(Purpose::activations).current, 0);
    for (size_t i = away.size(); i-- > 0;) away[i].buffer()->fetch(*device_);
    EXPECT_EQ(offload_device_->memory().usage(Purpose::activations).current, 0);
    for (size_t i = 0; i < away.size(); ++i) expect_all(away[i], static_cast<float>(i) + 1);
}

TEST_F(CudaOffload, WhatComesBackIsThereBeforeAKernelReadsIt) {
    const Tensor x = filled(4);
    x.buffer()->offload(*device_, *offload_device_);
    const Tensor y = filled(5);
    x.buffer()->fetch(*device_);
    expect_all(ops::add(ctx_, x, y), 9);
}

// Released before use: the copy must not overwrite the values of the memory's next owner.
TEST_F(CudaOffload, WhatIsReleasedOnItsWayBackHarmsNobody) {
    std::optional<Tensor> x = filled(6);
    x->buffer()->offload(*device_, *offload_device_);
    x->buffer()->fetch(*device_);
    x.reset();
    const Tensor next = filled(7);
    device_->synchronize();
    expect_all(next, 7);
    x = filled(8);
    x->buffer()->offload(*device_, *offload_device_);
    x.reset();  // offloaded
    EXPECT_EQ(offload_device_->memory().usage(Purpose::activations).current, 0);
}

}  // namespace
}  // namespace tutti
