// The real disk behind the seam, the file helpers on it, directories that appear whole, and the two test disks (a wrong
// model would prove nothing).
#include "tutti/checkpoint/file_system.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "tutti/base/testing/scratch.h"
#include "tutti/checkpoint/digest.h"
#include "tutti/checkpoint/file_writer.h"
#include "tutti/checkpoint/testing/fault_file_system.h"
#include "tutti/checkpoint/testing/memory_file_system.h"
#include "tutti/checkpoint/testing/sample.h"

namespace tutti::checkpoint {
namespace {

using testing::contains;
using testing::MemoryFileSystem;
using testing::Survives;

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

int code_of(const std::function<void()>& call) {
    try {
        call();
    } catch (const IoError& error) {
        return error.code();
    }
    return 0;
}

TEST(PosixFileSystem, DoesWhatItSaysOnARealDisk) {
    const ScratchFolder scratch;
    PosixFileSystem disk;
    const std::string directory = join(scratch.path(), "a/b/c"), path = join(directory, "x");
    make_directories(disk, directory + "/");
    EXPECT_EQ(disk.kind(directory), FileKind::directory);
    File file = File::create(disk, path);
    file.allocate(1000);
    EXPECT_EQ(std::filesystem::file_size(path), 1000u);
    file.write_all(bytes_of("hello"), 3);
    file.sync();
    file.close();
    EXPECT_EQ(code_of([&] { File::create(disk, path); }), EEXIST);
    EXPECT_EQ(code_of([&] { disk.make_directory(directory); }), EEXIST);
    disk.rename(path, path + "y");
    disk.fsync_directory(directory);
    EXPECT_EQ(disk.kind(path), FileKind::none);
    const File reader = File::open(disk, path + "y");
    reader.drop_cache();
    EXPECT_EQ(reader.size(), 1000);
    EXPECT_EQ(read_text(reader, 1000).substr(0, 9), std::string("\0\0\0hello\0", 9));
    EXPECT_THROW(read_text(reader, 999), DamagedError);
    std::vector<std::byte> eleven(11);
    EXPECT_THROW(reader.read_all(eleven, 990), DamagedError);
    std::filesystem::create_symlink("xy", join(directory, "link"));
    EXPECT_EQ(disk.list(directory), (std::vector<std::string>{"link", "xy"}));
    EXPECT_EQ(disk.kind(join(directory, "link")), FileKind::other);
    EXPECT_EQ(File::open(disk, join(directory, "link")).size(), 1000);
    remove_tree(disk, join(scratch.path(), "a"));
    EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

TEST(PosixFileSystem, ErrorsNameTheCallThePathAndTheReason) {
    const ScratchFolder scratch;
    PosixFileSystem disk;
    const std::string missing = join(scratch.path(), "missing");
    EXPECT_EQ(code_of([&] { disk.open_read(missing); }), ENOENT);
    EXPECT_EQ(code_of([&] { disk.list(missing); }), ENOENT);
    EXPECT_EQ(code_of([&] { disk.open_read(scratch.path()); }), EISDIR);
    ASSERT_EQ(::mkfifo(missing.c_str(), 0600), 0);
    EXPECT_EQ(code_of([&] { disk.open_read(missing); }), EINVAL);  // and does not wait for a writer
    EXPECT_EQ(std::string(IoError("write", "/x/y", EIO).what()), "write /x/y: Input/output error");
    EXPECT_TRUE(contains(IoError("write", "/x", ENOSPC).what(), "write /x: No space left on device (free some space"));
    // The remedy is that of the call: reading needs no other directory.
    for (const char* reads : {"open", "open (a regular file is needed)", "read", "list", "stat"}) {
        EXPECT_TRUE(contains(IoError(reads, "/x", EACCES).what(), "allow this user to read it")) << reads;
        EXPECT_FALSE(contains(IoError(reads, "/x", EACCES).what(), "choose a directory")) << reads;
    }
    for (const char* writes : {"open lock", "create", "make directory", "rename a to", "remove"})
        EXPECT_TRUE(contains(IoError(writes, "/x", EACCES).what(), "that this user may write")) << writes;
}

// A mapped file that is cut under its reader is an error, not the signal that ends the process.
TEST(PosixFileSystem, MapsFilesAndNoticesACut) {
    const ScratchFolder folder;
    std::string content(3 << 20, 'x');
    for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 31 >> 10);
    const std::string path = folder.write("weights", content);
    PosixFileSystem disk;
    const std::shared_ptr<ByteSource> source = disk.map(path);
    EXPECT_EQ(source->path(), path);
    ASSERT_EQ(source->size(), static_cast<int64_t>(content.size()));
    for (int i = 0; i < 2; ++i) {  // forgotten pages come back
        std::vector<std::byte> read(content.size() - 5);
        source->read(3, read);
        EXPECT_EQ(std::memcmp(read.data(), content.data() + 3, read.size()), 0);
    }
    std::vector<std::byte> some(100);
    EXPECT_THROW(source->read(source->size() - 99, some), Error);
    EXPECT_THROW(source->read(-1, some), Error);
    std::filesystem::resize_file(path, 5000);
    EXPECT_EQ(missing("weights: was cut from 3145728 to 5000 bytes while in use",
                      message_of<DataError>([&] { source->read(1 << 20, some); })),
              "");
    EXPECT_THROW(disk.map(folder.path("absent")), DataError);
}

TEST(PosixFileSystem, AFullDeviceSaysSo) {
    if (::access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full here";
    PosixFileSystem disk;
    const int fd = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    const FileHandle full{fd, "/dev/full"};
    EXPECT_EQ(code_of([&] { disk.pwrite(full, bytes_of("x"), 0); }), ENOSPC);
    disk.close(full);
}

TEST(PosixFileSystem, OnlyOneHoldsALock) {
    const ScratchFolder scratch;
    PosixFileSystem disk;
    const std::string path = join(scratch.path(), ".lock");
    auto first = disk.lock(path, "hal-2001");
    try {
        disk.lock(path, "other-1");
        FAIL();
    } catch (const UsageError& error) {
        EXPECT_TRUE(contains(error.what(), "is locked by hal-2001"));
    }
    first.reset();
    EXPECT_NE(disk.lock(path, "other-1"), nullptr);
}

TEST(Names, OnlyPlainNamesStayInTheirDirectory) {
    for (const char* good : {"a", "model-00001-of-00002.safetensors", "A_1", "a..b"})
        EXPECT_TRUE(is_plain_file_name(good));
    for (const char* bad : {"", ".", "..", ".hidden", "-x", "a/b", "/a", "a b", "\xc3\xa9"})
        EXPECT_FALSE(is_plain_file_name(bad)) << bad;
    EXPECT_FALSE(is_plain_file_name(std::string(256, 'a')));
    EXPECT_EQ(parent_of("/a"), "/");
    EXPECT_EQ(parent_of("a"), ".");
    EXPECT_EQ(parent_of("a/b/c"), "a/b");
    EXPECT_EQ(join("a/", "b"), "a/b");
}

TEST(Owner, IsKnownAliveOrGone) {
    EXPECT_EQ(state_of(this_owner()), OwnerState::this_process);
    const std::string host = this_owner().substr(0, this_owner().rfind('-'));
    EXPECT_EQ(state_of(concat(host, "-", ::getppid())), OwnerState::running);
    EXPECT_EQ(state_of(host + "-2147483647"), OwnerState::gone);  // above any pid_max
    EXPECT_EQ(state_of("elsewhere-1"), OwnerState::elsewhere);
    EXPECT_EQ(state_of(host + "-x"), OwnerState::elsewhere);
    EXPECT_EQ(state_of(""), OwnerState::elsewhere);
}

TEST(Owner, ThatHasEndedIsGoneBeforeItsParentAsks) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(0);
    siginfo_t info = {};
    ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
    const std::string host = this_owner().substr(0, this_owner().rfind('-'));
    EXPECT_EQ(state_of(concat(host, "-", child)), OwnerState::gone);
    ::waitpid(child, nullptr, 0);
}

TEST(Sums, FindAChangedAndAMissingFile) {
    MemoryFileSystem disk;
    write_file_atomically(disk, "/", {"a", "content", {}});
    write_file_atomically(disk, "/", {"empty", "", {}});
    verify_sums(disk, "/");  // nothing is listed
    write_sums(disk, "/", {"a", "empty"});
    // As `xxhsum -H2 a empty` prints them.
    EXPECT_TRUE(disk.content("/XXH128SUMS").ends_with("  a\n99aa06d3014798d86001c324468d497f  empty\n"));
    verify_sums(disk, "/");
    const auto refusal = [&] {
        try {
            verify_sums(disk, "/");
        } catch (const DataError& error) {
            return std::string(error.what());
        }
        return std::string();
    };
    disk.content("/a")[3] ^= 1;
    EXPECT_NE(refusal().find("/a: its digest is "), std::string::npos) << refusal();
    EXPECT_NE(refusal().find("/XXH128SUMS:1 says "), std::string::npos) << refusal();
    disk.unlink("/a");
    EXPECT_EQ(refusal(), "/a is missing; /XXH128SUMS:1 lists it: put it back, or remove that line to do without");
    for (const char* damaged :
         {"x", "99aa06d3014798d86001c324468d497f empty", "99aa06d3014798d86001c324468d497f  ../a"}) {
        disk.content("/XXH128SUMS") = damaged;
        EXPECT_NE(refusal().find("the list is damaged"), std::string::npos) << damaged;
    }
}

TEST(AtomicWrite, WhatADeadProcessLeftIsRemoved) {
    MemoryFileSystem disk;
    const std::string host = this_owner().substr(0, this_owner().rfind('-'));
    const std::string running = concat("/y.tmp-", host, "-", ::getppid()), elsewhere = "/w.tmp-another-1";
    for (const std::string& path :
         {std::string("/x"), "/x.tmp-" + host + "-2147483647", running, elsewhere, std::string("/z.tmp")})
        File::create(disk, path).close();
    remove_temporary_files(disk, "/", false);
    EXPECT_EQ(disk.list("/"), (std::vector<std::string>{elsewhere.substr(1), "x", running.substr(1), "z.tmp"}));
    remove_temporary_files(disk, "/", true);  // nothing else writes there, on any host
    EXPECT_EQ(disk.list("/"), (std::vector<std::string>{"x", running.substr(1), "z.tmp"}));

    disk.make_directory("/hf.tmp-" + host + "-2147483647");
    File::create(disk, "/hf.tmp-" + host + "-2147483647/a").close();
    disk.make_directory("/hf.tmp-another-1");
    const NewDirectory hf(disk, "/hf");
    EXPECT_EQ(disk.list("/"), (std::vector<std::string>{"hf.tmp-another-1", "hf.tmp-" + this_owner(), "x",
                                                        running.substr(1), "z.tmp"}));
}

TEST(AtomicWrite, ReplacesOrLeavesTheOldFile) {
    MemoryFileSystem disk;
    const std::vector<std::byte> bytes = testing::random_bytes(1000, 1);
    write_file_atomically(disk, "/", {"x", "old", {}});
    const auto before = static_cast<int64_t>(disk.calls.size());
    write_file_atomically(disk, "/", {"x", "new", {bytes, bytes}});
    EXPECT_EQ(disk.content("/x").size(), 2003u);
    const auto calls = static_cast<int64_t>(disk.calls.size()) - before;
    ASSERT_GE(calls, 7);
    for (int64_t call = 0; call < calls; ++call) {
        MemoryFileSystem fresh;
        write_file_atomically(fresh, "/", {"x", "old", {}});
        testing::FaultFileSystem faulty(fresh, {call, ENOSPC, false});
        EXPECT_THROW(write_file_atomically(faulty, "/", {"x", "new", {bytes}}), DataError);
        EXPECT_EQ(fresh.list("/"), std::vector<std::string>{"x"}) << call;
        const std::string left = fresh.content("/x");
        EXPECT_TRUE(left == "old" || (call == calls - 1 && left.size() == 1003)) << call;
    }
}

TEST(FileWriter, DigestsChunksAcrossPieces) {
    MemoryFileSystem disk;
    const auto big = testing::random_bytes(2 * kChunkBytes + 5, 1), small = testing::random_bytes(100, 2);
    const FileToWrite content{"x", "head", {small, {}, big, {}, small, {}}};
    NewFile file(disk, "/x", content.size());
    const FileRecord record = file.write(content);
    const std::string text = disk.content("/x");
    std::string expected = "head";
    for (const auto* piece : {&small, &big, &small})
        expected.append(reinterpret_cast<const char*>(piece->data()), piece->size());
    ASSERT_TRUE(text == expected);
    EXPECT_EQ(record.size, 4 + 100 + 2 * kChunkBytes + 5 + 100);
    EXPECT_EQ(record.digest, xxh3_128(bytes_of(expected)));
    ASSERT_EQ(record.chunks.size(), 3u);
    EXPECT_EQ(record.chunks[1], xxh3_64(bytes_of(expected).subspan(kChunkBytes, kChunkBytes)));
    EXPECT_EQ(record.chunks[2], xxh3_64(bytes_of(expected).subspan(2 * kChunkBytes)));
}

TEST(FileWriter, ShortWritesAreContinued) {
    MemoryFileSystem disk;
    testing::FaultFileSystem faulty(disk, {0, 0, true});
    const auto bytes = testing::random_bytes(10'000, 1);
    NewFile(faulty, "/x", 10'000).write({"x", "", {bytes}});
    EXPECT_EQ(std::memcmp(disk.content("/x").data(), bytes.data(), 10'000), 0);
    EXPECT_GT(faulty.calls(), 14);  // 10'000 halved down to 1
}

// The model of a power cut, on its own.
TEST(MemoryFileSystem, KeepsOnlyWhatWasSynced) {
    MemoryFileSystem disk;
    write_file_atomically(disk, "/", {"old", "durable", {}});
    File file = File::create(disk, "/new");
    file.write_all(bytes_of(std::string(1024, 'n')), 0);
    EXPECT_EQ(disk.after_crash({})->list("/"), std::vector<std::string>{"old"});
    const auto named = disk.after_crash({Survives::nothing, Survives::everything});
    EXPECT_EQ(named->content("/new"), "");
    EXPECT_EQ(disk.after_crash({Survives::zeros, Survives::everything})->content("/new"), std::string(1024, '\0'));
    EXPECT_EQ(disk.after_crash({Survives::everything, Survives::everything})->content("/new"), std::string(1024, 'n'));
    bool torn = false;
    for (uint32_t seed = 0; seed < 50; ++seed) {
        const auto image = disk.after_crash({Survives::random, Survives::everything, seed});
        torn = torn || image->content("/new") == std::string(512, '\0') + std::string(512, 'n');
    }
    EXPECT_TRUE(torn);
    file.sync();
    EXPECT_EQ(disk.after_crash({})->kind("/new"), FileKind::none);  // the file is synced, its name is not
    disk.fsync_directory("/");
    EXPECT_EQ(disk.after_crash({})->content("/new"), std::string(1024, 'n'));
    disk.rename("/new", "/old");
    EXPECT_EQ(disk.after_crash({})->content("/old"), "durable");
    EXPECT_EQ(disk.after_crash({Survives::nothing, Survives::everything})->content("/old"), std::string(1024, 'n'));
}

// Root may write everywhere, but for file systems that are mounted for reading.
TEST(PosixFileSystem, SaysWhereNothingCanBeMade) {
    const ScratchFolder folder;
    PosixFileSystem disk;
    EXPECT_NO_THROW(disk.require_writable(folder.path("")));
    EXPECT_EQ(code_of([&] { disk.require_writable(folder.path("missing")); }), ENOENT);
    std::filesystem::permissions(folder.path(""), std::filesystem::perms::owner_read);
    const bool root = ::geteuid() == 0;
    EXPECT_EQ(code_of([&] { disk.require_writable(folder.path("")); }), root ? 0 : EACCES);
    std::filesystem::permissions(folder.path(""), std::filesystem::perms::owner_all);
}

TEST(MakeDirectories, OfALinkToNothingIsRefused) {
    const ScratchFolder folder;
    PosixFileSystem disk;
    std::filesystem::create_directory(folder.path("there"));
    std::filesystem::create_symlink(folder.path("there"), folder.path("good"));
    std::filesystem::create_symlink(folder.path("nowhere"), folder.path("bad"));
    std::filesystem::create_symlink(folder.write("file", "x"), folder.path("to_file"));
    ASSERT_EQ(::mkfifo(folder.path("pipe").c_str(), 0600), 0);
    make_directories(disk, folder.path("good/below"));
    EXPECT_TRUE(std::filesystem::is_directory(folder.path("there/below")));
    for (const char* name : {"bad", "to_file", "pipe"})
        for (const char* below : {"", "/below", "/far/below"})
            EXPECT_EQ(missing(concat(name, " is a link to nothing, or no directory, where a directory is needed"),
                              message_of<UsageError>([&] { make_directories(disk, folder.path(name) + below); })),
                      "");
}

TEST(MakeDirectories, OfAFileIsRefused) {
    testing::MemoryFileSystem disk;
    disk.make_directory("/d");
    write_file_atomically(disk, "/d", {.name = "f", .head = "x"});
    for (const char* path : {"/d/f", "/d/f/", "/d/f/below", "/d/f/far/below"}) try {
            make_directories(disk, path);
            ADD_FAILURE() << path;
        } catch (const UsageError& error) {
            EXPECT_TRUE(contains(error.what(), "/d/f is a file, where a directory is needed")) << error.what();
        }
    EXPECT_EQ(disk.content("/d/f"), "x");
    make_directories(disk, "/d/e/");
    EXPECT_EQ(disk.kind("/d/e"), FileKind::directory);
}

// Another place helps where nothing may be made, but not against a full disk, or one without inodes.
TEST(NewDirectory, TellsAWrongPlaceFromAFullDisk) {
    MemoryFileSystem disk;
    for (const int code : {EACCES, EROFS, ENOSPC, EDQUOT}) {
        testing::FaultFileSystem faulty(disk, {.call = 0, .code = code});
        try {
            NewDirectory(faulty, "/new");
            ADD_FAILURE() << code;
        } catch (const Error& error) {
            const bool place = code == EACCES || code == EROFS;
            EXPECT_EQ(error.exit_code(), place ? exit_codes::kUsage : exit_codes::kData) << error.what();
        }
    }
}

TEST(NewDirectory, AppearsWithCommitOnly) {
    testing::MemoryFileSystem disk;
    {
        NewDirectory made(disk, "/a/b/");
        write_file_atomically(disk, made.temporary(), {.name = "f", .head = "x"});
        EXPECT_EQ(disk.kind("/a/b"), FileKind::none);
    }
    EXPECT_EQ(disk.list("/a"), std::vector<std::string>{});  // given up: nothing stays
    {
        NewDirectory made(disk, "/a/b");
        write_file_atomically(disk, made.temporary(), {.name = "f", .head = "x"});
        made.commit();
    }
    EXPECT_EQ(disk.list("/a"), std::vector<std::string>{"b"});
    EXPECT_EQ(disk.content("/a/b/f"), "x");
}

TEST(NewDirectory, OverwritesNothing) {
    testing::MemoryFileSystem disk;
    disk.make_directory("/d");
    write_file_atomically(disk, "/d", {.name = "f", .head = "x"});
    EXPECT_THROW(NewDirectory(disk, "/d"), UsageError);
    EXPECT_THROW(NewDirectory(disk, "/d/f"), UsageError);
    EXPECT_EQ(disk.list("/"), std::vector<std::string>{"d"});
}

// A disk that fails once, at any call: an error, and neither the directory nor anything else is left.
TEST(NewDirectory, LeavesNothingWhenAnyCallFails) {
    bool failed = true;
    for (int64_t call = 0; failed; ++call) {
        testing::MemoryFileSystem disk;
        testing::FaultFileSystem faulty(disk, {.call = call, .code = ENOSPC});
        failed = false;
        bool renamed = false;
        try {
            NewDirectory made(faulty, "/d");
            write_file_atomically(faulty, made.temporary(), {.name = "f", .head = "x"});
            made.commit();
            renamed = true;
        } catch (const IoError&) {
            failed = true;
            renamed = disk.kind("/d") != FileKind::none;  // the last call makes the rename durable
        }
        EXPECT_EQ(disk.list("/"), renamed ? std::vector<std::string>{"d"} : std::vector<std::string>{}) << call;
        if (renamed) {
            EXPECT_EQ(disk.content("/d/f"), "x");
        }
        ASSERT_LT(call, 50);
    }
}

}  // namespace
}  // namespace tutti::checkpoint
