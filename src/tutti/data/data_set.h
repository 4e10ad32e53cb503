// data/data_set.h: opens and checks the training and validation tokens of a run.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/data/packing.h"
#include "tutti/data/text_tokens.h"
#include "tutti/data/token_source.h"
#include "tutti/spec/run_spec.h"

namespace tutti::data {

struct DocumentRule {
    bool respected = false;      // attention and positions stay within a document
    std::optional<int32_t> eod;  // id that ends a document, for sources without document boundaries
};

// Tokens [begin, end) of a source; every id that it returns is in [0, vocab). Cheap to copy.
class TokenView {
  public:
    TokenView(std::shared_ptr<const TokenSource> source, int64_t begin, int64_t end, int64_t vocab,
              DocumentRule rule = {});

    int64_t size() const { return end_ - begin_; }  // tokens
    int64_t vocab() const { return vocab_; }
    const TokenSource& source() const { return *source_; }
    const DocumentRule& documents() const { return rule_; }

    // Tokens [begin, begin + out.size()) of the view. Throws DataError with file and offset for an id outside the
    // vocabulary: such an id would index outside the embedding matrix.
    void read(int64_t begin, std::span<int32_t> out) const;

    // Indices in `ids`, the tokens [begin, begin + ids.size()), at which documents begin: ascending, without index 0.
    std::vector<int64_t> document_begins(int64_t begin, std::span<const int32_t> ids) const;

    // Of all documents of the view, the first at token 0.
    std::vector<int64_t> document_begins() const;

    // out[i] = 0 when token begin + i is input only, never a target.
    void read_mask(int64_t begin, std::span<uint8_t> out) const;

    // Windows of whole records; null: windows begin every seq_len tokens.
    const Packing* packing() const { return packing_.get(); }
    void pack(int64_t seq_len);
    // Targets whose record begins in an earlier window, as a share of all targets. Reads the whole mask.
    double share_without_beginning() const;

    // Whether any token is a target. The first token of a view is input only.
    bool has_target() const;

    // The check of read() over the whole view up to 8 Mi tokens, over a spread sample beyond that. Detects data of
    // another tokenizer at the start of a run.
    void check_ids() const;

    // Of what a run reads of the files, in this view only: the tokens; and which of them are targets and where
    // documents begin, if attention or packing follows that, else 0. Of a large view, those of the sample of
    // visit_sample().
    uint64_t fingerprint_of_tokens() const;
    uint64_t fingerprint_of_use() const;

  private:
    void check_ids(int64_t source_begin, std::span<const int32_t> ids) const;

    std::shared_ptr<const TokenSource> source_;
    int64_t begin_, end_, vocab_;
    DocumentRule rule_;
    std::shared_ptr<const Packing> packing_;
};

// One view, or several that are blended by weight.
struct TokenSet {
    std::vector<TokenView> views;
    std::vector<double> weights;  // shares of the views in the stream of samples

    TokenSet() = default;
    TokenSet(TokenView view) : views{std::move(view)}, weights{1} {}

    int64_t size() const;  // tokens
    // Both of all views, "tokens-use". A resumed run compares fingerprints to detect changed data.
    std::string fingerprint() const;
    void check_ids() const;
    std::string description() const;  // of the sources
};

struct DataSet {
    TokenSet train;
    std::optional<TokenSet> valid;
    std::shared_ptr<const text::Tokenizer> tokenizer;  // of data.tokenizer
    std::vector<std::string> warnings;                 // about the data, to be printed once
    std::string description() const;
};

// The id that data.eod names by number or by the text of a token; UsageError when `eod` is neither, or no id of the
// model. "": the token with which the tokenizer ends texts, if it has one.
std::optional<int32_t> end_of_document(const std::string& eod, const text::Tokenizer& tokenizer, int64_t vocab);

// Opens the files of `data` for a model of `vocab` ids and windows of seq_len + 1 tokens. Validation tokens come from
// the files of data.valid, or are the last floor(valid_fraction * tokens) of each source; the views never overlap.
// Each entry "0.7 PATH" of data.train is a source of its own with that weight; entries without weights are one row.
// Text is read as bytes, or encoded by data.tokenizer (text_tokens.h), which must have at most `vocab` ids. Where
// prompts are masked and the data has documents, each record that fits is whole in one window (packing.h). UsageError:
// no files, both kinds of validation, a fraction outside [0, 1), an unknown format or tokenizer, mixed formats,
// documents to respect without a known end, token files that another tokenizer made. DataError: a damaged file, an id
// outside the vocabulary, fewer tokens than one window needs, no token that is a target.
DataSet open(const spec::DataSpec& data, int64_t vocab, int64_t seq_len, const EncodeOptions& options = {});

}  // namespace tutti::data
