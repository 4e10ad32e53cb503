// Copies of a host: fetched by another one, taken over by the next agent, removed when none follows. Agents that are
// killed are processes.
#include "tutti/launch/copy_store.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <random>

#include "tutti/base/error.h"
#include "tutti/base/read_file.h"
#include "tutti/checkpoint/store.h"
#include "tutti/launch/agent.h"

namespace tutti::launch {
namespace {

namespace fs = std::filesystem;
using comm::tcp::CopyPlaces;

class CopyStores : public ::testing::Test {
  protected:
    CopyStores() { fs::create_directories(root_); }
    ~CopyStores() override { fs::remove_all(root_); }

    OpenCopies setup(const std::string& host, double silence_s = 15) const {
        return {.job = "job", .host = host, .launch = "x", .root = root_, .secret = "secret", .silence_s = silence_s};
    }
    static void wait_for(const std::function<bool()>& fact) {
        while (!fact()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    // A copy by the ranks of a host: files of random bytes. The manifest lists `elsewhere` too, which is not there.
    static std::map<std::string, std::string> copy(const std::string& directory, int64_t step, std::mt19937& random) {
        checkpoint::PosixFileSystem files;
        checkpoint::Store store(files, checkpoint::join(directory, comm::tcp::kOwnCopies), checkpoint::Access::write,
                                [](const std::string&) {});
        const auto stored = store.list();
        for (size_t i = 1; i < stored.size(); ++i) store.remove(stored[i]);
        auto attempt = store.begin(step);
        checkpoint::Manifest manifest{.step = step, .config_digest = {}, .data_fingerprint = {}, .state = "{}"};
        std::map<std::string, std::string> content;
        for (const char* name : {"one", "two", "elsewhere"}) {
            std::string bytes(random() % 9000000, static_cast<char>('a' + random() % 26));
            for (int i = 0; i < 1000 && !bytes.empty(); ++i)
                bytes[random() % bytes.size()] = static_cast<char>(random());
            const std::string path = checkpoint::join(attempt.path, name);
            manifest.files.push_back(
                checkpoint::NewFile(files, path, static_cast<int64_t>(bytes.size())).write({name, bytes, {}}));
            if (std::string(name) == "elsewhere")
                fs::remove(path);
            else
                content[name] = bytes;
        }
        store.commit(attempt, manifest);
        return content;
    }
    static bool holds(const std::string& directory, int64_t step, const std::map<std::string, std::string>& content) {
        const std::string path = checkpoint::join(directory, checkpoint::step_name(step));
        return std::all_of(content.begin(), content.end(), [&](const auto& file) {
            return read_file_if_there(checkpoint::join(path, file.first)) == file.second;
        });
    }

    std::string root_ = concat(fs::temp_directory_path().string(), "/tutti_copy_stores_", getpid());
};

TEST_F(CopyStores, FetchTheCommittedCopiesOfTheirSource) {
    std::mt19937 random(62);
    CopyStore source(setup("3")), holder(setup("0"));
    holder.follow(CopyPlaces::Peer{3, "127.0.0.1", source.port()});
    const std::string there = checkpoint::join(holder.directory(), comm::tcp::copies_of(3));
    for (int64_t step = 2; step <= 10; step += 2) {
        const auto content = copy(source.directory(), step, random);
        EXPECT_EQ(source.newest_step(), step);
        wait_for([&] { return fs::exists(checkpoint::join(there, checkpoint::step_name(step))); });
        EXPECT_TRUE(holds(there, step, content));
        EXPECT_EQ(read_file(concat(there, '/', checkpoint::step_name(step), "/MANIFEST.json")),
                  read_file(concat(source.directory(), "/own/", checkpoint::step_name(step), "/MANIFEST.json")));
        checkpoint::PosixFileSystem files;
        const checkpoint::Store store(files, there, checkpoint::Access::read, [](const std::string&) {});
        EXPECT_EQ(store.list().size(), step == 2 ? 1U : 2U);  // two slots
    }
    EXPECT_EQ(holder.newest_step(), 0);  // of its own ranks

    // The source is lost; its copy stays until all own copies are newer.
    holder.follow(std::nullopt);
    copy(holder.directory(), 8, random);
    copy(holder.directory(), 12, random);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    EXPECT_TRUE(fs::exists(there));
    copy(holder.directory(), 14, random);  // and 8 is gone
    wait_for([&] { return !fs::exists(there); });
}

TEST_F(CopyStores, RefuseADamagedPiece) {
    std::mt19937 random(63);
    std::atomic<bool> told = false;
    CopyStore source(setup("1"));
    CopyStore holder(setup("0"), [&](const std::string& text) {
        told = told || text.find("has another digest than its manifest says") != std::string::npos;
    });
    copy(source.directory(), 2, random);
    const fs::path file = fs::path(source.directory()) / "own" / checkpoint::step_name(2) / "two";
    std::string bytes = read_file(file);
    bytes[bytes.size() / 2] ^= 1;
    std::ofstream(file, std::ios::binary) << bytes;
    holder.follow(CopyPlaces::Peer{1, "127.0.0.1", source.port()});
    wait_for([&] { return told.load(); });
    EXPECT_FALSE(fs::exists(fs::path(holder.directory()) / "of-1" / checkpoint::step_name(2)));
    const auto content = copy(source.directory(), 4, random);
    wait_for([&] { return fs::exists(fs::path(holder.directory()) / "of-1" / checkpoint::step_name(4)); });
    EXPECT_TRUE(holds(checkpoint::join(holder.directory(), "of-1"), 4, content));
}

TEST_F(CopyStores, RemoveTheirDirectoryAtTheEnd) {
    std::string directory;
    {
        const CopyStore store(setup("0"));
        directory = store.directory();
        EXPECT_EQ(fs::status(directory).permissions(), fs::perms::owner_all);
    }
    EXPECT_FALSE(fs::exists(directory));
    EXPECT_TRUE(fs::is_empty(root_));
}

// The process of the store is killed.
TEST_F(CopyStores, AreTakenOverByTheNextAgentOrRemovedByTheGuard) {
    std::mt19937 random(64);
    for (const bool followed : {true, false}) {
        std::array<int, 2> ready{};
        ASSERT_EQ(pipe(ready.data()), 0);
        const pid_t child = fork();
        if (child == 0) {
            const CopyStore store(setup("0", 2));
            copy(store.directory(), 6, random);
            if (write(ready[1], "x", 1) != 1) _exit(1);
            for (;;) pause();
        }
        close(ready[1]);
        char byte = 0;
        ASSERT_EQ(read(ready[0], &byte, 1), 1);
        close(ready[0]);
        remove_orphaned_copies(root_);  // of living processes: nothing
        kill(child, SIGKILL);
        waitpid(child, nullptr, 0);
        const std::string directory = checkpoint::join(root_, concat("tutti-copies-", geteuid(), "-job-0-x"));
        ASSERT_TRUE(fs::exists(directory));
        if (followed) {
            const CopyStore next(setup("0", 2));
            EXPECT_EQ(next.directory(), directory);
            EXPECT_EQ(next.newest_step(), 6);
        }
        wait_for([&] { return !fs::exists(directory); });
    }
}

TEST_F(CopyStores, RefuseADirectoryOfAnotherUser) {
    const std::string directory = checkpoint::join(root_, concat("tutti-copies-", geteuid(), "-job-0-x"));
    fs::create_directory_symlink("/tmp", directory);
    try {
        const CopyStore store(setup("0"));
        FAIL();
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("is there and not a directory of this user alone"), std::string::npos);
    }
    auto nowhere = setup("1");
    nowhere.root = root_ + "/none";
    EXPECT_THROW(CopyStore{nowhere}, Error);
}

TEST(OpenCopiesFrame, ReadsBackWhatItWrote) {
    const OpenCopies open{.job = "j", .host = "2", .launch = "l", .root = "/dev/shm", .secret = "s", .silence_s = 7};
    const OpenCopies read = read_open_copies(to_body(open));
    EXPECT_EQ(read.job + read.host + read.launch + read.root + read.secret, "j2l/dev/shms");
    EXPECT_EQ(read.silence_s, 7);
    const Start start{.job = "j", .host = "2", .source = CopyPlaces::Peer{4, "n5", 4321}};
    const Start again = read_start(to_body(start));
    ASSERT_TRUE(again.source);
    EXPECT_EQ(again.source->host, 4);
    EXPECT_EQ(again.source->address, "n5");
    EXPECT_EQ(again.source->port, 4321);
    EXPECT_FALSE(read_start(to_body(Start{.job = "j", .host = "2"})).source);
}

}  // namespace
}  // namespace tutti::launch
