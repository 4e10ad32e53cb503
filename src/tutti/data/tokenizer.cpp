// data/tokenizer.cpp: the bytes tokenizer, and the one place that knows which tokenizers exist.
#include "tutti/data/tokenizer.h"

#include "tutti/base/error.h"

namespace tutti::data {

namespace {

class BytesTokenizer final : public Tokenizer {
  public:
    int64_t vocab() const override { return 256; }

    std::vector<int32_t> encode(std::string_view text) const override {
        std::vector<int32_t> ids;
        ids.reserve(text.size());
        for (char c : text) ids.push_back(static_cast<unsigned char>(c));
        return ids;
    }

    std::string decode(std::span<const int32_t> ids) const override {
        std::string text;
        text.reserve(ids.size());
        for (size_t i = 0; i < ids.size(); ++i) {
            check<DataError>(ids[i] >= 0 && ids[i] < 256, "bytes tokenizer: id ", ids[i], " at position ", i,
                             " is not a byte (0 to 255); the model was trained with another tokenizer");
            text += static_cast<char>(static_cast<unsigned char>(ids[i]));
        }
        return text;
    }
};

}  // namespace

std::unique_ptr<const Tokenizer> make_tokenizer(std::string_view name) {
    check<UsageError>(name == "bytes", "data.tokenizer = \"", name, "\": this version has \"bytes\" only; token files ",
                      "(nanoGPT .bin, llm.c .bin) are read without a tokenizer");
    return std::make_unique<BytesTokenizer>();
}

}  // namespace tutti::data
