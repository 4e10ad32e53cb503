#include "tutti/comm/mpi/api.h"

#include <dlfcn.h>

#include <vector>

#include "tutti/base/environment.h"
#include "tutti/base/error.h"

namespace tutti::comm::mpi {

namespace {

std::vector<std::string> files_of(Launcher launcher) {
    if (const auto named = environment_variable("TUTTI_MPI")) return {*named};
    const std::vector<std::string> open_mpi = {"libmpi.so.40"};
    const std::vector<std::string> mpich = {"libmpi.so.12", "libmpich.so.12"};  // the second is Debian's
    if (launcher == Launcher::open_mpi) return open_mpi;
    if (launcher == Launcher::mpich) return mpich;
    return {open_mpi[0], mpich[0], mpich[1]};
}

template <class Pointer>
void find(void* where, const char* name, Pointer& pointer) {
    pointer = reinterpret_cast<Pointer>(dlsym(where, name));
    check(pointer != nullptr, "the MPI library lacks ", name, ": ", dlerror(),
          "; required Open MPI 3 to 5 or a library with the ABI of MPICH; TUTTI_MPI names its file");
}

// Looked up in the whole process: if the program itself links Open MPI, the linker has made copies of these objects,
// which the library then uses instead of its own.
void find_handles(Handles<OpenMpi>& handles) {
    find(RTLD_DEFAULT, "ompi_mpi_comm_world", handles.comm_world);
    find(RTLD_DEFAULT, "ompi_mpi_comm_null", handles.comm_null);
    find(RTLD_DEFAULT, "ompi_mpi_byte", handles.byte);
    find(RTLD_DEFAULT, "ompi_mpi_char", handles.character);
    find(RTLD_DEFAULT, "ompi_mpi_int", handles.integer);
    find(RTLD_DEFAULT, "ompi_mpi_errors_return", handles.errors_return);
    find(RTLD_DEFAULT, "ompi_mpi_info_null", handles.info_null);
    find(RTLD_DEFAULT, "ompi_mpi_op_bor", handles.bor);
    find(RTLD_DEFAULT, "ompi_request_null", handles.request_null);
    find(RTLD_DEFAULT, "ompi_mpi_win_null", handles.win_null);
}

void find_handles(Handles<Mpich>& handles) {
    handles = {.comm_world = 0x44000000,
               .comm_null = 0x04000000,
               .byte = 0x4c00010d,
               .character = 0x4c000101,
               .integer = 0x4c000405,
               .errors_return = 0x54000001,
               .info_null = 0x1c000000,
               .bor = 0x58000008,
               .request_null = 0x2c000000,
               .win_null = 0x20000000};
}

template <class Abi>
void find_functions(const Library& library, Functions<Abi>& functions) {
    find(library.handle, "MPI_Get_library_version", functions.get_library_version);
    find(library.handle, "MPI_Error_string", functions.error_string);
    find(library.handle, "MPI_Initialized", functions.initialized);
    find(library.handle, "MPI_Init_thread", functions.init_thread);
    find(library.handle, "MPI_Finalize", functions.finalize);
    find(library.handle, "MPI_Comm_dup", functions.comm_dup);
    find(library.handle, "MPI_Comm_free", functions.comm_free);
    find(library.handle, "MPI_Comm_rank", functions.comm_rank);
    find(library.handle, "MPI_Comm_size", functions.comm_size);
    find(library.handle, "MPI_Comm_set_errhandler", functions.comm_set_errhandler);
    find(library.handle, "MPI_Comm_get_attr", functions.comm_get_attr);
    find(library.handle, "MPI_Comm_split", functions.comm_split);
    find(library.handle, "MPI_Comm_split_type", functions.comm_split_type);
    find(library.handle, "MPI_Get_processor_name", functions.get_processor_name);
    find(library.handle, "MPI_Barrier", functions.barrier);
    find(library.handle, "MPI_Bcast", functions.bcast);
    find(library.handle, "MPI_Allgather", functions.allgather);
    find(library.handle, "MPI_Allreduce", functions.allreduce);
    find(library.handle, "MPI_Isend", functions.isend);
    find(library.handle, "MPI_Irecv", functions.irecv);
    find(library.handle, "MPI_Test", functions.test);
    find(library.handle, "MPI_Testall", functions.testall);
    find(library.handle, "MPI_Wait", functions.wait);
    find(library.handle, "MPI_Cancel", functions.cancel);
    find(library.handle, "MPI_Win_allocate_shared", functions.win_allocate_shared);
    find(library.handle, "MPI_Win_shared_query", functions.win_shared_query);
    find(library.handle, "MPI_Win_set_errhandler", functions.win_set_errhandler);
    find(library.handle, "MPI_Win_get_attr", functions.win_get_attr);
    find(library.handle, "MPI_Win_lock_all", functions.win_lock_all);
    find(library.handle, "MPI_Win_unlock_all", functions.win_unlock_all);
    find(library.handle, "MPI_Win_free", functions.win_free);
}

}  // namespace

Library open_library(Launcher launcher) {
    Library library;
    for (const std::string& file : files_of(launcher)) {
        // RTLD_GLOBAL for find_handles, and for plug-ins of Open MPI before version 4.
        library.handle = dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
        if (library.handle != nullptr) {
            const bool open_mpi = dlsym(library.handle, "ompi_mpi_comm_world") != nullptr;
            library.family = open_mpi ? Family::open_mpi : Family::mpich;
            return library;
        }
        library.tried += concat("\n  ", dlerror());
    }
    return library;
}

template <class Abi>
Api<Abi> api_of(const Library& library) {
    Api<Abi> api{};
    find_handles(api);
    find_functions<Abi>(library, api);
    return api;
}

template Api<OpenMpi> api_of(const Library& library);
template Api<Mpich> api_of(const Library& library);

}  // namespace tutti::comm::mpi
