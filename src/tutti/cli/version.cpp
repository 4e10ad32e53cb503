
#include "tutti/base/build_info.h"
#include "tutti/base/json.h"
#include "tutti/cli/commands.h"
#include "tutti/comm/mpi/mpi_world.h"
#include "tutti/data/tokenizers/sentencepiece.h"
#include "tutti/kernels/kernel_table.h"

namespace tutti::cli {

int version(const VersionArguments& arguments, const Io& io) {
    const BuildInfo build = build_info();
    const std::string mpi = comm::mpi_library(comm::Launcher::none);
    if (arguments.json) {
        const Json document = {{"version", build.version},
                               {"build_type", build.build_type},
                               {"compiler", build.compiler},
                               {"gemm_engine", kernels::gemm_engines()},
                               {"sentencepiece", data::sentencepiece_version()},
                               {"mpi", mpi}};
        io.out << document.dump(2) << '\n';
    } else {
        io.out << "tutti " << build.version << " (" << build.build_type << ", " << build.compiler << ", "
               << kernels::gemm_engines()
               << (data::sentencepiece_version().empty() ? "" : ", " + data::sentencepiece_version()) << ", "
               << (mpi.empty() ? "no MPI" : mpi) << ")\n";
    }
    return 0;
}

}  // namespace tutti::cli
