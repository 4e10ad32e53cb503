// tests/tiny_run.h: the files of a run that takes seconds: a text and the config of a small Llama.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

namespace tutti::testing {

// Writes text.txt and tiny.toml into `folder`. `steps_and_batch` continues [train], `sections` follows it.
inline void write_tiny_run(const std::filesystem::path& folder, const std::string& steps_and_batch,
                           const std::string& sections) {
    std::ofstream text(folder / "text.txt");
    for (int i = 0; i < 300; ++i) text << "line " << i * i << " of a text that repeats itself\n";
    std::ofstream(folder / "tiny.toml")
        << "[model]\npreset = \"llama-tiny\"\nwidth = 32\nlayers = 3\nheads = 2\nkv_heads = 2\nhead_dim = 16\n"
           "ffn = 48\n[data]\ntrain = [\""
        << (folder / "text.txt").string() << "\"]\n[train]\nseq_len = 16\nmicro_batch = 1\nthreads = 1\n"
        << steps_and_batch << "\n"
        << sections;
}

}  // namespace tutti::testing
