// comm/tcp/file_service.h: serves the files below a directory, read-only, to processes of the same job on other hosts:
// copies of a run's state in memory. After a handshake (handshake.h):
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
    int64_t changed = 0;  // when the file was last written, ns of the system's clock
    bool operator==(const FileEntry&) const = default;
};

// Regular files below a directory, sorted by path; links are not followed. Files that disappear meanwhile are skipped.
std::vector<FileEntry> files_below(const std::string& directory);

class FileServer {
  public:
    // Listens at a port that the system chooses and starts a thread. Error when no port can be had.
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
    // DataError when nothing answers there within `silence_s`, or what answers does not know the secret.
    FileClient(const std::string& host, int port, const Key& key, double silence_s);
    // Both throw DataError when the connection or the file is gone.
    std::vector<FileEntry> list();
    // Fills `bytes`. A client that has begun to read a file can read it to the end after the file is removed.
    void read(const std::string& path, int64_t offset, std::span<std::byte> bytes);

  private:
    std::string ask(const std::string& question);
    Frame next();

    std::string name_;
    double silence_s_;
    Socket socket_;
    FrameReader reader_;
};

// Where the copies of a run's state are: the value of TUTTI_MEMORY, which agents set for their ranks.
struct CopyPlaces {
    struct Peer {
        int host = 0;
        std::string address;
        int port = 0;
    };
    std::string directory;  // of this host
    int host = 0;           // its number in the launch
    int holder = -1;        // the host that fetches its copies; -1: none
    std::vector<Peer> peers;
    std::string secret;  // of the file servers of the peers, in 64 digits

    std::string to_text() const;
    static CopyPlaces from_text(const std::string& text);  // JsonError or Error for another text
};
inline constexpr const char* kCopiesVariable = "TUTTI_MEMORY";
// Nothing where no agent keeps copies.
std::optional<CopyPlaces> copy_places(const Environment& environment);
Key key_of(const std::string& secret);  // 64 digits, as fresh_hex() makes them

// Directories of a host's copies, below the one of CopyPlaces: of its own ranks, and of the ranks of another host.
inline constexpr const char* kOwnCopies = "own";
std::string copies_of(int host);  // "of-3"

}  // namespace tutti::comm::tcp
