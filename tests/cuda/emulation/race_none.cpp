#include "tests/cuda/emulation/race.h"

namespace tutti::emulation::race {

bool detects() { return false; }
bool stops() { return false; }
Thread make_thread() { return nullptr; }
void run_as(Thread) {}
void release(const void*, const Site*) {}
void acquire(const void*, const Site*) {}
bool is_forgotten(const Site&) { return false; }
void reads(const void*, size_t) {}
void writes(const void*, size_t) {}
void forget_unseen() {}
Unseen::Unseen() = default;
Unseen::~Unseen() {}

}  // namespace tutti::emulation::race
