// data/data_set.cpp: the split into training and validation tokens, and the checks at the door.
#include "tutti/data/data_set.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/data/tokenizer.h"

namespace tutti::data {

TokenView::TokenView(std::shared_ptr<const TokenSource> source, int64_t begin, int64_t end, int64_t vocab)
    : source_(std::move(source)), begin_(begin), end_(end), vocab_(vocab) {
    check(source_ != nullptr && 0 <= begin && begin <= end && end <= source_->size(), "view of tokens [", begin, ", ",
          end, ") of ", source_ ? source_->size() : 0);
    check<UsageError>(vocab > 0, "model.vocab must be positive, got ", vocab);
}

void TokenView::read(int64_t begin, std::span<int32_t> out) const {
    const auto count = static_cast<int64_t>(out.size());
    check(begin >= 0 && begin <= size() - count, "tokens [", begin, ", ", begin + count, ") of a view of ", size());
    source_->read(begin_ + begin, out);
    check_ids(begin_ + begin, out);
}

void TokenView::check_ids() const {
    if (source_->vocab_bound() <= vocab_) return;  // no id of this format can be too large
    visit_sample(*source_, begin_, end_, [this](int64_t at, std::span<const int32_t> ids) { check_ids(at, ids); });
}

void TokenView::check_ids(int64_t source_begin, std::span<const int32_t> ids) const {
    const auto outside = [this](int32_t id) { return static_cast<uint32_t>(id) >= vocab_; };
    const auto bad = std::find_if(ids.begin(), ids.end(), outside);
    if (bad == ids.end()) return;
    throw DataError(concat(source_->where(source_begin + (bad - ids.begin())), ": id ", static_cast<uint32_t>(*bad),
                           " is outside the model's vocabulary of ", vocab_, "; the model needs model.vocab > ",
                           static_cast<uint32_t>(*bad), ", or the file was made with another tokenizer"));
}

namespace {

void check_one_window(const TokenView& view, int64_t seq_len, const std::string& what, const std::string& remedy) {
    check<DataError>(view.size() >= seq_len + 1, what, ": one window of train.seq_len = ", seq_len, " needs ",
                     seq_len + 1, " tokens, got ", view.size(), "; ", remedy);
}

int64_t tokens_held_out(double fraction, int64_t size) {
    return static_cast<int64_t>(std::floor(fraction * static_cast<double>(size)));
}

// What to do when the held-out share is shorter than a window: a fraction that is enough, rounded up to be typed, if it
// leaves a window for training too.
std::string larger_fraction(int64_t seq_len, int64_t size) {
    const double enough = std::ceil(1e4 * static_cast<double>(seq_len + 1) / static_cast<double>(size)) / 1e4;
    if (enough >= 1 || size - tokens_held_out(enough, size) < seq_len + 1) return "give more text or a smaller seq_len";
    return concat("set data.valid_fraction = ", enough, " or more");
}

// The files as a row of ids of the model's vocabulary.
std::shared_ptr<const TokenSource> open_source(const std::vector<std::string>& paths, const spec::DataSpec& data,
                                               const Tokenizer& tokenizer, int64_t vocab,
                                               const EncodeOptions& options) {
    auto source = open_tokens(paths, data.format);
    if (source->format() != "text" || data.tokenizer == "bytes") return source;
    check<UsageError>(tokenizer.vocab() <= vocab, "data.tokenizer (", tokenizer.description(), ") makes ids up to ",
                      tokenizer.vocab() - 1, ", model.vocab is ", vocab, "; set model.vocab = ", tokenizer.vocab(),
                      " or more (a multiple of 64 is faster)");
    return open_text(paths, tokenizer, options);
}

}  // namespace

std::string DataSet::description() const {
    if (!valid) return concat(train.source().description(), "; no validation data");
    if (&valid->source() != &train.source())
        return concat("train ", train.source().description(), "; valid ", valid->source().description());
    return concat(train.source().description(), "; the last ", valid->size(), " tokens are held out");
}

DataSet open(const spec::DataSpec& data, int64_t vocab, int64_t seq_len, const EncodeOptions& options) {
    check<UsageError>(seq_len > 0, "train.seq_len must be positive, got ", seq_len);
    check<UsageError>(!data.train.empty(), "data.train names no file; set data.train = [\"corpus.txt\"]");
    check<UsageError>(data.valid_fraction >= 0 && data.valid_fraction < 1,
                      "data.valid_fraction must be in [0, 1), got ", data.valid_fraction);
    check<UsageError>(data.valid.empty() || data.valid_fraction == 0,
                      "data.valid names files and data.valid_fraction is ", data.valid_fraction, "; give one of them");
    const std::shared_ptr<const Tokenizer> tokenizer = make_tokenizer(data.tokenizer);

    const auto source = open_source(data.train, data, *tokenizer, vocab, options);
    const int64_t held_out = tokens_held_out(data.valid_fraction, source->size());
    DataSet set{TokenView(source, 0, source->size() - held_out, vocab), std::nullopt, tokenizer};
    check_one_window(set.train, seq_len, concat("training data (", source->description(), ")"),
                     held_out > 0 ? "give more text, a smaller seq_len or a smaller data.valid_fraction"
                                  : "give more text or a smaller seq_len");
    if (data.valid_fraction > 0) {
        set.valid.emplace(source, source->size() - held_out, source->size(), vocab);
        check_one_window(
            *set.valid, seq_len,
            concat("validation data (data.valid_fraction = ", data.valid_fraction, " of ", source->size(), " tokens)"),
            larger_fraction(seq_len, source->size()));
    } else if (!data.valid.empty()) {
        const auto held = open_source(data.valid, data, *tokenizer, vocab, options);
        check<UsageError>(held->format() == source->format(), data.valid.front(), ": is ", held->format(),
                          " data, but ", data.train.front(), " is ", source->format(),
                          "; both must share one vocabulary");
        set.valid.emplace(held, 0, held->size(), vocab);
        check_one_window(*set.valid, seq_len, concat("validation data (", held->description(), ")"),
                         "give more text or a smaller seq_len");
    }
    set.train.check_ids();
    if (set.valid) set.valid->check_ids();
    return set;
}

}  // namespace tutti::data
