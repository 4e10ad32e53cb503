// rehearsal/card.h: the plan card: model, layout, memory and communication of a run on one screen, before the run
// starts; and rehearsed beside measured memory after the first step. Ranks in a few words, and a warning where tensor
// parallelism crosses hosts.
#pragma once

#include <string>
#include <vector>

#include "tutti/rehearsal/rehearse.h"

namespace tutti::rehearsal {

inline constexpr size_t kCardColumns = 100;  // of every line; long texts are wrapped between words

// Each ends with a newline.
// Of a validated run. `stages`: stage_lines(). `tokenizer`: in words; "": as data.tokenizer names it.
std::string render_card(const spec::RunSpec& run, const Rehearsal& rehearsal,
                        const std::vector<std::string>& stages = {}, const std::string& tokenizer = "");
// Predicted and measured memory at the peak of the sum, and their difference.
std::string render_measured(const MemoryPlan& plan, const MemoryByPurpose& measured);

// ---- placement.cpp ----

// Ascending ranks as text: "3", "0 to 7", "0, 2, 4, 6", "0, 16, ..., 240" (equal distances), else all of them.
std::string ranks_text(const std::vector<int>& ranks);

// A warning when the ranks of a tensor-parallel group are on several hosts, "" otherwise. `hosts`: the host of each
// rank, by any name. `sent`: bytes that a rank sends in its tensor-parallel group in a step.
std::string placement_warning(const mesh::Mesh& mesh, const std::vector<std::string>& hosts, int64_t sent);

}  // namespace tutti::rehearsal
