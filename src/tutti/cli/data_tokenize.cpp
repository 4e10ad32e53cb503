// cli/data_tokenize.cpp: `tutti data tokenize`: encode_files into a TokenWriter, with progress on a terminal.
#include <algorithm>
#include <charconv>
#include <filesystem>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/timing.h"
#include "tutti/base/units.h"
#include "tutti/cli/commands.h"
#include "tutti/data/text_tokens.h"
#include "tutti/data/token_writer.h"

namespace tutti::cli {

namespace {

// \n, \t and \\ as the character; shells pass them on as two.
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

std::optional<int32_t> eod_of(const TokenizeArguments& a, const data::Tokenizer& tokenizer) {
    check<UsageError>(a.append_eod || a.eod.empty(), "--eod names a token that --append-eod appends; give both");
    if (!a.append_eod) return std::nullopt;
    int32_t id = -1;
    const auto [stop, error] = std::from_chars(a.eod.data(), a.eod.data() + a.eod.size(), id);
    if (a.eod.empty() || error != std::errc() || stop != a.eod.data() + a.eod.size()) {
        const auto found = a.eod.empty() ? tokenizer.special().eos : tokenizer.id_of(a.eod);
        check<UsageError>(found.has_value(),
                          a.eod.empty() ? "--append-eod: no file names the end-of-document token of "
                                        : concat("--eod ", a.eod, ": is neither an id nor a token of "),
                          tokenizer.description(), "; give --eod its id or text");
        id = *found;
    }
    check<UsageError>(id >= 0, "--eod ", a.eod, ": an id is 0 or more");
    return id;
}

// Lines that overwrite each other, on a terminal only.
class Progress {
  public:
    Progress(std::ostream& out, bool terminal, int64_t total) : out_(out), terminal_(terminal), total_(total) {}
    ~Progress() {
        if (drawn_) out_ << "\r\033[K" << std::flush;
    }
    void at(int64_t bytes, int64_t tokens) {
        const double now = seconds_now(), elapsed = now - begin_;
        if (!terminal_ || now - shown_ < 0.1) return;
        constexpr int64_t kWidth = 30;
        const double share = static_cast<double>(bytes) / static_cast<double>(std::max<int64_t>(total_, 1));
        std::string bar;
        for (int64_t i = 0; i < kWidth; ++i) bar += static_cast<double>(i) < share * kWidth ? "━" : "╌";
        out_ << "\r\033[K" << bar << ' ' << format_percent(share) << " of " << format_bytes(total_) << "  "
             << format_bytes(static_cast<int64_t>(static_cast<double>(bytes) / elapsed)) << "/s  "
             << format_rate(static_cast<double>(tokens) / elapsed, "tok") << "  "
             << format_duration(elapsed / share - elapsed) << " left" << std::flush;
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

int64_t bytes_of(const std::vector<std::string>& files) {
    int64_t bytes = 0;
    std::error_code ignored;  // a file that is missing is reported when it is opened
    for (const std::string& file : files)
        if (const auto size = std::filesystem::file_size(file, ignored); !ignored) bytes += static_cast<int64_t>(size);
    return bytes;
}

}  // namespace

int tokenize(const TokenizeArguments& a, const Io& io) {
    const auto tokenizer = data::make_tokenizer(a.tokenizer);
    data::FileEncoding encoding;
    encoding.format = data::is_jsonl(a.files, a.input) ? "jsonl" : "text";
    encoding.field = a.field;
    encoding.separator = unescaped(a.separator);
    encoding.eod = eod_of(a, *tokenizer);
    encoding.affixes = true;
    encoding.threads = a.threads;
    warn_of_threads(io, a.threads);
    check<UsageError>(encoding.separator.empty() || encoding.format == "text",
                      "--separator is for text; the records of JSONL are its lines");

    data::TokenWriter writer(a.format, a.out, std::max<int64_t>(tokenizer->vocab(), encoding.eod.value_or(0) + 1));
    const int64_t total = bytes_of(a.files);
    const double begin = seconds_now();
    int64_t bytes = 0;
    {
        Progress progress(io.text(a.json), io.text_terminal(a.json), total);
        data::encode_files(*tokenizer, a.files, encoding, [&](data::EncodedPiece&& piece) {
            writer.append(piece);
            progress.at(bytes += piece.bytes, writer.tokens());
        });
    }
    const auto paths = writer.finish();
    const double seconds = seconds_now() - begin;

    const auto rate = [seconds](int64_t n) { return static_cast<double>(n) / seconds; };
    if (a.json) {
        const Json document = {{"out", paths},
                               {"format", a.format},
                               {"tokenizer", tokenizer->description()},
                               {"bytes", bytes},
                               {"tokens", writer.tokens()},
                               {"documents", writer.documents()},
                               {"masked_tokens", writer.only_read()},
                               {"seconds", seconds},
                               {"bytes_per_s", rate(bytes)},
                               {"tokens_per_s", rate(writer.tokens())}};
        io.out << document.dump(2, Json::InvalidUtf8::replace) << '\n';
        return 0;
    }
    io.out << writer.tokens() << " tokens of " << writer.documents() << " documents, " << bytes << " bytes, in "
           << format_duration(seconds) << " (" << format_bytes(static_cast<int64_t>(rate(bytes))) << "/s, "
           << format_rate(rate(writer.tokens()), "tok") << ")\n";
    if (writer.only_read() > 0) io.out << writer.only_read() << " tokens of prompts are no targets\n";
    for (const std::string& path : paths) io.out << "wrote " << path << '\n';
    return 0;
}

}  // namespace tutti::cli
