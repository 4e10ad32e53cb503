// cli/data_inspect.cpp: `tutti data inspect` and `tutti data verify`: what is in token files, and whether all of it is
// sound.
#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <optional>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/timing.h"
#include "tutti/base/units.h"
#include "tutti/cli/commands.h"
#include "tutti/cli/text.h"
#include "tutti/data/data_set.h"
#include "tutti/data/text_tokens.h"

namespace tutti::cli {

namespace {

constexpr int64_t kChunk = 1 << 20;  // tokens
constexpr int64_t kFirstTokens = 16;

std::shared_ptr<const data::TokenSource> open_file(const std::string& file, const TokenFileArguments& a) {
    if (!data::is_jsonl({file}, a.format)) return data::open_tokens({file}, a.format);
    const auto tokenizer = data::make_tokenizer(a.tokenizer.empty() ? "bytes" : a.tokenizer);
    return data::open_records({file}, *tokenizer, {.encode = {.write = false}});
}

// Lengths of documents by powers of two: bucket k counts lengths in [2^k, 2^(k+1)).
struct Lengths {
    std::array<int64_t, 63> buckets{};
    int64_t documents = 0, shortest = 0, longest = 0;

    void add(int64_t length) {
        ++buckets[static_cast<size_t>(std::bit_width(static_cast<uint64_t>(length)) - 1)];
        shortest = documents == 0 ? length : std::min(shortest, length);
        longest = std::max(longest, length);
        ++documents;
    }
};

struct Content {
    std::string file, format;
    int64_t tokens = 0;
    int64_t largest = 0;  // id
    std::optional<int64_t> masked;
    Lengths lengths;
    std::vector<int32_t> first;
    std::string text;
};

std::optional<int32_t> eod_of(const TokenFileArguments& a) {
    if (a.eod.empty()) return std::nullopt;
    int32_t id = -1;
    const auto [stop, error] = std::from_chars(a.eod.data(), a.eod.data() + a.eod.size(), id);
    if (error == std::errc() && stop == a.eod.data() + a.eod.size()) return id;
    const auto found = a.tokenizer.empty() ? std::nullopt : data::make_tokenizer(a.tokenizer)->id_of(a.eod);
    check<UsageError>(found.has_value(), "--eod ", a.eod, ": must be an id, or a token of --tokenizer");
    return found;
}

// Reads the whole row; ids must be in [0, vocab).
Content read_all(const std::string& file, const TokenFileArguments& a, int64_t vocab) {
    const auto source = open_file(file, a);
    const int64_t size = source->size();
    const data::TokenView view(source, 0, size, vocab, {.respected = true, .eod = eod_of(a)});
    Content content{.file = file, .format = std::string(source->format()), .tokens = size, .masked = {}};
    if (source->has_mask()) content.masked = 0;
    int64_t document = 0;
    std::vector<int32_t> ids;
    std::vector<uint8_t> counts;
    for (int64_t at = 0; at < size; at += kChunk) {
        // One token of the chunk before, so that a document that begins with the chunk is seen.
        const int64_t before = at > 0 ? 1 : 0, count = std::min(kChunk, size - at);
        ids.resize(static_cast<size_t>(before + count));
        view.read(at - before, ids);
        for (const int32_t id : ids) content.largest = std::max<int64_t>(content.largest, id);
        for (const int64_t begin : view.document_begins(at - before, ids)) {
            content.lengths.add(at - before + begin - document);
            document = at - before + begin;
        }
        if (at == 0) content.first.assign(ids.begin(), ids.begin() + std::min(kFirstTokens, count));
        if (!content.masked) continue;
        counts.resize(static_cast<size_t>(count));
        view.read_mask(at, counts);
        *content.masked += std::count(counts.begin(), counts.end(), uint8_t{0});
    }
    content.lengths.add(size - document);
    return content;
}

Json describe(const Content& c) {
    Json lengths = Json::array();
    for (size_t k = 0; k < c.lengths.buckets.size(); ++k)
        if (c.lengths.buckets[k] > 0)
            lengths.push_back({{"from", int64_t{1} << k},
                               {"below", static_cast<double>(uint64_t{1} << (k + 1))},
                               {"documents", c.lengths.buckets[k]}});
    Json json = {{"file", c.file},
                 {"format", c.format},
                 {"tokens", c.tokens},
                 {"documents", c.lengths.documents},
                 {"largest_id", c.largest},
                 {"vocab_at_least", c.largest + 1},
                 {"shortest_document", c.lengths.shortest},
                 {"longest_document", c.lengths.longest},
                 {"lengths", lengths},
                 {"first_tokens", c.first}};
    if (c.masked) json["masked_tokens"] = *c.masked;
    if (!c.text.empty()) json["first_text"] = c.text;
    return json;
}

void print(const Content& c, std::ostream& out) {
    const auto line = [&out](const char* name, const std::string& value) {
        out << "  " << left(name, 16) << value << '\n';
    };
    out << c.file << '\n';
    line("format", c.format);
    line("tokens", std::to_string(c.tokens));
    if (c.masked) line("only read", concat(*c.masked, " tokens are no targets"));
    line("largest id", concat(c.largest, ", so the vocabulary has ", c.largest + 1, " or more"));
    line("documents", concat(c.lengths.documents, ", of ", c.lengths.shortest, " to ", c.lengths.longest, " tokens"));
    const int64_t most = *std::max_element(c.lengths.buckets.begin(), c.lengths.buckets.end());
    for (size_t k = 0; k < c.lengths.buckets.size(); ++k) {
        const int64_t count = c.lengths.buckets[k];
        if (count == 0 || c.lengths.documents < 2) continue;
        std::string bar;
        for (int64_t i = 0; i < (40 * count + most - 1) / most; ++i) bar += "━";
        const uint64_t from = uint64_t{1} << k;
        out << "  " << right(concat(from, " .. ", 2 * from - 1), 24) << "  " << right(std::to_string(count), 10) << ' '
            << bar << '\n';
    }
    std::string ids;
    for (const int32_t id : c.first) ids += (ids.empty() ? "" : " ") + std::to_string(id);
    line("first tokens", ids);
    if (!c.text.empty()) line("as text", Json(c.text).dump(-1, Json::InvalidUtf8::replace));
}

}  // namespace

int inspect_data(const TokenFileArguments& a, const Io& io) {
    const auto tokenizer = a.tokenizer.empty() ? nullptr : data::make_tokenizer(a.tokenizer);
    Json files = Json::array();
    for (const std::string& file : a.files) {
        Content content = read_all(file, a, int64_t{1} << 31);
        if (tokenizer) content.text = tokenizer->decode(content.first);
        if (a.json)
            files.push_back(describe(content));
        else
            print(content, io.out);
    }
    const Json document = {{"files", files}};
    if (a.json) io.out << document.dump(2, Json::InvalidUtf8::replace) << '\n';
    return 0;
}

int verify_data(const TokenFileArguments& a, const Io& io) {
    Json files = Json::array();
    for (const std::string& file : a.files) {
        const double begin = seconds_now();
        const Content content = read_all(file, a, a.vocab > 0 ? a.vocab : int64_t{1} << 31);
        const double rate = static_cast<double>(content.tokens) / (seconds_now() - begin);
        files.push_back({{"file", file},
                         {"format", content.format},
                         {"tokens", content.tokens},
                         {"documents", content.lengths.documents},
                         {"largest_id", content.largest}});
        if (!a.json)
            io.out << file << ": sound: " << content.format << ", " << content.tokens << " tokens, "
                   << content.lengths.documents << " documents, largest id " << content.largest << " ("
                   << format_rate(rate, "tok") << ")\n";
    }
    const Json document = {{"sound", true}, {"files", files}};
    if (a.json) io.out << document.dump(2, Json::InvalidUtf8::replace) << '\n';
    return 0;
}

}  // namespace tutti::cli
