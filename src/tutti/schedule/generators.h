// schedule/generators.h: the published pipeline schedules, each a function of a few numbers. One function a schedule,
// written in the letters of its paper, which the function's comment names. All are compute-only: F, B, I, W, overlap.
//
// UsageError with what is required when a schedule does not exist for the numbers asked for.
#pragma once

#include <span>
#include <string_view>

#include "tutti/schedule/schedule.h"

namespace tutti::schedule {

struct Dimensions {
    int ranks = 1;         // p
    int chunks = 1;        // v: stages per rank, where the schedule leaves them free
    int microbatches = 1;  // m
    int group_size = 0;    // N of `interleaved` and `interleaved-zb`; 0: min(p, m)
};

// One chunk per rank (one_chunk.cpp).
Schedule naive(const Dimensions& d);
Schedule gpipe(const Dimensions& d);
Schedule one_forward_one_backward(const Dimensions& d);
Schedule zb_h1(const Dimensions& d);
Schedule zb_h2(const Dimensions& d);

// v chunks per rank, stage s on rank s mod p (interleaved.cpp).
Schedule interleaved(const Dimensions& d);
Schedule looped_bfs(const Dimensions& d);
Schedule interleaved_zb(const Dimensions& d);

// Two chunks per rank, in a V (v_shaped.cpp).
Schedule zb_v(const Dimensions& d);
Schedule v_half(const Dimensions& d);
Schedule v_min(const Dimensions& d);

// Two directions: two replicas, or one of them folded into a V (bidirectional.cpp).
Schedule chimera(const Dimensions& d);
Schedule dualpipe(const Dimensions& d);
Schedule dualpipe_v(const Dimensions& d);

struct Kind {
    std::string_view name;  // as on the command line and in [parallel] schedule
    int chunks;             // per rank; 0: free
    bool takes_group_size;
    Schedule (*generate)(const Dimensions&);
    std::string_view source;  // paper or code that defines the schedule
};
std::span<const Kind> kinds();
// nullptr: there is none of this name.
const Kind* find_kind(std::string_view name);
// By name, with all that the numbers must fulfil checked. `d.chunks` of kinds that fix them must be 1 or that number.
Schedule generate(std::string_view kind, const Dimensions& d);

}  // namespace tutti::schedule
