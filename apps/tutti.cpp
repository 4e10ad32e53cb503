// The program `tutti`: all of it is in cli/.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "tutti/cli/cli.h"

namespace {

// Idle OpenMP threads spin before they sleep, by default for milliseconds, and occupy the core that the thread they
// wait for needs: on two cores beside one busy process a step took 1.6 times as long as with this count, and the same
// time without the busy process (bench/results/spin_zen4.md). libgomp reads the setting when it is loaded, before
// main(), so the program sets it and executes itself again. A setting of the user is kept.
void spin_briefly(char** argv) {
    if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
    std::error_code error;
    // The resolved path: executing the link itself would show "exe" in ps.
    const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
    if (!error && setenv("GOMP_SPINCOUNT", "1000", 1) == 0) execv(self.c_str(), argv);
    // If that fails, the program runs with the default.
}

}  // namespace

int main(int argc, char** argv) {
    spin_briefly(argv);
    return tutti::cli::run(argc, argv);
}
