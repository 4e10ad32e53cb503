// launch/copy_store.h: copies of a run's state in the memory of a host: files of a tmpfs in a directory of the agent,
// so that they outlive the ranks, and a killed agent that is replaced in time.
//   DIRECTORY/own/step-…     written by the ranks of this host (train/memory_copies.h)
//   DIRECTORY/of-3/step-…    of the ranks of host 3, fetched from that host after each commit
//
//   the agent ends           it removes the directory
//   the agent is killed      its child, the guard, waits for a new agent of job and host, and else removes the
//   directory both are killed          the next agent of this user on this host removes the directory
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "tutti/checkpoint/file_system.h"
#include "tutti/comm/tcp/file_service.h"

namespace tutti::launch {

// What the launcher requests of an agent: a store for copies of the ranks' state.
struct OpenCopies {
    std::string job, host;  // of the agent
    std::string launch;     // a new launcher of the job does not use the copies of this one
    std::string root;       // a tmpfs: "/dev/shm"
    std::string secret;     // of the file servers of all agents; "": one host, and no port
    double silence_s = 15;
};

class CopyStore {
  public:
    // Takes over the directory of an earlier agent, or creates it. Error when `root` is no directory, or a running
    // agent holds the directory. `say`: called by any thread. Call from the main thread of a process without other
    // threads.
    explicit CopyStore(OpenCopies setup, std::function<void(const std::string&)> say = {});
    ~CopyStore();
    CopyStore(const CopyStore&) = delete;
    CopyStore& operator=(const CopyStore&) = delete;

    const std::string& directory() const { return directory_; }
    int port() const { return server_ ? server_->port() : 0; }
    // Fetches the copies of `source` from now on; nullopt: fetches nothing.
    void follow(const std::optional<comm::tcp::CopyPlaces::Peer>& source);
    // The newest step of a copy by ranks of this host; 0: none.
    int64_t newest_step() const;

  private:
    void start_guard();
    void run();
    void fetch_newest(const comm::tcp::CopyPlaces::Peer& source);
    void fetch(const comm::tcp::CopyPlaces::Peer& source, const std::string& below);
    void drop_outdated(int source) const;

    OpenCopies setup_;
    std::function<void(const std::string&)> say_;
    std::string directory_;
    mutable checkpoint::PosixFileSystem files_;
    std::unique_ptr<checkpoint::FileLock> lock_;
    comm::tcp::Socket alive_;  // the guard sees the end of the agent by the end of this pipe
    std::unique_ptr<comm::tcp::FileServer> server_;

    std::mutex mutex_;
    std::condition_variable changed_;
    std::optional<comm::tcp::CopyPlaces::Peer> source_;
    bool stopping_ = false;
    // Of the thread:
    std::unique_ptr<comm::tcp::FileClient> client_;
    std::optional<comm::tcp::FileEntry> fetched_;
    std::thread thread_;  // last: uses the others
};

// Removes the directories of killed agents of this user, and of their killed guards, below `root`.
void remove_orphaned_copies(const std::string& root);

}  // namespace tutti::launch
