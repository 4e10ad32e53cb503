#include "tutti/plan/ledger.h"

#include <algorithm>
#include <numeric>

#include "tutti/base/error.h"

namespace tutti::plan {

int64_t MemoryByPurpose::total() const { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }

void Ledger::add(int64_t bytes, Purpose purpose) {
    check(bytes >= 0, "the plan cannot count ", bytes, " bytes for ", name_of(purpose));
    current_[purpose] += bytes;
    total_ += bytes;
    peaks_[purpose] = std::max(peaks_[purpose], current_[purpose]);
    if (total_ <= peak_) return;
    peak_ = total_;
    at_peak_ = current_;
    peak_place_ = place_;
}

void Ledger::remove(int64_t bytes, Purpose purpose) {
    current_[purpose] -= bytes;
    total_ -= bytes;
}

Ghost::Block::Block(Ledger& ledger_, int64_t bytes_, Purpose purpose_)
    : ledger(ledger_), bytes(bytes_), purpose(purpose_) {
    ledger.add(bytes, purpose);
}

Ghost::Ghost(Ledger& ledger, int64_t bytes, Purpose purpose)
    : block_(std::make_shared<const Block>(ledger, bytes, purpose)) {}

}  // namespace tutti::plan
