// checkpoint/sums.h: XXH128SUMS, a list of digests beside files that have no room for one: those of an export, the
// tokenizer of a run. `xxh128sum -c XXH128SUMS` checks it, too.
#pragma once

#include <string>
#include <vector>

#include "tutti/checkpoint/file_system.h"

namespace tutti::checkpoint {

constexpr std::string_view kSumsName = "XXH128SUMS";

// Lists these files of `directory` as they are on the disk. Replaces an older list. DataError.
void write_sums(FileSystem& file_system, const std::string& directory, const std::vector<std::string>& names);

// DataError when a file of the list is missing or has another digest. A directory without a list passes: it comes from
// elsewhere.
void verify_sums(FileSystem& file_system, const std::string& directory);

}  // namespace tutti::checkpoint
