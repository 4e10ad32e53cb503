// data/encode_files.cpp: a Cutter divides the files into numbered jobs; threads encode them and deliver their pieces in
// order. A thread holds at most one piece and the Cutter a few more: memory grows with the longest record only.
#include "tutti/data/encode_files.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/refused.h"
#include "tutti/base/to_size.h"
#include "tutti/data/text_stream.h"
#include "tutti/text/parallel.h"

namespace tutti::data {

namespace {

constexpr size_t kPieceBytes = 256 << 10;  // small enough for an even division, large enough to amortise the locks

// A cut looks at most at one character behind it, and at a run of spaces that ends in what it sees.
constexpr size_t kSeenBehindCut = 64;

// Text of one document, or a part of one.
struct Job {
    std::string_view path;
    int64_t line;  // of the file, JSONL
    std::string text;
    bool begins, ends;  // the document
};

// Cuts the files into jobs, in order.
class Cutter {
  public:
    Cutter(const text::Tokenizer& tokenizer, const std::vector<std::string>& paths, const FileEncoding& options)
        : tokenizer_(tokenizer), options_(options), paths_(paths) {
        // Reports a missing file before the first one is encoded.
        for (const std::string& path : paths)
            if (path != kStandardInput) open_text_stream(path);
        check<UsageError>(std::count(paths.begin(), paths.end(), kStandardInput) <= 1,
                          "standard input (-) can be read once only");
    }

    // Jobs of about kPieceBytes together; an empty list after the last. `bytes` and `stored`: size of these jobs with
    // what separates them, and bytes of the files that were read for them.
    std::vector<Job> next(int64_t& bytes, int64_t& stored) {
        std::vector<Job> jobs;
        bytes = stored = 0;
        while (bytes < static_cast<int64_t>(kPieceBytes) && file_ < paths_.size()) {
            if (!stream_) open();
            bytes += static_cast<int64_t>(take(jobs));
            if (rest().empty() && !read_more()) close();
        }
        stored = std::exchange(stored_, 0);
        return jobs;
    }

  private:
    void open() {
        stream_ = open_text_stream(paths_[file_]);
        buffer_.clear();
        at_ = 0;
        line_ = 1;
        begins_ = true;
        ended_ = false;
        counted_ = 0;
        read_more();
        at_ = buffer_.size() - without_byte_order_mark(buffer_).size();
        check<DataError>(!rest().empty(), paths_[file_], ": has no byte of text");
    }
    void close() {
        stream_ = nullptr;
        ++file_;
    }
    std::string_view rest() const { return std::string_view(buffer_).substr(at_); }

    // Doubles the buffer, so that repeated searches take linear time. False at the end.
    bool read_more() {
        buffer_.erase(0, at_);
        at_ = 0;
        const size_t before = buffer_.size(), wanted = before + std::max(before, kPieceBytes);
        buffer_.resize(wanted);
        size_t filled = before;
        for (size_t got = 1; filled < wanted && got > 0; filled += got)
            got = stream_->read(buffer_.data() + filled, wanted - filled);
        buffer_.resize(filled);
        stored_ += stream_->stored() - counted_;
        counted_ = stream_->stored();
        ended_ = filled < wanted;
        return filled > before;
    }

    // What the buffer holds of the document that begins or continues at at_, and whether that is all of it.
    struct Seen {
        std::string_view text;
        bool whole, separated;  // a separator follows
    };
    Seen document() const {
        const std::string_view separator = this->separator();
        const size_t end = separator.empty() ? std::string_view::npos : rest().find(separator);
        if (end != std::string_view::npos) return {rest().substr(0, end), true, true};
        if (ended_) return {rest(), true, false};
        const size_t maybe_separator = separator.empty() ? 0 : std::min(rest().size(), separator.size() - 1);
        return {rest().substr(0, rest().size() - maybe_separator), false, false};
    }
    std::string_view separator() const {
        return options_.format == "jsonl" ? "\n" : std::string_view(options_.separator);
    }

    // Takes the next document, or a part of a long one, from the buffer. Returns the number of its bytes, separator
    // included.
    size_t take(std::vector<Job>& jobs) {
        const bool records = options_.format == "jsonl";
        Seen seen = document();
        size_t size = 0;
        for (;; read_more(), seen = document()) {
            size = seen.text.size();
            if (seen.whole && (records || size <= kPieceBytes)) break;
            if (records || size <= kPieceBytes) continue;
            size = tokenizer_.safe_cut(seen.text, kPieceBytes);
            if (seen.whole || size + kSeenBehindCut <= seen.text.size()) break;
        }
        const std::string_view text = seen.text.substr(0, size);
        const bool ends = seen.whole && size == seen.text.size();
        const bool blank = records && text.find_first_not_of(" \t\r") == std::string_view::npos;
        if (!text.empty() && !blank) jobs.push_back({paths_[file_], line_, std::string(text), begins_, ends});
        if (ends && seen.separated) size += separator().size();
        at_ += size;
        line_ += ends ? 1 : 0;
        begins_ = ends;
        return size;
    }

    const text::Tokenizer& tokenizer_;
    const FileEncoding& options_;
    const std::vector<std::string>& paths_;
    std::unique_ptr<TextStream> stream_;  // of the current file
    size_t file_ = 0;
    std::string buffer_;
    size_t at_ = 0;  // in the buffer: of the first byte that is in no job yet
    int64_t line_ = 1;
    int64_t stored_ = 0;   // bytes of the files that were read since the last jobs
    int64_t counted_ = 0;  // of the current file, in this or an earlier stored_
    bool begins_ = true;   // a document begins there
    bool ended_ = false;   // the buffer holds the rest of the file
};

// A record's texts: the first one may be input only.
struct Record {
    std::string prompt, text;
};

// "corpus.jsonl:12"
std::string place(const Job& job) {
    return concat(job.path == kStandardInput ? "standard input" : job.path, ":", job.line);
}

Record parsed(const Job& job, const std::string& field) {
    Json json;
    try {
        json = Json::parse(job.text);
    } catch (const JsonError& error) {
        throw DataError(concat(place(job), ":", error.byte + 1,
                               ": each line of JSONL must be one JSON object, this one is not: ", error.reason));
    }
    if (!json.is_object())
        throw DataError(
            concat(place(job), ": each line of JSONL must be a JSON object, this one is of type ", json.type_name()));
    const auto text_of = [&](const std::string& key) {
        const auto& value = json.at(key);
        if (!value.is_string())
            throw DataError(concat(place(job), ": \"", key, "\" must be a text, is of type ", value.type_name()));
        return value.get<std::string>();
    };
    const bool has_prompt = json.contains("prompt") && json.contains("completion");
    const bool one_of_them = field == "prompt" || field == "completion";  // asked for by name
    if (json.contains(field) && has_prompt && !one_of_them)
        throw DataError(concat(place(job), ": a record has the field \"", field, "\", or \"prompt\" and \"completion\"",
                               "; it has all three, of which only the first would count all tokens as targets: leave ",
                               "\"", field, "\" or the other two out"));
    if (json.contains(field)) return {"", text_of(field)};
    if (has_prompt) return {text_of("prompt"), text_of("completion")};
    const std::string keys = joined(json.items(), ", ", &Json::Member::key);
    throw DataError(concat(place(job), ": a record needs the field \"", field,
                           "\", or \"prompt\" and \"completion\"; it has ", keys.empty() ? "none" : keys,
                           "; data.text_field (of `tutti data`: --field) names the field of the text"));
}

class PieceEncoder {
  public:
    PieceEncoder(const text::Tokenizer& tokenizer, const FileEncoding& options)
        : tokenizer_(tokenizer), options_(options), encoder_(tokenizer.make_encoder()) {
        if (options.affixes) prefix_ = tokenizer.prefix(), suffix_ = tokenizer.suffix();
        // The tokenizer's suffix may end with the same token.
        if (options.eod && (suffix_.empty() || suffix_.back() != *options.eod)) suffix_.push_back(*options.eod);
    }

    void encode(const std::vector<Job>& jobs, EncodedPiece& piece) {
        for (const Job& job : jobs) {
            const auto begin = static_cast<int64_t>(piece.ids.size());
            if (job.begins) piece.ids.insert(piece.ids.end(), prefix_.begin(), prefix_.end());
            if (options_.format == "jsonl") {
                const Record record = parsed(job, options_.field);
                encoder_->encode(record.prompt + record.text, piece.ids);
                if (!record.prompt.empty()) mask_prompt(piece, begin, record.prompt);
            } else {
                job.begins ? encoder_->encode(job.text, piece.ids) : encoder_->encode_rest(job.text, piece.ids);
            }
            if (job.ends) piece.ids.insert(piece.ids.end(), suffix_.begin(), suffix_.end());
            if (job.begins && static_cast<int64_t>(piece.ids.size()) > begin) piece.begins.push_back(begin);
        }
        if (!piece.loss_mask.empty()) piece.loss_mask.resize(piece.ids.size(), 1);
    }

  private:
    // Masks the prompt's tokens in the record that begins at `begin`. A token that spans prompt and completion is a
    // target.
    void mask_prompt(EncodedPiece& piece, int64_t begin, const std::string& prompt) {
        prompt_ids_.clear();
        encoder_->encode(prompt, prompt_ids_);
        std::string text;  // of the prompt, as the tokenizer shows it
        for (const int32_t id : prompt_ids_) text += tokenizer_.piece(id);
        auto at = to_size(begin) + prefix_.size();
        for (std::string_view rest = text; at < piece.ids.size(); ++at) {
            const std::string shown = tokenizer_.piece(piece.ids[at]);
            if (shown.empty() ? rest.empty() : !rest.starts_with(shown)) break;
            rest.remove_prefix(shown.size());
        }
        piece.loss_mask.resize(to_size(begin), 1);
        piece.loss_mask.resize(at, 0);
        piece.loss_mask.resize(piece.ids.size(), 1);
    }

    const text::Tokenizer& tokenizer_;
    const FileEncoding& options_;
    std::unique_ptr<text::Encoder> encoder_;
    std::vector<int32_t> prompt_ids_;
    std::vector<int32_t> prefix_, suffix_;
};

// Hands out jobs, and delivers their results in the same order.
class OrderedWork {
  public:
    OrderedWork(Cutter& cutter, const std::function<void(EncodedPiece&&)>& sink) : cutter_(cutter), sink_(sink) {}

    void run(const text::Tokenizer& tokenizer, const FileEncoding& options) {
        PieceEncoder encoder(tokenizer, options);
        for (;;) {
            std::vector<Job> jobs;
            int64_t ticket = 0;
            std::exception_ptr failure;
            EncodedPiece piece;
            try {
                const std::lock_guard lock(handing_out_);
                ticket = handed_out_++;
                jobs = cutter_.next(piece.bytes, piece.stored);
                if (jobs.empty() && piece.bytes == 0) return;
            } catch (...) {
                failure = std::current_exception();
            }
            try {
                if (!failure) encoder.encode(jobs, piece);
            } catch (...) {
                failure = std::current_exception();
            }
            if (!deliver(ticket, std::move(piece), failure)) return;
        }
    }
    void rethrow() const {
        if (failure_) std::rethrow_exception(failure_);
    }

  private:
    // Waits for all earlier pieces. False when this or an earlier piece failed.
    bool deliver(int64_t ticket, EncodedPiece&& piece, std::exception_ptr failure) {
        std::unique_lock lock(taking_);
        turn_.wait(lock, [&] { return taken_ == ticket || failure_; });
        if (!failure_ && !failure) {
            try {
                sink_(std::move(piece));
            } catch (...) {
                failure = std::current_exception();
            }
        }
        if (!failure_) failure_ = failure;
        ++taken_;
        turn_.notify_all();
        return !failure_;
    }

    Cutter& cutter_;
    const std::function<void(EncodedPiece&&)>& sink_;
    std::mutex handing_out_, taking_;
    std::condition_variable turn_;
    int64_t handed_out_ = 0, taken_ = 0;
    std::exception_ptr failure_;
};

}  // namespace

void encode_files(const text::Tokenizer& tokenizer, const std::vector<std::string>& paths, const FileEncoding& options,
                  const std::function<void(EncodedPiece&&)>& sink) {
    check<UsageError>(options.format == "text" || options.format == "jsonl", "text can be read as text or jsonl, got ",
                      options.format);
    Cutter cutter(tokenizer, paths, options);
    OrderedWork work(cutter, sink);
    {
        const int threads = text::threads_for(options.threads, std::numeric_limits<size_t>::max());
        std::vector<std::jthread> helpers;
        for (int t = 1; t < threads; ++t)
            helpers.push_back(start_thread<std::jthread>("encodes text", [&] { work.run(tokenizer, options); }));
        work.run(tokenizer, options);
    }
    work.rethrow();
}

}  // namespace tutti::data
