// checkpoint/generation.h: the generations of a run: each start by `tutti launch` takes the next number by making the
// file generations/NUMBER of the run directory, which only one process can make. A process of an older generation, such
// as one that was cut off from the launcher and lives on, writes no checkpoint any more: Store asks before each commit.
// A commit that had begun before the newer number was taken may still appear; it is whole, as every commit is.
#pragma once

#include <cstdint>
#include <string>

namespace tutti::checkpoint {

constexpr std::string_view kGenerations = "generations";

// The newest generation of a run directory; 0: none, or it cannot be read.
int64_t newest_generation(const std::string& run_directory);

class Generation {
  public:
    // Takes `number`, above all others. `text` is for people. UsageError when another process has taken it, or a newer
    // one; DataError when the file cannot be made.
    static Generation take(const std::string& run_directory, int64_t number, const std::string& text);
    // Generation `number`, which the launcher has taken.
    Generation(std::string run_directory, int64_t number) : directory_(std::move(run_directory)), number_(number) {}

    int64_t number() const { return number_; }
    // UsageError when another start of the run has taken a newer one.
    void require_newest() const;

  private:
    std::string directory_;
    int64_t number_ = 0;
};

}  // namespace tutti::checkpoint
