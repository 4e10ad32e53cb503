// peers/tables.h: the options of other trainers and the keys of a config that they are, as one table for each
// trainer. Writing a run, reading one, `tutti config --from` and docs/from/ are made of these tables.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "tutti/peers/peers.h"

namespace tutti::peers {

constexpr const char* kAbsent = nullptr;

struct Word {
    const char *ours, *theirs;  // theirs: "" for an option without a value, kAbsent: not given
};
// An option of a peer and the key of a config that it is. Without words the value is the same in both, and a value
// equal to `absent` is not written. `only`: a key that must not be 0, 1 or "" for the option to be written.
struct Row {
    const char *ours, *theirs;
    std::array<Word, 4> words = {};
    const char* absent = nullptr;
    const char* only = nullptr;

    std::span<const Word> given() const {
        size_t n = 0;
        while (n < words.size() && words[n].ours != nullptr) ++n;
        return {words.data(), n};
    }
};

std::span<const Row> rows_of(Peer peer);

// Options that code reads and writes, or that have no key: what to say instead.
struct Remark {
    const char *theirs, *ours;
};
std::span<const Remark> remarks_of(Peer peer);

// What a trainer takes for an option that a file does not give: files say what differs from it.
struct Default {
    const char *theirs, *value;
    const char* with = nullptr;  // only where this option is given
};
std::span<const Default> defaults_of(Peer peer);

// Whether an option changes neither the layout nor what a step computes, by the beginning of its name.
bool is_without_effect(std::string_view option);

// Names of models in torchtitan's registry.
struct Flavor {
    const char *preset, *name, *flavor;
};
std::span<const Flavor> titan_flavors();

struct TitanSchedule {
    const char *ours, *theirs;
    int stages_of_rank;  // 0: any
};
std::span<const TitanSchedule> titan_schedules();

// Words for recipes of 8-bit products; torchtitan has a section of options for each.
inline constexpr Word kMegatronRecipes[] = {
    {"delayed", "delayed"}, {"tensor", "tensorwise"}, {"block", "blockwise"}, {"mxfp8", "mxfp8"}};
struct TitanRecipe {
    const char *ours, *section, *name;
};
inline constexpr TitanRecipe kTitanRecipes[] = {{"tensor", "quantize.linear.float8", "tensorwise"},
                                                {"mxfp8", "quantize.linear.mx", "mxfp8_cublas"}};
inline constexpr const char* kTitanGather = "quantize.linear.float8.enable_fsdp_float8_all_gather";
inline constexpr const char* kTitanAllScales = "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp";

inline constexpr int64_t kNanogptVocab = 50304;  // its default: GPT-2's, rounded up to a multiple of 64

}  // namespace tutti::peers
