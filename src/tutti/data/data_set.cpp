// data/data_set.cpp: the split into training and validation tokens, and the checks of the arguments.
#include "tutti/data/data_set.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <utility>

#include "tutti/base/digits.h"
#include "tutti/base/error.h"
#include "tutti/base/philox.h"
#include "tutti/base/to_size.h"
#include "tutti/base/units.h"
#include "tutti/data/text_tokens.h"
#include "tutti/data/token_writer.h"

namespace tutti::data {

TokenView::TokenView(std::shared_ptr<const TokenSource> source, int64_t begin, int64_t end, int64_t vocab,
                     DocumentRule rule)
    : source_(std::move(source)), begin_(begin), end_(end), vocab_(vocab), rule_(rule) {
    check(source_ != nullptr && 0 <= begin && begin <= end && end <= source_->size(), "view of tokens [", begin, ", ",
          end, ") of ", source_ ? source_->size() : 0);
    check<UsageError>(vocab > 0, "model.vocab must be positive, got ", vocab);
}

void TokenView::read(int64_t begin, std::span<int32_t> out) const {
    check_range(begin, out.size(), size());
    source_->read(begin_ + begin, out);
    check_ids(begin_ + begin, out);
}

std::vector<int64_t> TokenView::document_begins(int64_t begin, std::span<const int32_t> ids) const {
    check_range(begin, ids.size(), size());
    const auto count = static_cast<int64_t>(ids.size());
    std::vector<int64_t> begins;
    source_->document_begins(begin_ + begin, begin_ + begin + count, begins);
    for (int64_t& place : begins) place -= begin_ + begin;
    if (source_->knows_documents() || !rule_.eod) return begins;
    std::vector<int64_t> all;
    for (int64_t i = 1; i < count; ++i)
        if (ids[to_size(i - 1)] == *rule_.eod) all.push_back(i);
    all.insert(all.end(), begins.begin(), begins.end());
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
}

std::vector<int64_t> TokenView::document_begins() const {
    std::vector<int64_t> begins = {0};
    if (source_->knows_documents()) {
        source_->document_begins(begin_, end_, begins);
        for (size_t i = 1; i < begins.size(); ++i) begins[i] -= begin_;
        return begins;
    }
    std::vector<int32_t> ids(1 << 20);
    for (int64_t at = 0; at + 1 < size(); at += static_cast<int64_t>(ids.size()) - 1) {  // a token tells of the next
        ids.resize(to_size(std::min<int64_t>(1 << 20, size() - at)));
        read(at, ids);
        for (const int64_t begin : document_begins(at, ids)) begins.push_back(at + begin);
    }
    return begins;
}

void TokenView::pack(int64_t seq_len) {
    const std::vector<int64_t> begins = document_begins();
    packing_ = std::make_shared<const Packing>(begins, size(), seq_len);
}

double TokenView::share_without_beginning() const {
    int64_t all = 0, without = 0;
    std::vector<uint8_t> mask;
    for (const Packing::Piece& piece : packing_->pieces()) {
        mask.resize(to_size(piece.count));
        read_mask(piece.begin, mask);
        const int64_t targets = std::count(mask.begin() + 1, mask.end(), uint8_t{1});
        all += targets;
        if (piece.continues) without += targets;
    }
    return all > 0 ? static_cast<double>(without) / static_cast<double>(all) : 0;
}

uint64_t TokenView::fingerprint_of_tokens() const {
    const uint64_t tokens = data::fingerprint(*source_, begin_, end_);
    return packing_ ? mix64(tokens ^ 0x7061636b696e6731) : tokens;  // other windows than those of one row
}

uint64_t TokenView::fingerprint_of_use() const {
    const bool masked = source_->has_mask(), borders = packing_ || rule_.respected;
    if (!masked && !borders) return 0;
    text::Fingerprint all;
    if (borders) all.add(source_->knows_documents() ? -1 : rule_.eod.value_or(-1));
    std::vector<uint8_t> mask;
    std::vector<int64_t> begins;
    visit_sample(*source_, begin_, end_, [&](int64_t at, std::span<const int32_t> ids) {
        if (masked) {
            mask.resize(ids.size());
            source_->read_mask(at, mask);
            all.add(text::digest_of({reinterpret_cast<const char*>(mask.data()), mask.size()}));
        }
        if (!borders) return;
        begins.clear();
        source_->document_begins(std::max(at - 1, begin_), at + static_cast<int64_t>(ids.size()), begins);
        all.add(begins.size());
        for (const int64_t begin : begins) all.add(begin - begin_);
    });
    return all.value();
}

void TokenView::read_mask(int64_t begin, std::span<uint8_t> out) const {
    check_range(begin, out.size(), size());
    source_->read_mask(begin_ + begin, out);
}

bool TokenView::has_target() const {
    if (!source_->has_mask()) return size() > 1;
    std::vector<uint8_t> loss_mask(1 << 16);
    for (int64_t begin = 1; begin < size(); begin += static_cast<int64_t>(loss_mask.size())) {
        loss_mask.resize(to_size(std::min<int64_t>(1 << 16, size() - begin)));
        read_mask(begin, loss_mask);
        if (std::find_if(loss_mask.begin(), loss_mask.end(), [](uint8_t c) { return c != 0; }) != loss_mask.end())
            return true;
    }
    return false;
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

void check_size_and_targets(const TokenView& view, int64_t seq_len, const std::string& what,
                            const std::string& remedy) {
    check<DataError>(view.size() >= seq_len + 1, what, ": one window of train.seq_len = ", seq_len, " needs ",
                     seq_len + 1, " tokens, got ", view.size(), "; ", remedy);
    check<DataError>(view.has_target(), what, ": no token is a target, so there is nothing to learn: every completion ",
                     "is empty or the loss mask is 0; required: at least one target");
}

int64_t tokens_held_out(double fraction, int64_t size) {
    return static_cast<int64_t>(std::floor(fraction * static_cast<double>(size)));
}

// Advice when the held-out share is shorter than a window: the smallest sufficient fraction, rounded up to few digits,
// if it leaves a window for training too.
std::string larger_fraction(int64_t seq_len, int64_t size) {
    const double enough = std::ceil(1e4 * static_cast<double>(seq_len + 1) / static_cast<double>(size)) / 1e4;
    if (enough >= 1 || size - tokens_held_out(enough, size) < seq_len + 1) return "give more text or a smaller seq_len";
    return concat("set data.valid_fraction = ", enough, " or more");
}

// "0.7 PATH" -> {0.7, PATH}; a file of the whole name is a path.
struct Entry {
    std::optional<double> weight;
    std::string path;
};
Entry parse_entry(const std::string& text) {
    double weight = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, weight);
    if (error != std::errc() || stop == end || *stop != ' ') return {std::nullopt, text};
    check<UsageError>(std::isfinite(weight) && weight > 0, "data: \"", text, "\": a weight must be positive, got ",
                      weight);
    if (std::filesystem::exists(text)) return {std::nullopt, text};  // "2 cities.txt"
    const size_t path = text.find_first_not_of(' ', to_size(stop - text.data()));
    check<UsageError>(path != std::string::npos, "data: \"", text, "\": a path must follow the weight");
    return {weight, text.substr(path)};
}

// How all files of a run are opened.
struct Opening {
    const spec::DataSpec& data;
    const text::Tokenizer& tokenizer;
    std::optional<int32_t> eod;
    int64_t vocab;
    const EncodeOptions& encode;
    std::vector<std::string>& warnings;
};

// The tokenizer that made a token file, where the file says so, is the run's: else its ids mean other text.
void compare_tokenizer(const std::string& path, const Opening& how) {
    const auto made_by = read_tokenizer_identity(path);
    if (!made_by || made_by->fingerprint == how.tokenizer.fingerprint()) return;
    const std::string text = concat(path, " was made with another tokenizer (", made_by->description,
                                    ") than data.tokenizer (", how.tokenizer.description(), ")");
    check<UsageError>(how.data.tokenizer == "bytes", text, ", for which its ids mean other text; set data.tokenizer");
    how.warnings.push_back(concat(text, ": set data.tokenizer, and the run can show text"));
}

// The files as a row of ids of the model's vocabulary.
std::shared_ptr<const TokenSource> open_source(const std::vector<std::string>& paths, const Opening& how) {
    const auto check_vocab = [&] {
        const int64_t made = how.tokenizer.vocab();
        check<UsageError>(made <= how.vocab, "data.tokenizer (", how.tokenizer.description(), ") makes ids up to ",
                          made - 1, ", model.vocab is ", how.vocab, "; set model.vocab = ", made,
                          " or more (a multiple of 64 is faster)");
    };
    if (is_jsonl(paths, how.data.format)) {
        check_vocab();
        return open_records(paths, how.tokenizer, {.field = how.data.text_field, .eod = how.eod, .encode = how.encode});
    }
    auto source = open_tokens(paths, how.data.format);
    const bool bytes = how.data.tokenizer == "bytes";
    if (source->format() != "text")
        for (const std::string& path : paths) compare_tokenizer(path, how);
    if (bytes) return source;
    check_vocab();
    return source->format() == "text" ? open_text(paths, how.tokenizer, how.encode) : source;
}

// The sources that a list of files names: one row of tokens, or one for each weight.
struct Sources {
    std::vector<std::shared_ptr<const TokenSource>> sources;
    std::vector<double> weights;
};
Sources open_sources(const std::vector<std::string>& list, const Opening& how) {
    std::vector<std::string> paths;
    Sources all;
    for (const std::string& item : list) {
        const Entry entry = parse_entry(item);
        paths.push_back(entry.path);
        if (entry.weight) all.weights.push_back(*entry.weight);
    }
    const double sum = std::accumulate(all.weights.begin(), all.weights.end(), 0.0);
    check<UsageError>(std::isfinite(sum), "data: the sum of the weights is ", sum,
                      ", so that every sample would come from the last file; smaller weights of the same proportions "
                      "say the same");
    check<UsageError>(all.weights.empty() || all.weights.size() == list.size(),
                      "data: give each file a weight (\"0.7 PATH\") or none; ", all.weights.size(), " of ", list.size(),
                      " have one");
    if (all.weights.empty()) return {{open_source(paths, how)}, {1}};
    for (const std::string& path : paths) {
        all.sources.push_back(open_source({path}, how));
        check_one_format(path, all.sources.back()->format(), paths.front(), all.sources.front()->format());
    }
    return all;
}

DocumentRule rule_of(const spec::DataSpec& data, std::optional<int32_t> eod, const TokenSource& source, int64_t vocab) {
    constexpr int32_t kGpt2End = 50256;
    // Ids of text come from data.tokenizer; other files of 16-bit ids are assumed to have GPT-2's.
    const bool gpt2 = data.tokenizer == "bytes" && (source.format() == "nanogpt" || source.format() == "llmc-u16");
    if (!eod && gpt2 && vocab > kGpt2End) eod = kGpt2End;
    check<UsageError>(data.documents == "packed" || data.documents == "respected",
                      "data.documents must be packed or respected, got \"", data.documents, "\"");
    const bool respected = data.documents == "respected";
    check<UsageError>(!respected || source.knows_documents() || eod, "data.documents = \"respected\": nothing tells ",
                      "where the documents of ", source.format(),
                      " data end; set data.eod to the id of the token that ",
                      "ends one, or use Megatron or JSONL data");
    return {respected, eod};
}

// A completion says little without its prompt: such records are not cut at the borders of windows.
bool has_whole_records(const TokenSource& source, const DocumentRule& rule) {
    return source.has_mask() && (source.knows_documents() || rule.eod.has_value());
}

// Packs the views of a set that have prompts, and says what cannot be whole.
void pack(TokenSet& set, int64_t seq_len, std::vector<std::string>& warnings) {
    for (TokenView& view : set.views) {
        if (!view.source().has_mask()) continue;
        const std::string source(view.source().description());
        if (!has_whole_records(view.source(), view.documents())) {
            warnings.push_back(concat(source, ": nothing tells where its records begin, so that windows cut them; set ",
                                      "data.eod to the token that ends one, or use Megatron or JSONL data"));
            continue;
        }
        view.pack(seq_len);
        const Packing& packing = *view.packing();
        if (packing.cut_records() == 0) continue;
        warnings.push_back(concat(source, ": ", packing.cut_records(), " of ", packing.records(),
                                  " records are longer than a window of train.seq_len = ", seq_len,
                                  " and are cut: ", format_percent(view.share_without_beginning()),
                                  " of the targets do not see the beginning of their record"));
    }
}

// The training part of the sources, and the held-out part.
struct Split {
    TokenSet kept, held;
};
Split split(const Sources& from, double fraction, int64_t vocab, const DocumentRule& rule) {
    Split result;
    for (const auto& source : from.sources) {
        int64_t end = source->size() - tokens_held_out(fraction, source->size());
        if (fraction > 0 && has_whole_records(*source, rule)) {  // no record is cut by the border
            const auto begins = TokenView(source, 0, source->size(), vocab, rule).document_begins();
            end = *std::prev(std::upper_bound(begins.begin(), begins.end(), end));
        }
        result.kept.views.emplace_back(source, 0, end, vocab, rule);
        result.held.views.emplace_back(source, end, source->size(), vocab, rule);
    }
    result.kept.weights = result.held.weights = from.weights;
    return result;
}

}  // namespace

std::optional<int32_t> end_of_document(const std::string& eod, const text::Tokenizer& tokenizer, int64_t vocab) {
    if (eod.empty()) return tokenizer.special().eos;
    std::optional<int32_t> id = parse_number<int32_t>(eod);
    if (!id) id = tokenizer.id_of(eod);
    check<UsageError>(id.has_value(), "data.eod = \"", eod, "\": must be an id, or a token of data.tokenizer (",
                      tokenizer.description(), "), which has none such");
    check<UsageError>(*id >= 0 && *id < vocab, "data.eod = \"", eod, "\": must be an id below model.vocab = ", vocab);
    return id;
}

int64_t TokenSet::size() const {
    int64_t tokens = 0;
    for (const TokenView& view : views) tokens += view.size();
    return tokens;
}

std::string TokenSet::fingerprint() const {
    const auto of = [&](auto part) {
        if (views.size() == 1) return (views.front().*part)();
        uint64_t hash = 0;
        for (size_t k = 0; k < views.size(); ++k)
            hash = mix64(mix64(hash) ^ (views[k].*part)()) ^ std::bit_cast<uint64_t>(weights[k]);
        return hash;
    };
    return concat(to_hex(of(&TokenView::fingerprint_of_tokens)), "-", to_hex(of(&TokenView::fingerprint_of_use)));
}

void TokenSet::check_ids() const {
    for (const TokenView& view : views) view.check_ids();
}

std::string TokenSet::description() const {
    if (views.size() == 1) return views.front().source().description();
    double sum = 0;
    for (const double weight : weights) sum += weight;
    std::string text = "blend of ";
    for (size_t k = 0; k < views.size(); ++k)
        text += concat(k > 0 ? "; " : "", 100 * weights[k] / sum, " % ", views[k].source().description());
    return text;
}

std::string DataSet::description() const {
    if (!valid) return concat(train.description(), "; no validation data");
    if (&valid->views.front().source() != &train.views.front().source())
        return concat("train ", train.description(), "; valid ", valid->description());
    return concat(train.description(), "; the last ", valid->size(), " tokens are held out");
}

DataSet open(const spec::DataSpec& data, int64_t vocab, int64_t seq_len, const EncodeOptions& options) {
    check<UsageError>(seq_len > 0, "train.seq_len must be positive, got ", seq_len);
    check<UsageError>(!data.train.empty(), "data.train names no file; set data.train = [\"corpus.txt\"]");
    check<UsageError>(data.valid_fraction >= 0 && data.valid_fraction < 1,
                      "data.valid_fraction must be in [0, 1), got ", data.valid_fraction);
    check<UsageError>(data.valid.empty() || data.valid_fraction == 0,
                      "data.valid names files and data.valid_fraction is ", data.valid_fraction, "; give one of them");
    const std::shared_ptr<const text::Tokenizer> tokenizer = text::make_tokenizer(data.tokenizer);
    const auto eod = end_of_document(data.eod, *tokenizer, vocab);
    std::vector<std::string> warnings;
    const Opening how{data, *tokenizer, eod, vocab, options, warnings};

    const Sources sources = open_sources(data.train, how);
    const TokenSource& first = *sources.sources.front();
    const DocumentRule rule = rule_of(data, eod, first, vocab);
    Split parts = split(sources, data.valid_fraction, vocab, rule);
    DataSet set{std::move(parts.kept), std::nullopt, tokenizer, {}};
    for (const TokenView& view : set.train.views)
        check_size_and_targets(view, seq_len, concat("training data (", view.source().description(), ")"),
                               data.valid_fraction > 0
                                   ? "give more text, a smaller seq_len or a smaller data.valid_fraction"
                                   : "give more text or a smaller seq_len");
    if (data.valid_fraction > 0) {
        set.valid = std::move(parts.held);
        for (const TokenView& view : set.valid->views)
            check_size_and_targets(view, seq_len,
                                   concat("validation data (data.valid_fraction = ", data.valid_fraction, " of ",
                                          view.source().size(), " tokens)"),
                                   larger_fraction(seq_len, view.source().size()));
    } else if (!data.valid.empty()) {
        const Sources held = open_sources(data.valid, how);
        for (const auto& source : held.sources)
            check_one_format(data.valid.front(), source->format(), data.train.front(), first.format());
        set.valid = split(held, 0, vocab, rule).kept;
        for (const TokenView& view : set.valid->views)
            check_size_and_targets(view, seq_len, concat("validation data (", view.source().description(), ")"),
                                   "give more text or a smaller seq_len");
    }
    set.train.check_ids();
    if (set.valid) set.valid->check_ids();
    pack(set.train, seq_len, warnings);
    if (set.valid) pack(*set.valid, seq_len, warnings);
    set.warnings = std::move(warnings);
    return set;
}

}  // namespace tutti::data
