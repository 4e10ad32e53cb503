// tests/peer/peer_tokenize.cpp: a tokenizer as a filter, for test_tokenizers.py and bench/vs_tokenizers.py.
//
//   tutti_peer_tokenize TOKENIZER encode THREADS   stdin: documents, each u32 size + bytes; stdout: u32 count + i32 ids
//   tutti_peer_tokenize TOKENIZER text THREADS     stdin: one text, cut and encoded as training does; stdout: as above
//   tutti_peer_tokenize TOKENIZER decode           stdin: u32 count + i32 ids, repeated; stdout: u32 size + bytes
//   tutti_peer_tokenize TOKENIZER time THREADS REPETITIONS   stdin: documents; stdout: seconds of each repetition
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <iterator>
#include <span>

#include "tutti/base/error.h"
#include "tutti/text/parallel.h"
#include "tutti/text/tokenizer.h"

namespace {

std::string read_all(std::istream& in) { return {std::istreambuf_iterator<char>(in), {}}; }

// The parts of "u32 count, then count * width bytes, repeated".
std::vector<std::string_view> frames(const std::string& input, size_t width) {
    std::vector<std::string_view> parts;
    for (size_t at = 0; at < input.size();) {
        uint32_t count = 0;
        tutti::check(at + 4 <= input.size(), "frame cut at byte ", at);
        std::memcpy(&count, input.data() + at, 4);
        tutti::check(at + 4 + count * width <= input.size(), "frame cut at byte ", at);
        parts.push_back(std::string_view(input).substr(at + 4, count * width));
        at += 4 + count * width;
    }
    return parts;
}

void write_frame(const void* bytes, size_t count, size_t width) {
    const auto length = static_cast<uint32_t>(count);
    std::cout.write(reinterpret_cast<const char*>(&length), 4);
    std::cout.write(static_cast<const char*>(bytes), static_cast<std::streamsize>(count * width));
}

std::vector<std::vector<int32_t>> encode_documents(const tutti::text::Tokenizer& tokenizer,
                                                   std::span<const std::string_view> documents, int threads) {
    std::vector<std::vector<int32_t>> ids(documents.size());
    tutti::text::for_each_parallel(documents.size(), threads, [&](size_t) {
        return [&, encoder = tokenizer.make_encoder()](size_t i) { encoder->encode(documents[i], ids[i]); };
    });
    return ids;
}

void run(int argc, char** argv) {
    tutti::check<tutti::UsageError>(argc >= 3, "usage: see the head of peer_tokenize.cpp");
    const auto tokenizer = tutti::text::make_tokenizer(argv[1]);
    const std::string mode = argv[2], input = read_all(std::cin);
    const int threads = argc > 3 ? std::stoi(argv[3]) : 1;
    if (mode == "decode") {
        for (const std::string_view part : frames(input, 4)) {
            std::vector<int32_t> ids(part.size() / 4);
            std::memcpy(ids.data(), part.data(), part.size());
            const std::string text = tokenizer->decode(ids);
            write_frame(text.data(), text.size(), 1);
        }
    } else if (mode == "text") {
        const auto ids = tutti::text::encode_text(*tokenizer, input, threads);
        write_frame(ids.data(), ids.size(), 4);
    } else if (mode == "encode") {
        const auto documents = frames(input, 1);
        for (const auto& ids : encode_documents(*tokenizer, documents, threads)) write_frame(ids.data(), ids.size(), 4);
    } else {
        tutti::check<tutti::UsageError>(mode == "time" && argc > 4, "unknown mode ", mode);
        const auto documents = frames(input, 1);
        for (int i = 0; i < std::stoi(argv[4]); ++i) {
            const auto begin = std::chrono::steady_clock::now();
            const auto ids = encode_documents(*tokenizer, documents, threads);
            std::cout << std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() << std::endl;
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    try {
        run(argc, argv);
        return 0;
    } catch (const tutti::Error& error) {
        std::cerr << error.what() << std::endl;
        return error.exit_code();
    }
}
