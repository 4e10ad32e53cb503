// Every kernel is silenced: an entry that is added to the table and forgotten here would compute on addresses that
// cannot be read.
#include "tutti/kernels/meta/meta_table.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/device/meta/meta_device.h"
#include "tutti/tensor/tensor.h"

namespace tutti::kernels {
namespace {

using Word = const void*;

std::vector<Word> words_of(const KernelTable& table) {
    static_assert(sizeof(KernelTable) % sizeof(Word) == 0);
    std::vector<Word> words(sizeof(KernelTable) / sizeof(Word));
    std::memcpy(words.data(), &table, sizeof table);
    return words;
}

// All members are words, but for `packing_counts` and the three after it, which share one.
TEST(MetaTable, EveryKernelIsSilencedAndEverySizeIsTheTargets) {
    for (const KernelTable* target : {&reference_table(), &cpu_table(best_isa())}) {
        const KernelTable meta = meta_table(*target);
        const std::set<Word> of_target = {
            target->name,
            reinterpret_cast<Word>(target->gemm_implementations),
            reinterpret_cast<Word>(target->gemm_workspace),
            reinterpret_cast<Word>(target->gemm_packed_b),
            reinterpret_cast<Word>(target->gemm_implementation),
            reinterpret_cast<Word>(target->gemm_of_codes),
            reinterpret_cast<Word>(target->scale_form),
            reinterpret_cast<Word>(target->loss_chunk_bytes),
            reinterpret_cast<Word>(target->attention_implementations),
            reinterpret_cast<Word>(target->attention_implementation),
            reinterpret_cast<Word>(target->attention_workspace),
            reinterpret_cast<Word>(target->grouped_gemm_workspace),
            reinterpret_cast<Word>(target->delta_rule_workspace),
        };
        const std::vector<Word> a = words_of(*target), b = words_of(meta);
        EXPECT_EQ(meta.packing_counts, target->packing_counts);
        EXPECT_EQ(meta.gemm_by_rows, target->gemm_by_rows);
        EXPECT_EQ(meta.fused_projections, target->fused_projections);
        EXPECT_EQ(meta.own_value_width, target->own_value_width);
        const size_t counts_at = offsetof(KernelTable, packing_counts) / sizeof(Word);
        for (size_t i = 0; i < a.size(); ++i) {
            if (i == counts_at) continue;
            if (a[i] == nullptr || of_target.contains(a[i]))
                EXPECT_EQ(a[i], b[i]) << "word " << i << " of the table of " << target->name;
            else
                EXPECT_NE(a[i], b[i]) << "word " << i << " of the table of " << target->name << " still computes";
        }
    }
}

TEST(MetaTable, AnAbsentKernelStaysAbsent) {
    KernelTable target = reference_table();
    target.rope = nullptr;
    EXPECT_EQ(meta_table(target).rope, nullptr);
}

TEST(MetaDevice, CountsWhatARealDeviceHolds) {
    const auto device = make_meta_device({.name = "a machine", .threads = 3, .workspace_bytes = 1 << 20});
    EXPECT_EQ(device->stream().threads, 3);
    EXPECT_EQ(device->memory().usage(Purpose::workspace).current, 1 << 20);
    {
        const Buffer large(device->memory(), int64_t{5} << 40, Purpose::weights);  // 5 TiB, of which no page exists
        EXPECT_EQ(device->memory().usage(Purpose::weights).current, int64_t{5} << 40);
    }
    EXPECT_EQ(device->memory().usage(Purpose::weights).current, 0);
    EXPECT_EQ(device->memory().usage(Purpose::weights).peak, int64_t{5} << 40);
    const auto zeros = device->copy_to_host_async(nullptr, 16);
    for (const int64_t value : zeros->values<int64_t>()) EXPECT_EQ(value, 0);
}

TEST(MetaDevice, HasTheCapacityOfItsTarget) {
    const auto device = make_meta_device({.name = "a small machine", .memory_bytes = 1 << 20});
    const Buffer most(device->memory(), (1 << 20) - 4096, Purpose::weights);
    try {
        const Buffer more(device->memory(), 8192, Purpose::activations);
        FAIL() << "memory that the machine does not have";
    } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find("a small machine is full"), std::string::npos) << e.what();
    }
}

TEST(MetaDevice, ReadingAValueNamesTheLastKernel) {
    const auto device = make_meta_device({});
    const KernelTable table = meta_table(reference_table());
    const Tensor x = Tensor::empty(*device, {4}, DType::f32, Purpose::data);
    table.scale(device->stream(), x, 2);
    try {
        x.to_host<float>();
        FAIL() << "a value was read";
    } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find("after the kernel scale"), std::string::npos) << e.what();
    }
}

TEST(MetaDeviceDeathTest, ReadingAnAddressCrashes) {
    const auto device = make_meta_device({});
    const Tensor x = Tensor::empty(*device, {4}, DType::f32, Purpose::data);
    EXPECT_DEATH(
        {
            volatile const float* value = x.view().as<const float>();
            static_cast<void>(*value);
        },
        "");
}

}  // namespace
}  // namespace tutti::kernels
