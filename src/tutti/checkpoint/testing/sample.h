// checkpoint/testing/sample.h: small checkpoints with known content, for the tests of the store; contains() of
// messages.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/philox.h"
#include "tutti/base/to_size.h"
#include "tutti/checkpoint/store.h"

namespace tutti::checkpoint::testing {

// EXPECT_TRUE(contains(message, "part")) shows the message when it fails.
inline ::testing::AssertionResult contains(std::string_view text, std::string_view part) {
    if (text.find(part) != std::string_view::npos) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "'" << text << "' does not contain '" << part << "'";
}

inline std::vector<std::byte> random_bytes(int64_t count, uint64_t seed) {
    std::vector<std::byte> bytes(to_size(count));
    for (size_t i = 0; i < bytes.size(); ++i)
        bytes[i] = static_cast<std::byte>(philox(seed, i / 16)[(i / 4) % 4] >> (8 * (i % 4)));
    return bytes;
}

// The checkpoint of a step: two files with two tensors each. Every byte depends on step and variant.
struct Sample {
    Sample(int64_t step, int variant, int64_t floats = 300) {
        snapshot.step = step;
        snapshot.config_digest = "config";
        snapshot.data_fingerprint = "data";
        snapshot.state = concat("{\"variant\":", variant, "}");
        for (int rank = 0; rank < 2; ++rank) {
            const auto seed = static_cast<uint64_t>(step * 1000 + variant * 10 + rank);
            weights.push_back(random_bytes(4 * floats, 2 * seed));
            biases.push_back(random_bytes(2 * 7, 2 * seed + 1));
        }
        for (int rank = 0; rank < 2; ++rank)
            snapshot.files.push_back(
                safetensors_file(file_name(rank), {{"bias", DType::bf16, {7}, biases[to_size(rank)]},
                                                   {"weight", DType::f32, {floats}, weights[to_size(rank)]}}));
    }
    Sample(const Sample&) = delete;  // the snapshot points into the vectors
    Sample& operator=(const Sample&) = delete;

    static std::string file_name(int rank) { return concat("rank-0000", rank, "-of-00002.safetensors"); }

    // Whether a checkpoint holds exactly this.
    bool equals(const CheckpointReader& reader) const {
        if (reader.manifest().step != snapshot.step || reader.manifest().state != snapshot.state) return false;
        for (size_t rank = 0; rank < 2; ++rank) {
            const SafetensorsFile file = reader.safetensors(file_name(static_cast<int>(rank)));
            std::vector<std::byte> weight(weights[rank].size()), bias(biases[rank].size());
            file.read("weight", weight);
            file.read("bias", bias);
            if (weight != weights[rank] || bias != biases[rank]) return false;
        }
        return true;
    }

    std::vector<std::vector<std::byte>> weights, biases;
    Snapshot snapshot;
};

// The newest checkpoint: "nothing", "step/variant", or "a mix" if its bytes are not those of its step.
inline std::string newest_of(Store& store, OnDamage on_damage) {
    std::string found = "nothing";
    store.load_newest(
        [&](const CheckpointReader& reader) {
            const std::string& state = reader.manifest().state;  // {"variant":V}
            const int variant = std::stoi(state.substr(state.find(':') + 1));
            const Sample expected(reader.manifest().step, variant);
            found = expected.equals(reader) ? concat(expected.snapshot.step, "/", variant) : "a mix";
        },
        on_damage);
    return found;
}

// Names in the directory that a finished save must not leave.
inline std::vector<std::string> debris_in(FileSystem& file_system, const std::string& directory) {
    std::vector<std::string> debris;
    for (const std::string& name : file_system.list(directory))
        if (name.find(".tmp") != std::string::npos || name.find("trash") != std::string::npos) debris.push_back(name);
    return debris;
}

}  // namespace tutti::checkpoint::testing
