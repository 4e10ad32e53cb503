// comm/launcher.h: the launcher that started this process, and the process's rank, from environment variables alone.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "tutti/device/device.h"

namespace tutti::comm {

class World;

// `tutti`: an agent of `tutti launch` (launch/agent.h). `environment`: RANK and WORLD_SIZE as in torch's env://, set by
// Kubernetes, Docker Compose, Nomad, Ray or a shell loop.
enum class Launcher { none, tutti, torchrun, open_mpi, mpich, jsrun, flux, slurm, environment };
std::string_view name_of(Launcher launcher);  // "open_mpi"
// The inverse of name_of; UsageError, listing the names, for another one.
Launcher launcher_of(std::string_view name);

struct Launch {
    Launcher launcher = Launcher::none;
    int rank = 0, size = 1;
    // Of the host; -1 if the launcher does not tell.
    int local_rank = 0, local_size = 1, node = 0;
    int64_t generation =
        0;                 // of `tutti launch`: the number of this start of the run (checkpoint/generation.h); 0: none
    std::string evidence;  // "OMPI_COMM_WORLD_RANK=3, OMPI_COMM_WORLD_SIZE=8"
    std::string passed_over;  // outer launchers, whose variables are set too: "slurm"; "": none
    std::string warning;      // about variables that may have been meant as a launch; "": none

    // The ranks of a run with --ranks `asked`, 1 if not given. run() refuses a number other than the launcher's.
    int ranks(int asked) const { return size > 1 && asked == 1 ? size : asked; }
};

// The value of a variable, if it is set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
Environment process_environment();

// The innermost launcher whose variables are set, since a launcher passes on the variables of those around it. With
// `forced` or TUTTI_LAUNCHER: that launcher, or none. A Slurm step of one task and the body of a batch script do not
// count as launched. UsageError names a variable that is missing or not a number: processes with incomplete variables
// would each train alone.
Launch detect_launcher(const Environment& environment, std::optional<Launcher> forced = std::nullopt);
// The environment of a process that represents a whole host, translated for detect_launcher(): containers of torchrun
// (PET_*) and SageMaker (SM_*), and pods of an indexed Job with WORLD_SIZE, get a RANK. UsageError if such variables
// are incomplete.
Environment of_hosts(const Environment& environment);
// The ranks per host according to those variables; 0: they do not tell.
int ranks_of_host(const Environment& environment);
// Whether variables of a launcher are set, even incomplete ones.
bool is_launched(const Environment& environment);
// The launch of this process. `name`: the launcher, as `forced` above; "": detected.
Launch this_launch(std::string_view name = "");

// The local rank of rank `rank` of `ranks` on this machine.
LocalRank local_rank(const Launch& launch, int rank, int ranks);
// The same for the rank of `world`, which knows the ranks of its host even if the launcher does not tell.
LocalRank local_rank(const Launch& launch, const World& world);

}  // namespace tutti::comm
