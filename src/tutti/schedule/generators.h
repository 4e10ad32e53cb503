// schedule/generators.h: the published pipeline schedules, one function each, written in the letters of the paper that
// the function's comment names. All are compute-only: F, B, I, W, overlap.
//
// UsageError names the condition when a schedule does not exist for the given numbers.
#pragma once

#include <span>
#include <string_view>

#include "tutti/schedule/schedule.h"

namespace tutti::schedule {

struct Dimensions {
    int ranks = 1;         // p
    int chunks = 1;        // v: stages per rank, for schedules that leave the number free
    int microbatches = 1;  // m
    int group_size = 0;    // N of `interleaved` and `interleaved-zb`; 0: min(p, m)
};

// One chunk per rank.
Schedule naive(const Dimensions& d);
Schedule gpipe(const Dimensions& d);
Schedule one_forward_one_backward(const Dimensions& d);
Schedule pipedream(const Dimensions& d);  // in the order of 1F1B; asynchronous, so not one of kinds()
Schedule zb_h1(const Dimensions& d);
Schedule zb_h2(const Dimensions& d);

// v chunks per rank, stage s on rank s mod p.
Schedule interleaved(const Dimensions& d);
Schedule looped_bfs(const Dimensions& d);
Schedule interleaved_zb(const Dimensions& d);

// Two chunks per rank, in a V.
Schedule zb_v(const Dimensions& d);
Schedule v_half(const Dimensions& d);
Schedule v_min(const Dimensions& d);

// Two directions: two replicas, or one of them folded into a V.
Schedule chimera(const Dimensions& d);
Schedule dualpipe(const Dimensions& d);
Schedule dualpipe_v(const Dimensions& d);

struct Kind {
    std::string_view name;  // as on the command line and in [parallel] schedule
    int chunks;             // per rank; 0: free
    bool takes_group_size;
    bool splits;  // every backward, into I and W
    Schedule (*generate)(const Dimensions&);
    std::string_view source;  // paper or code that defines the schedule
};
std::span<const Kind> kinds();
// nullptr: no schedule has this name.
const Kind* find_kind(std::string_view name);
// Checks all conditions on the numbers. For a kind with a fixed number of chunks, `d.chunks` is 1 or that number.
Schedule generate(std::string_view kind, const Dimensions& d);

}  // namespace tutti::schedule
