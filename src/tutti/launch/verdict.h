// launch/verdict.h: decides from the exit codes of all ranks of a generation whether the run is done, continues with a
// new generation, or fails.
#pragma once

#include <string>
#include <vector>

#include "tutti/launch/process.h"

namespace tutti::launch {

// The end of a rank.
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

// `ends`: every rank once, in the order of the reports.
//   all 0 -> 0;   2, 3, 70, 126 or 127 of any rank -> that code: a new start fails in the same way
//   0 and 75 alone -> 75;   all others -> again
// The culprit is the first rank that neither ended because of another rank (5) nor was killed by the launcher.
Verdict judge(const std::vector<RankEnd>& ends);

}  // namespace tutti::launch
