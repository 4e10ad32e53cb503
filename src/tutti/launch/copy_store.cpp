#include "tutti/launch/copy_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>

#include "tutti/base/error.h"
#include "tutti/base/read_file.h"
#include "tutti/base/refused.h"
#include "tutti/base/to_size.h"
#include "tutti/checkpoint/file_writer.h"
#include "tutti/checkpoint/store.h"
#include "tutti/device/host_memory.h"
#include "tutti/launch/link.h"

namespace tutti::launch {

using checkpoint::FileRecord;
using checkpoint::Manifest;
using checkpoint::NameKind;
using checkpoint::StoreName;
using comm::tcp::CopyPlaces;
using comm::tcp::FileClient;
using comm::tcp::FileEntry;

namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kBetweenLooks{50};
constexpr std::chrono::seconds kAfterFailure{1};
constexpr const char *kAgentLock = "agent.lock", *kGuardLock = "guard.lock";
constexpr double kGuardSilences = 2;  // times silence_s; the launcher starts a new agent within 4/3 of it

std::string prefix() { return concat("tutti-copies-", geteuid(), "-"); }

// Creates the directory with mode 0700. Error when the path is something else.
void make_private(const std::string& directory) {
    if (::mkdir(directory.c_str(), 0700) == 0) return;
    check(errno == EEXIST, "no copies in memory: make directory ", directory, ": ", std::strerror(errno));
    struct stat info = {};
    check(::lstat(directory.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == geteuid() &&
              (info.st_mode & 077) == 0,
          "no copies in memory: ", directory, " is there and not a directory of this user alone; remove it");
}

// A descriptor that holds the lock of the file; -1: another process holds it. Allocates nothing: safe after fork().
int try_lock(const char* path) {
    const int fd = ::open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0 && ::flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
    if (fd >= 0) ::close(fd);
    return -1;
}

// The guard: waits for the end of the agent, and then for the next agent.
[[noreturn]] void guard(int alive, const std::string& directory, double seconds) {
    setsid();
    const int nothing = ::open("/dev/null", O_RDWR);
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(nothing, fd);
    dup2(alive, 3);
    close_range(4, ~0U, 0);
    const std::string own = checkpoint::join(directory, kGuardLock), agent = checkpoint::join(directory, kAgentLock);
    // Held until this process ends. An earlier guard ends when an agent has taken over, or later.
    const int lock = ::open(own.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    while (::flock(lock, LOCK_EX) < 0 && errno == EINTR) {
    }
    char byte = 0;
    while (::read(3, &byte, 1) < 0 && errno == EINTR) {
    }
    for (const auto until = Clock::now() + comm::tcp::seconds(seconds); Clock::now() < until; usleep(100000))
        if (::access(directory.c_str(), F_OK) != 0) _exit(0);
    if (try_lock(agent.c_str()) >= 0) {
        std::error_code ignored;
        fs::remove_all(directory, ignored);
    }
    _exit(0);
}

// The directories of complete copies in a list of files, by step: "own/step-0000000100".
std::map<int64_t, FileEntry> manifests(const std::vector<FileEntry>& entries, const std::string& folder) {
    std::map<int64_t, FileEntry> found;
    for (const FileEntry& entry : entries) {
        const std::string directory = checkpoint::parent_of(entry.path);
        const StoreName name = checkpoint::parse_store_name(checkpoint::last_name_of(directory));
        if (checkpoint::last_name_of(entry.path) == checkpoint::kManifestName && name.kind == NameKind::checkpoint &&
            checkpoint::parent_of(directory) == folder)
            found[name.step] = entry;
    }
    return found;
}

std::string read_all(FileClient& client, const FileEntry& entry) {
    check<DataError>(entry.size <= checkpoint::kMaxManifestBytes, entry.path, ": ", entry.size, " bytes");
    std::string text(to_size(entry.size), '\0');
    client.read(entry.path, 0, std::as_writable_bytes(std::span(text)));
    return text;
}

}  // namespace

CopyStore::CopyStore(OpenCopies setup, std::function<void(const std::string&)> say)
    : setup_(std::move(setup)), say_(std::move(say)) {
    struct stat info = {};
    check(::stat(setup_.root.c_str(), &info) == 0 && S_ISDIR(info.st_mode), "no copies in memory: ", setup_.root,
          " is no directory; TUTTI_MEMORY_ROOT names another file system in memory");
    remove_orphaned_copies(setup_.root);
    directory_ = checkpoint::join(setup_.root, concat(prefix(), setup_.job, "-", setup_.host, "-", setup_.launch));
    for (int attempt = 0; lock_ == nullptr; ++attempt) {
        make_private(directory_);
        if (!alive_.open()) start_guard();
        try {
            lock_ = files_.lock(checkpoint::join(directory_, kAgentLock), checkpoint::this_owner());
        } catch (const Error& error) {  // held by an agent that looks for orphans, or by a guard that removes them
            check(attempt < 100, "no copies in memory: ", error.what());
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
        if (!fs::exists(checkpoint::join(directory_, kAgentLock))) lock_.reset();
    }
    if (!setup_.secret.empty())
        server_ = std::make_unique<comm::tcp::FileServer>(directory_, comm::tcp::key_of(setup_.secret));
    thread_ = start_thread("keeps copies in memory", [this] { run(); });
}

CopyStore::~CopyStore() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
    server_.reset();
    std::error_code ignored;
    fs::remove_all(directory_, ignored);
}

// Before the lock is taken: a child shares the locks of its parent.
void CopyStore::start_guard() {
    std::array<int, 2> ends{};
    const bool made = pipe2(ends.data(), O_CLOEXEC) == 0;
    check(made, "no pipe: ", std::strerror(errno));
    const comm::tcp::Socket read(ends[0]);
    alive_ = comm::tcp::Socket(ends[1]);
    const pid_t child = fork();
    check(child >= 0, "no process that guards ", directory_, ": ", std::strerror(errno));
    if (child == 0) guard(ends[0], directory_, kGuardSilences * setup_.silence_s);
}

void CopyStore::follow(const std::optional<CopyPlaces::Peer>& source) {
    {
        const std::lock_guard lock(mutex_);
        source_ = source;
    }
    changed_.notify_all();
}

int64_t CopyStore::newest_step() const {
    int64_t newest = 0;
    std::error_code error;
    for (fs::directory_iterator i(checkpoint::join(directory_, comm::tcp::kOwnCopies), error), end; !error && i != end;
         i.increment(error)) {
        const StoreName name = checkpoint::parse_store_name(i->path().filename().string());
        if (name.kind == NameKind::checkpoint) newest = std::max(newest, name.step);
    }
    return newest;
}

void CopyStore::run() {
    int followed = -1;
    for (;;) {
        std::optional<CopyPlaces::Peer> source;
        auto pause = std::chrono::duration_cast<Clock::duration>(kBetweenLooks);
        {
            std::unique_lock lock(mutex_);
            if (stopping_) return;
            source = source_;
        }
        if (const int now = source ? source->host : -1; now != followed || !source) {
            followed = now;
            client_.reset();
            fetched_.reset();
        }
        try {
            if (source) fetch_newest(*source);
            drop_outdated(followed);
        } catch (const std::exception& error) {
            client_.reset();  // the other host may be lost, which the launcher reports
            pause = kAfterFailure;
            if (say_) say_(concat("the copy of host ", followed, " in memory could not be fetched: ", error.what()));
        }
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, pause, [&] { return stopping_; });
    }
}

void CopyStore::fetch_newest(const CopyPlaces::Peer& source) {
    if (!client_)
        client_ = std::make_unique<FileClient>(source.address, source.port, comm::tcp::key_of(setup_.secret),
                                               setup_.silence_s);
    const auto found = manifests(client_->list(), comm::tcp::kOwnCopies);
    if (found.empty() || found.rbegin()->second == fetched_) return;
    const FileEntry newest = found.rbegin()->second;
    fetch(source, checkpoint::parent_of(newest.path));
    fetched_ = newest;
}

// A separate connection keeps the files of a copy open, since the ranks remove a copy after the next one but one. So a
// fetch always finishes, even when copies are made faster than the network transfers them.
void CopyStore::fetch(const CopyPlaces::Peer& source, const std::string& below) {
    FileClient client(source.address, source.port, comm::tcp::key_of(setup_.secret), setup_.silence_s);
    const std::vector<FileEntry> entries = client.list();
    const auto entry_of = [&](const std::string& name) {
        const std::string path = checkpoint::join(below, name);
        return std::find_if(entries.begin(), entries.end(), [&](const FileEntry& e) { return e.path == path; });
    };
    const auto listed = entry_of(std::string(checkpoint::kManifestName));
    if (listed == entries.end()) return;  // replaced by a newer copy
    const std::string text = read_all(client, *listed);
    const Manifest manifest = checkpoint::parse_manifest(text, listed->path);
    std::vector<FileRecord> here;  // the others are on other hosts
    int64_t bytes = 0;
    for (const FileRecord& record : manifest.files)
        if (entry_of(record.name) != entries.end()) bytes += here.emplace_back(record).size;
    const int64_t available = least_available(host_memory_limits());
    check<DataError>(bytes <= available, "it needs ", bytes, " bytes, and ", available, " are available here");
    for (const FileRecord& record : here) client.read(checkpoint::join(below, record.name), 0, {});

    const std::string directory = checkpoint::join(directory_, comm::tcp::copies_of(source.host));
    const std::string target = checkpoint::join(directory, checkpoint::step_name(manifest.step));
    if (read_file_if_there(checkpoint::join(target, checkpoint::kManifestName)) == text) return;
    checkpoint::Store store(files_, directory, checkpoint::Access::write, [](const std::string&) {});
    bool kept = false;  // the newest older copy; newer ones belong to a start that the run did not continue from
    for (const checkpoint::StoredCheckpoint& old : store.list())
        if (old.step < manifest.step && !std::exchange(kept, true))
            continue;
        else
            store.remove(old);
    checkpoint::Store::Attempt attempt = store.begin(manifest.step);
    try {
        for (const FileRecord& record : here) {
            checkpoint::FileToWrite content{record.name, "", {}};
            std::vector<std::byte> piece;
            for (int64_t at = 0; at < record.size; at += checkpoint::kChunkBytes) {
                const int64_t size = std::min(checkpoint::kChunkBytes, record.size - at);
                content.body.emplace_back(size, [&, at, size] {
                    piece.resize(to_size(size));
                    client.read(checkpoint::join(below, record.name), at, piece);
                    return std::span<const std::byte>(piece);
                });
            }
            checkpoint::NewFile file(files_, checkpoint::join(attempt.path, record.name), record.size);
            check<DataError>(file.write(content) == record, record.name, " of step ", manifest.step,
                             " has another digest than its manifest says");
        }
    } catch (...) {
        store.abandon(attempt);
        throw;
    }
    store.commit(attempt, manifest);
}

// Removes copies of hosts that are no longer fetched, once all own copies are newer.
void CopyStore::drop_outdated(int source) const {
    const std::vector<FileEntry> entries = comm::tcp::files_below(directory_);
    const auto own = manifests(entries, comm::tcp::kOwnCopies);
    if (own.empty()) return;
    std::error_code error;
    for (fs::directory_iterator i(directory_, error), end; !error && i != end; i.increment(error)) {
        const std::string name = i->path().filename().string();
        if (!name.starts_with("of-") || name == comm::tcp::copies_of(source)) continue;
        const auto theirs = manifests(entries, name);
        if (theirs.empty() || theirs.rbegin()->first < own.begin()->first)
            checkpoint::remove_tree(files_, i->path().string());
    }
}

void remove_orphaned_copies(const std::string& root) {
    std::error_code error;
    for (fs::directory_iterator i(root, error), end; !error && i != end; i.increment(error)) {
        struct stat info = {};
        const std::string path = i->path().string();
        if (!i->path().filename().string().starts_with(prefix()) || ::lstat(path.c_str(), &info) != 0 ||
            !S_ISDIR(info.st_mode) || info.st_uid != geteuid())
            continue;
        const comm::tcp::Socket guarded(try_lock(checkpoint::join(path, kGuardLock).c_str()));
        if (!guarded.open()) continue;
        const comm::tcp::Socket agent(try_lock(checkpoint::join(path, kAgentLock).c_str()));
        std::error_code ignored;
        if (agent.open()) fs::remove_all(path, ignored);
    }
}

}  // namespace tutti::launch
