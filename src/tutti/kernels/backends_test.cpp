// The table of back ends: what each entry must have, and the choice of a device by name.
#include "tutti/kernels/backends.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "tutti/base/error.h"

namespace tutti::kernels {
namespace {

template <class Call>
std::string error_of(const Call& call) {
    try {
        call();
    } catch (const UsageError& error) {
        return error.what();
    }
    return "no error";
}

TEST(Backends, AreComplete) {
    std::set<std::string> names, models;
    for (const Backend& b : backends()) {
        EXPECT_TRUE(names.insert(b.name).second) << b.name;
        EXPECT_NE(b.table(ComputeType::f32), nullptr) << b.name;
        EXPECT_NE(b.table(ComputeType::bf16), nullptr) << b.name;
        for (const DeviceModel& model : b.models(3)) {
            EXPECT_TRUE(models.insert(model.name).second) << model.name;
            EXPECT_NE(model.table(ComputeType::bf16), nullptr) << model.name;
        }
        if (b.find == nullptr) continue;  // the CPU
        EXPECT_NE(b.why_unfit, nullptr) << b.name;
        EXPECT_NE(b.world, nullptr) << b.name;
        EXPECT_NE(b.driver, nullptr) << b.name;
        EXPECT_NE(b.architectures, nullptr) << b.name;
        EXPECT_EQ(b.find().found.empty(), !b.find().why_none.empty()) << b.name;
    }
    EXPECT_EQ(backends().back().name, std::string("cpu"));
    EXPECT_TRUE(models.contains("cpu-avx2"));
}

TEST(Backends, SetWhatTheUserHasNotSet) {
    const auto value_of = [](const char* name) {
        const char* value = std::getenv(name);
        return std::string(value != nullptr ? value : "unset");
    };
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    unsetenv("CUDA_MODULE_LOADING");
    set_device_environment(false);
    EXPECT_EQ(value_of("CUDA_DEVICE_MAX_CONNECTIONS"), "32");
    EXPECT_EQ(value_of("CUDA_MODULE_LOADING"), "unset");
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "16", 1);
    set_device_environment(true);
    EXPECT_EQ(value_of("CUDA_DEVICE_MAX_CONNECTIONS"), "16");
    EXPECT_EQ(value_of("CUDA_MODULE_LOADING"), "EAGER");
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    unsetenv("CUDA_MODULE_LOADING");
}

TEST(Backends, OfADeviceHasItsTable) {
    const auto cpu = make_device("cpu", 1);
    EXPECT_EQ(backend_of(*cpu)->name, std::string("cpu"));
    EXPECT_EQ(&table_for(*cpu, ComputeType::bf16), &cpu_table(chosen_isa()));
    EXPECT_EQ(error_of([&] { table_for(*cpu, ComputeType::tf32); }),
              concat("tf32 needs a GPU, and this rank is on ", cpu->name(), "; compute in f32, bf16 or f16"));
    const auto meta = make_meta_device({});
    EXPECT_EQ(backend_of(*meta), nullptr);
    EXPECT_THROW(table_for(*meta, ComputeType::f32), Error);
}

TEST(Backends, AreChosenByName) {
    EXPECT_EQ(make_device("cpu", 3)->stream().threads, 3);
    EXPECT_EQ(error_of([] { check_device("abacus"); }), "a device is one of auto, cuda, cpu, not abacus");
    EXPECT_EQ(gpus_for("cpu"), 0);
    for (const Backend& b : backends()) {
        if (b.find == nullptr || !b.find().found.empty()) continue;
        EXPECT_NE(error_of([&] { make_device(b.name, 1); }).find(b.find().why_none), std::string::npos) << b.name;
        EXPECT_EQ(gpus_for(b.name), 0);
    }
}

}  // namespace
}  // namespace tutti::kernels
