// Other hosts read any piece of any file below the directory, only with the secret, and no other file.
#include "tutti/comm/tcp/file_service.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "tutti/base/build_info.h"
#include "tutti/base/error.h"
#include "tutti/base/to_size.h"

namespace tutti::comm::tcp {
namespace {

namespace fs = std::filesystem;

class Files : public ::testing::Test {
  protected:
    Files() : folder_(fs::temp_directory_path() / concat("tutti_files_", getpid())) {
        fs::remove_all(folder_);
        std::mt19937_64 random(62);
        for (const char* name : {"own/step-0000000003/a", "own/step-0000000003/b.safetensors", "of-1/c", "d"}) {
            std::string bytes(random() % 9000000, '\0');
            for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
                const uint64_t word = random();
                std::memcpy(bytes.data() + i, &word, 8);
            }
            write(name, bytes);
            content_[name] = bytes;
        }
    }
    ~Files() override { fs::remove_all(folder_); }
    void write(const std::string& name, const std::string& bytes) const {
        fs::create_directories((folder_ / name).parent_path());
        std::ofstream(folder_ / name, std::ios::binary) << bytes;
    }
    static std::string read(FileClient& client, const std::string& path, size_t offset, size_t size) {
        std::string bytes(size, '?');
        client.read(path, static_cast<int64_t>(offset), std::as_writable_bytes(std::span(bytes)));
        return bytes;
    }

    fs::path folder_;
    std::map<std::string, std::string> content_;
    const Key key_ = key_of(fresh_hex());
};

TEST_F(Files, AreListedAndReadInAnyPieces) {
    const FileServer server(folder_, key_);
    FileClient one("127.0.0.1", server.port(), key_, 20), two("localhost", server.port(), key_, 20);
    const std::vector<FileEntry> list = one.list();
    EXPECT_EQ(list, files_below(folder_));
    ASSERT_EQ(list.size(), content_.size());
    std::mt19937 random(63);
    for (const FileEntry& entry : list) {
        const std::string& want = content_.at(entry.path);
        ASSERT_EQ(entry.size, static_cast<int64_t>(want.size()));
        EXPECT_EQ(read(one, entry.path, 0, want.size()), want);
        for (int i = 0; i < 20; ++i) {
            const size_t offset = random() % want.size(), size = random() % (want.size() - offset + 1);
            EXPECT_EQ(read(i % 2 == 0 ? one : two, entry.path, offset, size), want.substr(offset, size));
        }
    }
}

TEST_F(Files, StayReadableForAClientThatHasBegun) {
    const FileServer server(folder_, key_);
    FileClient early("127.0.0.1", server.port(), key_, 20), late("127.0.0.1", server.port(), key_, 20);
    early.read("d", 0, {});
    fs::remove(folder_ / "d");
    EXPECT_EQ(read(early, "d", 0, content_["d"].size()), content_["d"]);
    EXPECT_THROW(read(late, "d", 0, 1), DataError);
    EXPECT_EQ(read(late, "of-1/c", 0, 1), content_["of-1/c"].substr(0, 1));  // the connection goes on
}

TEST_F(Files, OtherFilesAreNotServed) {
    write("../tutti_secret_of_others", "secret");
    fs::create_symlink("/etc/passwd", folder_ / "link");
    fs::create_symlink("/etc", folder_ / "etc");
    const FileServer server(folder_, key_);
    FileClient client("127.0.0.1", server.port(), key_, 20);
    for (const char* path : {"../tutti_secret_of_others", "own/../../tutti_secret_of_others", "/etc/passwd", "link", "",
                             "own", ".", "own//step-0000000003/a", "a\nb"})
        EXPECT_THROW(read(client, path, 0, 1), DataError) << path;
    EXPECT_THROW(read(client, "d", to_size(content_["d"].size()), 1), DataError);  // after its end
    EXPECT_THROW(read(client, "d", to_size(-1), 1), DataError);
    for (const FileEntry& entry : client.list()) EXPECT_TRUE(content_.contains(entry.path)) << entry.path;
    fs::remove(folder_ / "../tutti_secret_of_others");
}

TEST_F(Files, AreNotReadWithoutTheSecret) {
    const FileServer server(folder_, key_);
    EXPECT_THROW(FileClient("127.0.0.1", server.port(), key_of("another"), 20), DataError);
    // Unknown callers that send nothing or arbitrary bytes do not keep a client out.
    std::vector<Socket> callers;
    std::string why;
    for (int i = 0; i < 40; ++i) {
        callers.push_back(connect_to("127.0.0.1", server.port(), Clock::now() + std::chrono::seconds(20), why));
        if (i % 2 == 0 && callers.back().open())
            send_frame(callers.back(), Frame::Type::join, std::string(64, static_cast<char>(i)));
    }
    for (;;) try {
            FileClient client("127.0.0.1", server.port(), key_, 20);
            EXPECT_EQ(client.list().size(), content_.size());
            break;
        } catch (const DataError&) {  // closed because of the other callers, for up to 5 s
        }
}

// Removes the folder. Exits with 0 where a connection that finds no room for the stack of a thread ends, and the next
// one is served.
[[noreturn]] void serve_without_room(const std::string& folder, const Key& key) {
    const FileServer server(folder, key);
    rlimit before = {};
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    bool is_refused = false;
    ::getrlimit(RLIMIT_AS, &before);
    const rlimit full{.rlim_cur = to_size(pages * ::sysconf(_SC_PAGESIZE)) + (1 << 20), .rlim_max = before.rlim_max};
    ::setrlimit(RLIMIT_AS, &full);
    try {
        FileClient("127.0.0.1", server.port(), key, 20);
    } catch (const DataError&) {
        is_refused = true;
    }
    ::setrlimit(RLIMIT_AS, &before);
    FileClient client("127.0.0.1", server.port(), key, 20);
    const bool is_served = !client.list().empty();
    fs::remove_all(folder);  // of this process
    _exit(is_refused && is_served ? 0 : 1);
}

// The error left the thread of the server, which ended the process.
TEST_F(Files, AThreadThatIsRefusedEndsOneConnection) {
    if (!build_info().sanitizer.empty()) GTEST_SKIP() << "a sanitizer maps memory of its own for a thread";
    GTEST_FLAG_SET(death_test_style, "threadsafe");  // a new process keeps no stacks of former threads
    EXPECT_EXIT(serve_without_room(folder_, key_), ::testing::ExitedWithCode(0), "");
}

TEST(CopyPlacesTest, TravelAsText) {
    const CopyPlaces places{
        .directory = "/dev/shm/x \"y\"", .host = 3, .holder = 1, .peers = {{1, "10.0.0.1", 4000}}, .secret = "s"};
    const auto read = copy_places([&](const std::string& name) -> std::optional<std::string> {
        return name == kCopiesVariable ? std::optional(places.to_text()) : std::nullopt;
    });
    ASSERT_TRUE(read);
    EXPECT_EQ(read->directory, places.directory);
    EXPECT_EQ(read->host, 3);
    EXPECT_EQ(read->holder, 1);
    ASSERT_EQ(read->peers.size(), 1U);
    EXPECT_EQ(read->peers[0].host, 1);
    EXPECT_EQ(read->peers[0].address, "10.0.0.1");
    EXPECT_EQ(read->peers[0].port, 4000);
    EXPECT_EQ(read->secret, "s");
    EXPECT_FALSE(copy_places([](const std::string&) { return std::optional<std::string>(); }));
}

}  // namespace
}  // namespace tutti::comm::tcp
