// data/token_writer.cpp: ids are written as they arrive; headers and the index need the totals and are written last.
#include "tutti/data/token_writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <limits>
#include <thread>

#include "tutti/base/digits.h"
#include "tutti/base/error.h"
#include "tutti/base/read_file.h"
#include "tutti/base/to_size.h"
#include "tutti/data/megatron_index.h"
#include "tutti/data/token_source.h"

namespace tutti::data {

namespace {

// Megatron's own rule is u16 below 65500 ids, else i32.
int64_t width_for(const std::string& format, int64_t vocab) {
    check<UsageError>(format == "nanogpt" || format == "llmc" || format == "megatron",
                      "--format must be nanogpt, llmc or megatron, got ", format);
    check<UsageError>(format != "nanogpt" || vocab <= 65536,
                      "--format nanogpt has ids of 16 bits, the tokenizer makes ", "them up to ", vocab - 1,
                      "; use llmc or megatron");
    return vocab <= (format == "megatron" ? 65499 : 65536) ? 2 : 4;
}

template <class T>
void append(std::string& bytes, T value) {
    const size_t at = bytes.size();
    bytes.resize(at + sizeof value);
    std::memcpy(bytes.data() + at, &value, sizeof value);
}

}  // namespace

int open_locked(const std::string& path) {
    for (int attempt = 0;; ++attempt) {
        const int fd = retried([&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666); });
        if (fd < 0) return fd;
        struct stat status {};
        const bool is_locked = retried([&] { return ::flock(fd, LOCK_EX | LOCK_NB); }) == 0 || errno == ENOLCK ||
                               errno == ENOSYS || errno == EOPNOTSUPP;
        // Another process may have removed the file as a leftover of a killed process before it was locked.
        if (is_locked && ::fstat(fd, &status) == 0 && status.st_nlink > 0) return fd;
        const int code = is_locked ? EAGAIN : errno;
        ::close(fd);
        errno = code;
        if (attempt == 20) return -1;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

void remove_unfinished(const std::string& path) {
    const std::filesystem::path whole(path), folder = whole.has_parent_path() ? whole.parent_path() : ".";
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
        const std::string name = entry.path().filename().string();
        if (!name.starts_with(whole.filename().string() + ".") || !name.ends_with(kUnfinished)) continue;
        const bool is_folder = entry.is_directory(ignored);
        if (is_folder && std::filesystem::remove(entry.path(), ignored)) continue;  // empty: killed before the lock
        const std::string lock = (is_folder ? entry.path() / kLockOfFolder : entry.path()).string();
        const int fd = retried([&] { return ::open(lock.c_str(), O_RDWR | O_CLOEXEC); });
        if (fd < 0) continue;
        if (retried([&] { return ::flock(fd, LOCK_EX | LOCK_NB); }) == 0)
            std::filesystem::remove_all(entry.path(), ignored);
        ::close(fd);
    }
}

namespace {

std::string unfinished(const std::string& path) { return concat(path, ".", ::getpid(), kUnfinished); }

}  // namespace

AtomicFile::AtomicFile(std::string path, std::string advice)
    : path_(std::move(path)), temporary_(unfinished(path_)), advice_(std::move(advice)) {
    remove_unfinished(path_);
    descriptor_ = open_locked(temporary_);
    const bool emptied = descriptor_ >= 0 && ::ftruncate(descriptor_, 0) == 0;
    const int error = errno;
    check_written(emptied, error, problem(error));
}

std::string AtomicFile::problem(int error) const {
    return concat(path_, " cannot be written: ", std::strerror(error), "; ", advice_);
}

AtomicFile::~AtomicFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!committed_ && descriptor_ >= 0) ::unlink(temporary_.c_str());
}

void AtomicFile::write(const void* bytes, size_t size) {
    write_at(size_, bytes, size);
    size_ += static_cast<int64_t>(size);
}

void AtomicFile::write_at(int64_t offset, const void* bytes, size_t size) {
    const char* from = static_cast<const char*>(bytes);
    while (size > 0) {
        const ssize_t done = retried([&] { return ::pwrite(descriptor_, from, size, offset); });
        if (done <= 0) throw DataError(problem(errno));
        from += done;
        offset += done;
        size -= to_size(done);
    }
}

void AtomicFile::commit() {
    if (::fsync(descriptor_) != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) throw DataError(problem(errno));
    committed_ = true;
}

TokenWriter::TokenWriter(const std::string& format, const std::string& prefix, int64_t vocab)
    : format_(format), prefix_(prefix), width_(width_for(format, vocab)), bin_(prefix + ".bin") {
    // A file of other ids would be read together with the new .bin.
    for (const char* end : {".idx", ".mask"}) {
        const std::string path = prefix + end;
        if (format == "megatron" && path.ends_with(".idx")) continue;  // replaced
        check<UsageError>(!std::filesystem::exists(path), path,
                          ": is there already and belongs to other ids; remove it ", "or choose another --out");
    }
    if (format_ == "llmc") write_header();
}

void TokenWriter::append(const EncodedPiece& piece) {
    append_mask(piece);
    append_lengths(piece);
    write_ids(piece.ids);
    documents_ += static_cast<int64_t>(piece.begins.size());
    tokens_ += static_cast<int64_t>(piece.ids.size());
}

void TokenWriter::write_ids(const std::vector<int32_t>& ids) {
    if (width_ == 4) return bin_.write(ids.data(), ids.size() * 4);
    narrow_.assign(ids.begin(), ids.end());
    bin_.write(narrow_.data(), narrow_.size() * 2);
}

// The mask file is begun at the first token that is input only; all tokens before it are targets.
void TokenWriter::append_mask(const EncodedPiece& piece) {
    const auto zeros = std::count(piece.loss_mask.begin(), piece.loss_mask.end(), uint8_t{0});
    if (zeros > 0 && !mask_) {
        mask_ = std::make_unique<AtomicFile>(prefix_ + ".mask");
        const std::vector<uint8_t> ones(1 << 20, 1);
        for (int64_t left = tokens_; left > 0; left -= static_cast<int64_t>(ones.size()))
            mask_->write(ones.data(), std::min(ones.size(), to_size(left)));
    }
    masked_tokens_ += zeros;
    if (!mask_) return;
    if (!piece.loss_mask.empty()) return mask_->write(piece.loss_mask.data(), piece.loss_mask.size());
    const std::vector<uint8_t> ones(piece.ids.size(), 1);
    mask_->write(ones.data(), ones.size());
}

void TokenWriter::append_lengths(const EncodedPiece& piece) {
    if (format_ != "megatron") return;
    const auto lengthen = [&](int64_t tokens) {
        if (tokens == 0) return;
        check<DataError>(!lengths_.empty() && tokens <= std::numeric_limits<int32_t>::max() - lengths_.back(),
                         "document ", lengths_.size(),
                         " has 2^31 tokens or more, which a Megatron index cannot count; ", "set a --separator");
        lengths_.back() += static_cast<int32_t>(tokens);
    };
    int64_t done = 0;
    for (const int64_t begin : piece.begins) {
        lengthen(begin - done);
        lengths_.push_back(0);
        done = begin;
    }
    lengthen(static_cast<int64_t>(piece.ids.size()) - done);
}

void TokenWriter::write_header() {
    check<DataError>(tokens_ < (int64_t{1} << 32), "an llm.c file counts up to 2^32 - 1 tokens, these are ", tokens_,
                     "; use --format megatron, or more files");
    const LlmcKind kind = width_ == 4 ? kLlmcLlama3 : kLlmcGpt2;
    std::array<uint32_t, kLlmcHeaderBytes / 4> header{kind.magic, kind.version, static_cast<uint32_t>(tokens_)};
    if (tokens_ == 0) return bin_.write(header.data(), sizeof header);
    bin_.write_at(0, header.data(), sizeof header);
}

void TokenWriter::write_index() {
    AtomicFile index(prefix_ + ".idx");
    std::string bytes(kMegatronMagic);
    data::append<uint64_t>(bytes, 1);
    data::append<uint8_t>(bytes, width_ == 2 ? 8 : 4);
    data::append<uint64_t>(bytes, lengths_.size());
    data::append<uint64_t>(bytes, lengths_.size() + 1);
    for (const int32_t length : lengths_) data::append<int32_t>(bytes, length);
    int64_t offset = 0;
    for (const int32_t length : lengths_) {
        data::append<int64_t>(bytes, offset);
        offset += length * width_;
    }
    for (size_t k = 0; k <= lengths_.size(); ++k) data::append<int64_t>(bytes, static_cast<int64_t>(k));
    index.write(bytes.data(), bytes.size());
    // The old index is removed first and the new one renamed last, so that no index is ever beside ids of another one.
    std::error_code ignored;
    std::filesystem::remove(prefix_ + ".idx", ignored);
    bin_.commit();
    index.commit();
}

void TokenWriter::discard() const {
    for (const char* ending : {".bin", ".mask", ".idx"}) ::unlink(unfinished(prefix_ + ending).c_str());
}

std::vector<std::string> TokenWriter::finish() {
    check<DataError>(tokens_ > 0, prefix_, ": the files hold no token, so nothing is written");
    std::vector<std::string> paths = {prefix_ + ".bin"};
    if (mask_) mask_->commit();
    if (format_ == "megatron") {
        write_index();
        paths.push_back(prefix_ + ".idx");
    } else {
        if (format_ == "llmc") write_header();
        bin_.commit();
    }
    if (mask_) paths.push_back(mask_->path());
    return paths;
}

namespace {

std::string identity_file(const std::string& prefix) { return prefix + ".tokenizer"; }

}  // namespace

// "5f0c1d2e3a4b5c6d byte-level BPE (gpt2), 50257 ids: gpt2/tokenizer.json"
void write_tokenizer_identity(const std::string& prefix, const TokenizerIdentity& tokenizer) {
    AtomicFile file(identity_file(prefix));
    const std::string line = concat(to_hex(tokenizer.fingerprint), " ", tokenizer.description, "\n");
    file.write(line.data(), line.size());
    file.commit();
}

std::optional<TokenizerIdentity> read_tokenizer_identity(const std::string& path) {
    const std::string file = identity_file(path.ends_with(".bin") ? path.substr(0, path.size() - 4) : path);
    const auto text = read_file_if_there(file);
    if (!text) return std::nullopt;
    TokenizerIdentity tokenizer;
    const auto [stop, error] = std::from_chars(text->data(), text->data() + text->size(), tokenizer.fingerprint, 16);
    const auto digits = to_size(stop - text->data());
    check<DataError>(error == std::errc() && digits == 16 && digits < text->size() && (*text)[digits] == ' ', file,
                     ": required: 16 hexadecimal digits and a description; remove the file if it is not Tutti's");
    tokenizer.description = text->substr(17, text->find('\n') - 17);
    return tokenizer;
}

}  // namespace tutti::data
