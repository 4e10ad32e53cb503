#include "tutti/plan/ledger.h"

#include <algorithm>
#include <numeric>
#include <utility>

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

void Ledger::send_away(int64_t bytes, Purpose purpose) {
    remove(bytes, purpose);
    away_ += bytes;
    away_peak_ = std::max(away_peak_, away_);
}

void Ledger::bring_back(int64_t bytes, Purpose purpose) {
    add(bytes, purpose);
    away_ -= bytes;
}

void Ledger::restart_peaks() {
    at_peak_ = peaks_ = current_;
    peak_ = total_;
    peak_place_ = place_;
}

Ghost::Block::Block(Ledger& ledger_, int64_t bytes_, Purpose purpose_)
    : ledger(ledger_), bytes(bytes_), purpose(purpose_) {
    ledger.add(bytes, purpose);
}

Ghost::Block::~Block() { away ? ledger.remove_away(bytes) : ledger.remove(bytes, purpose); }

void Ghost::Block::send_away() {
    if (!std::exchange(away, true)) ledger.send_away(bytes, purpose);
}

void Ghost::Block::bring_back() {
    if (std::exchange(away, false)) ledger.bring_back(bytes, purpose);
}

Ghost::Ghost(Ledger& ledger, int64_t bytes, Purpose purpose)
    : block_(std::make_shared<Block>(ledger, bytes, purpose)) {}

}  // namespace tutti::plan
