// launch/verdict.h: what the ends of all ranks of a generation mean: the run is done, goes on with new processes, or
// ends with a code.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tutti/launch/process.h"

namespace tutti::launch {

// A rank that has ended, in the order in which the launcher heard of it.
struct RankEnd {
    int rank = 0;
    std::string host;
    Ending ending;
    bool lost = false;         // its host was lost
    bool by_launcher = false;  // the launcher had killed it
};

struct Verdict {
    bool again = false;   // start another generation
    int code = 0;         // of the launcher, unless `again`
    std::string culprit;  // "rank 3 on host n2 was killed by signal 9 (Killed)"; "" where no rank is at fault
};

// `ends`: every rank once.
//   all 0 -> 0;   2, 3, 70, 126 or 127 of any rank -> that code: a new start fails in the same way
//   0 and 75 alone -> 75;   all others -> again
// The culprit is the first that neither ended because of another rank (5) nor by the launcher.
Verdict judge(const std::vector<RankEnd>& ends);

}  // namespace tutti::launch
