// card/card.h: the plan card: model, layout, memory and communication of a run on one screen, before the run starts;
// and rehearsed beside measured memory after the first step. Ranks in a few words, and a warning where tensor
// parallelism crosses hosts.
#pragma once

#include <string>
#include <vector>

#include "tutti/card/memory.h"
#include "tutti/mesh/mesh.h"
#include "tutti/models/flops.h"
#include "tutti/spec/run_spec.h"

namespace tutti::card {

// The contents of a card. Its other figures follow from these.
struct Card {
    spec::RunSpec run;    // validated
    std::string machine;  // "AMD EPYC 9R14, 2 threads, avx512"
    MemoryPlan memory;
    int ranks = 1;
    int rank = 0;                             // whose memory and communication these are
    int64_t capacity = 0;                     // bytes of the machine's memory; 0: not known
    bool fits = true;                         // in the capacity
    std::string pipeline = {};                // in words; "": none
    std::vector<std::string> optimizer = {};  // lines on its groups and its share of the step
    // Communication of the rank in a step, by group and operation. `bytes` of the tensors, `sent` over links.
    struct Communication {
        std::string group;
        std::vector<int> ranks;
        std::string operation;
        int64_t calls = 0, bytes = 0, sent = 0;
    };
    std::vector<Communication> communication = {};
    models::ModelCounts counts = {};
    std::vector<std::string> stages = {};  // lines: what each is, and its memory; none: the run has no stages
    std::string tokenizer = {};            // in words; "": as data.tokenizer names it
};

inline constexpr size_t kCardColumns = 100;  // of every line; long texts are wrapped between words

// Each ends with a newline.
std::string render_card(const Card& card);
// Predicted and measured memory at the peak of the sum, and their difference.
std::string render_measured(const MemoryPlan& plan, const MemoryByPurpose& measured);

// ---- placement.cpp ----

// Ascending ranks as text: "3", "0 to 7", "0, 2, 4, 6", "0, 16, ..., 240" (equal distances), else all of them.
std::string ranks_text(const std::vector<int>& ranks);

// A warning when the ranks of a tensor-parallel group are on several hosts, "" otherwise. `hosts`: the host of each
// rank, by any name. `sent`: bytes that a rank sends in its tensor-parallel group in a step.
std::string placement_warning(const mesh::Mesh& mesh, const std::vector<std::string>& hosts, int64_t sent);

}  // namespace tutti::card
