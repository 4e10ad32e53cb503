// comm/mpi/api.h: the functions and constants of MPI that Tutti uses, in the two ABIs of MPI libraries. In that of
// Open MPI (libmpi.so.40: versions 3 to 5) a handle is a pointer to an object of the library; in that of MPICH
// (libmpi.so.12: also Intel MPI, MVAPICH and Cray MPICH, "MPICH ABI Compatibility Initiative") a handle is a number.
// The declarations are our own, so that a build needs no mpi.h and one program runs under both;
// tests/mpi/api_test.cpp compares them with the mpi.h of each.
#pragma once

#include <string>

#include "tutti/comm/launcher.h"

struct ompi_communicator_t;
struct ompi_datatype_t;
struct ompi_errhandler_t;
struct ompi_info_t;
struct ompi_op_t;
struct ompi_request_t;
struct ompi_win_t;

namespace tutti::comm::mpi {

using Aint = long;                         // MPI_Aint
inline constexpr int kSuccess = 0;         // in both
inline constexpr int kFunneled = 1;        // MPI_THREAD_FUNNELED, in both
inline constexpr int kSerialized = 2;      // MPI_THREAD_SERIALIZED, in both
inline constexpr int kLongestText = 8192;  // at least MPI_MAX_ERROR_STRING, MPI_MAX_LIBRARY_VERSION_STRING of both
inline constexpr int kLongestName = 256;   // at least MPI_MAX_PROCESSOR_NAME of both

struct OpenMpi {
    using Comm = ompi_communicator_t*;
    using Datatype = ompi_datatype_t*;
    using Errhandler = ompi_errhandler_t*;
    using Info = ompi_info_t*;
    using Op = ompi_op_t*;
    using Request = ompi_request_t*;
    using Win = ompi_win_t*;
    static constexpr int any_source = -1, comm_type_shared = 0, tag_ub = 0, win_model = 11, win_unified = 0,
                         mode_nocheck = 1;
    static void* status_ignore() { return nullptr; }
};

struct Mpich {
    using Comm = int;
    using Datatype = int;
    using Errhandler = int;
    using Info = int;
    using Op = int;
    using Request = int;
    using Win = int;
    static constexpr int any_source = -2, comm_type_shared = 1, tag_ub = 0x64400001, win_model = 0x66000009,
                         win_unified = 2, mode_nocheck = 1024;
    static void* status_ignore() { return reinterpret_cast<void*>(1); }
};

// The predefined handles of a library.
template <class Abi>
struct Handles {
    typename Abi::Comm comm_world, comm_null;
    typename Abi::Datatype byte, character, integer;
    typename Abi::Errhandler errors_return;
    typename Abi::Info info_null;
    typename Abi::Op bor;
    typename Abi::Request request_null;
    typename Abi::Win win_null;
};

// Functions by their names without MPI_. A status (MPI_Status*) is always status_ignore().
template <class Abi>
struct Functions {
    using Comm = typename Abi::Comm;
    using Datatype = typename Abi::Datatype;
    using Request = typename Abi::Request;
    using Win = typename Abi::Win;

    int (*get_library_version)(char* text, int* length);
    int (*error_string)(int code, char* text, int* length);
    int (*initialized)(int* flag);
    int (*init_thread)(int* argc, char*** argv, int wanted, int* provided);
    int (*finalize)();
    int (*comm_dup)(Comm comm, Comm* copy);
    int (*comm_free)(Comm* comm);
    int (*comm_rank)(Comm comm, int* rank);
    int (*comm_size)(Comm comm, int* size);
    int (*comm_set_errhandler)(Comm comm, typename Abi::Errhandler handler);
    int (*comm_get_attr)(Comm comm, int key, void* value, int* found);
    int (*comm_split)(Comm comm, int colour, int key, Comm* part);
    int (*comm_split_type)(Comm comm, int type, int key, typename Abi::Info info, Comm* part);
    int (*get_processor_name)(char* name, int* length);
    int (*barrier)(Comm comm);
    int (*bcast)(void* data, int count, Datatype type, int root, Comm comm);
    int (*allgather)(const void* from, int count, Datatype type, void* to, int each, Datatype to_type, Comm comm);
    int (*allreduce)(const void* from, void* to, int count, Datatype type, typename Abi::Op op, Comm comm);
    int (*isend)(const void* data, int count, Datatype type, int to, int tag, Comm comm, Request* request);
    int (*irecv)(void* data, int count, Datatype type, int from, int tag, Comm comm, Request* request);
    int (*test)(Request* request, int* complete, void* status);
    int (*testall)(int count, Request* requests, int* complete, void* statuses);
    int (*wait)(Request* request, void* status);
    int (*cancel)(Request* request);
    int (*win_allocate_shared)(Aint bytes, int unit, typename Abi::Info info, Comm comm, void* base, Win* window);
    int (*win_shared_query)(Win window, int rank, Aint* bytes, int* unit, void* base);
    int (*win_set_errhandler)(Win window, typename Abi::Errhandler handler);
    int (*win_get_attr)(Win window, int key, void* value, int* found);
    int (*win_lock_all)(int assertion, Win window);
    int (*win_unlock_all)(Win window);
    int (*win_free)(Win* window);
};

template <class Abi>
struct Api : Handles<Abi>, Functions<Abi> {};

enum class Family { none, open_mpi, mpich };

// An MPI library, open for the lifetime of the process.
struct Library {
    Family family = Family::none;
    void* handle = nullptr;
    std::string tried;  // for family none: the loader's error for each file
};

// Opens the file named by the environment variable TUTTI_MPI, else the library of the launcher's family from the
// loader's path. For a launcher of neither family (Slurm, none): Open MPI, else MPICH.
Library open_library(Launcher launcher);

// Error if the library lacks a function.
template <class Abi>
Api<Abi> api_of(const Library& library);

}  // namespace tutti::comm::mpi
