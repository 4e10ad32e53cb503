// cli/testing/run.h: the program run in this process on given words, its output as text.
#pragma once

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "tutti/base/testing/scratch.h"
#include "tutti/cli/cli.h"

namespace tutti::cli {

struct Ran {
    int code;
    std::string out, err;
};

// `words` are those behind `tutti`.
inline Ran tutti(const std::vector<std::string>& words) {
    std::vector<const char*> argv = {"tutti"};
    for (const std::string& word : words) argv.push_back(word.c_str());
    std::ostringstream out, err;
    const int code = run(static_cast<int>(argv.size()), argv.data(), Io{out, err});
    // A command that cannot be met says so before it prints any answer.
    EXPECT_TRUE(code != 2 || out.str().empty() || out.str().starts_with("{\n  \"error\"")) << joined(words, " ") << "\n"
                                                                                           << out.str();
    return {code, out.str(), err.str()};
}

// A folder for each test, and the output of the last command.
struct CommandTest : ::testing::Test {
    std::string path(const std::string& name) const { return folder.path(name); }
    std::string write(const std::string& name, std::string_view text) const { return folder.write(name, text); }
    // `command` and then `words`; returns the exit code.
    int run_words(const std::string& command, std::vector<std::string> words) {
        words.insert(words.begin(), command);
        const Ran ran = tutti(words);
        out = ran.out;
        err = ran.err;
        return ran.code;
    }
    bool says(const std::string& part) const { return (out + err).find(part) != std::string::npos; }

    ScratchFolder folder;
    std::string out, err;
};

}  // namespace tutti::cli
