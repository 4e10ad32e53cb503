// tests/fuzz/bounded_main.cpp: runs a fuzz target without a fuzzer: every file of its corpus, and a bounded number of
// random changes of them, the same ones each time. Linked in place of libFuzzer when TUTTI_FUZZ is off.
//
//   fuzz_index CORPUS_DIRECTORY [RUNS | SECONDSs] [FIRST]     10000 from change 0 on; 60s: for a minute
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/philox.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;

Bytes read(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

// One to four times: change a byte, cut, repeat a part, or take a part of another file.
Bytes changed(const std::vector<Bytes>& corpus, uint64_t run) {
    uint64_t drawn = 0;
    const auto below = [&](size_t n) {
        return static_cast<size_t>(
            tutti::uniform_below(tutti::random_key(run, "fuzz"), drawn++, std::max<size_t>(n, 1)));
    };
    Bytes bytes = corpus[below(corpus.size())];
    for (size_t n = 1 + below(4); n > 0; --n) {
        const size_t at = below(bytes.size() + 1), length = below(16);
        const auto place = bytes.begin() + static_cast<std::ptrdiff_t>(at);
        const Bytes& other = corpus[below(corpus.size())];
        const size_t from = below(other.size());
        const size_t taken = std::min(length, other.size() - from);
        const Bytes part(other.begin() + static_cast<std::ptrdiff_t>(from),
                         other.begin() + static_cast<std::ptrdiff_t>(from + taken));
        switch (below(4)) {
            case 0:
                if (at < bytes.size()) *place = static_cast<uint8_t>(below(256));
                break;
            case 1: bytes.erase(place, place + static_cast<std::ptrdiff_t>(std::min(length, bytes.size() - at))); break;
            case 2: bytes.insert(place, part.begin(), part.end()); break;
            default:
                if (at < bytes.size()) *place = static_cast<uint8_t>("{}[]\",:0129e-.\\ tfn"[below(20)]);
        }
    }
    return bytes;
}

std::atomic<uint64_t> current{0};

// Says which change it was: `fuzz_index CORPUS 1 N` makes it again.
void say_which(int signal) {
    char text[] = "change                     \n";
    uint64_t n = current;
    for (size_t at = sizeof text - 3; at > 7; --at, n /= 10) {
        text[at] = static_cast<char>('0' + n % 10);
        if (n < 10) break;
    }
    [[maybe_unused]] const auto written = write(STDERR_FILENO, text, sizeof text - 1);
    std::signal(signal, SIG_DFL);
    std::raise(signal);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) return std::fprintf(stderr, "usage: %s CORPUS_DIRECTORY [RUNS]\n", argv[0]), 2;
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::directory_iterator(argv[1])) paths.push_back(entry.path());
    std::sort(paths.begin(), paths.end());
    std::vector<Bytes> corpus;
    for (const auto& path : paths) corpus.push_back(read(path));
    if (corpus.empty()) return std::fprintf(stderr, "%s is empty\n", argv[1]), 2;
    for (const Bytes& bytes : corpus) LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
    const std::string_view amount = argc > 2 ? argv[2] : "10000";
    const uint64_t number = std::strtoull(amount.data(), nullptr, 10),
                   first = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 0;
    const bool for_seconds = amount.ends_with('s');
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(number);
    for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE}) std::signal(signal, say_which);
    for (current = first; for_seconds ? std::chrono::steady_clock::now() < end : current < first + number; ++current) {
        const Bytes bytes = changed(corpus, current);
        LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
    }
    std::printf("%zu files and %llu changes of them\n", corpus.size(),
                static_cast<unsigned long long>(current - first));
    return 0;
}
