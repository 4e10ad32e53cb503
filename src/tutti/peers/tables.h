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

// Options that code reads and writes, or that have no key: what to say instead.
struct Remark {
    const char *theirs, *ours;
};

// What a trainer takes for an option that a file does not give: files say what differs from it.
struct Default {
    const char *theirs, *value;
    const char* with = nullptr;  // only where this option is given
};

struct Tables {
    const char* name;  // of the trainer
    std::span<const Row> rows;
    std::span<const Remark> remarks;
    std::span<const Default> defaults;
    const char* ignored;  // beginnings of names, between blanks

    // Whether an option changes neither the layout nor what a step computes.
    bool ignores(std::string_view option) const;
};
std::span<const Tables> all_tables();  // in the order of Peer
const Tables& tables_of(Peer peer);

// Names of models in torchtitan's registry.
struct Flavor {
    const char *preset, *name, *flavor;
};
inline constexpr Flavor kTitanFlavors[] = {{"llama3-8b", "llama3", "8B"},     {"llama3-70b", "llama3", "70B"},
                                           {"llama3-405b", "llama3", "405B"}, {"qwen3-0.6b", "qwen3", "0.6B"},
                                           {"qwen3-4b", "qwen3", "4B"},       {"qwen3-8b", "qwen3", "8B"}};

struct TitanSchedule {
    const char *ours, *theirs;
    int stages_of_rank;  // 0: any
};
inline constexpr TitanSchedule kTitanSchedules[] = {{"1f1b", "1F1B", 1},
                                                    {"gpipe", "GPipe", 1},
                                                    {"interleaved", "Interleaved1F1B", 0},
                                                    {"interleaved-zb", "InterleavedZeroBubble", 0},
                                                    {"zb-v", "ZBVZeroBubble", 2},
                                                    {"dualpipe-v", "DualPipeV", 2}};

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
