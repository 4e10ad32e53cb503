// text/flat_map.h: an open-addressing hash map from 64-bit keys to small values, for many look-ups and rare growth.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tutti::text {

// The finalizer of MurmurHash3: every bit of the key reaches every bit of the hash.
inline uint64_t mixed(uint64_t key) {
    key = (key ^ key >> 33) * 0xff51afd7ed558ccdull;
    key = (key ^ key >> 33) * 0xc4ceb9fe1a85ec53ull;
    return key ^ key >> 33;
}

template <class Value>
class FlatMap {
  public:
    static constexpr uint64_t kEmpty = ~uint64_t{0};  // no key

    explicit FlatMap(size_t expected = 0) { rehash(expected); }

    size_t size() const { return size_; }

    const Value* find(uint64_t key) const {
        for (size_t i = mixed(key) & mask_;; i = (i + 1) & mask_) {
            if (slots_[i].key == key) return &slots_[i].value;
            if (slots_[i].key == kEmpty) return nullptr;
        }
    }
    // The value of the key; a new one is Value().
    Value& operator[](uint64_t key) {
        if (2 * (size_ + 1) > slots_.size()) rehash(2 * size_ + 2);
        for (size_t i = mixed(key) & mask_;; i = (i + 1) & mask_) {
            if (slots_[i].key == key) return slots_[i].value;
            if (slots_[i].key == kEmpty) {
                slots_[i].key = key;
                ++size_;
                return slots_[i].value;
            }
        }
    }
    template <class Visit>
    void for_each(const Visit& visit) const {
        for (const Slot& slot : slots_)
            if (slot.key != kEmpty) visit(slot.key, slot.value);
    }

  private:
    struct Slot {
        uint64_t key = kEmpty;
        Value value{};
    };

    void rehash(size_t expected) {  // at most half full
        size_t capacity = 16;
        while (capacity < 2 * expected) capacity *= 2;
        std::vector<Slot> old = std::move(slots_);
        slots_ = std::vector<Slot>(capacity);
        mask_ = capacity - 1;
        for (Slot& slot : old) {
            if (slot.key == kEmpty) continue;
            size_t i = mixed(slot.key) & mask_;
            while (slots_[i].key != kEmpty) i = (i + 1) & mask_;
            slots_[i] = std::move(slot);
        }
    }

    std::vector<Slot> slots_;
    size_t mask_ = 0, size_ = 0;
};

}  // namespace tutti::text
