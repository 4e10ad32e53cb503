// data/documents_test.cpp: the inputs of a model with respected documents, masked prompts and blended sources.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "tutti/base/to_size.h"
#include "tutti/data/encode_files.h"
#include "tutti/data/sampler.h"
#include "tutti/data/testing/token_files.h"

namespace tutti::data::documents_test {
namespace {

using Ids = std::vector<int32_t>;

spec::DataSpec of(std::vector<std::string> train, const std::string& documents = "packed",
                  const std::string& eod = "") {
    spec::DataSpec data;
    data.train = std::move(train);
    data.documents = documents;
    data.eod = eod;
    return data;
}

struct Rows {
    Ids tokens, targets, first_key;
};
Rows rows(const Sampler& sampler, uint64_t i) {
    Rows r;
    for (Ids* x : {&r.tokens, &r.targets, &r.first_key}) x->resize(to_size(sampler.seq_len()));
    sampler.rows(i, {r.tokens, r.targets, r.first_key});
    return r;
}

TEST(Documents, EndWithTheEodWhereTheFileDoesNotKnow) {
    ScratchFolder folder;
    const auto path = folder.write("a.bin", little_endian({1, 2, 0, 3, 0, 0, 4, 5, 6, 7, 0}, 2));
    const auto respected = Sampler::in_order(open(of({path}, "respected", "0"), 100, 9).train, 9);
    const Rows r = rows(respected, 0);
    EXPECT_EQ(r.tokens, (Ids{1, 2, 0, 3, 0, 0, 4, 5, 6}));
    EXPECT_EQ(r.targets, (Ids{2, 0, -1, 0, -1, -1, 5, 6, 7}));
    EXPECT_EQ(r.first_key, (Ids{0, 0, 0, 3, 3, 5, 6, 6, 6}));

    const auto packed = Sampler::in_order(open(of({path}), 100, 9).train, 9);
    EXPECT_EQ(rows(packed, 0).targets, (Ids{2, 0, 3, 0, 0, 4, 5, 6, 7}));
    EXPECT_EQ(rows(packed, 0).first_key, Ids(9, 0));
}

TEST(Documents, AWindowBeginsWithWhatItHas) {
    ScratchFolder folder;
    const auto path = folder.write("a.bin", little_endian({1, 2, 3, 4, 0, 5, 6, 7, 8}, 2));
    const auto sampler = Sampler::in_order(open(of({path}, "respected", "0"), 100, 4).train, 4);
    EXPECT_EQ(rows(sampler, 1).tokens, (Ids{0, 5, 6, 7}));  // the eod of the document before is alone
    EXPECT_EQ(rows(sampler, 1).targets, (Ids{-1, 6, 7, 8}));
    EXPECT_EQ(rows(sampler, 1).first_key, (Ids{0, 1, 1, 1}));
}

TEST(Documents, FilesBeginOne) {
    ScratchFolder folder;
    const auto set =
        open(of({folder.write("a.txt", "abc"), folder.write("b.txt", "de\nfg")}, "respected", "10"), 256, 7).train;
    EXPECT_EQ(rows(Sampler::in_order(set, 7), 0).first_key, (Ids{0, 0, 0, 3, 3, 3, 6}));
}

TEST(Documents, NothingTellsWhereTheyEnd) {
    ScratchFolder folder;
    const auto text = folder.write("a.txt", "abcdef"), ids = folder.write("a.bin", "abcdef");
    const auto refused = [](const spec::DataSpec& data, int64_t vocab = 256) {
        return message_of<UsageError>([&] { open(data, vocab, 2); });
    };
    EXPECT_EQ(
        missing("nothing tells where the documents of text data end; set data.eod", refused(of({text}, "respected"))),
        "");
    EXPECT_EQ(missing("documents of nanogpt data", refused(of({ids}, "respected"), 50000)), "");
    EXPECT_EQ(open(of({ids}, "respected"), 50257, 2).train.views[0].documents().eod, 50256);  // GPT-2's
    EXPECT_EQ(
        missing("data.eod = \"256\": must be an id below model.vocab = 256", refused(of({text}, "packed", "256"))), "");
    EXPECT_EQ(missing("data.eod = \"<eos>\": must be an id, or a token of data.tokenizer",
                      refused(of({text}, "packed", "<eos>"))),
              "");
}

TEST(Jsonl, RecordsAreDocumentsAndPromptsAreOnlyRead) {
    ScratchFolder folder;
    const auto path = folder.write("a.jsonl",
                                   "{\"text\": \"ab\"}\n\n"
                                   "{\"prompt\": \"c\", \"completion\": \"\\u00e9\"}\r\n"
                                   "{\"other\": 1, \"text\": \"f\"}");
    const auto data = of({path}, "respected", "0");
    const auto set = open(data, 256, 8).train;
    EXPECT_EQ(set.views[0].source().format(), "jsonl");
    const Rows r = rows(Sampler::in_order(set, 8), 0);
    EXPECT_EQ(r.tokens, (Ids{'a', 'b', 0, 'c', 0xc3, 0xa9, 0, 'f'}));
    EXPECT_EQ(r.targets, (Ids{'b', 0, -1, 0xc3, 0xa9, 0, -1, 0}));
    EXPECT_EQ(r.first_key, (Ids{0, 0, 0, 3, 3, 3, 3, 7}));

    // Packed: the first token of a completion counts, that of a prompt does not, whichever document is before it.
    EXPECT_EQ(rows(Sampler::in_order(open(of({path}, "packed", "0"), 256, 8).train, 8), 0).targets,
              (Ids{'b', 0, -1, 0xc3, 0xa9, 0, 'f', 0}));
    EXPECT_EQ(open(of({path}), 256, 4).train.size(), 6);  // no eod: nothing is added
}

// Records of prompt and completion are whole in a window, the first one with room, in any order of the windows.
TEST(Jsonl, RecordsWithPromptsAreNotCut) {
    ScratchFolder folder;
    std::string lines;
    for (const char* prompt : {"abc", "d", "efg", "h"})
        lines += concat("{\"prompt\": \"", prompt, "\", \"completion\": \"12\"}\n");
    const auto path = folder.write("a.jsonl", lines);
    for (const char* documents : {"packed", "respected"}) {
        const auto set = open(of({path}, documents), 256, 8);  // windows of 9: abc12 d12 -, efg12 h12 -
        EXPECT_TRUE(set.warnings.empty());
        const auto sampler = Sampler::in_order(set.train, 8);
        ASSERT_EQ(sampler.samples_per_epoch(), 2);
        const Rows r = rows(sampler, 0);
        EXPECT_EQ(r.tokens, (Ids{'a', 'b', 'c', '1', '2', 'd', '1', '2'}));
        EXPECT_EQ(r.targets, (Ids{-1, -1, '1', '2', -1, '1', '2', -1}));
        EXPECT_EQ(r.first_key, std::string(documents) == "packed" ? Ids(8, 0) : (Ids{0, 0, 0, 0, 0, 5, 5, 5}));
        EXPECT_EQ(rows(sampler, 1).tokens, (Ids{'e', 'f', 'g', '1', '2', 'h', '1', '2'}));
    }
    // What is behind the records is padding.
    for (const auto& [seq_len, length] : {std::pair<int64_t, int64_t>{7, 7}, {8, 8}, {9, 8}, {10, 10}}) {
        const auto windows = Sampler::in_order(open(of({path}), 256, seq_len).train, seq_len);
        Ids tokens(to_size(seq_len)), targets = tokens, first_key = tokens;
        EXPECT_EQ(windows.rows(0, {tokens, targets, first_key}), length);
    }
    // Too long for a window of 5: cut, and said. abc12 becomes abc1 and 12; each target counts once.
    const auto cut = open(of({path}), 256, 3);
    ASSERT_EQ(cut.warnings.size(), 1u);
    EXPECT_EQ(missing("2 of 4 records are longer than a window of train.seq_len = 3 and are cut: 25.0 % of the targets",
                      cut.warnings[0]),
              "");
    const auto sampler = Sampler::in_order(cut.train, 3);
    int64_t targets = 0;
    for (int64_t i = 0; i < sampler.samples_per_epoch(); ++i)
        for (const int32_t target : rows(sampler, static_cast<uint64_t>(i)).targets) targets += target >= 0;
    EXPECT_EQ(targets, 8);
    // The border of held-out data is one of records.
    auto held = of({path});
    held.valid_fraction = 0.45;
    EXPECT_EQ(open(held, 256, 2).train.size(), 8);
    EXPECT_EQ(open(held, 256, 2).valid->size(), 8);
}

// Plain records are one row of tokens, as before.
TEST(Jsonl, RecordsWithoutPromptsAreOneRow) {
    ScratchFolder folder;
    const auto set = open(of({folder.write("a.jsonl", "{\"text\": \"abc\"}\n{\"text\": \"defgh\"}\n")}), 256, 3);
    EXPECT_EQ(rows(Sampler::in_order(set.train, 3), 1).tokens, (Ids{'d', 'e', 'f'}));
}

TEST(Documents, AFileWhoseNameBeginsWithANumberIsAFile) {
    ScratchFolder folder;
    const auto path = folder.write("2 cities.txt", "It was the best of times"),
               other = folder.write("cities.txt", "no");
    const auto here = std::filesystem::current_path();
    std::filesystem::current_path(folder.path(""));
    EXPECT_EQ(open(of({"2 cities.txt"}), 256, 4).train.size(), 24);
    EXPECT_EQ(open(of({"3 cities.txt"}), 256, 1).train.size(), 2);  // a weight
    std::filesystem::current_path(here);
}

TEST(Jsonl, DamagedRecords) {
    ScratchFolder folder;
    const auto refused = [&](const std::string& content) {
        const auto path = folder.write("a.jsonl", content);
        return message_of<DataError>([&] { open(of({path}), 256, 1); });
    };
    EXPECT_EQ(missing("a.jsonl:2:2: each line of JSONL must be one JSON object, this one is not: syntax error",
                      refused("{\"text\": \"a\"}\n{x}")),
              "");
    EXPECT_EQ(missing("a.jsonl:2: each line of JSONL must be a JSON object, this one is of type array",
                      refused("{\"text\": \"a\"}\n[1]\n")),
              "");
    EXPECT_EQ(missing("a.jsonl:1: \"text\" must be a text, is of type number", refused("{\"text\": 1}")), "");
    EXPECT_EQ(missing("a.jsonl:1:24: each line of JSONL must be one JSON object, this one is not: number overflow",
                      refused("{\"text\": \"a\", \"n\": 1e999}")),
              "");
    EXPECT_EQ(missing("needs the field \"text\", or \"prompt\" and \"completion\"; it has prompt, content",
                      refused("{\"prompt\": \"a\", \"content\": \"b\"}")),
              "");
    EXPECT_EQ(missing("a.jsonl:1: a record has the field \"text\", or \"prompt\" and \"completion\"; it has all three",
                      refused("{\"prompt\": \"a\", \"completion\": \"b\", \"text\": \"ab\"}")),
              "");
    EXPECT_EQ(missing("a.jsonl:2: a record needs the field \"text\", or", refused("\n{\"txt\": \"a\"}")), "");
    EXPECT_EQ(missing("data.text_field", refused("{\"txt\": \"a\"}")), "");
    EXPECT_EQ(missing("no token is a target, so there is nothing to learn",
                      refused("{\"prompt\": \"ab\", \"completion\": \"\"}")),
              "");
    EXPECT_EQ(missing("a.jsonl: has no token", refused("\n \n")), "");
}

// Pieces do not depend on the threads: each has about 256 KiB, so the text makes about a dozen.
TEST(EncodeFiles, SamePiecesForAnyNumberOfThreads) {
    ScratchFolder folder;
    std::string text;
    for (int i = 0; text.size() < 5'000'000; ++i) text += concat("document ", i, i % 1000 == 0 ? "" : "\n\n");
    text += std::string(1'000'000, 'x');  // one document that needs several pieces
    const std::vector<std::string> paths = {folder.write("a.txt", text), folder.write("b.txt", "last")};
    const auto tokenizer = text::make_tokenizer("bytes");
    std::vector<EncodedPiece> alone;
    for (const int threads : {1, 3, 8}) {
        std::vector<EncodedPiece> pieces;
        FileEncoding options{.separator = "\n\n", .eod = 0, .threads = threads};
        encode_files(*tokenizer, paths, options, [&](EncodedPiece&& piece) { pieces.push_back(std::move(piece)); });
        if (threads == 1) alone = pieces;
        ASSERT_EQ(pieces.size(), alone.size());
        for (size_t i = 0; i < pieces.size(); ++i) {
            EXPECT_EQ(pieces[i].ids, alone[i].ids);
            EXPECT_EQ(pieces[i].begins, alone[i].begins);
        }
    }
    // The documents are the text without separators, each with an eod; counted by hand.
    std::string joined;
    size_t documents = 0, bytes = 0;
    for (const auto& piece : alone) {
        for (const int32_t id : piece.ids) joined += static_cast<char>(id);
        documents += piece.begins.size();
        bytes += to_size(piece.bytes);
    }
    std::string expected;
    size_t count = 0;
    for (const char c : text + "\n\nlast\n\n") {
        expected += c;
        if (!expected.ends_with("\n\n")) continue;
        expected.replace(expected.size() - 2, 2, 1, '\0');
        ++count;
    }
    EXPECT_EQ(joined, expected);
    EXPECT_EQ(documents, count);
    EXPECT_EQ(bytes, text.size() + 4);
}

TEST(EncodeFiles, TheFirstErrorIsReportedAndEndsIt) {
    ScratchFolder folder;
    std::string lines;
    for (int i = 0; i < 200'000; ++i) lines += i == 100'000 || i == 150'000 ? "{bad}\n" : "{\"text\": \"abc\"}\n";
    const std::vector<std::string> paths = {folder.write("a.jsonl", lines)};
    const auto tokenizer = text::make_tokenizer("bytes");
    FileEncoding options{.format = "jsonl", .threads = 4};
    const auto message =
        message_of<DataError>([&] { encode_files(*tokenizer, paths, options, [](EncodedPiece&&) {}); });
    EXPECT_EQ(missing("a.jsonl:100001:2: ", message), "");
    int pieces = 0;
    EXPECT_EQ(missing("disk full", message_of<Error>([&] {
                          encode_files(*tokenizer, paths, options, [&](EncodedPiece&&) {
                              if (++pieces == 2) throw Error("disk full");
                          });
                      })),
              "");
    EXPECT_EQ(pieces, 2);
}

// The samples of each source come in order without gaps, and in proportion at every index.
TEST(Blend, ExactProportionsWithoutHistory) {
    const std::vector<std::vector<double>> blends = {
        {1}, {0.7, 0.3}, {1, 1, 1}, {3, 1e-3, 2, 0.5, 7}, {1e-9, 1}, {0.5, 0.25, 0.125, 0.0625, 0.0625, 1, 2, 3}};
    for (const auto& weights : blends) {
        const Blend blend(weights);
        double sum = 0;
        for (const double w : weights) sum += w;
        std::vector<uint64_t> counts(weights.size());
        for (uint64_t i = 0; i < 20'000; ++i) {
            const auto [part, index] = blend.place(i);
            ASSERT_LT(part, weights.size());
            ASSERT_EQ(index, counts[part]++) << "sample " << i;
            for (size_t k = 0; k < weights.size(); ++k)
                ASSERT_LT(std::abs(static_cast<double>(counts[k]) - static_cast<double>(i + 1) * weights[k] / sum),
                          1 + std::log2(static_cast<double>(weights.size())));
        }
    }
    // At indices whose products exceed 64 bits: still 7 of 10.
    const Blend blend({0.7, 0.3});
    const uint64_t far = uint64_t{1} << 60;
    EXPECT_NEAR(static_cast<double>(blend.place(far).index) / static_cast<double>(far),
                blend.place(far).part == 0 ? 0.7 : 0.3, 1e-12);
    EXPECT_EQ(missing("must be positive, got 0", message_of<UsageError>([] { Blend({1, 0}); })), "");
}

TEST(Blend, SamplesOfSeveralSources) {
    ScratchFolder folder;
    std::vector<uint64_t> low, high;
    for (uint64_t i = 0; i < 101; ++i) low.push_back(i), high.push_back(1000 + i);
    const auto a = folder.write("a.bin", little_endian(low, 2)), b = folder.write("b.bin", little_endian(high, 2));
    const auto set = open(of({"0.75 " + a, "0.25 " + b}), 2000, 10);
    EXPECT_EQ(missing("blend of 75 % nanogpt, 101 tokens: " + a, set.description()), "");
    const Sampler sampler(set.train, 10, 7);
    EXPECT_EQ(sampler.samples_per_epoch(), 13);  // 10 windows of a are 13.3 samples
    std::map<int, std::set<int>> seen;
    for (uint64_t i = 0; i < 12; ++i) {
        Ids tokens(11);
        sampler.sample(i, tokens);
        EXPECT_TRUE(seen[tokens[0] / 1000].insert(tokens[0]).second) << "sample " << i;
        EXPECT_EQ(sampler.place(i).view, to_size(tokens[0] / 1000));
    }
    EXPECT_EQ(seen[0].size(), 9u);
    EXPECT_EQ(seen[1].size(), 3u);
    // The order of the first source is that of the source alone.
    const Sampler alone(open(of({a}), 2000, 10).train, 10, 7);
    for (uint64_t i = 0, j = 0; i < 12; ++i)
        if (sampler.place(i).view == 0) {
            EXPECT_EQ(sampler.place(i).window, alone.place(j++).window);
        }

    auto fraction = of({"3 " + a, "1 " + b});
    fraction.valid_fraction = 0.2;
    const auto held = open(fraction, 2000, 10);
    EXPECT_EQ(held.train.size(), 2 * 81);
    EXPECT_EQ(held.valid->size(), 2 * 20);
    EXPECT_EQ(held.valid->weights, (std::vector<double>{3, 1}));
}

TEST(Blend, Refusals) {
    ScratchFolder folder;
    const auto a = folder.write("a.txt", "abcdef");
    const auto refused = [](const std::vector<std::string>& train) {
        return message_of<UsageError>([&] { open(of(train), 256, 2); });
    };
    EXPECT_EQ(missing("give each file a weight (\"0.7 PATH\") or none; 1 of 2 have one", refused({"0.5 " + a, a})), "");
    EXPECT_EQ(missing("a weight must be positive, got -1", refused({"-1 " + a, "2 " + a})), "");
    EXPECT_EQ(missing("a path must follow the weight", refused({"0.5 ", "2 " + a})), "");
    EXPECT_EQ(open(of({folder.write("7 days.txt", "abcdef")}), 256, 2).train.size(), 6);
}

}  // namespace
}  // namespace tutti::data::documents_test
