// cli/data.cpp: `tutti data ...`: tokenize, train-tokenizer, inspect and verify, then their options.
#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <filesystem>
#include <optional>

#include "tutti/base/ceil_div.h"
#include "tutti/base/digits.h"
#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/read_file.h"
#include "tutti/base/timing.h"
#include "tutti/base/to_size.h"
#include "tutti/base/units.h"
#include "tutti/cli/command.h"
#include "tutti/cli/commands.h"
#include "tutti/cli/io.h"
#include "tutti/cli/stop_signals.h"
#include "tutti/data/data_set.h"
#include "tutti/data/text_stream.h"
#include "tutti/data/text_tokens.h"
#include "tutti/data/token_writer.h"
#include "tutti/spec/fields.h"
#include "tutti/text/bpe_trainer.h"
#include "tutti/text/tokenizer_json.h"

namespace tutti::cli {

namespace {

// `tutti data ...`
struct TrainTokenizerArguments {
    std::vector<std::string> files;     // UTF-8 text, or JSONL by name
    std::string field = "text";         // of a record
    std::string out;                    // tokenizer.json
    int64_t vocab = 4096;               // special tokens and the 256 bytes included
    std::string pretokenizer = "gpt2";  // gpt2, llama3 or qwen
    std::vector<std::string> special;   // have the first ids
    int64_t min_frequency = 2;
    int threads = 0;  // 0: all cores
};

struct TokenizeArguments {
    std::vector<std::string> files;  // text or JSONL
    std::string tokenizer = "bytes";
    std::string out;  // prefix of the files
    std::string format = "megatron";
    std::string input = "auto";  // text, jsonl; auto: by name
    std::string separator;       // between two documents, with \n, \t and \\; "": a file is one document
    std::string field = "text";  // field with the text of a JSONL record
    bool append_eod = false;
    std::string eod;  // id or text; "": the tokenizer's
    int threads = 0;  // 0: all cores
};

// Arguments of the commands that read token files.
struct TokenFileArguments {
    std::vector<std::string> files;
    std::string format = "auto";
    std::string tokenizer;  // inspect: shows the first tokens as text; JSONL: encodes the records
    std::string eod;        // inspect: end-of-document token, by id or text, for files without documents
    int64_t vocab = 0;      // verify: ids must be below it; 0: any id
};

// Replaces the escapes \n, \t and \\, which shells pass on as two characters.
std::string unescaped(const std::string& text) {
    std::string result;
    for (size_t i = 0; i < text.size(); ++i) {
        const char next = text[i] == '\\' && i + 1 < text.size() ? text[i + 1] : '\0';
        const bool known = next == 'n' || next == 't' || next == '\\';
        result += !known ? text[i] : next == 'n' ? '\n' : next == 't' ? '\t' : '\\';
        i += known;
    }
    return result;
}

std::optional<int32_t> eod_of(const TokenizeArguments& a, const text::Tokenizer& tokenizer) {
    if (!a.append_eod) return std::nullopt;
    std::optional<int32_t> id = parse_number<int32_t>(a.eod);
    if (!id) {
        id = a.eod.empty() ? tokenizer.special().eos : tokenizer.id_of(a.eod);
        check<UsageError>(id.has_value(),
                          a.eod.empty() ? "--append-eod: no file names the end-of-document token of "
                                        : concat("--eod ", a.eod, ": is neither an id nor a token of "),
                          tokenizer.description(), "; give --eod its id or text");
    }
    check<UsageError>(*id >= 0, "--eod ", a.eod, ": an id is 0 or more");
    return id;
}

// The progress of encoding, drawn on a terminal only. `total`: the size of all files, for a bar; 0: unknown.
class ProgressBar {
  public:
    ProgressBar(std::ostream& out, bool terminal, int64_t total) : out_(out), terminal_(terminal), total_(total) {}
    ~ProgressBar() {
        if (drawn_) out_ << "\r\033[K" << std::flush;
    }
    void at(int64_t stored, int64_t tokens) {
        const double now = seconds_now(), elapsed = now - begin_;
        if (!terminal_ || now - shown_ < 0.1) return;
        constexpr int64_t kWidth = 30;
        out_ << "\r\033[K";
        const double share = total_ > 0 ? static_cast<double>(stored) / static_cast<double>(total_) : 0;
        for (int64_t i = 0; total_ > 0 && i < kWidth; ++i)
            out_ << (static_cast<double>(i) < share * kWidth ? "━" : "╌");
        if (total_ > 0) out_ << ' ' << format_percent(share) << " of " << format_bytes(total_) << "  ";
        out_ << format_bytes(static_cast<double>(stored) / elapsed) << "/s  "
             << format_rate(static_cast<double>(tokens) / elapsed, "tok");
        if (total_ > 0) out_ << "  " << format_duration(elapsed / share - elapsed) << " left";
        out_ << std::flush;
        shown_ = now;
        drawn_ = true;
    }

  private:
    std::ostream& out_;
    bool terminal_;
    int64_t total_;
    double begin_ = seconds_now(), shown_ = begin_;
    bool drawn_ = false;
};

// The size of all files; 0 with standard input, whose size is unknown.
int64_t bytes_of(const std::vector<std::string>& files) {
    int64_t bytes = 0;
    std::error_code ignored;  // a file that is missing is reported when it is opened
    if (std::find(files.begin(), files.end(), data::kStandardInput) != files.end()) return 0;
    for (const std::string& file : files)
        if (const auto size = std::filesystem::file_size(file, ignored); !ignored) bytes += static_cast<int64_t>(size);
    return bytes;
}

// The files that match a glob pattern, sorted by name. The name of an existing file is not a pattern.
std::vector<std::string> matching(const std::string& word) {
    std::error_code ignored;
    if (word == data::kStandardInput || std::filesystem::exists(word, ignored)) return {word};
    if (word.find_first_of("*?[") == std::string::npos) return {word};  // reported when it is opened
    glob_t found{};
    const int result = ::glob(word.c_str(), GLOB_NOSORT, nullptr, &found);
    std::vector<std::string> files(found.gl_pathv, found.gl_pathv + (result == 0 ? found.gl_pathc : 0));
    ::globfree(&found);
    check<UsageError>(!files.empty(), word, ": no file has such a name");
    std::sort(files.begin(), files.end());
    return files;
}

// The end of a command that has not heard of a signal for a while: it waits for standard input, or encodes.
void leave(const StopSignals& signals, const data::TokenWriter& writer, const Io& io) {
    if (signals.signal() == SIGPIPE) return;
    writer.discard();
    io.err << concat("tutti: stopped by ", name_of_signal(signals.signal()), ": nothing is written\n") << std::flush;
    _exit(exit_codes::kPreempted);
}

void check_field(const std::string& field, bool jsonl) {
    check<UsageError>(jsonl || field == "text", "--field ", field, ": names a field of JSONL, and no file is JSONL");
}

int tokenize(const TokenizeArguments& a, const Io& io) {
    std::vector<std::string> files;
    for (const std::string& word : a.files)
        for (std::string& file : matching(word)) files.push_back(std::move(file));
    for (const std::string& file : files)
        for (const char* ending : {".bin", ".idx", ".mask", ".tokenizer"})
            check<UsageError>(!are_one_file(file, a.out + ending), "--out ", a.out, ": would write ", a.out, ending,
                              ", which is to be read; give another prefix");
    const auto tokenizer = text::make_tokenizer(a.tokenizer);
    data::FileEncoding encoding;
    encoding.format = data::is_jsonl(files, a.input) ? "jsonl" : "text";
    if (a.input == "auto" && encoding.format == "text")
        for (const std::string& file : files) data::check_is_text(file);
    encoding.field = a.field;
    encoding.separator = unescaped(a.separator);
    encoding.eod = eod_of(a, *tokenizer);
    encoding.affixes = true;
    encoding.threads = a.threads;
    warn_of_threads(io, a.threads);
    check<UsageError>(encoding.separator.empty() || encoding.format == "text",
                      "--separator is for text; the records of JSONL are its lines");
    check_field(a.field, encoding.format == "jsonl");

    const int64_t vocab = std::max<int64_t>(tokenizer->vocab(), encoding.eod.value_or(0) + 1);
    data::TokenWriter writer(a.format, a.out, vocab);
    const StopSignals signals([](int) {}, [&] { leave(signals, writer, io); });
    const int64_t total = bytes_of(files);
    const double begin = seconds_now();
    int64_t bytes = 0, stored = 0;
    {
        ProgressBar progress(io.text(), io.text_terminal(), total);
        data::encode_files(*tokenizer, files, encoding, [&](data::EncodedPiece&& piece) {
            signals.throw_if_requested();
            writer.append(piece);
            bytes += piece.bytes;
            progress.at(stored += piece.stored, writer.tokens());
        });
    }
    auto paths = writer.finish();
    data::write_tokenizer_identity(a.out, {tokenizer->fingerprint(), tokenizer->description()});
    paths.push_back(a.out + ".tokenizer");
    const double seconds = seconds_now() - begin;

    const auto rate = [seconds](int64_t n) { return static_cast<double>(n) / seconds; };
    if (io.json) {
        io.print(Json{{"out", paths},
                      {"format", a.format},
                      {"tokenizer", tokenizer->description()},
                      {"bytes", bytes},
                      {"tokens", writer.tokens()},
                      {"documents", writer.documents()},
                      {"masked_tokens", writer.masked_tokens()},
                      {"seconds", seconds},
                      {"bytes_per_s", rate(bytes)},
                      {"tokens_per_s", rate(writer.tokens())}});
        return 0;
    }
    io.out << writer.tokens() << " tokens of " << counted(writer.documents(), "document") << ", " << bytes
           << " bytes, in " << format_duration(seconds) << " (" << format_bytes(rate(bytes)) << "/s, "
           << format_rate(rate(writer.tokens()), "tok") << ")\n";
    io.out << "tokenizer: " << tokenizer->description() << '\n';
    if (writer.masked_tokens() > 0) io.out << writer.masked_tokens() << " prompt tokens are not targets\n";
    for (const std::string& path : paths) io.out << "wrote " << path << '\n';
    io.next({concat("tutti train CONFIG --set data.train=", quoted_for_shell(a.out),
                    " --set data.tokenizer=", quoted_for_shell(a.tokenizer), " --set model.vocab=", vocab)});
    return 0;
}

// The texts of JSONL records, or of a compressed file, read as by `tokenize`.
std::vector<std::string> texts_of(const std::string& path, const std::string& format,
                                  const TrainTokenizerArguments& a) {
    std::vector<std::string> texts;
    const auto take = [&](const data::EncodedPiece& piece) {
        auto begin = piece.begins.begin();
        for (size_t i = 0; i < piece.ids.size(); ++i) {
            for (; begin != piece.begins.end() && *begin == static_cast<int64_t>(i); ++begin) texts.emplace_back();
            texts.back() += static_cast<char>(piece.ids[i]);
        }
    };
    const auto bytes = text::make_tokenizer("bytes");
    data::encode_files(*bytes, {path}, {.format = format, .field = a.field, .threads = a.threads}, take);
    return texts;
}

int train_tokenizer(const TrainTokenizerArguments& a, const Io& io) {
    std::error_code ignored;
    const bool is_stream = std::filesystem::exists(a.out, ignored) && !std::filesystem::is_regular_file(a.out, ignored);
    check<UsageError>(a.out.ends_with(".json") || is_stream, "--out ", a.out,
                      ": data.tokenizer knows such a file by .json at the end of its name; give it a name like ", a.out,
                      ".json");
    warn_of_threads(io, a.threads);
    const auto is_jsonl = [](const std::string& path) { return data::is_jsonl({path}, "auto"); };
    check_field(a.field, std::ranges::any_of(a.files, is_jsonl));
    std::vector<MappedFile> files;
    std::vector<std::string> decoded;
    for (const std::string& path : a.files) {
        const bool jsonl = is_jsonl(path);
        if (!jsonl) data::check_is_text(path);
        const MappedFile& file = files.emplace_back(path);
        if (!jsonl && data::compression_of(file.text()).empty()) continue;
        files.pop_back();
        for (std::string& text : texts_of(path, jsonl ? "jsonl" : "text", a)) decoded.push_back(std::move(text));
    }
    std::vector<std::string_view> texts(decoded.begin(), decoded.end());
    for (const MappedFile& file : files) texts.push_back(data::without_byte_order_mark(file.text()));
    text::BpeTraining training{.vocab = a.vocab,
                               .split = text::split_kind_named(a.pretokenizer).value(),
                               .special = a.special,
                               .min_frequency = a.min_frequency,
                               .threads = a.threads};
    std::ostream& text = io.text();
    const bool terminal = io.text_terminal();
    training.status = [&](const std::string& line) {
        if (terminal) text << "\r\033[K" << line << std::flush;
    };
    const double begin = seconds_now();
    const text::ByteLevelModel model = text::train_bpe(texts, training);
    const double seconds = seconds_now() - begin;
    training.status("");
    write_file("--out", a.out, text::tokenizer_json(model));

    int64_t bytes = 0, tokens = 0;
    const text::ByteLevelTokenizer tokenizer(model, a.out);
    for (const std::string_view t : texts) {
        bytes += static_cast<int64_t>(t.size());
        tokens += static_cast<int64_t>(text::encode_text(tokenizer, t, a.threads).size());
    }
    const double bytes_per_token = tokens > 0 ? static_cast<double>(bytes) / static_cast<double>(tokens) : 0;
    if (io.json) {
        io.print(Json{{"out", a.out},
                      {"vocab", tokenizer.vocab()},
                      {"merges", model.merges.size()},
                      {"bytes", bytes},
                      {"tokens", tokens},
                      {"bytes_per_token", bytes_per_token},
                      {"seconds", seconds}});
        return 0;
    }
    io.out << a.out << ": " << tokenizer.vocab() << " tokens learnt from " << bytes << " bytes in "
           << format_time(seconds) << ", which become " << tokens << " tokens (" << format_fixed(bytes_per_token, 2)
           << " bytes each)\n";
    if (tokenizer.vocab() < a.vocab)
        io.out << "--vocab " << a.vocab << " was not reached: no other pair occurs " << a.min_frequency
               << " times or more\n";
    io.next({concat("tutti train CONFIG --set data.tokenizer=", quoted_for_shell(a.out),
                    " --set model.vocab=", tokenizer.vocab())});
    return 0;
}

// --- inspect, verify ------------------------------------------------------------------------------------------------

constexpr int64_t kChunk = 1 << 20;  // tokens
constexpr int64_t kFirstTokens = 16;

std::shared_ptr<const data::TokenSource> open_file(const std::string& file, const TokenFileArguments& a) {
    if (!data::is_jsonl({file}, a.format)) return data::open_tokens({file}, a.format);
    const auto tokenizer = text::make_tokenizer(a.tokenizer.empty() ? "bytes" : a.tokenizer);
    return data::open_records({file}, *tokenizer, {.encode = {.write = false}});
}

// Lengths of documents by powers of two: bucket k counts lengths in [2^k, 2^(k+1)).
struct Lengths {
    std::array<int64_t, 63> buckets{};
    int64_t documents = 0, shortest = 0, longest = 0;

    void add(int64_t length) {
        ++buckets[to_size(std::bit_width(static_cast<uint64_t>(length)) - 1)];
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
    if (const auto id = parse_number<int32_t>(a.eod)) return id;
    const auto found = a.tokenizer.empty() ? std::nullopt : text::make_tokenizer(a.tokenizer)->id_of(a.eod);
    check<UsageError>(found.has_value(), "--eod ", a.eod, ": must be an id, or a token of --tokenizer");
    return found;
}

// Reads all tokens of a file. DataError for an id outside [0, vocab).
Content read_all(const std::string& file, const TokenFileArguments& a, int64_t vocab) {
    const auto source = open_file(file, a);
    check<UsageError>(a.eod.empty() || !source->knows_documents(), "--eod ", a.eod, ": has no effect on ", file, ", a ",
                      source->format(), " file that says where its documents begin; leave --eod out");
    const int64_t size = source->size();
    const data::TokenView view(source, 0, size, vocab, {.respected = true, .eod = eod_of(a)});
    Content content{.file = file, .format = std::string(source->format()), .tokens = size, .masked = {}};
    if (source->has_mask()) content.masked = 0;
    int64_t document = 0;
    std::vector<int32_t> ids;
    std::vector<uint8_t> counts;
    for (int64_t at = 0; at < size; at += kChunk) {
        // Includes the last token of the previous chunk, to detect a document that begins with this chunk.
        const int64_t before = at > 0 ? 1 : 0, count = std::min(kChunk, size - at);
        ids.resize(to_size(before + count));
        view.read(at - before, ids);
        for (const int32_t id : ids) content.largest = std::max<int64_t>(content.largest, id);
        for (const int64_t begin : view.document_begins(at - before, ids)) {
            content.lengths.add(at - before + begin - document);
            document = at - before + begin;
        }
        if (at == 0) content.first.assign(ids.begin(), ids.begin() + std::min(kFirstTokens, count));
        if (!content.masked) continue;
        counts.resize(to_size(count));
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
    if (c.masked) line("masked", concat(*c.masked, " tokens are not targets"));
    line("largest id", concat(c.largest, ", so the vocabulary has ", c.largest + 1, " or more"));
    line("documents", concat(c.lengths.documents, ", of ", c.lengths.shortest, " to ", c.lengths.longest, " tokens"));
    const int64_t most = *std::max_element(c.lengths.buckets.begin(), c.lengths.buckets.end());
    for (size_t k = 0; k < c.lengths.buckets.size(); ++k) {
        const int64_t count = c.lengths.buckets[k];
        if (count == 0 || c.lengths.documents < 2) continue;
        std::string bar;
        for (int64_t i = 0; i < ceil_div(40 * count, most); ++i) bar += "━";
        const uint64_t from = uint64_t{1} << k;
        out << "  " << right(concat(from, " .. ", 2 * from - 1), 24) << "  " << right(std::to_string(count), 10) << ' '
            << bar << '\n';
    }
    line("first tokens", joined(c.first, " "));
    if (!c.text.empty()) line("as text", Json(c.text).dump(-1, Json::InvalidUtf8::replace));
}

int inspect_data(const TokenFileArguments& a, const Io& io) {
    const auto tokenizer = a.tokenizer.empty() ? nullptr : text::make_tokenizer(a.tokenizer);
    Json files = Json::array();
    for (const std::string& file : a.files) {
        Content content = read_all(file, a, int64_t{1} << 31);
        if (tokenizer) content.text = tokenizer->decode(content.first);
        if (io.json)
            files.push_back(describe(content));
        else
            print(content, io.out);
    }
    io.print(Json{{"files", files}});
    return 0;
}

int verify_data(const TokenFileArguments& a, const Io& io) {
    const auto is_jsonl = [&a](const std::string& file) { return data::is_jsonl({file}, a.format); };
    check<UsageError>(a.tokenizer.empty() || std::ranges::any_of(a.files, is_jsonl), "--tokenizer ", a.tokenizer,
                      ": encodes the records of JSONL, and no file is JSONL; leave --tokenizer out");
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
        if (!io.json)
            io.out << file << ": sound: " << content.format << ", " << content.tokens << " tokens, "
                   << counted(content.lengths.documents, "document") << ", largest id " << content.largest << " ("
                   << format_rate(rate, "tok") << ")\n";
    }
    io.print(Json{{"sound", true}, {"files", files}});
    return 0;
}

// --- options --------------------------------------------------------------------------------------------------------

Command train_tokenizer_command(Arguments& all, const Io& io) {
    auto& a = all.add<TrainTokenizerArguments>();
    const Options options = {
        required({"FILE", "...", "", "text or *.jsonl to learn from, also .gz or .zst", &a.files, kPath}),
        {"--field", "NAME", "text", "JSONL: field with the text of a record", &a.field},
        {"--vocab", "N", "4096", "number of tokens, special tokens and the 256 bytes included", &a.vocab,
         Between{256, 1 << 24}},
        required({"--out", "FILE", "", "the tokenizer, such as tokenizer.json", &a.out, kOutput}),
        {"--pretokenizer", "KIND", "", "rule that splits text into words: [gpt2], llama3 or qwen", &a.pretokenizer,
         Choices{"gpt2", "llama3", "qwen"}},
        {"--special", "TOKEN", "", "special token such as <|endoftext|>; text is split at it; repeatable", &a.special},
        {"--min-frequency", "N", "2", "occurrences that a pair needs to be merged", &a.min_frequency,
         Between{1, int64_t{1} << 40}},
        threads_option(a.threads)};
    return command_of("train-tokenizer", "learn a byte-level BPE from text", a, io, train_tokenizer, options,
                      "Example:\n  tutti data train-tokenizer corpus.txt --vocab 4096 --out tokenizer.json");
}

Command tokenize_command(Arguments& all, const Io& io) {
    auto& a = all.add<TokenizeArguments>();
    const Options options = {
        required(
            {"FILE", "...", "", "text or JSONL, also .gz or .zst; a 'pattern'; - is standard input", &a.files, kPath}),
        {"--tokenizer", "T", "", "[bytes], a tokenizer.json, a *.model, or a directory with one", &a.tokenizer,
         Suggestions{{"bytes"}, true}},
        required(
            {"--out", "PREFIX", "", "write PREFIX.bin and, where needed, PREFIX.idx and PREFIX.mask", &a.out, kPath}),
        {"--format", "F", "", "[megatron], nanogpt or llmc", &a.format, Choices{"nanogpt", "llmc", "megatron"}},
        {"--input", "KIND", "", "text, jsonl or [auto], by the name of a file", &a.input,
         Choices{"auto", "text", "jsonl"}},
        {"--separator", "TEXT", "", "text between two documents, \\n for a newline [a file is a document]",
         &a.separator},
        {"--field", "NAME", "", "JSONL: field with the text of a record [text]", &a.field},
        {"--append-eod", "", "", "end each document with the end-of-document token", &a.append_eod},
        {"--eod", "TOKEN", "", "end-of-document token, by id or text [the tokenizer's]", &a.eod, {}, {"--append-eod"}},
        threads_option(a.threads)};
    return command_of(
        "tokenize", "encode text or JSONL to a token file", a, io, tokenize, options,
        "Examples:\n"
        "  tutti data tokenize corpus.jsonl --tokenizer llama3/ --out corpus --append-eod\n"
        "  tutti data tokenize a.txt b.txt --tokenizer gpt2/tokenizer.json --eod '<|endoftext|>' \\\n"
        "      --append-eod --separator '\\n\\n' --out train --format nanogpt\n"
        "  tutti data tokenize 'shards/*.jsonl.zst' --tokenizer llama3/ --out corpus --append-eod\n"
        "  duckdb -c \"copy (select text from 'a.parquet') to '/dev/stdout' (format json)\" | \\\n"
        "      tutti data tokenize - --input jsonl --tokenizer llama3/ --out corpus --append-eod\n\n"
        "The files do not depend on the number of threads. In records {\"prompt\", \"completion\"} the prompt\n"
        "is input only: PREFIX.mask leaves its tokens out of the loss.");
}

Option token_files_option(TokenFileArguments& a) {
    return required({"FILE", "...", "", "token files, Megatron prefixes, text or JSONL", &a.files, kPath});
}

Option format_option(TokenFileArguments& a) {
    return {"--format", "F", "auto", joined(spec::data_formats()), &a.format, spec::data_formats()};
}

Command inspect_tokens_command(Arguments& all, const Io& io) {
    auto& a = all.add<TokenFileArguments>();
    const Options options = {
        token_files_option(a),
        format_option(a),
        {"--tokenizer", "T", "", "also show the first tokens as text", &a.tokenizer, kPath},
        {"--eod", "TOKEN", "", "end-of-document token, by id or text, for files without documents", &a.eod}};
    return command_of("inspect", "show tokens, documents and lengths of token files", a, io, inspect_data, options,
                      "Example:\n  tutti data inspect corpus.bin --tokenizer llama3/");
}

Command verify_tokens_command(Arguments& all, const Io& io) {
    auto& a = all.add<TokenFileArguments>();
    const Options options = {
        token_files_option(a),
        {"--vocab", "N", "", "size of the vocabulary; ids must be below it", &a.vocab, Between{1, int64_t{1} << 31}},
        format_option(a),
        {"--tokenizer", "T", "", "tokenizer of JSONL records [bytes]", &a.tokenizer, kPath}};
    return command_of("verify", "read token files and check every id", a, io, verify_data, options,
                      "Example:\n  tutti data verify corpus.bin --vocab 128256\n\n"
                      "Exit code 3 with file and offset of the first error.");
}

}  // namespace

Command data_command(Arguments& all, const Io& io) {
    return {.name = "data",
            .description = "make, inspect and check token files and tokenizers",
            .commands = {tokenize_command(all, io), inspect_tokens_command(all, io), verify_tokens_command(all, io),
                         train_tokenizer_command(all, io)}};
}

}  // namespace tutti::cli
