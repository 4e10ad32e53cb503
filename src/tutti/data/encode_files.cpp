// data/encode_files.cpp: a Cutter divides the files into numbered jobs, threads encode them, and each thread delivers
// its piece when all earlier ones are delivered. A thread holds at most one piece, so memory does not grow with the
// files.
#include "tutti/data/encode_files.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/read_file.h"

namespace tutti::data {

namespace {

constexpr size_t kPieceBytes = 256 << 10;  // small enough for an even division, large enough to amortise the hand-over

// Text of one document, or a part of one.
struct Job {
    const MappedFile* file;
    std::string_view text;
    bool begins, ends;  // the document
    int64_t offset() const { return reinterpret_cast<const std::byte*>(text.data()) - file->bytes().data(); }
};

// Cuts the files into jobs, in order.
class Cutter {
  public:
    Cutter(const Tokenizer& tokenizer, const std::vector<std::string>& paths, const FileEncoding& options)
        : tokenizer_(tokenizer), options_(options) {
        for (const std::string& path : paths) files_.emplace_back(path);
    }

    // Jobs of about kPieceBytes together; an empty list after the last. `bytes`: size of these jobs in the files.
    std::vector<Job> next(int64_t& bytes) {
        std::vector<Job> jobs;
        bytes = 0;
        while (bytes < static_cast<int64_t>(kPieceBytes) && file_ < files_.size()) {
            if (rest_.data() == nullptr) open();
            const size_t before = rest_.size() + document_.size();
            take(jobs);
            bytes += static_cast<int64_t>(before - rest_.size() - document_.size());
            if (rest_.empty() && document_.empty()) {
                ++file_;
                rest_ = {};
            }
        }
        return jobs;
    }

  private:
    void open() {
        const auto bytes = files_[file_].bytes();
        files_[file_].check_not_truncated();
        rest_ = {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    }
    // Moves the next document, without its separator, from rest_ to document_.
    void find_document() {
        const std::string_view separator = options_.format == "jsonl" ? "\n" : std::string_view(options_.separator);
        const size_t end = separator.empty() ? std::string_view::npos : rest_.find(separator);
        document_ = rest_.substr(0, end);
        rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end + separator.size());
        begins_ = true;
    }
    void take(std::vector<Job>& jobs) {
        if (document_.empty()) find_document();
        const bool whole = options_.format == "jsonl" || document_.size() <= kPieceBytes;
        const size_t size = whole ? document_.size() : tokenizer_.safe_cut(document_, kPieceBytes);
        const std::string_view text = document_.substr(0, size);
        document_.remove_prefix(size);
        const bool blank = options_.format == "jsonl" && text.find_first_not_of(" \t\r") == std::string_view::npos;
        if (!text.empty() && !blank) jobs.push_back({&files_[file_], text, begins_, document_.empty()});
        begins_ = false;
    }

    const Tokenizer& tokenizer_;
    const FileEncoding& options_;
    std::vector<MappedFile> files_;
    size_t file_ = 0;
    std::string_view rest_, document_;  // of the file: after the current document; of that document: not yet cut
    bool begins_ = false;               // document_ is still whole
};

// A record's texts: the first one may be input only.
struct Record {
    std::string prompt, text;
};

// "corpus.jsonl:12". For errors only: the lines of the file before it are counted.
std::string place(const Job& job) {
    const auto* begin = reinterpret_cast<const char*>(job.file->bytes().data());
    return concat(job.file->path(), ":", 1 + std::count(begin, begin + job.offset(), '\n'));
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
    if (json.contains(field)) return {"", text_of(field)};
    if (json.contains("prompt") && json.contains("completion")) return {text_of("prompt"), text_of("completion")};
    const std::string keys = joined(json.items(), ", ", &Json::Member::key);
    throw DataError(concat(place(job), ": a record needs the field \"", field,
                           "\", or \"prompt\" and \"completion\"; it has ", keys.empty() ? "none" : keys,
                           "; data.text_field (of `tutti data`: --field) names the field of the text"));
}

class PieceEncoder {
  public:
    PieceEncoder(const Tokenizer& tokenizer, const FileEncoding& options)
        : tokenizer_(tokenizer), options_(options), encoder_(tokenizer.make_encoder()) {
        if (options.affixes) prefix_ = tokenizer.prefix(), suffix_ = tokenizer.suffix();
        // The tokenizer's suffix may end with the same token.
        if (options.eod && (suffix_.empty() || suffix_.back() != *options.eod)) suffix_.push_back(*options.eod);
    }

    EncodedPiece encode(const std::vector<Job>& jobs) {
        EncodedPiece piece;
        for (const Job& job : jobs) {
            const auto begin = static_cast<int64_t>(piece.ids.size());
            if (job.begins) piece.ids.insert(piece.ids.end(), prefix_.begin(), prefix_.end());
            if (options_.format == "jsonl") {
                const Record record = parsed(job, options_.field);
                encoder_->encode(record.prompt + record.text, piece.ids);
                if (!record.prompt.empty()) only_read(piece, begin, record.prompt);
            } else {
                job.begins ? encoder_->encode(job.text, piece.ids) : encoder_->encode_rest(job.text, piece.ids);
            }
            if (job.ends) piece.ids.insert(piece.ids.end(), suffix_.begin(), suffix_.end());
            if (job.begins && static_cast<int64_t>(piece.ids.size()) > begin) piece.begins.push_back(begin);
        }
        if (!piece.counted.empty()) piece.counted.resize(piece.ids.size(), 1);
        return piece;
    }

  private:
    // The tokens of the record that begins at `begin` do not count as targets as far as they stand for the prompt. A
    // token that reaches from the prompt into the completion does.
    void only_read(EncodedPiece& piece, int64_t begin, const std::string& prompt) {
        prompt_ids_.clear();
        encoder_->encode(prompt, prompt_ids_);
        std::string text;  // of the prompt, as the tokenizer shows it
        for (const int32_t id : prompt_ids_) text += tokenizer_.piece(id);
        auto at = static_cast<size_t>(begin) + prefix_.size();
        for (std::string_view rest = text; at < piece.ids.size(); ++at) {
            const std::string shown = tokenizer_.piece(piece.ids[at]);
            if (shown.empty() ? rest.empty() : !rest.starts_with(shown)) break;
            rest.remove_prefix(shown.size());
        }
        piece.counted.resize(static_cast<size_t>(begin), 1);
        piece.counted.resize(at, 0);
        piece.counted.resize(piece.ids.size(), 1);
    }

    const Tokenizer& tokenizer_;
    const FileEncoding& options_;
    std::unique_ptr<Encoder> encoder_;
    std::vector<int32_t> prompt_ids_;
    std::vector<int32_t> prefix_, suffix_;
};

// Hands out jobs and takes their results in the same order.
class Line {
  public:
    Line(Cutter& cutter, const std::function<void(EncodedPiece&&)>& sink) : cutter_(cutter), sink_(sink) {}

    void work(const Tokenizer& tokenizer, const FileEncoding& options) {
        PieceEncoder encoder(tokenizer, options);
        for (;;) {
            std::vector<Job> jobs;
            int64_t ticket = 0, bytes = 0;
            std::exception_ptr failure;
            EncodedPiece piece;
            try {
                const std::lock_guard lock(handing_out_);
                ticket = handed_out_++;
                jobs = cutter_.next(bytes);
                if (jobs.empty() && bytes == 0) return;
            } catch (...) {
                failure = std::current_exception();
            }
            try {
                if (!failure) piece = encoder.encode(jobs);
                piece.bytes = bytes;
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
    // False when this or an earlier piece failed.
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

void encode_files(const Tokenizer& tokenizer, const std::vector<std::string>& paths, const FileEncoding& options,
                  const std::function<void(EncodedPiece&&)>& sink) {
    check<UsageError>(options.format == "text" || options.format == "jsonl", "text can be read as text or jsonl, got ",
                      options.format);
    Cutter cutter(tokenizer, paths, options);
    Line line(cutter, sink);
    const int threads =
        options.threads > 0 ? options.threads : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    {
        std::vector<std::jthread> helpers;
        for (int t = 1; t < threads; ++t) helpers.emplace_back([&] { line.work(tokenizer, options); });
        line.work(tokenizer, options);
    }
    line.rethrow();
}

}  // namespace tutti::data
