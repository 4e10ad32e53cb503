// data/token_source.h: a row of token ids from files of any format, with document boundaries and a loss mask where the
// files have them. open_tokens() lists the formats.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::data {

// All members are const and may be called from any number of threads at once.
class TokenSource {
  public:
    virtual ~TokenSource() = default;

    virtual int64_t size() const = 0;  // tokens

    // Reads tokens [begin, begin + out.size()). Ids are returned as stored; one above 2^31 - 1 becomes negative.
    virtual void read(int64_t begin, std::span<int32_t> out) const = 0;

    // A bound on ids that follows from the width of a stored id alone: 256, 65536 or 2^32.
    virtual int64_t vocab_bound() const = 0;

    // (begin, end, begins): appends the tokens in (begin, end) at which a document begins according to the files: the
    // first token of a file, Megatron's document index, records of JSONL.
    virtual void document_begins(int64_t, int64_t, std::vector<int64_t>&) const {}
    // Whether document_begins() finds every document; else end-of-document tokens end documents, too.
    virtual bool knows_documents() const { return false; }

    // out[i] = 1 when token begin + i is a target, 0 when it is input only (a prompt).
    virtual bool has_mask() const { return false; }
    virtual void read_mask(int64_t, std::span<uint8_t> out) const { std::fill(out.begin(), out.end(), uint8_t{1}); }

    virtual std::string_view format() const = 0;         // "text", "jsonl", "megatron", "nanogpt", "llmc-u16", ...
    virtual std::string description() const = 0;         // "text, 4404412 tokens: bible.txt"
    virtual std::string where(int64_t token) const = 0;  // "train.bin, token 7 (byte offset 1038)"

    uint64_t fingerprint() const;
};

// Error unless the tokens [begin, begin + count) are among those of a row of `size` tokens.
void check_range(int64_t begin, size_t count, int64_t size);

// UsageError where a file has another format than the first one of the same run.
void check_one_format(const std::string& path, std::string_view format, const std::string& first,
                      std::string_view first_format);

// The headers of llm.c's two kinds of token files.
struct LlmcKind {
    uint32_t magic, version;
};
inline constexpr LlmcKind kLlmcGpt2{20240520, 1}, kLlmcLlama3{20240801, 7};  // u16 ids, u32 ids
inline constexpr int64_t kLlmcHeaderBytes = 1024;                            // 256 x i32 {magic, version, count, 0...}

// Opens `paths` as one row of tokens, in the given order and with nothing inserted between files: as `cat` would join
// them, so a window may run over a file's end. Text that needs a separator must end with one (a newline, a blank line).
//
// `format` is auto, text, megatron, nanogpt, llmc or llmq (JSONL: text_tokens.h). auto decides for each file: a magic
// number means llmc or llmq; an .idx beside the file, or a prefix with .bin and .idx, means megatron; any other .bin
// means nanogpt, any other name text. Files of different formats hold ids of different vocabularies, so mixing them
// throws UsageError. Damaged files throw DataError with the file, the offset, the required and the actual value.
//
// Layouts (ids little-endian):
//   text      one byte is one token, id = byte value (with a learned tokenizer: text_tokens.h)
//   megatron  PREFIX.bin: ids; PREFIX.idx: their type, sequences and documents (megatron_index.h)
//   nanogpt   u16 ids, no header
//   llmc      a header, then u16 ids (kLlmcGpt2) or u32 ids (kLlmcLlama3)
//   llmq      1024 bytes {"BIN.TOK\n", i32 version 1 or 2, 4, count, vocabulary, mask 0 or 1, ...}, then i32 ids, then
//             with a mask one bit per id, the lowest first (scripts/tokenize_data.py of llmq)
// X.bin may have X.mask beside it, one byte per token: 1 for a target, 0 for a token that is input only.
std::shared_ptr<const TokenSource> open_tokens(const std::vector<std::string>& paths, std::string_view format = "auto");

// Calls visit(begin, ids) for all of [begin, end) up to 8 Mi tokens, for more tokens over 256 blocks of 32 Ki tokens
// spread evenly from the first to the last: the checks at the start of a run cost milliseconds at any size.
void visit_sample(const TokenSource& source, int64_t begin, int64_t end,
                  const std::function<void(int64_t, std::span<const int32_t>)>& visit);

// XXH3 of the number of tokens and of the sample of visit_sample(): equal for equal tokens, whatever the names,
// division and format of the files. A change outside the sample of a large set is not detected.
uint64_t fingerprint(const TokenSource& source, int64_t begin, int64_t end);

}  // namespace tutti::data
