// comm/launcher.h: which launcher started this process, and as which rank, read from the environment alone.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "tutti/device/device.h"

namespace tutti::comm {

class World;

// `tutti`: an agent of `tutti launch` (launch/agent.h). `environment`: RANK and WORLD_SIZE as torch's env:// has them,
// set by an operator of Kubernetes, compose, Nomad, Ray or a shell loop.
enum class Launcher { none, tutti, torchrun, open_mpi, mpich, jsrun, flux, slurm, environment };
std::string_view name_of(Launcher launcher);  // "open_mpi"
// The inverse of name_of; UsageError with the known names.
Launcher launcher_of(std::string_view name);

struct Launch {
    Launcher launcher = Launcher::none;
    int rank = 0, size = 1;
    // Inside the host; -1 where the launcher gives no value.
    int local_rank = 0, local_size = 1, node = 0;
    int64_t generation = 0;   // of `tutti launch`: which start of the run this is (checkpoint/generation.h); 0: none
    std::string evidence;     // "OMPI_COMM_WORLD_RANK=3, OMPI_COMM_WORLD_SIZE=8"
    std::string passed_over;  // launchers whose variables are set too: "slurm"; "": none
    std::string warning;      // what may have been meant as a launch, and is none; "": nothing

    // The ranks of a run with --ranks `asked`, where 1 means not asked for. A number that differs from the launcher's
    // is refused when the ranks start (run.h).
    int ranks(int asked) const { return size > 1 && asked == 1 ? size : asked; }
};

// environment_variable(), or a test's replacement.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
Environment process_environment();

// The first row of the table in launcher.cpp that fits: the innermost launcher comes first, since each passes on the
// variables of those around it. With TUTTI_LAUNCHER or `forced`: that launcher only, or none. A Slurm step of one task
// and the body of a batch script are no launch. UsageError names a variable that is missing or not a number: the
// processes of half an environment would each train alone.
Launch detect_launcher(const Environment& environment, std::optional<Launcher> forced = std::nullopt);
// The environment of a process that stands for a whole host, as one for detect_launcher(): containers that leave ranks
// to a program of their own (PET_*, SM_*), and pods of an indexed Job with WORLD_SIZE, have a RANK. UsageError for half
// of such variables.
Environment of_hosts(const Environment& environment);
// How many ranks a host is to have by those variables; 0: they do not say.
int ranks_of_host(const Environment& environment);
// Whether a launcher's variables are set, right or wrong.
bool is_launched(const Environment& environment);
// The launch of this process. `name`: the launcher to look for; "": the first.
Launch this_launch(std::string_view name);

// The place of rank `rank` of `ranks` among the ranks of this machine.
LocalRank local_rank(const Launch& launch, int rank, int ranks);
// The same for the rank of `world`, which knows its host where the launcher gives no place.
LocalRank local_rank(const Launch& launch, const World& world);

}  // namespace tutti::comm
