// train/start_counter.h: how often a run has been started since its newest checkpoint. Schedulers start a job again
// that has died, whatever the cause: a run that dies before every checkpoint must not use a cluster for ever.
#pragma once

#include <cstdint>
#include <string>

namespace tutti::train {

inline constexpr int64_t kMostStarts = 3;
// Counts in `out`/starts.json one more start from the checkpoint after `step`. InternalError when the last `most`
// starts from there died before a new checkpoint, unless `force`.
void count_start(const std::string& out, int64_t step, bool force, int64_t most = kMostStarts);
// The run has ended by itself, or was told to.
void forget_starts(const std::string& out);

}  // namespace tutti::train
