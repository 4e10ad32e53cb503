// checkpoint/store_names.h: what the names in a directory of checkpoints mean. Below it: nothing. Used by store.cpp.
//   step-0000000100                     a checkpoint
//   step-0000000100.replaced-HOST-PID   the older one of the same step, while and after it was replaced
//   step-0000000100.tmp-HOST-PID-N      being written, or left by a crash
//   step-0000000100.corrupt             found damaged when read; kept for a person to look at
//   step-0000000100.set-aside           newer than the step at which a run was resumed; kept likewise
//   .trash-…                            being deleted
//   .lock                               held by the run that writes here
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tutti::checkpoint {

constexpr std::string_view kLockName = ".lock";
constexpr std::string_view kTrash = ".trash-", kTemporary = ".tmp-", kReplaced = ".replaced-", kCorrupt = ".corrupt",
                           kSetAside = ".set-aside";

enum class NameKind { checkpoint, replaced, temporary, corrupt, trash, other };

struct StoreName {
    NameKind kind = NameKind::other;
    int64_t step = -1;
    std::string owner;  // of a temporary one
};

std::string step_name(int64_t step);  // "step-0000000100"
StoreName parse_store_name(std::string_view name);

}  // namespace tutti::checkpoint
