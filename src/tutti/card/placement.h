// card/placement.h: the ranks of a group in a few words; a warning where tensor parallelism crosses hosts.
#pragma once

#include <string>
#include <vector>

#include "tutti/mesh/mesh.h"

namespace tutti::card {

// Ascending ranks as text: "3", "0 to 7", "0, 2, 4, 6", "0, 16, ..., 240" (equal distances), else all of them.
std::string ranks_text(const std::vector<int>& ranks);

// A warning when the ranks of a tensor-parallel group are on several hosts, "" otherwise. `hosts`: the host of each
// rank, by any name. `sent`: bytes that a rank sends in its tensor-parallel group in a step.
std::string placement_warning(const mesh::Mesh& mesh, const std::vector<std::string>& hosts, int64_t sent);

}  // namespace tutti::card
