// A mapped file has the bytes of the file; the error of a file that cannot be mapped names the reason.
#include "tutti/base/read_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "tutti/base/testing/scratch.h"
#include "tutti/base/to_size.h"

namespace tutti {
namespace {

std::string open_error(const std::string& path) {
    return message_of<DataError>([&] { MappedFile file(path); });
}

TEST(MappedFile, ShowsTheBytesAndMoves) {
    ScratchFolder folder;
    MappedFile first(folder.write("a", "hello"));
    MappedFile second(std::move(first));
    EXPECT_TRUE(first.bytes().empty());  // NOLINT(bugprone-use-after-move): the state after a move
    ASSERT_EQ(second.bytes().size(), 5u);
    EXPECT_EQ(std::memcmp(second.bytes().data(), "hello", 5), 0);
    second = MappedFile(folder.write("b", "other"));
    EXPECT_EQ(std::memcmp(second.bytes().data(), "other", 5), 0);
    EXPECT_EQ(second.path(), folder.path("b"));
}

TEST(MappedFile, MissingNamesPathAndReason) {
    ScratchFolder folder;
    const auto message = open_error(folder.path("absent.txt"));
    EXPECT_EQ(missing(folder.path("absent.txt"), message), "");
    EXPECT_EQ(missing("No such file or directory (errno 2)", message), "");
    EXPECT_EQ(
        missing("tried from " + std::filesystem::current_path().string(), open_error("no_such_relative_file.txt")), "");
}

TEST(MappedFile, EmptyDirectoryAndPipeAreRefused) {
    ScratchFolder folder;
    EXPECT_EQ(missing("is empty (0 bytes)", open_error(folder.write("empty.txt", ""))), "");
    EXPECT_EQ(missing("is a directory", open_error(folder.path(""))), "");
    ASSERT_EQ(::mkfifo(folder.path("pipe").c_str(), 0600), 0);
    EXPECT_EQ(missing("is not a regular file", open_error(folder.path("pipe"))), "");  // without waiting for a writer
}

// Root may read every file: there the thread takes the file-system identity of user 65534.
TEST(MappedFile, UnreadableNamesTheReason) {
    ScratchFolder folder;
    const auto path = folder.write("secret.txt", "hello");
    ASSERT_EQ(::chmod(path.c_str(), 0), 0);
    ASSERT_EQ(::chmod(folder.path("").c_str(), 0755), 0);
    const bool root = ::geteuid() == 0;
    if (root) ::setfsuid(65534);
    const auto message = open_error(path);
    if (root) ::setfsuid(0);
    EXPECT_EQ(missing(path, message), "");
    EXPECT_EQ(missing("Permission denied (errno 13)", message), "");
}

TEST(ReadFile, AMissingOrUnreadableFileIsNothing) {
    ScratchFolder folder;
    EXPECT_EQ(read_file_if_readable(folder.write("a", "hello")), "hello");
    EXPECT_EQ(read_file_if_there(folder.path("absent")), std::nullopt);
    EXPECT_EQ(read_file_if_readable(folder.path("absent")), std::nullopt);
    EXPECT_THROW(read_file_if_there(folder.path("")), DataError);  // a directory
    EXPECT_EQ(read_file_if_readable(folder.path("")), std::nullopt);
}

// Pages of the mapping in the page tables of this process, not in the system's cache.
int64_t resident_pages(const MappedFile& file) {
    const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    const auto first = reinterpret_cast<uintptr_t>(file.bytes().data()) / page;
    std::vector<uint64_t> entries(file.bytes().size() / page);
    const int map = ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    const ssize_t got = ::pread(map, entries.data(), entries.size() * 8, static_cast<off_t>(first * 8));
    ::close(map);
    EXPECT_EQ(got, static_cast<ssize_t>(entries.size() * 8));
    return std::count_if(entries.begin(), entries.end(), [](uint64_t entry) { return entry >> 63 != 0; });  // "present"
}

TEST(MappedFile, ForgetsWholePagesAndReadsThemAgain) {
    ScratchFolder folder;
    const auto page = static_cast<int64_t>(::sysconf(_SC_PAGESIZE));
    std::string content(to_size(64 * page), 'x');
    for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 7 / 64);
    const MappedFile file(folder.write("a", content));
    const auto same = [&] { return std::memcmp(file.bytes().data(), content.data(), content.size()) == 0; };
    EXPECT_TRUE(same());
    ASSERT_EQ(resident_pages(file), 64);
    file.forget(1, 10 * page);  // pages 1 to 9
    EXPECT_EQ(resident_pages(file), 55);
    file.forget(5 * page, 3);  // no whole page
    file.forget(20 * page, 44 * page);
    EXPECT_EQ(resident_pages(file), 11);
    EXPECT_TRUE(same());
}

TEST(MappedFile, NoticesTruncation) {
    ScratchFolder folder;
    const auto path = folder.write("a", std::string(10000, 'x'));
    MappedFile file(path);
    file.check_not_truncated();
    std::filesystem::resize_file(path, 20000);
    file.check_not_truncated();  // a longer file is harmless: the mapped bytes still exist
    std::filesystem::resize_file(path, 100);
    const auto message = message_of<DataError>([&] { file.check_not_truncated(); });
    EXPECT_EQ(missing("was cut from 10000 to 100 bytes", message), "");
}

}  // namespace
}  // namespace tutti
