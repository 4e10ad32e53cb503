// data/data_set_test.cpp: the split is exact, ids are checked wherever they are delivered, and each refusal says why.
#include "tutti/data/data_set.h"

#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "tutti/base/to_size.h"
#include "tutti/data/testing/token_files.h"

namespace tutti::data {
namespace {

using Ids = std::vector<int32_t>;

Ids all(const TokenView& view) {
    Ids ids(to_size(view.size()));
    view.read(0, ids);
    return ids;
}

spec::DataSpec of(std::vector<std::string> train) {
    spec::DataSpec data;
    data.train = std::move(train);
    return data;
}

TEST(DataSet, WithoutValidation) {
    ScratchFolder folder;
    const auto set = open(of({folder.write("a.txt", "abcde")}), 256, 4);
    EXPECT_EQ(all(set.train.views[0]), (Ids{'a', 'b', 'c', 'd', 'e'}));
    EXPECT_FALSE(set.valid);
    EXPECT_EQ(missing("no validation data", set.description()), "");
}

TEST(DataSet, FractionTakesTheEndAndViewsDoNotOverlap) {
    ScratchFolder folder;
    auto data = of({folder.write("a.txt", "0123456789")});
    data.valid_fraction = 0.35;  // floor(3.5) tokens
    const auto set = open(data, 256, 2);
    EXPECT_EQ(all(set.train.views[0]), (Ids{'0', '1', '2', '3', '4', '5', '6'}));
    ASSERT_TRUE(set.valid);
    EXPECT_EQ(all(set.valid->views[0]), (Ids{'7', '8', '9'}));
    EXPECT_EQ(missing("the last 3 tokens are held out", set.description()), "");
    EXPECT_NE(set.train.fingerprint(), set.valid->fingerprint());
    EXPECT_EQ(set.valid->fingerprint(), open(of({folder.write("b.txt", "789")}), 256, 2).train.fingerprint());
}

// The bytes of "abcdef" under everything else that a run reads of its files.
TEST(DataSet, TheFingerprintFollowsTargetsAndDocuments) {
    ScratchFolder folder;
    const auto of_masked = [&](const std::string& mask, const char* documents = "packed", const char* eod = "") {
        folder.write("m.bin", little_endian({'a', 'b', 'c', 'd', 'e', 'f'}, 2));
        folder.write("m.mask", mask);
        auto data = of({folder.path("m.bin")});
        data.documents = documents, data.eod = eod;
        return open(data, 256, 2).train.fingerprint();
    };
    const std::string mask("\0\0\1\1\0\1", 6), other("\0\1\1\1\0\1", 6);
    EXPECT_EQ(of_masked(mask), of_masked(mask));
    EXPECT_NE(of_masked(mask), of_masked(other));
    EXPECT_NE(of_masked(mask, "packed", "100"), of_masked(mask, "packed", "99"));  // packs other records
    EXPECT_NE(of_masked(mask, "respected", "100"), of_masked(other, "respected", "100"));

    // Where files begin is read under `respected` only.
    const auto of_files = [&](std::vector<std::string> texts, const char* documents) {
        std::vector<std::string> paths;
        for (const std::string& text : texts)
            paths.push_back(folder.write(concat(texts.size(), "-", paths.size(), ".txt"), text));
        auto data = of(std::move(paths));
        data.documents = documents, data.eod = "0";
        return open(data, 256, 2).train.fingerprint();
    };
    for (const char* documents : {"packed", "respected"}) {
        const bool packed = std::string(documents) == "packed";
        EXPECT_EQ(of_files({"abc", "def"}, documents) == of_files({"abcd", "ef"}, documents), packed);
        EXPECT_EQ(of_files({"abc", "def"}, documents) == of_files({"abcdef"}, documents), packed);
    }
}

// Also a beginning between two of the blocks that the fingerprint reads at a time, and relative to the view.
TEST(DataSet, TheFingerprintSeesEveryBeginningOfADocument) {
    ScratchFolder folder;
    const std::string text(80'000, 'a');
    const auto divided = [&](int64_t at) {
        auto data =
            of({folder.write("1.txt", text.substr(0, to_size(at))), folder.write("2.txt", text.substr(to_size(at)))});
        data.documents = "respected", data.eod = "0";
        return open(data, 256, 2).train.fingerprint();
    };
    for (const int64_t at : {32'767, 32'768, 32'769, 65'536}) EXPECT_NE(divided(at), divided(40'000)) << at;
}

TEST(DataSet, ValidFiles) {
    ScratchFolder folder;
    auto data = of({folder.write("a.txt", "abc")});
    data.valid = {folder.write("v1.txt", "x"), folder.write("v2.txt", "yz")};
    const auto set = open(data, 256, 2);
    ASSERT_TRUE(set.valid);
    EXPECT_EQ(all(set.valid->views[0]), (Ids{'x', 'y', 'z'}));
}

TEST(DataSet, TooShortSaysHowManyTokensAreNeeded) {
    ScratchFolder folder;
    auto data = of({folder.write("a.txt", "0123456789")});
    const auto message = message_of<DataError>([&] { open(data, 256, 10); });
    EXPECT_EQ(missing(folder.path("a.txt"), message), "");
    EXPECT_EQ(missing("one window of train.seq_len = 10 needs 11 tokens, got 10", message), "");
    EXPECT_EQ(open(data, 256, 9).train.size(), 10);

    data.valid_fraction = 0.2;
    const auto fraction = message_of<DataError>([&] { open(data, 256, 3); });
    EXPECT_EQ(missing("data.valid_fraction = 0.2 of 10 tokens", fraction), "");
    EXPECT_EQ(missing("needs 4 tokens, got 2; set data.valid_fraction = 0.4 or more", fraction), "");
    data.valid_fraction = 0.4;
    EXPECT_EQ(open(data, 256, 3).valid->size(), 4);
    data.valid_fraction = 0.7;
    EXPECT_EQ(missing("a smaller data.valid_fraction", message_of<DataError>([&] { open(data, 256, 3); })), "");
    data.valid_fraction = 0.1;
    EXPECT_EQ(missing("got 1; give more text", message_of<DataError>([&] { open(data, 256, 7); })), "");

    data.valid_fraction = 0;
    data.valid = {folder.write("v.txt", "xy")};
    const auto valid = message_of<DataError>([&] { open(data, 256, 2); });
    EXPECT_EQ(missing(folder.path("v.txt"), valid), "");
    EXPECT_EQ(missing("needs 3 tokens, got 2", valid), "");
}

TEST(DataSet, UsageErrors) {
    ScratchFolder folder;
    const auto path = folder.write("a.txt", "0123456789");
    const auto refused = [](const spec::DataSpec& data, int64_t seq_len = 2) {
        return message_of<UsageError>([&] { open(data, 256, seq_len); });
    };
    EXPECT_EQ(missing("data.train names no file", refused(of({}))), "");
    EXPECT_EQ(missing("train.seq_len must be positive, got 0", refused(of({path}), 0)), "");

    auto both = of({path});
    both.valid = {path};
    both.valid_fraction = 0.5;
    EXPECT_EQ(missing("data.valid names files and data.valid_fraction is 0.5; give one of them", refused(both)), "");

    auto fraction = of({path});
    for (double wrong : {-0.1, 1.0, std::numeric_limits<double>::quiet_NaN()}) {
        fraction.valid_fraction = wrong;
        EXPECT_EQ(missing("data.valid_fraction must be in [0, 1)", refused(fraction)), "");
    }
    auto tokenizer = of({path});
    tokenizer.tokenizer = "tokenizer.json";
    EXPECT_EQ(
        missing("\"tokenizer.json\": there is no such file", message_of<DataError>([&] { open(tokenizer, 256, 2); })),
        "");

    // Token files too: ids that the tokenizer makes from a prompt must be rows of the embedding.
    auto of_more = of({folder.write("more.bin", "abcdefghij")});
    of_more.tokenizer = (std::filesystem::path(__FILE__).parent_path() / "../text/testdata/gpt2.json").string();
    EXPECT_EQ(missing("model.vocab is 256; set model.vocab = 4", refused(of_more)), "");

    auto mixed = of({path});
    mixed.valid = {folder.write("v.bin", "abcdef")};
    EXPECT_EQ(missing("is nanogpt data", refused(mixed)), "");
}

TEST(DataSet, AnIdOutsideTheVocabularyIsFoundAtTheStart) {
    ScratchFolder folder;
    const auto path = folder.write("a.bin", llmc_file(20240520, 1, 4, {1, 2, 50256, 3}, 2));
    EXPECT_EQ(open(of({path}), 50257, 3).train.size(), 4);
    const auto message = message_of<DataError>([&] { open(of({path}), 50256, 3); });
    EXPECT_EQ(
        missing(path + ", token 2 (byte offset 1028): id 50256 is outside the model's vocabulary of 50256", message),
        "");

    auto held_out = of({folder.write("ok.bin", little_endian({1, 2, 3, 4, 5, 6}, 2))});
    held_out.valid = {folder.write("bad.bin", little_endian({1, 2, 3, 4, 9}, 2))};
    EXPECT_EQ(missing(folder.path("bad.bin") + ", token 4", message_of<DataError>([&] { open(held_out, 7, 3); })), "");

    const auto wide = folder.write("wide.bin", llmc_file(20240801, 7, 3, {1, 2, 0xffffffff}, 4));
    EXPECT_EQ(missing("id 4294967295 is outside", message_of<DataError>([&] { open(of({wide}), 128256, 2); })), "");
}

// Too large to be scanned whole at the start: the bad id lies between two sampled blocks, and the read finds it.
TEST(DataSet, AnIdOutsideTheVocabularyIsFoundWhenItIsDelivered) {
    ScratchFolder folder;
    std::string content(20'000'000, 'a');
    content[40'000] = '\xff';  // the second of 256 blocks of 32768 tokens begins at 78302
    const auto set = open(of({folder.write("a.txt", content)}), 128, 16);
    Ids ids(10);
    set.train.views[0].read(39'990, ids);
    EXPECT_EQ(ids, Ids(10, 'a'));
    const auto message = message_of<DataError>([&] { set.train.views[0].read(39'995, ids); });
    EXPECT_EQ(missing(folder.path("a.txt") + ", token 40000 (byte offset 40000): id 255 is outside", message), "");
}

TEST(DataSet, ReadsOutsideTheViewAreRefused) {
    ScratchFolder folder;
    auto data = of({folder.write("a.txt", "0123456789")});
    data.valid_fraction = 0.5;
    const auto set = open(data, 256, 2);
    Ids two(2);
    EXPECT_EQ(missing("tokens [4, 6) of 5", message_of<Error>([&] { set.train.views[0].read(4, two); })), "");
}

TEST(DataSet, ACutFileIsAnErrorNotACrash) {
    ScratchFolder folder;
    const auto path = folder.write("a.txt", std::string(100'000, 'a'));
    const auto set = open(of({path}), 256, 16);
    std::filesystem::resize_file(path, 10);
    Ids ids(17);
    EXPECT_EQ(missing("was cut from 100000 to 10 bytes",
                      message_of<DataError>([&] { set.train.views[0].read(90'000, ids); })),
              "");
}

}  // namespace
}  // namespace tutti::data
