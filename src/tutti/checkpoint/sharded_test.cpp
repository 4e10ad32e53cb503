// Indices of sharded files: each rule broken once; index and shards that do not agree; paths that lead elsewhere.
#include "tutti/checkpoint/sharded.h"

#include <gtest/gtest.h>

#include "tutti/checkpoint/testing/memory_file_system.h"
#include "tutti/checkpoint/testing/sample.h"

namespace tutti::checkpoint {
namespace {

using testing::contains;

std::string error_of(const std::string& index) {
    try {
        parse_index(index, "m.index.json");
    } catch (const DataError& error) {
        return error.what();
    }
    return "accepted";
}

TEST(Index, AcceptsWhatIsWritten) {
    const std::map<std::string, std::string> map = {{"a", "model-00001-of-00002.safetensors"},
                                                    {"b.weight", "model-00002-of-00002.safetensors"}};
    EXPECT_EQ(parse_index(write_index(map, 12), "x"), map);
    EXPECT_EQ(write_index({{"a", "x.safetensors"}}, 7),
              "{\n  \"metadata\": {\n    \"total_size\": 7\n  },\n  \"weight_map\": {\n    \"a\": \"x.safetensors\"\n  "
              "}\n}\n");
    EXPECT_EQ(error_of(R"({"weight_map":{}})"), "accepted");
    EXPECT_EQ(error_of(R"({"metadata":{"total_size":1.5e10,"x":[null,true,{"y":-1}]},"weight_map":{}} )"), "accepted");
}

TEST(Index, RefusesEachBrokenRule) {
    const auto map = [](const std::string& file) { return R"({"weight_map":{"t":")" + file + "\"}}"; };
    const std::vector<std::pair<std::string, std::string>> cases = {
        {"", "byte 0: "},
        {"{}", "no weight_map"},
        {R"({"weight_map":[]})", "must be an object"},
        {R"({"weight_map":{"t":1}})", "required a text"},
        {R"({"weight_map":{}} x)", "expected end of input"},
        {R"({"weight_map":{},"weight_map":{}})", "\"weight_map\" comes twice"},
        {R"({"weight_map":{"t":"a.safetensors","t":"a.safetensors"}})", "\"t\" comes twice"},
        {R"({"metadata":{"a":1,"a":1},"weight_map":{}})", "\"a\" comes twice"},
        {R"({"metadata":[[[[[1]]]]],"weight_map":{}})", "nested more than 5 levels"},
        {R"({"metadata":?,"weight_map":{}})", "byte 12: "},
        {map("../a.safetensors"), "plain name"},
        {map("/etc/a.safetensors"), "plain name"},
        {map("b/a.safetensors"), "plain name"},
        {map("..\\\\a.safetensors"), "plain name"},
        {map(".a.safetensors"), "plain name"},
        {map("a.bin"), "plain name"},
        {map(""), "plain name"},
        {map("a\\u0000.safetensors"), "NUL"},
        {map("a%2f.safetensors"), "plain name"},
        {map(std::string(250, 'a') + ".safetensors"), "plain name"},
    };
    for (const auto& [index, message] : cases) {
        EXPECT_TRUE(contains(error_of(index), message)) << index << "\n" << error_of(index);
        EXPECT_TRUE(contains(error_of(index), "m.index.json: ")) << index;
    }
}

class Sharded : public ::testing::Test {
  protected:
    void put(const std::string& file, std::vector<TensorToWrite> tensors) {
        write_file_atomically(disk, "/", safetensors_file(file, std::move(tensors)));
    }
    void put_index(const std::map<std::string, std::string>& map) {
        write_file_atomically(disk, "/", {.name = std::string(kIndexFile), .head = write_index(map, 0)});
    }
    std::string error() {
        try {
            ShardedSafetensors::open(disk, "/");
        } catch (const DataError& e) {
            return e.what();
        }
        return "accepted";
    }
    testing::MemoryFileSystem disk;
    std::vector<std::byte> x = testing::random_bytes(8, 1), y = testing::random_bytes(8, 2);
};

TEST_F(Sharded, ReadsOverAllFiles) {
    EXPECT_TRUE(contains(error(), "holds neither"));
    put("one.safetensors", {{"x", DType::f32, {2}, x}});
    put("two.safetensors", {{"y", DType::bf16, {4}, y}});
    put_index({{"x", "one.safetensors"}, {"y", "two.safetensors"}});
    const auto all = ShardedSafetensors::open(disk, "/");
    EXPECT_EQ(all.names(), (std::vector<std::string>{"x", "y"}));
    EXPECT_EQ(all.find("y")->dtype, DType::bf16);
    EXPECT_EQ(all.find("z"), nullptr);
    std::vector<std::byte> part(4);
    all.read("y", 4, part);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), y.begin() + 4));
    put("model.safetensors", {{"only", DType::f32, {2}, x}});  // transformers prefers it, too
    EXPECT_EQ(ShardedSafetensors::open(disk, "/").names(), std::vector<std::string>{"only"});
}

TEST_F(Sharded, ListsAllDisagreements) {
    put("one.safetensors", {{"x", DType::f32, {2}, x}, {"extra", DType::f32, {2}, x}});
    put("two.safetensors", {{"y", DType::f32, {2}, y}, {"x", DType::f32, {2}, y}});
    put_index({{"x", "one.safetensors"}, {"y", "two.safetensors"}, {"gone", "two.safetensors"}});
    const std::string text = error();
    EXPECT_TRUE(contains(text, "one.safetensors holds extra, which the index does not list")) << text;
    EXPECT_TRUE(contains(text, "two.safetensors holds x, which the index has in one.safetensors")) << text;
    EXPECT_TRUE(contains(text, "two.safetensors does not hold gone")) << text;
    put_index({{"x", "three.safetensors"}});
    EXPECT_TRUE(contains(error(), "three.safetensors"));
}

// Pieces that are made when their turn comes, one at a time, over and inside the seams of chunks.
TEST(FileWriter, MakesPiecesInTurn) {
    testing::MemoryFileSystem disk;
    std::vector<std::byte> buffer;
    std::string expected = "head";
    FileToWrite file{.name = "f", .head = "head"};
    int made = 0;
    for (const int64_t size : {int64_t{3}, int64_t{0}, kChunkBytes, int64_t{5}, kChunkBytes + 7}) {
        const auto content = testing::random_bytes(size, static_cast<uint64_t>(size));
        expected.append(reinterpret_cast<const char*>(content.data()), content.size());
        file.body.emplace_back(size, [&buffer, &made, size] {
            ++made;
            buffer = testing::random_bytes(size, static_cast<uint64_t>(size));
            return std::span<const std::byte>(buffer);
        });
    }
    const FileRecord record = write_file_atomically(disk, "/", file);
    EXPECT_EQ(made, 5);
    EXPECT_EQ(disk.content("/f"), expected);
    EXPECT_EQ(record.digest, xxh3_128(std::as_bytes(std::span(expected))));
    file.body = {FilePart(4, [] { return std::span<const std::byte>(); })};
    EXPECT_THROW(write_file_atomically(disk, "/", file), Error);
}

}  // namespace
}  // namespace tutti::checkpoint
