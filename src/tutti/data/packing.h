// data/packing.h: packs whole records into windows (first fit).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tutti::data {

// Windows of seq_len + 1 tokens. A record that fits is whole in one window, in the first that has room for it when
// records are taken in their order (first fit). A longer record is cut into pieces that overlap by one token, so that
// every token but the first of a record is a target exactly once. A window may end in padding.
//
// A pure function of the records and seq_len; 16 bytes a record and 8 a window.
class Packing {
  public:
    // Record i has the tokens [begins[i], begins[i + 1]), the last one those up to `end`. begins ascend.
    Packing(std::span<const int64_t> begins, int64_t end, int64_t seq_len);

    struct Piece {
        int64_t begin = 0;  // token
        int32_t count = 0;
        bool continues = false;  // the record begins in an earlier window
    };
    int64_t windows() const { return static_cast<int64_t>(first_.size()) - 1; }
    // In the order in which they stand in the window, from its first token on without gaps.
    std::span<const Piece> window(int64_t index) const;
    std::span<const Piece> pieces() const { return pieces_; }

    int64_t seq_len() const { return seq_len_; }
    int64_t records() const { return records_; }
    int64_t cut_records() const { return cut_records_; }

  private:
    int64_t seq_len_, records_, cut_records_ = 0;
    std::vector<Piece> pieces_;   // by window
    std::vector<int64_t> first_;  // of each window in pieces_, and the end
};

}  // namespace tutti::data
