// data/megatron_index.cpp: reads the header, then walks over all entries once. Sizes in the header are compared with
// the file before anything is computed from them, so that no hostile number overflows.
#include "tutti/data/megatron_index.h"

#include <array>
#include <cstring>
#include <optional>

#include "tutti/base/error.h"
#include "tutti/base/to_size.h"

namespace tutti::data {

namespace {

constexpr int64_t kVersionAt = 9, kTypeAt = 17, kSequencesAt = 18, kDocumentsAt = 26, kHeaderBytes = 34;

std::optional<IdType> type_of(uint8_t code) {
    constexpr std::pair<uint8_t, IdType> kCodes[] = {{1, IdType::u8},  {2, IdType::i8},  {3, IdType::i16},
                                                     {4, IdType::i32}, {5, IdType::i64}, {8, IdType::u16}};
    for (const auto& [known, type] : kCodes)
        if (known == code) return type;
    return std::nullopt;
}

}  // namespace

int64_t width_of(IdType type) {
    constexpr std::array<int64_t, 7> kWidths = {1, 1, 2, 2, 4, 4, 8};
    return kWidths.at(to_size(type));
}

template <class T>
T MegatronIndex::at(int64_t offset) const {
    T value;
    std::memcpy(&value, file_.bytes().data() + offset, sizeof value);
    return value;
}

MegatronIndex::MegatronIndex(const std::string& path, const MappedFile& bin) : file_(path) {
    check_header();
    check_sequences(bin);
    check_documents();
}

void MegatronIndex::check_header() {
    const std::string& path = file_.path();
    const auto size = static_cast<uint64_t>(file_.bytes().size());
    check<DataError>(size >= kHeaderBytes, path, ": a Megatron index begins with ", kHeaderBytes,
                     " bytes of header, the file has ", size, "; is the copy complete?");
    check<DataError>(std::memcmp(file_.bytes().data(), kMegatronMagic.data(), kMegatronMagic.size()) == 0, path,
                     ": byte offset 0: a Megatron index begins with MMIDIDX and two zero bytes, this file does not");
    check<DataError>(at<uint64_t>(kVersionAt) == 1, path, ": byte offset ", kVersionAt, ": version must be 1, got ",
                     at<uint64_t>(kVersionAt));
    const auto code = at<uint8_t>(kTypeAt);
    check<DataError>(code != 6 && code != 7, path, ": byte offset ", kTypeAt, ": type code ", int{code},
                     " is of floating-point numbers; token ids are whole (codes 1 to 5 and 8)");
    const auto type = type_of(code);
    check<DataError>(type.has_value(), path, ": byte offset ", kTypeAt, ": type code must be 1 to 5 or 8, got ",
                     int{code});
    type_ = *type;

    const auto S = at<uint64_t>(kSequencesAt), D = at<uint64_t>(kDocumentsAt);
    check<DataError>(S <= size / 12, path, ": byte offset ", kSequencesAt, ": ", S, " sequences need more than the ",
                     size, " bytes of the file; is the copy complete?");
    check<DataError>(D <= size / 8, path, ": byte offset ", kDocumentsAt, ": a document index of ", D,
                     " entries needs more than the ", size, " bytes of the file; is the copy complete?");
    const uint64_t expected = kHeaderBytes + 12 * S + 8 * D;
    check<DataError>(size != expected + S || S == 0, path, ": byte offset ", expected,
                     ": has sequence modes, as multimodal data has; only text data can be read");
    check<DataError>(size == expected, path, ": ", S, " sequences and ", D, " entries of the document index need ",
                     expected, " bytes, the file has ", size,
                     size < expected ? "; is the copy complete?" : "; was something appended?");
    check<DataError>(S >= 1, path, ": byte offset ", kSequencesAt, ": has no sequence");
    check<DataError>(D >= 2, path, ": byte offset ", kDocumentsAt,
                     ": the document index must have an entry more than there are documents, so 2 at least, got ", D);
    sequences_ = static_cast<int64_t>(S);
    documents_ = static_cast<int64_t>(D) - 1;
}

void MegatronIndex::check_sequences(const MappedFile& bin) {
    const auto bin_size = static_cast<int64_t>(bin.bytes().size());
    const int64_t width = width_of(type_), lengths = kHeaderBytes, offsets = lengths + 4 * sequences_;
    int64_t expected = 0;
    for (int64_t i = 0; i < sequences_; ++i) {
        const auto length = at<int32_t>(lengths + 4 * i);
        const auto offset = at<int64_t>(offsets + 8 * i);
        check<DataError>(length >= 0, file_.path(), ": byte offset ", lengths + 4 * i, ": sequence ", i,
                         " has the length ", length);
        check<DataError>(offset == expected, file_.path(), ": byte offset ", offsets + 8 * i, ": sequence ", i,
                         " must begin at byte ", expected, " of ", bin.path(), ", where the one before ends, got ",
                         offset);
        // Within bin_size plus one length, so far from overflow.
        expected += length * width;
        check<DataError>(expected <= bin_size, file_.path(), ": byte offset ", lengths + 4 * i, ": sequence ", i,
                         " of ", length, " tokens ends at byte ", expected, ", but ", bin.path(), " has ", bin_size,
                         " bytes; is the copy complete?");
    }
    check<DataError>(expected == bin_size, bin.path(), ": byte offset ", expected, ": the sequences of ", file_.path(),
                     " end here, but the file has ", bin_size, " bytes; do the two belong together?");
    tokens_ = expected / width;
}

void MegatronIndex::check_documents() const {
    const int64_t index = kHeaderBytes + 12 * sequences_;
    int64_t before = 0;
    for (int64_t k = 0; k <= documents_; ++k) {
        const auto first = at<int64_t>(index + 8 * k);
        check<DataError>(k > 0 || first == 0, file_.path(), ": byte offset ", index,
                         ": the document index must begin with 0, got ", first);
        check<DataError>(first >= before && first <= sequences_, file_.path(), ": byte offset ", index + 8 * k,
                         ": document ", k, " must begin at a sequence from ", before, " to ", sequences_, ", got ",
                         first);
        before = first;
    }
    check<DataError>(before == sequences_, file_.path(), ": byte offset ", index + 8 * documents_,
                     ": the document index must end with the number of sequences, ", sequences_, ", got ", before);
}

int64_t MegatronIndex::document_begin(int64_t k) const {
    file_.check_not_truncated();
    const auto sequence = at<int64_t>(kHeaderBytes + 12 * sequences_ + 8 * k);
    // Checked when the file was opened, but the file may have changed since.
    check<DataError>(0 <= sequence && sequence <= sequences_, file_.path(), ": was changed while in use");
    if (sequence == sequences_) return tokens_;
    return at<int64_t>(kHeaderBytes + 4 * sequences_ + 8 * sequence) / width_of(type_);
}

void MegatronIndex::document_begins(int64_t begin, int64_t end, std::vector<int64_t>& begins) const {
    int64_t low = 0, high = documents_;  // the first document that begins after `begin`
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (document_begin(middle) > begin)
            high = middle;
        else
            low = middle + 1;
    }
    for (int64_t k = low, last = begin; k < documents_; ++k) {
        const int64_t at_token = document_begin(k);
        if (at_token >= end) return;
        if (at_token > last) begins.push_back(at_token);  // a document without tokens begins where the next one does
        last = at_token;
    }
}

}  // namespace tutti::data
