// The devices and libraries that a run may name are those of the table of back ends.
#include "tutti/kernels/backends.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tutti/spec/devices.h"

namespace tutti::engine {
namespace {

TEST(Backends, AreThoseThatARunMayName) {
    std::vector<std::string> devices = {"auto"}, libraries = {"auto", "host"};
    for (const kernels::Backend& b : kernels::backends()) {
        devices.emplace_back(b.name);
        if (b.world != nullptr) libraries.emplace_back(b.communication);
        EXPECT_EQ(spec::names_gpu(b.name), b.find != nullptr) << b.name;
    }
    const auto sorted = [](std::vector<std::string> names) {
        std::sort(names.begin(), names.end());
        return names;
    };
    EXPECT_EQ(sorted(spec::device_choices()), sorted(devices));
    EXPECT_EQ(sorted(spec::device_communication_choices()), sorted(libraries));
    EXPECT_FALSE(spec::names_gpu("auto"));
}

}  // namespace
}  // namespace tutti::engine
