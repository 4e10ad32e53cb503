// The kernel that adds values of all ranks, and the pieces that are exchanged for it.
#include "tutti/comm/nccl/tree_sum.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "tests/cuda/nccl/ranks.h"
#include "tutti/base/philox.h"
#include "tutti/base/to_size.h"
#include "tutti/comm/tree_reduce.h"

namespace tutti::comm {
namespace {

template <class T>
std::vector<T> drawn(int64_t count, uint64_t seed) {
    std::vector<T> values;
    for (int64_t i = 0; i < count; ++i)
        values.push_back(static_cast<T>(normal(random_key(seed, "values"), to_size(i))));
    return values;
}

// Against tree_reduce(), on the CPU: every number of ranks, in words and element by element, for each pair of types.
template <class T, class Out>
void expect_tree(Device& device) {
    for (int ranks = 1; ranks <= 9; ++ranks)
        for (const int64_t count : {int64_t{1}, int64_t{8}, int64_t{64}, int64_t{1031}})
            for (const int64_t shift : {0, 1}) {  // elements by which values begin beside a word
                SCOPED_TRACE(concat(dtype_of<T>(), " to ", dtype_of<Out>(), ", ", ranks, " ranks, ", count,
                                    " elements, shifted by ", shift));
                const int64_t room = (count + shift + 7) / 8 * 8;
                const int own = ranks / 2;
                std::vector<T> all = drawn<T>(ranks * room, to_size(count));
                std::vector<const void*> inputs;
                for (int r = 0; r < ranks; ++r) inputs.push_back(all.data() + r * room + shift);
                std::vector<Out> expected(to_size(count));
                for (const Reduce reduce : {Reduce::sum, Reduce::max}) {
                    void* const output = expected.data();
                    tree_reduce(reduce, dtype_of<T>(), inputs, dtype_of<Out>(), std::array{output}, 0, count);
                    const Tensor x = Tensor::from_host<T>(device, {ranks * room}, all, Purpose::communication);
                    const Tensor y =
                        Tensor::from_host<Out>(device, {room}, std::vector<Out>(to_size(room)), Purpose::communication);
                    const auto* data = x.view().as<const std::byte>() + shift * size_of(dtype_of<T>());
                    const int64_t stride = room * size_of(dtype_of<T>());
                    nccl::tree_sum(
                        device.stream(), reduce, dtype_of<T>(),
                        {.own = data + own * stride, .arrived = data, .stride = stride, .rank = own, .ranks = ranks},
                        dtype_of<Out>(), y.view().as<Out>() + shift, count);
                    const std::vector<Out> found = y.to_host<Out>();
                    for (int64_t i = 0; i < count; ++i)
                        ASSERT_EQ(std::memcmp(&found[to_size(i + shift)], &expected[to_size(i)], sizeof(Out)), 0)
                            << "element " << i;
                    for (int64_t i = 0; i < room; ++i) {
                        const bool outside = i < shift || i >= count + shift;
                        ASSERT_TRUE(!outside || static_cast<float>(found[to_size(i)]) == 0) << "wrote element " << i;
                    }
                }
            }
}

TEST(TreeSum, HasTheBitsOfTheCpu) {
    fake_nccl();
    const auto device = make_cuda_device(0);
    expect_tree<float, float>(*device);
    expect_tree<bf16, bf16>(*device);
    expect_tree<bf16, float>(*device);
    expect_tree<f16, f16>(*device);
    expect_tree<f16, float>(*device);
    expect_tree<float, bf16>(*device);
    expect_tree<float, f16>(*device);
    expect_tree<double, double>(*device);
    expect_tree<int32_t, int32_t>(*device);
    expect_tree<int64_t, int64_t>(*device);
}

// NCCL copies a message byte by byte where an address at either end is no multiple of 16.
TEST(TreeSum, PiecesBeginAtWholeWords) {
    const int64_t before = fake_nccl().unaligned();
    for (const int of_host : {kMostRanks, 2})
        for (const DType type : {DType::bf16, DType::f32})
            on_gpus(4, {.ranks_of_host = of_host}, [&](World& world, Device& device) {
                const auto group = world.everyone("dp");
                for (const int64_t count : {(int64_t{1} << 17) + 5, int64_t{300'001}, int64_t{65'537}})
                    group->all_reduce(Tensor::empty(device, {count}, type, Purpose::communication)).wait();
                group
                    ->reduce_scatter(Tensor::empty(device, {4 * 40'008}, type, Purpose::communication),
                                     Tensor::empty(device, {40'008}, type, Purpose::communication))
                    .wait();
                device.synchronize();
            });
    EXPECT_EQ(fake_nccl().unaligned(), before) << "bytes of messages";
}

// A tensor as large as the memory for sums takes one exchange of each rank, and a slightly larger one two.
TEST(TreeSum, TakesTheFewestExchanges) {
    on_gpus(2, {}, [](World& world, Device& device) {
        const auto group = world.everyone("dp");
        const auto exchanges = [&](int64_t count) {
            const Tensor x = Tensor::empty(device, {count}, DType::f32, Purpose::communication);
            const Tensor part = Tensor::empty(device, {count / 2}, DType::f32, Purpose::communication);
            device.synchronize();
            world.everyone("start")->barrier();
            const int64_t before = fake_nccl().messages();
            group->reduce_scatter(x, part).wait();
            device.synchronize();
            return (fake_nccl().messages() - before) / 2;  // a send and a receive each
        };
        constexpr int64_t kCount = kReductionBytes / 4;
        check(exchanges(kCount) == 1, "more than one exchange for ", kReductionBytes, " bytes");
        check(exchanges(kCount + 1024) == 2, "not two exchanges for a little more");
    });
}

}  // namespace
}  // namespace tutti::comm
