// The program `tutti`: all of it is in cli/.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "tutti/cli/cli.h"

namespace {

// Idle threads of OpenMP spin before they sleep, by default for milliseconds, and keep the core from whoever is to be
// waited for: on two cores beside one busy process a step took 1.6 times as long as with this count, alone the same
// (bench/results/spin_zen4.md). libgomp reads the setting when it is loaded, before main: so the program starts itself
// once more. Who has chosen a setting keeps it.
void spin_briefly(char** argv) {
    if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
    std::error_code error;
    // Not through the link: its name, which ps shows, would be "exe".
    const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
    if (!error && setenv("GOMP_SPINCOUNT", "1000", 1) == 0) execv(self.c_str(), argv);
    // Not to be had: the default it is.
}

}  // namespace

int main(int argc, char** argv) {
    spin_briefly(argv);
    return tutti::cli::run(argc, argv);
}
