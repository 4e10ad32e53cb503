// text/tokenizer_test.cpp: every byte survives the bytes tokenizer; unknown tokenizers are named.
#include "tutti/text/tokenizer.h"

#include <gtest/gtest.h>

#include "tutti/base/testing/scratch.h"

namespace tutti::text {
namespace {

TEST(BytesTokenizer, EveryByteIsItsOwnId) {
    const auto tokenizer = make_tokenizer("bytes");
    EXPECT_EQ(tokenizer->vocab(), 256);
    std::string text;
    std::vector<int32_t> ids;
    for (int byte = 0; byte < 256; ++byte) {
        text += static_cast<char>(byte);
        ids.push_back(byte);
    }
    EXPECT_EQ(tokenizer->encode(text), ids);
    EXPECT_EQ(tokenizer->decode(ids), text);
    EXPECT_TRUE(tokenizer->encode("").empty());
}

TEST(BytesTokenizer, RefusesIdsThatAreNoBytes) {
    const auto tokenizer = make_tokenizer("bytes");
    const std::vector<int32_t> large = {65, 66, 256}, negative = {-1};
    EXPECT_EQ(missing("id 256 at position 2 is not a byte", message_of<DataError>([&] { tokenizer->decode(large); })),
              "");
    EXPECT_EQ(missing("id -1 at position 0", message_of<DataError>([&] { tokenizer->decode(negative); })), "");
}

TEST(MakeTokenizer, NamesWhatATokenizerCanBe) {
    const ScratchFolder folder;
    const auto message = message_of<UsageError>([] { make_tokenizer("gpt2"); });
    EXPECT_EQ(missing("tokenizer \"gpt2\": there is no such file; required: \"bytes\", a tokenizer.json, a "
                      "sentencepiece *.model",
                      message),
              "");
    EXPECT_EQ(missing("no such file", message_of<DataError>([&] { make_tokenizer(folder.path("tokenizer.json")); })),
              "");
    EXPECT_EQ(missing("has neither tokenizer.json nor tokenizer.model",
                      message_of<DataError>([&] { make_tokenizer(folder.path("")); })),
              "");
}

}  // namespace
}  // namespace tutti::text
