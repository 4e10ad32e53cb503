#include "tutti/train/memory_copies.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "tutti/base/json.h"
#include "tutti/base/to_size.h"
#include "tutti/device/host_memory.h"
#include "tutti/report/run_events.h"
#include "tutti/train/checkpointing.h"

namespace tutti::train {

using checkpoint::ByteSource;
using checkpoint::DamagedError;
using checkpoint::FileRecord;
using checkpoint::Manifest;
using checkpoint::NameKind;
using comm::tcp::FileClient;
using comm::tcp::FileEntry;

namespace {

bool is_of_copy(const std::string& directory) {
    const NameKind kind = checkpoint::parse_store_name(checkpoint::last_name_of(directory)).kind;
    return kind == NameKind::checkpoint || kind == NameKind::replaced;
}

}  // namespace

// A copy in pieces, as the word of rank 0 lists them.
class MemoryCopies::Source final : public checkpoint::StateSource {
  public:
    Source(MemoryCopies& copies, const Json& word)
        : copies_(copies),
          manifest_(word.at("manifest").text()),
          path_(concat("the copy of step ", word.at("step").get<int64_t>(), " in memory")) {
        for (const auto& [name, place] : word.at("files").items())
            places_[name] = {place.at("host").get<int>(), place.at("path").text()};
    }
    const std::string& path() const override { return path_; }
    std::string manifest() override { return manifest_; }
    std::shared_ptr<ByteSource> file(const FileRecord& record) override {
        const auto place = places_.find(record.name);
        check<DamagedError>(place != places_.end(), path_, ": no host has ", record.name);
        return std::make_shared<Piece>(copies_, place->second, record.size);
    }

  private:
    class Piece final : public ByteSource {
      public:
        Piece(MemoryCopies& copies, Candidate::Place place, int64_t size)
            : copies_(copies),
              place_(std::move(place)),
              path_(concat(place_.path, " of host ", place_.host)),
              size_(size) {}
        const std::string& path() const override { return path_; }
        int64_t size() const override { return size_; }
        void read(int64_t offset, std::span<std::byte> bytes) override {
            copies_.read(place_.host, place_.path, offset, bytes);
        }

      private:
        MemoryCopies& copies_;
        Candidate::Place place_;
        std::string path_;
        int64_t size_;
    };

    MemoryCopies& copies_;
    std::string manifest_, path_;
    std::map<std::string, Candidate::Place> places_;
};

MemoryCopies::MemoryCopies(Setup setup)
    : setup_(std::move(setup)), files_(setup_.files != nullptr ? *setup_.files : own_files_) {}

// --- finding and loading

FileClient& MemoryCopies::client(int host) {
    std::unique_ptr<FileClient>& found = clients_[host];
    if (found) return *found;
    for (const auto& peer : setup_.places.peers)
        if (peer.host == host)
            found = std::make_unique<FileClient>(peer.address, peer.port, comm::tcp::key_of(setup_.places.secret),
                                                 setup_.wait_s);
    check<DataError>(found != nullptr, "host ", host, " cannot be asked for copies");
    return *found;
}

std::vector<FileEntry> MemoryCopies::entries_of(int host) {
    return host == setup_.places.host ? comm::tcp::files_below(setup_.places.directory) : client(host).list();
}

// Whatever prevents it: another copy, or the disk, may still be good.
void MemoryCopies::read(int host, const std::string& path, int64_t offset, std::span<std::byte> bytes) {
    try {
        if (host == setup_.places.host)
            checkpoint::File::open(files_, checkpoint::join(setup_.places.directory, path)).read_all(bytes, offset);
        else
            client(host).read(path, offset, bytes);
    } catch (const DataError& error) {
        clients_.erase(host);
        throw DamagedError(error.what());
    }
}

void MemoryCopies::look_at(int host, const checkpoint::Warn& warn, Found& found) {
    try {
        const std::vector<FileEntry> entries = entries_of(host);
        for (const FileEntry& entry : entries) {
            const std::string directory = checkpoint::parent_of(entry.path);
            if (checkpoint::last_name_of(entry.path) != checkpoint::kManifestName || !is_of_copy(directory)) continue;
            check<DataError>(entry.size <= checkpoint::kMaxManifestBytes, entry.path, ": ", entry.size, " bytes");
            std::string text(to_size(entry.size), '\0');
            read(host, entry.path, 0, std::as_writable_bytes(std::span(text)));
            Candidate& candidate = found[text];
            if (candidate.text.empty()) {
                candidate.manifest = checkpoint::parse_manifest(text, entry.path);
                candidate.generation = Json::parse(candidate.manifest.state).value("generation", int64_t{0});
                candidate.text = text;
            }
            for (const FileRecord& record : candidate.manifest.files) {
                const std::string path = checkpoint::join(directory, record.name);
                const bool here = std::any_of(entries.begin(), entries.end(), [&](const FileEntry& e) {
                    return e.path == path && e.size == record.size;
                });
                if (here) candidate.files.try_emplace(record.name, host, path);
            }
        }
    } catch (const DataError& error) {
        warn(concat("the copies in memory of host ", host, " are passed over: ", error.what()));
    }
    std::erase_if(found, [](const auto& entry) { return entry.second.text.empty(); });  // no manifest
}

// Own files first: they need no network. Copies of this generation are those of its earlier stages.
std::vector<MemoryCopies::Candidate> MemoryCopies::look(const checkpoint::Warn& warn) {
    Found found;
    look_at(setup_.places.host, warn, found);
    for (const auto& peer : setup_.places.peers) look_at(peer.host, warn, found);
    std::vector<Candidate> candidates;
    for (auto& [text, candidate] : found)
        if (candidate.generation < setup_.generation) candidates.push_back(std::move(candidate));
    std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
        return std::pair(a.manifest.step, a.generation) < std::pair(b.manifest.step, b.generation);
    });
    return candidates;
}

std::string MemoryCopies::reason_against(const Candidate& candidate) const {
    for (const report::RunEvent& event : report::read_events(setup_.out))
        if (event.kind == report::kResumed && event.generation > candidate.generation &&
            event.generation < setup_.generation && event.step < candidate.manifest.step)
            return concat("generation ", event.generation, " has gone on from step ", event.step);
    size_t missing = 0;
    std::string name;
    for (const FileRecord& record : candidate.manifest.files)
        if (!candidate.files.contains(record.name) && missing++ == 0) name = record.name;
    return missing == 0
               ? ""
               : concat("no host has ", missing, " of its ", candidate.manifest.files.size(), " files, such as ", name);
}

std::shared_ptr<checkpoint::StateSource> MemoryCopies::next_after(int64_t step, const checkpoint::Warn& warn) {
    if (!candidates_) candidates_ = look(warn);
    while (!candidates_->empty()) {
        chosen_ = std::move(candidates_->back());
        candidates_->pop_back();
        const std::string what = concat("the copy of step ", chosen_.manifest.step, " in memory is passed over: ");
        if (chosen_.manifest.step <= step) {  // and so are all others
            if (chosen_.manifest.step < step) warn(concat(what, "the checkpoint of step ", step, " is newer"));
            candidates_->clear();
            break;
        }
        const std::string reason = reason_against(chosen_);
        if (reason.empty()) return source(word());
        warn(what + reason);
    }
    candidates_.reset();
    return nullptr;
}

int64_t MemoryCopies::newest_after(int64_t step) {
    const auto found = next_after(step, [](const std::string&) {});
    candidates_.reset();
    return found ? chosen_.manifest.step : step;
}

std::string MemoryCopies::word() const {
    Json files = Json::object();
    for (const auto& [name, place] : chosen_.files) files[name] = {{"host", place.host}, {"path", place.path}};
    return Json{{"step", chosen_.manifest.step}, {"manifest", chosen_.text}, {"files", files}}.dump();
}

std::shared_ptr<checkpoint::StateSource> MemoryCopies::source(const std::string& word) {
    return std::make_shared<Source>(*this, Json::parse(word));
}

void MemoryCopies::continue_from(const std::string& word) {
    clients_.clear();
    last_good_.clear();
    saved_step_ = 0;
    if (word.empty()) return;
    const Json json = Json::parse(word);
    saved_step_ = json.at("step").get<int64_t>();
    // Of this host's own part. What the manifest lists here has the same text.
    const std::string own = checkpoint::join(setup_.places.directory, comm::tcp::kOwnCopies);
    const std::string path = checkpoint::join(own, checkpoint::step_name(saved_step_));
    if (files_.kind(path) != checkpoint::FileKind::none &&
        checkpoint::DirectorySource(files_, path).manifest() == json.at("manifest").text())
        last_good_ = path;
}

// --- saving

bool MemoryCopies::holder_has_last() {
    const std::string path = concat(comm::tcp::copies_of(setup_.places.host), '/', checkpoint::last_name_of(last_good_),
                                    '/', checkpoint::kManifestName);
    const std::vector<FileEntry> entries = entries_of(setup_.places.holder);
    return std::any_of(entries.begin(), entries.end(), [&](const FileEntry& e) { return e.path == path; });
}

// A holder that is gone, or has no memory, costs one wait: it and the launcher say so.
bool MemoryCopies::may_replace() {
    if (setup_.places.holder < 0 || last_good_.empty()) return true;
    const auto now = std::chrono::steady_clock::now();
    if (!waits_since_) waits_since_ = now;
    bool has = false;
    try {
        has = holder_has_last();
    } catch (const DataError&) {
        clients_.erase(setup_.places.holder);
        holder_lags_ = true;
    }
    if (has) holder_lags_ = false;
    if (!has && !holder_lags_ && now - *waits_since_ < std::chrono::duration<double>(setup_.wait_s)) return false;
    holder_lags_ = !has;
    waits_since_.reset();
    return true;
}

// Room for the new copy: all but the last good one go.
std::string MemoryCopies::begin(const checkpoint::HostState& state, int64_t step) {
    if (!store_)
        store_ = std::make_unique<checkpoint::Store>(files_,
                                                     checkpoint::join(setup_.places.directory, comm::tcp::kOwnCopies),
                                                     checkpoint::Access::write, [](const std::string&) {});
    for (const checkpoint::StoredCheckpoint& stored : store_->list())
        if (stored.path != last_good_) store_->remove(stored);
    const int64_t bytes = state.file(0, 1).size() * setup_.local_size;
    const int64_t available = least_available(host_memory_limits());
    check<DataError>(bytes <= available, "the ranks of host ", setup_.places.host, " need ", bytes,
                     " bytes for it, and ", available, " are available");
    attempt_ = store_->begin(step);
    return attempt_.path;
}

JointSave::Work MemoryCopies::work(int rank, int ranks, std::shared_ptr<const checkpoint::HostState> state,
                                   Manifest part) {
    attempt_ = {};
    return {.leader = rank - setup_.local_rank,
            .ready = [this] { return may_replace(); },
            .begin = [this, state, step = part.step] { return begin(*state, step); },
            .write =
                [this, state, rank, ranks, part = std::move(part)](const std::string& directory) {
                    return write_part(files_, directory, state->file(rank, ranks), part);
                },
            .commit =
                [this](const std::vector<std::string>& parts) { return store_->commit(attempt_, merge_parts(parts)); },
            .commits_beside = false};
}

std::string MemoryCopies::end(int64_t step, const Agreement& ended, int rank) {
    if (ended.failure) {  // a host that has committed its part removes it before the next copy
        if (store_) store_->abandon(attempt_);
        return ended.failure->text();
    }
    last_good_ = ended.texts[to_size(rank)];
    saved_step_ = step;
    return "";
}

}  // namespace tutti::train
