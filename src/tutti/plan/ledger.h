// plan/ledger.h: memory that is counted and never taken. A Ghost stands for a tensor: it has a size, a purpose and
// owners, but no values. Its bytes stay in the ledger until the last copy is gone, as a Tensor's stay in
// device::Allocator. Stands on base/ only; ghost_tape.h and memory.cpp build on it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "tutti/base/purpose.h"

namespace tutti::plan {

struct MemoryByPurpose {
    std::array<int64_t, kPurposes> bytes{};

    int64_t& operator[](Purpose purpose) { return bytes[static_cast<size_t>(purpose)]; }
    int64_t operator[](Purpose purpose) const { return bytes[static_cast<size_t>(purpose)]; }
    int64_t total() const;
    bool operator==(const MemoryByPurpose&) const = default;
};

class Ledger {
  public:
    Ledger() = default;
    Ledger(const Ledger&) = delete;  // ghosts point to it
    Ledger& operator=(const Ledger&) = delete;

    void add(int64_t bytes, Purpose purpose);
    void remove(int64_t bytes, Purpose purpose);
    // What is offloaded counts elsewhere.
    void send_away(int64_t bytes, Purpose purpose);
    void bring_back(int64_t bytes, Purpose purpose);
    void restart_peaks();  // from what is held now
    void remove_away(int64_t bytes) { away_ -= bytes; }
    // Where the program stands: "forward of h.3". Remembered with the peak.
    void enter(std::string place) { place_ = std::move(place); }

    const MemoryByPurpose& current() const { return current_; }
    const MemoryByPurpose& at_peak() const { return at_peak_; }  // the holdings at the first peak of the sum
    const MemoryByPurpose& peaks() const { return peaks_; }      // each purpose's own peak
    const std::string& peak_place() const { return peak_place_; }
    int64_t away() const { return away_; }  // and the most that was
    int64_t away_peak() const { return away_peak_; }

  private:
    MemoryByPurpose current_, at_peak_, peaks_;
    int64_t total_ = 0, peak_ = 0, away_ = 0, away_peak_ = 0;
    std::string place_, peak_place_;
};

class Ghost {
  public:
    Ghost() = default;  // undefined
    Ghost(Ledger& ledger, int64_t bytes, Purpose purpose = Purpose::activations);

    bool defined() const { return block_ != nullptr; }
    bool unique() const { return block_.use_count() == 1; }
    int64_t bytes() const { return block_ ? block_->bytes : 0; }

    // As Buffer of device/memory.h.
    struct Block {
        Ledger& ledger;
        int64_t bytes;
        Purpose purpose;
        bool away = false;
        Block(Ledger& ledger_, int64_t bytes_, Purpose purpose_);
        ~Block();
        Block(const Block&) = delete;
        Block& operator=(const Block&) = delete;
        void send_away();
        void bring_back();
    };
    const std::shared_ptr<Block>& block() const { return block_; }

  private:
    std::shared_ptr<Block> block_;
};

}  // namespace tutti::plan
