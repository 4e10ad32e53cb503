// comm/launcher.h: who started this process and as which rank, read from the environment and from nothing else.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "tutti/device/device.h"

namespace tutti::comm {

enum class Launcher { none, torchrun, slurm, open_mpi, mpich, kubernetes };
std::string_view name_of(Launcher launcher);  // "open_mpi"
// The reverse; UsageError with the names there are.
Launcher launcher_of(std::string_view name);

struct Launch {
    Launcher launcher = Launcher::none;
    int rank = 0, size = 1;
    // Inside the host; -1 where the launcher does not say.
    int local_rank = 0, local_size = 1, node = 0;
    std::string evidence;  // "OMPI_COMM_WORLD_RANK=3, OMPI_COMM_WORLD_SIZE=8"

    // Of a run that was asked to have `asked` ranks: one asks for nothing. Another number than the launcher's is
    // refused when ranks are made.
    int ranks(int asked) const { return size > 1 && asked == 1 ? size : asked; }
};

// std::getenv, or a test's own.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
Environment process_environment();

// The first launcher whose variables are there, in the order torchrun, Slurm, Open MPI, MPICH, Kubernetes; `forced`
// looks for that one only. mpirun inside a Slurm job wins over the job's own variables, which it passes on unchanged,
// and so does an interactive Slurm shell of one task count as no launcher. UsageError when variables are missing or are
// no numbers, with the one at fault.
Launch detect_launcher(const Environment& environment, std::optional<Launcher> forced = std::nullopt);
// Of this process. `name`: the launcher to look for; "": the first.
// Whether a launcher's variables are there, right or wrong.
bool is_launched(const Environment& environment);
Launch this_launch(std::string_view name);

// Rank `rank` of `ranks`, among those of the run that share this machine.
LocalRank local_rank(const Launch& launch, int rank, int ranks);

}  // namespace tutti::comm
