// The safetensors format: golden bytes of formats.md D, every rule of the reader broken once, parts of tensors.
#include "tutti/checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tutti/base/to_size.h"
#include "tutti/checkpoint/testing/memory_file_system.h"
#include "tutti/checkpoint/testing/sample.h"

namespace tutti::checkpoint {
namespace {

using testing::contains;

const std::string kGoldenHeader =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
    R"("b":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]}})";

std::string text_of(const FileToWrite& file) {
    std::string text = file.head;
    for (const auto& piece : file.body)
        text.append(reinterpret_cast<const char*>(piece.bytes.data()), piece.bytes.size());
    return text;
}

std::string error_of(const std::string& header, int64_t data_bytes) {
    try {
        parse_safetensors_header(header, data_bytes, "x.safetensors");
    } catch (const DataError& error) {
        return error.what();
    }
    return "accepted";
}

TEST(SafetensorsWriter, WritesTheGoldenFile) {
    const auto a = testing::random_bytes(16, 1), b = testing::random_bytes(6, 2);
    const FileToWrite file = safetensors_file("x", {{"b", DType::bf16, {3}, b}, {"a", DType::f32, {2, 2}, a}});
    const std::string text = text_of(file);
    ASSERT_EQ(text.size(), 174u);
    EXPECT_EQ(file.size(), 174);
    EXPECT_EQ(text.substr(0, 8), std::string("\x90\0\0\0\0\0\0\0", 8));
    EXPECT_EQ(text.substr(8, 144), kGoldenHeader);
    EXPECT_EQ(std::memcmp(text.data() + 152, a.data(), 16), 0);
    EXPECT_EQ(std::memcmp(text.data() + 168, b.data(), 6), 0);
}

TEST(SafetensorsWriter, SortsByAlignmentThenNameAndPadsTheHeader) {
    const std::vector<std::byte> zeros(8);
    const auto one = [&](std::string name, DType dtype) {
        return TensorToWrite{std::move(name), dtype, {}, std::span(zeros).first(to_size(size_of(dtype)))};
    };
    const FileToWrite file =
        safetensors_file("x", {one("u8", DType::u8), one("u16", DType::u16), one("f16", DType::f16),
                               one("bf16", DType::bf16), one("i32", DType::i32), one("f32 b", DType::f32),
                               one("f32 a", DType::f32), one("f64", DType::f64), one("i64", DType::i64)});
    EXPECT_EQ(file.head.size() % 8, 0u);
    const auto header =
        parse_safetensors_header(file.head.substr(8), file.size() - static_cast<int64_t>(file.head.size()), "x");
    std::vector<std::string> names;
    for (const TensorInfo& tensor : header.tensors) names.push_back(tensor.name);
    EXPECT_EQ(names, (std::vector<std::string>{"i64", "f64", "f32 a", "f32 b", "i32", "bf16", "f16", "u16", "u8"}));
}

TEST(SafetensorsWriter, RefusesWhatNoReaderWouldTake) {
    const std::vector<std::byte> bytes(8);
    const auto write = [&](std::vector<TensorToWrite> tensors) { safetensors_file("x", std::move(tensors)); };
    EXPECT_THROW(write({{"a", DType::f32, {3}, bytes}}), Error);
    EXPECT_THROW(write({{"a", DType::f32, {2}, bytes}, {"a", DType::i32, {2}, bytes}}), Error);
    EXPECT_THROW(write({{"__metadata__", DType::f32, {2}, bytes}}), Error);
    EXPECT_THROW(write({{"\xff", DType::f32, {2}, bytes}}), Error);
    EXPECT_THROW(write({{std::string("a\0b", 3), DType::f32, {2}, bytes}}), Error);
    EXPECT_THROW(write({{"a", DType::f32, {-2, -1}, bytes}}), Error);
}

TEST(SafetensorsFile, ReadsTensorsAndPartsOfThem) {
    testing::MemoryFileSystem disk;
    const auto a = testing::random_bytes(16, 1), b = testing::random_bytes(6, 2);
    const Metadata metadata = {{"format", "pt"}, {"quote\"\\\n\x01", "f\xc3\xbcr"}};
    write_file_atomically(
        disk, "/",
        safetensors_file("x",
                         {{"a", DType::f32, {2, 2}, a}, {"b", DType::bf16, {3}, b}, {"empty", DType::f32, {0, 5}, {}}},
                         metadata));
    EXPECT_EQ(disk.list("/"), std::vector<std::string>{"x"});
    const SafetensorsFile file = SafetensorsFile::open(disk, "/x");
    EXPECT_EQ(file.metadata(), metadata);
    EXPECT_EQ(file.find("c"), nullptr);
    EXPECT_THROW(file.at("c"), DataError);
    EXPECT_EQ(file.at("a").shape, (std::vector<int64_t>{2, 2}));
    EXPECT_EQ(file.at("b").dtype, DType::bf16);
    EXPECT_EQ(file.at("empty").bytes(), 0);
    std::vector<std::byte> read(6);
    file.read("b", read);
    EXPECT_EQ(read, b);
    file.read(file.at("a"), 10, read);
    EXPECT_TRUE(std::equal(read.begin(), read.end(), a.begin() + 10));
    EXPECT_THROW(file.read(file.at("a"), 11, read), Error);
    EXPECT_THROW(file.read(file.at("a"), -1, read), Error);
    EXPECT_THROW(file.read("a", read), Error);
    // A rank's part may be nothing, also at the end of a tensor.
    EXPECT_NO_THROW(file.read(file.at("a"), file.at("a").bytes(), {}));
    EXPECT_NO_THROW(file.read(file.at("empty"), 0, {}));
    EXPECT_THROW(file.read(file.at("a"), file.at("a").bytes() + 1, {}), Error);
}

TEST(SafetensorsFile, RefusesAnyTruncationAndBadLengths) {
    testing::MemoryFileSystem disk;
    const auto a = testing::random_bytes(16, 1);
    write_file_atomically(disk, "/", safetensors_file("x", {{"a", DType::f32, {2, 2}, a}}));
    const std::string whole = disk.content("/x");
    SafetensorsFile::open(disk, "/x");
    for (size_t size = 0; size < whole.size(); ++size) {
        disk.content("/x") = whole.substr(0, size);
        EXPECT_THROW(SafetensorsFile::open(disk, "/x"), DataError) << size;
    }
    disk.content("/x") = whole + '\0';
    EXPECT_THROW(SafetensorsFile::open(disk, "/x"), DataError);
    for (const std::string& length : {std::string(8, '\xff'), std::string("\x01\xe1\xf5\x05\0\0\0\0", 8)}) {
        disk.content("/x") = length + whole.substr(8);
        try {
            SafetensorsFile::open(disk, "/x");
            FAIL();
        } catch (const DataError& error) {
            EXPECT_TRUE(contains(error.what(), "/x: byte 0: a header of"));
        }
    }
}

TEST(SafetensorsHeader, AcceptsWhatTheFormatAllows) {
    EXPECT_EQ(error_of("{}", 0), "accepted");
    EXPECT_EQ(error_of("  {}   ", 0), "accepted");
    EXPECT_EQ(error_of(R"({ "s" : { "shape" : [ ] , "data_offsets":[0,8],"dtype":"F64"}})", 8), "accepted");
    const auto header = parse_safetensors_header(
        R"({"z":{"dtype":"U8","shape":[1],"data_offsets":[4,5]},"\u00e9\ud83d\ude00\/":{"dtype":"F16","shape":[2],"data_offsets":[0,4]},)"
        R"("none":{"dtype":"I64","shape":[0],"data_offsets":[4,4]}})",
        5, "x");
    ASSERT_EQ(header.tensors.size(), 3u);
    EXPECT_EQ(header.tensors[0].name, "\xc3\xa9\xf0\x9f\x98\x80/");
    EXPECT_EQ(header.tensors[1].name, "none");
    EXPECT_EQ(header.tensors[2].name, "z");
}

TEST(SafetensorsHeader, RefusesEachBrokenRule) {
    const auto tensor = [](const std::string& fields) { return "{\"t\":{" + fields + "}}"; };
    const std::string good = R"("dtype":"U8","shape":[4],"data_offsets":[0,4])";
    ASSERT_EQ(error_of(tensor(good), 4), "accepted");
    const std::vector<std::pair<std::string, std::string>> cases = {
        {"", "byte 8: not a safetensors header: syntax error"},
        {"[]", "expected an object"},
        {"{} x", "byte 11: "},
        {std::string("{}\0", 3), "NUL"},
        {std::string("{}\0{}", 5), "NUL"},
        {"\xef\xbb\xbf{}", "byte order mark"},
        {"{}//", "expected end of input"},
        {"{", "unexpected end of input"},
        {std::string("{\"\xff\":1}"), "byte 10: not a safetensors header: "},
        {std::string("{\"\xed\xa0\x80\":1}"), "ill-formed UTF-8"},
        {"{\"\xc0\xaf\":1}", "ill-formed UTF-8"},
        {R"({"t":{)" + good + R"(},"t":{)" + good + "}}", "\"t\" occurs twice"},
        {R"({"t":{)" + good + R"(},"\u0074":{)" + good + "}}", "\"t\" occurs twice"},
        {R"({"__metadata__":{},"__metadata__":{}})", "occurs twice"},
        {R"({"__metadata__":{"a":"1","a":"2"}})", "\"a\" occurs twice"},
        {R"({"__metadata__":{"a":1}})", "required a text"},
        {R"({"__metadata__":{"a":{}}})", "required a text"},
        {R"({"__metadata__":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "required a text"},
        {R"({"a\u0000b":{)" + good + "}}", "NUL"},
        {R"({"\ud800":{)" + good + "}}", "surrogate"},
        {R"({"\ud800\u0041":{)" + good + "}}", "surrogate"},
        {R"({"\udc00":{)" + good + "}}", "surrogate"},
        {R"({"\x":{)" + good + "}}", "forbidden character after backslash"},
        {R"({"\u12g4":{)" + good + "}}", "4 hex digits"},
        {"{\"a\nb\":{" + good + "}}", "control character"},
        {R"({"t)", "missing closing quote"},
        {tensor(R"("dtype":"U8","shape":[4])"), "needs dtype, shape and data_offsets"},
        {tensor(good + R"(,"dtype":"U8")"), "occurs twice"},
        {tensor(good + R"(,"extra":1)"), "nothing else"},
        {tensor(R"("dtype":"F4","shape":[4],"data_offsets":[0,2])"), "has the type 'F4'; supported are"},
        {tensor(R"("dtype":"U8","shape":[-4],"data_offsets":[0,4])"), "digits only"},
        {tensor(R"("dtype":"U8","shape":[4.0],"data_offsets":[0,4])"), "digits only"},
        {tensor(R"("dtype":"U8","shape":[-0],"data_offsets":[0,0])"), "digits only"},
        {tensor(R"("dtype":"U8","shape":[true],"data_offsets":[0,1])"), "digits only"},
        {tensor(R"("dtype":"U8","shape":[4e0],"data_offsets":[0,4])"), "digits only"},
        {tensor(R"("dtype":"U8","shape":[04],"data_offsets":[0,4])"), "expected"},
        {tensor(R"("dtype":"U8","shape":["4"],"data_offsets":[0,4])"), "digits only"},
        {tensor(R"("dtype":"U8","shape":[4,],"data_offsets":[0,4])"), "unexpected ']'"},
        {tensor(R"("dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,4])"), "up to 2^63 - 1"},
        {tensor(R"("dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,4])"), "up to 2^63 - 1"},
        {tensor(R"("dtype":"U8","shape":[[4]],"data_offsets":[0,4])"), "digits only"},
        {tensor(R"("dtype":"U8","shape":4,"data_offsets":[0,4])"), "not a list"},
        {tensor(R"("dtype":1,"shape":[4],"data_offsets":[0,4])"), "required a text"},
        {R"({"t":1})", "must be an object"},
        {tensor(R"("dtype":"U8","shape":[4294967296,4294967300],"data_offsets":[0,4])"), "multiply beyond"},
        {tensor(
             R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,4],"data_offsets":[0,4])"),
         "more than 32"},
        {tensor(R"("dtype":"U8","shape":[4],"data_offsets":[0])"), "two numbers"},
        {tensor(R"("dtype":"U8","shape":[4],"data_offsets":[0,4,4])"), "more than 2"},
        {tensor(R"("dtype":"U8","shape":[4],"data_offsets":[4,0])"), "needs 4 bytes"},
        {tensor(R"("dtype":"U8","shape":[3],"data_offsets":[0,4])"), "needs 3 bytes"},
        {tensor(R"("dtype":"U8","shape":[5],"data_offsets":[0,5])"), "the file has 4 bytes of data"},
        {tensor(R"("dtype":"U8","shape":[3],"data_offsets":[0,3])"), "1 bytes after the last tensor"},
        {tensor(R"("dtype":"U8","shape":[3],"data_offsets":[1,4])"), "belong to none"},
        {R"({"t":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"u":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
         "inside the tensor before it"},
        {R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"u":{"dtype":"U8","shape":[1],"data_offsets":[3,4]}})",
         "the bytes between belong to none"},
    };
    for (const auto& [header, message] : cases) {
        const std::string error = error_of(header, 4);
        EXPECT_TRUE(contains(error, message)) << header;
        EXPECT_TRUE(contains(error, "x.safetensors: ")) << header;
    }
}

// No prefix and no single changed byte of a valid header may do worse than throw DataError (run it under asan).
TEST(SafetensorsHeader, SurvivesEveryOneByteChange) {
    for (size_t at = 0; at < kGoldenHeader.size(); ++at) {
        EXPECT_NE(error_of(kGoldenHeader.substr(0, at), 22), "accepted");
        for (int value = 0; value < 256; ++value) {
            std::string changed = kGoldenHeader;
            changed[at] = static_cast<char>(value);
            error_of(changed, 22);
        }
    }
}

// Indices of sharded models: each rule broken once; index and shards that do not agree; paths that lead elsewhere.

std::string index_error_of(const std::string& index) {
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
    EXPECT_EQ(index_error_of(R"({"weight_map":{}})"), "accepted");
    EXPECT_EQ(index_error_of(R"({"metadata":{"total_size":1.5e10,"x":[null,true,{"y":-1}]},"weight_map":{}} )"),
              "accepted");
}

TEST(Index, RefusesEachBrokenRule) {
    const auto map = [](const std::string& file) { return R"({"weight_map":{"t":")" + file + "\"}}"; };
    const std::vector<std::pair<std::string, std::string>> cases = {
        {"", "byte 0: "},
        {"{}", "no weight_map"},
        {R"({"weight_map":[]})", "must be an object"},
        {R"({"weight_map":{"t":1}})", "required a text"},
        {R"({"weight_map":{}} x)", "expected end of input"},
        {R"({"weight_map":{},"weight_map":{}})", "\"weight_map\" occurs twice"},
        {R"({"weight_map":{"t":"a.safetensors","t":"a.safetensors"}})", "\"t\" occurs twice"},
        {R"({"metadata":{"a":1,"a":1},"weight_map":{}})", "\"a\" occurs twice"},
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
        EXPECT_TRUE(contains(index_error_of(index), message)) << index << "\n" << index_error_of(index);
        EXPECT_TRUE(contains(index_error_of(index), "m.index.json: ")) << index;
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
