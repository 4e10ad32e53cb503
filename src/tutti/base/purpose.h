// base/purpose.h: the purposes of memory, and bytes by purpose.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "tutti/base/to_size.h"

namespace tutti {

enum class Purpose : uint8_t { weights, gradients, optimizer, activations, communication, workspace, data };
inline constexpr std::array kAllPurposes = {Purpose::weights,     Purpose::gradients,     Purpose::optimizer,
                                            Purpose::activations, Purpose::communication, Purpose::workspace,
                                            Purpose::data};
inline constexpr size_t kPurposes = kAllPurposes.size();

constexpr std::string_view name_of(Purpose purpose) {
    constexpr std::array<std::string_view, kPurposes> kNames = {
        "weights", "gradients", "optimizer", "activations", "communication", "workspace", "data"};
    return kNames[to_size(purpose)];
}

struct MemoryByPurpose {
    std::array<int64_t, kPurposes> bytes{};

    int64_t& operator[](Purpose purpose) { return bytes[to_size(purpose)]; }
    int64_t operator[](Purpose purpose) const { return bytes[to_size(purpose)]; }
    int64_t total() const {
        int64_t sum = 0;
        for (const int64_t of_purpose : bytes) sum += of_purpose;
        return sum;
    }
    bool operator==(const MemoryByPurpose&) const = default;
};

}  // namespace tutti
