#include "tutti/comm/tcp/file_service.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>

#include "tutti/base/awake_time.h"
#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/refused.h"
#include "tutti/base/strings.h"
#include "tutti/base/to_size.h"

namespace tutti::comm::tcp {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kPiece = int64_t{4} << 20;
constexpr PendingLimits kPending{.most = 64, .time = std::chrono::seconds(5)};
constexpr double kIdle = 60;  // seconds until a connection without questions is closed
constexpr std::chrono::milliseconds kFilePoll{100};
constexpr const char* kFiles = "tutti files";  // the label of the handshake

// Whether the path consists of plain names and slashes, so that it cannot leave the directory.
bool is_plain(const std::string& path) {
    if (path.empty() || path.back() == '/') return false;
    for (size_t i = 0; i < path.size(); ++i) {
        const char c = path[i];
        const bool begins = i == 0 || path[i - 1] == '/';
        if (!is_alphanumeric(c) && (begins || (c != '.' && c != '_' && c != '-' && c != '/'))) return false;
    }
    return true;
}

// nullopt at the end of the stream, after `limit_s`, or once `stop` is true.
std::optional<Frame> wait_for_frame(const Socket& socket, FrameReader& reader, size_t longest, double limit_s,
                                    const std::atomic<bool>* stop) {
    for (AwakeTime waited(limit_s);;) {
        if (auto frame = reader.read(socket, longest)) return frame;
        if (reader.closed() || waited.passed() > limit_s || (stop != nullptr && *stop)) return std::nullopt;
        readable(socket, Clock::now() + std::min<Clock::duration>(kFilePoll, seconds(limit_s / 8)));
    }
}

// The files that one connection has open_files; a Socket owns any descriptor.
using OpenFiles = std::map<std::string, Socket>;

std::string piece_of(const std::string& directory, const Json& question, OpenFiles& open_files) {
    const std::string path = question.at("path").text();
    const auto offset = question.at("offset").get<int64_t>(), size = question.at("size").get<int64_t>();
    check(is_plain(path) && offset >= 0 && size >= 0 && size <= kPiece,
          "required path, offset and size of a piece of up to ", kPiece, " bytes, got ", question.dump());
    Socket& file = open_files[path];
    if (!file.open()) file = Socket(::open((fs::path(directory) / path).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    check(file.open(), path, ": ", std::strerror(errno));
    std::string bytes(to_size(size), '\0');
    for (size_t got = 0; got < bytes.size();) {
        const ssize_t n = ::pread(file.fd(), bytes.data() + got, bytes.size() - got, offset + static_cast<off_t>(got));
        if (n < 0 && errno == EINTR) continue;
        check(n > 0, path, " ends before byte ", offset + size);
        got += to_size(n);
    }
    return bytes;
}

std::string answer_to(const std::string& directory, const std::string& text, OpenFiles& open_files) {
    try {
        const Json question = Json::parse(text);
        if (!question.contains("list")) return "+" + piece_of(directory, question, open_files);
        Json list = Json::array();
        for (const FileEntry& entry : files_below(directory))
            list.push_back({{"path", entry.path}, {"size", entry.size}, {"changed", entry.changed}});
        return "+" + list.dump();
    } catch (const std::exception& error) {
        return concat("-", error.what());
    }
}

}  // namespace

std::vector<FileEntry> files_below(const std::string& directory) {
    std::vector<FileEntry> files;
    std::error_code error;
    for (fs::recursive_directory_iterator i(directory, error), end; !error && i != end; i.increment(error)) {
        struct stat info = {};
        if (::lstat(i->path().c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
        const std::string path = i->path().lexically_relative(directory).string();
        if (is_plain(path))
            files.push_back({path, info.st_size, int64_t{info.st_mtim.tv_sec} * 1000000000 + info.st_mtim.tv_nsec});
    }
    std::sort(files.begin(), files.end(), [](const FileEntry& a, const FileEntry& b) { return a.path < b.path; });
    return files;
}

FileServer::FileServer(std::string directory, const Key& key) : directory_(std::move(directory)), key_(key) {
    Socket listener = listen_on(false, 0);
    check(listener.open(), "no port is free to serve the copies in memory: ", std::strerror(errno));
    listener_ = handshake_listener(std::move(listener), kPending);
    thread_ = start_thread("sends files of this host", [this] { run(); });
}

FileServer::~FileServer() {
    stopping_ = true;
    ::shutdown(listener_.socket().fd(), SHUT_RD);  // wakes the thread
    thread_.join();
}

void FileServer::run() {
    while (!stopping_) {
        pollfd listener{.fd = listener_.fd(), .events = POLLIN, .revents = 0};
        poll(&listener, 1, static_cast<int>(kFilePoll.count()));
        if (stopping_) break;
        for (Listener::Connection& connection : listener_.accept()) {
            Client& client = clients_.emplace_back();
            try {
                client.thread =
                    start_thread("sends files of this host", [this, &client, own = std::move(connection)]() mutable {
                        try {
                            if (const auto session = accept_handshake(std::move(own), key_, kFiles))
                                serve(session->socket);
                        } catch (const std::exception&) {  // the connection is closed, which is an error of the client
                        }
                        client.ended = true;
                    });
            } catch (const Error&) {  // the system refuses a thread, and the connection is closed
                clients_.pop_back();
            }
        }
        for (auto client = clients_.begin(); client != clients_.end();)
            if (client->ended) {
                client->thread.join();
                client = clients_.erase(client);
            } else {
                ++client;
            }
    }
    for (Client& client : clients_) client.thread.join();
}

void FileServer::serve(const Socket& socket) const {
    FrameReader reader;
    OpenFiles open_files;
    while (const auto question = wait_for_frame(socket, reader, kLongestFrame, kIdle, &stopping_)) {
        if (question->type != Frame::Type::question ||
            !send_frame(socket, Frame::Type::answer, answer_to(directory_, question->body, open_files)))
            return;
    }
}

FileClient::FileClient(const std::string& host, int port, const Key& key, double silence_s)
    : name_(concat(host, ":", port)), silence_s_(silence_s) {
    std::string why;
    socket_ = connect_to(host, port, Clock::now() + seconds(silence_s), why);
    check<DataError>(socket_.open(), "the copies at ", name_, " cannot be reached: ", why);
    socket_ = start_handshake(std::move(socket_), key, kFiles, 0, concat("the process that listens at ", name_),
                              seconds(silence_s))
                  .socket;
}

Frame FileClient::next() {
    auto frame = wait_for_frame(socket_, reader_, kLongestFrame, silence_s_, nullptr);
    check<DataError>(
        frame.has_value(), name_,
        reader_.closed() ? " has closed the connection" : concat(" has not answered for ", silence_s_, " s"));
    return std::move(*frame);
}

std::string FileClient::ask(const std::string& question) {
    check<DataError>(send_frame(socket_, Frame::Type::question, question), name_, " has closed the connection");
    const Frame answer = next();
    check<DataError>(answer.type == Frame::Type::answer && answer.body.starts_with('+'), name_, ": ",
                     answer.body.empty() ? "no answer" : answer.body.substr(1));
    return answer.body.substr(1);
}

std::vector<FileEntry> FileClient::list() {
    std::vector<FileEntry> entries;
    const Json answer = Json::parse(ask(Json{{"list", true}}.dump()));
    for (const Json& entry : answer.elements())
        entries.push_back(
            {entry.at("path").text(), entry.at("size").get<int64_t>(), entry.at("changed").get<int64_t>()});
    return entries;
}

void FileClient::read(const std::string& path, int64_t offset, std::span<std::byte> bytes) {
    do {
        const size_t size = std::min(bytes.size(), to_size(kPiece));
        const std::string piece = ask(Json{{"path", path}, {"offset", offset}, {"size", size}}.dump());
        check<DataError>(piece.size() == size, name_, ": required ", size, " bytes of ", path, ", got ", piece.size());
        if (size > 0) std::memcpy(bytes.data(), piece.data(), size);
        bytes = bytes.subspan(size);
        offset += static_cast<int64_t>(size);
    } while (!bytes.empty());
}

std::string CopyPlaces::to_text() const {
    Json list = Json::array();
    for (const Peer& peer : peers)
        list.push_back({{"host", peer.host}, {"address", peer.address}, {"port", peer.port}});
    return Json{{"directory", directory}, {"host", host}, {"holder", holder}, {"peers", list}, {"secret", secret}}
        .dump();
}

CopyPlaces CopyPlaces::from_text(const std::string& text) {
    const Json json = Json::parse(text);
    CopyPlaces places{.directory = json.at("directory").text(),
                      .host = json.at("host").get<int>(),
                      .holder = json.at("holder").get<int>(),
                      .peers = {},
                      .secret = json.at("secret").text()};
    for (const Json& peer : json.at("peers").elements())
        places.peers.push_back({peer.at("host").get<int>(), peer.at("address").text(), peer.at("port").get<int>()});
    return places;
}

std::optional<CopyPlaces> copy_places(const Environment& environment) {
    const auto text = environment(kCopiesVariable);
    return text && !text->empty() ? std::optional(CopyPlaces::from_text(*text)) : std::nullopt;
}

Key key_of(const std::string& secret) { return prove(Key{}, "tutti files key", {secret}); }

std::string copies_of(int host) { return concat("of-", host); }

}  // namespace tutti::comm::tcp
