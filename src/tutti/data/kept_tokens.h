// data/kept_tokens.h: token files that are made of a text once and found again by every later run. They are in a
// directory beside the text, TEXT.<16 hex digits>.tokens, together with their digests.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tutti/base/mapped_file.h"

namespace tutti::data {

// Writes PREFIX.bin and what belongs to it, and returns the paths.
using MakeTokens = std::function<std::vector<std::string>(const std::string& prefix)>;

// The directory for what is made of the text under `key`, which is a digest of the text's bytes and of all else that
// the ids depend on: another text or tokenizer is another directory, so one that is there is never stale. Old ones may
// be deleted at any time.
std::string kept_directory(const MappedFile& text, uint64_t key);

// The .bin in `directory`. Where there is none yet, it is made, under another name until all of it is synced: a kill
// leaves no half of it, and of two runs that make it at once either may win. Where there is one, each byte of it is
// compared with the digests: DataError with the file to remove when the disk has changed one.
// UsageError when the folder cannot be written.
std::string kept_tokens(const std::string& directory, const MakeTokens& make);

}  // namespace tutti::data
