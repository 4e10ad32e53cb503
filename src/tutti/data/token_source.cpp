// data/token_source.cpp: what holds for every source: the sample that stands for the whole, and its fingerprint.
#include "tutti/data/token_source.h"

#include <xxhash.h>

#include <algorithm>

#include "tutti/base/error.h"

namespace tutti::data {

namespace {

constexpr int64_t kBlock = 32 * 1024;  // tokens; 128 KiB of ids stays in the second-level cache
constexpr int64_t kBlocks = 256;

struct HashState {
    XXH3_state_t* state = XXH3_createState();
    HashState() { check(state != nullptr && XXH3_64bits_reset(state) == XXH_OK, "XXH3: no memory for its state"); }
    ~HashState() { XXH3_freeState(state); }
    HashState(const HashState&) = delete;
    HashState& operator=(const HashState&) = delete;
};

}  // namespace

void visit_sample(const TokenSource& source, int64_t begin, int64_t end,
                  const std::function<void(int64_t, std::span<const int32_t>)>& visit) {
    check(0 <= begin && begin <= end && end <= source.size(), "sample of tokens [", begin, ", ", end, ") of ",
          source.size());
    const int64_t size = end - begin;
    std::vector<int32_t> ids(static_cast<size_t>(std::min(size, kBlock)));
    const auto visit_block = [&](int64_t first, int64_t count) {
        const auto block = std::span(ids).first(static_cast<size_t>(count));
        source.read(first, block);
        visit(first, block);
    };
    if (size <= kBlock * kBlocks) {
        for (int64_t at = 0; at < size; at += kBlock) visit_block(begin + at, std::min(kBlock, size - at));
    } else {
        for (int64_t k = 0; k < kBlocks; ++k) visit_block(begin + (size - kBlock) * k / (kBlocks - 1), kBlock);
    }
}

uint64_t fingerprint(const TokenSource& source, int64_t begin, int64_t end) {
    const HashState hash;
    const int64_t size = end - begin;
    XXH3_64bits_update(hash.state, &size, sizeof size);
    visit_sample(source, begin, end, [&](int64_t, std::span<const int32_t> ids) {
        XXH3_64bits_update(hash.state, ids.data(), ids.size_bytes());
    });
    return XXH3_64bits_digest(hash.state);
}

uint64_t TokenSource::fingerprint() const { return data::fingerprint(*this, 0, size()); }

}  // namespace tutti::data
