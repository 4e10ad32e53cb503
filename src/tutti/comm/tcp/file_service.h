// comm/tcp/file_service.h: serves the files below a directory, read-only, to processes of the same job on other hosts;
// and the directories and peers of a run's copies in memory. After a handshake (handshake.h):
//   client -> server   question    {"list": true} or {"path", "offset", "size"}
//   server -> client   answer      '+' and bytes, or '-' and the reason
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tutti/comm/tcp/handshake.h"
#include "tutti/comm/tcp/socket.h"

namespace tutti::comm::tcp {

struct FileEntry {
    std::string path;  // below the directory: "own/step-0000000100/MANIFEST.json"
    int64_t size = 0;
    int64_t changed = 0;  // time of the last write, Unix time in ns
    bool operator==(const FileEntry&) const = default;
};

// The regular files below a directory, sorted by path; links are not followed. Files that disappear meanwhile are
// skipped.
std::vector<FileEntry> files_below(const std::string& directory);

class FileServer {
  public:
    // Listens at a port that the system chooses, and starts a thread. Error if no port is free.
    FileServer(std::string directory, const Key& key);
    ~FileServer();  // closes all connections
    FileServer(const FileServer&) = delete;
    FileServer& operator=(const FileServer&) = delete;
    int port() const { return port_of(listener_.socket()); }

  private:
    struct Client {
        std::atomic<bool> ended{false};
        std::thread thread;
    };
    void run();
    void serve(const Socket& socket) const;

    std::string directory_;
    Key key_;
    Listener listener_;
    std::atomic<bool> stopping_{false};
    std::list<Client> clients_;  // of the thread
    std::thread thread_;         // last: uses the others
};

class FileClient {
  public:
    // DataError if the server does not answer within `silence_s`, then or later, or does not know the secret.
    FileClient(const std::string& host, int port, const Key& key, double silence_s);
    // Both throw DataError if the connection or the file is gone.
    std::vector<FileEntry> list();
    // Fills `bytes`. Once a client has begun to read a file, it can read it to the end even if the file is removed.
    void read(const std::string& path, int64_t offset, std::span<std::byte> bytes);

  private:
    std::string ask(const std::string& question);
    Frame next();

    std::string name_;
    double silence_s_;
    Socket socket_;
    FrameReader reader_;
};

// Where the copies of a run's state in memory are: the value of TUTTI_MEMORY, which agents set for their ranks.
struct CopyPlaces {
    struct Peer {
        int host = 0;
        std::string address;
        int port = 0;
    };
    std::string directory;    // of this host
    int host = 0;             // the number of this host in the launch
    int holder = -1;          // the host that fetches the copies of this one; -1: none
    std::vector<Peer> peers;  // the other hosts
    std::string secret;       // of the file servers, 64 hexadecimal digits

    std::string to_text() const;
    static CopyPlaces from_text(const std::string& text);  // JsonError or Error for another text
};
inline constexpr const char* kCopiesVariable = "TUTTI_MEMORY";
// nullopt if no agent keeps copies.
std::optional<CopyPlaces> copy_places(const Environment& environment);
Key key_of(const std::string& secret);

// Subdirectories of CopyPlaces::directory: the copies of this host's ranks, and those of another host's ranks.
inline constexpr const char* kOwnCopies = "own";
std::string copies_of(int host);  // "of-3"

}  // namespace tutti::comm::tcp
