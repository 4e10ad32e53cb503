#include "tests/cuda/emulation/race_tsan.h"

#include <fcntl.h>
#include <sanitizer/common_interface_defs.h>
#include <sanitizer/tsan_interface.h>

#include <atomic>
#include <map>
#include <string_view>

// Of libtsan, which declares them nowhere.
extern "C" {
void __tsan_read_range(void* address, unsigned long size);
void __tsan_write_range(void* address, unsigned long size);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);

// Every report counts, not the first of several that look alike. Names of functions cost a process each: a failing test
// is run again with TSAN_OPTIONS=symbolize=1.
const char* __tsan_default_options() {
    return "suppress_equal_stacks=0:suppress_equal_addresses=0:symbolize=0:report_thread_leaks=0";
}
void __tsan_on_report(void* report);
// A program whose tests wanted the reports ends well; one that crashes does not come here.
int __tsan_on_finalize(int) { return 0; }
}

namespace tutti::emulation::race {

namespace {

std::atomic<int64_t> reported{0};

// Lines by the address of their file's name and their number; of one host thread.
struct Lines {
    std::map<std::pair<const char*, unsigned>, bool> known;  // whether forgotten
    std::set<std::pair<const char*, unsigned>> seen;
    Line forgotten;
    int64_t reported_before = 0;
};
Lines& all() {
    static Lines the_lines;
    return the_lines;
}

Line line_of(const char* file, unsigned line) {
    const std::string_view name = file;
    return {std::string(name.substr(name.rfind('/') + 1)), line};
}

struct Fiber {
    void* of_tsan;
    int unseen = 0;
};
Fiber& host() {
    static thread_local Fiber fiber{__tsan_get_current_fiber()};
    return fiber;
}
Fiber*& running() {
    static thread_local Fiber* fiber = &host();
    return fiber;
}

void ignore() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
}
void stop_ignoring() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
}
// Where the emulation's accesses are unseen, this one is not.
template <class Access>
void show_access(const Access& access) {
    const int unseen = running()->unseen;
    for (int i = 0; i < unseen; ++i) stop_ignoring();
    access();
    for (int i = 0; i < unseen; ++i) ignore();
}

}  // namespace

int64_t races() { return reported; }

std::set<Line> lines() {
    std::set<Line> lines;
    for (const auto& [file, line] : all().seen) lines.insert(line_of(file, line));
    all().seen.clear();
    return lines;
}

void forget(const Line& line) {
    all().forgotten = line;
    all().reported_before = reported;
    all().known.clear();
}

void show(bool reports) {
    static const int nowhere = open("/dev/null", O_WRONLY);
    __sanitizer_set_report_fd(reinterpret_cast<void*>(static_cast<intptr_t>(reports ? 2 : nowhere)));
}

bool detects() { return true; }
bool stops() { return !all().forgotten.file.empty() && reported > all().reported_before; }

Thread make_thread() {
    host();
    return new Fiber{__tsan_create_fiber(0)};  // as long as the program
}

void run_as(Thread thread) {
    running() = thread != nullptr ? static_cast<Fiber*>(thread) : &host();
    __tsan_switch_to_fiber(running()->of_tsan, __tsan_switch_to_fiber_no_sync);
}

bool is_forgotten(const Site& site) {
    const std::pair key{site.file_name(), site.line()};
    all().seen.insert(key);
    const auto [found, added] = all().known.try_emplace(key);
    if (added) found->second = line_of(key.first, key.second) == all().forgotten;
    return found->second;
}
void release(const void* tag, const Site* site) {
    if (site == nullptr || !is_forgotten(*site)) __tsan_release(const_cast<void*>(tag));
}
void acquire(const void* tag, const Site* site) {
    if (site == nullptr || !is_forgotten(*site)) __tsan_acquire(const_cast<void*>(tag));
}

void reads(const void* data, size_t bytes) {
    show_access([&] { __tsan_read_range(const_cast<void*>(data), bytes); });
}
void writes(const void* data, size_t bytes) {
    show_access([&] { __tsan_write_range(const_cast<void*>(data), bytes); });
}

void forget_unseen() {
    for (; running()->unseen > 0; --running()->unseen) stop_ignoring();
}
Unseen::Unseen() {
    ++running()->unseen;
    ignore();
}
Unseen::~Unseen() {
    --running()->unseen;
    stop_ignoring();
}

}  // namespace tutti::emulation::race

void __tsan_on_report(void*) { ++tutti::emulation::race::reported; }
