// data/megatron_index.h: the .idx file of a Megatron indexed dataset, mapped and checked against its .bin.
//
//   offset    type      value
//   0         9 bytes   "MMIDIDX\0\0"
//   9         u64       version = 1
//   17        u8        type of the ids: 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 8 u16 (6 and 7 are floats)
//   18        u64       S, sequences
//   26        u64       D, entries of the document index: documents + 1
//   34        i32 x S   lengths of the sequences, in tokens
//   34 + 4S   i64 x S   byte offsets of the sequences in .bin
//   34 + 12S  i64 x D   document index: first sequence of each document, from 0 to S
// All little-endian, nothing aligned. Sequences lie back to back in .bin, so a dataset is one row of tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/base/read_file.h"

namespace tutti::data {

inline constexpr std::string_view kMegatronMagic{"MMIDIDX\0\0", 9};

// How ids are stored.
enum class IdType : uint8_t { u8, i8, u16, i16, u32, i32, i64 };
int64_t width_of(IdType type);  // bytes

class MegatronIndex {
  public:
    // Checks everything that is in the file against the size of `bin`. DataError with the offset otherwise.
    MegatronIndex(const std::string& path, const MappedFile& bin);

    IdType type() const { return type_; }
    // Appends the tokens in (begin, end) that begin a document.
    void document_begins(int64_t begin, int64_t end, std::vector<int64_t>& begins) const;

  private:
    template <class T>
    T at(int64_t offset) const;
    // Token at which document k begins, 0 <= k <= documents_; the last one is tokens_.
    int64_t document_begin(int64_t k) const;
    void check_header();
    void check_sequences(const MappedFile& bin);
    void check_documents() const;

    MappedFile file_;
    IdType type_ = IdType::u16;
    int64_t sequences_ = 0, documents_ = 0, tokens_ = 0;
};

}  // namespace tutti::data
