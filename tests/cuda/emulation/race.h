// tests/cuda/emulation/race.h: what the emulation tells a detector of races: which thread of the GPU runs, what orders
// threads, and what the hardware reads and writes beside them. race_none.cpp detects nothing, race_tsan.cpp with
// ThreadSanitizer, whatever the order in which threads run. Kernels compiled for the latter report their own accesses.
#pragma once

#include <cstddef>
#include <source_location>

namespace tutti::emulation::race {

bool detects();
// A race that a test waits for was reported: kernels need not go on.
bool stops();

// A thread of the GPU, or a unit that works beside its threads; null: the calling host thread.
using Thread = void*;
Thread make_thread();
void run_as(Thread thread);  // from now on

// What the running thread did before release() comes before what a thread does after a later acquire() of the same tag.
// `site`: where a kernel asks for this order; null: in no kernel.
using Site = std::source_location;
void release(const void* tag, const Site* site = nullptr);
void acquire(const void* tag, const Site* site = nullptr);
// Whether a test treats the line as missing.
bool is_forgotten(const Site& site);

void reads(const void* data, size_t bytes);
void writes(const void* data, size_t bytes);

// Accesses of the running thread that are the emulation's own, but for reads() and writes(). Ends with its scope, or
// for a thread that will not go on with forget_unseen().
void forget_unseen();
class Unseen {
  public:
    Unseen();
    ~Unseen();
    Unseen(const Unseen&) = delete;
    Unseen& operator=(const Unseen&) = delete;
};

}  // namespace tutti::emulation::race
