// comm/mpi/api.h against the mpi.h of a real library: the types of handles and functions when this is compiled, the
// values of constants and handles when it runs. Built once for each family: TUTTI_MPI_ABI, TUTTI_MPI_LAUNCHER.
#include "tutti/comm/mpi/api.h"

#include <gtest/gtest.h>
#include <mpi.h>

#include <type_traits>

namespace tutti::comm::mpi {

namespace {

using Abi = TUTTI_MPI_ABI;
using F = Functions<Abi>;

static_assert(std::is_same_v<Aint, MPI_Aint>);
static_assert(std::is_same_v<Abi::Request, MPI_Request>);
static_assert(kSuccess == MPI_SUCCESS && kFunneled == MPI_THREAD_FUNNELED && kSerialized == MPI_THREAD_SERIALIZED);
static_assert(kLongestText >= MPI_MAX_ERROR_STRING && kLongestText >= MPI_MAX_LIBRARY_VERSION_STRING);
static_assert(kLongestName >= MPI_MAX_PROCESSOR_NAME);
static_assert(std::is_same_v<decltype(F::get_library_version), decltype(&MPI_Get_library_version)>);
static_assert(std::is_same_v<decltype(F::error_string), decltype(&MPI_Error_string)>);
static_assert(std::is_same_v<decltype(F::initialized), decltype(&MPI_Initialized)>);
static_assert(std::is_same_v<decltype(F::init_thread), decltype(&MPI_Init_thread)>);
static_assert(std::is_same_v<decltype(F::finalize), decltype(&MPI_Finalize)>);
static_assert(std::is_same_v<decltype(F::comm_dup), decltype(&MPI_Comm_dup)>);
static_assert(std::is_same_v<decltype(F::comm_free), decltype(&MPI_Comm_free)>);
static_assert(std::is_same_v<decltype(F::comm_rank), decltype(&MPI_Comm_rank)>);
static_assert(std::is_same_v<decltype(F::comm_size), decltype(&MPI_Comm_size)>);
static_assert(std::is_same_v<decltype(F::comm_set_errhandler), decltype(&MPI_Comm_set_errhandler)>);
static_assert(std::is_same_v<decltype(F::comm_get_attr), decltype(&MPI_Comm_get_attr)>);
static_assert(std::is_same_v<decltype(F::comm_split), decltype(&MPI_Comm_split)>);
static_assert(std::is_same_v<decltype(F::comm_split_type), decltype(&MPI_Comm_split_type)>);
static_assert(std::is_same_v<decltype(F::get_processor_name), decltype(&MPI_Get_processor_name)>);
static_assert(std::is_same_v<decltype(F::barrier), decltype(&MPI_Barrier)>);
static_assert(std::is_same_v<decltype(F::bcast), decltype(&MPI_Bcast)>);
static_assert(std::is_same_v<decltype(F::allgather), decltype(&MPI_Allgather)>);
static_assert(std::is_same_v<decltype(F::allreduce), decltype(&MPI_Allreduce)>);
static_assert(std::is_same_v<decltype(F::isend), decltype(&MPI_Isend)>);
static_assert(std::is_same_v<decltype(F::irecv), decltype(&MPI_Irecv)>);
static_assert(std::is_same_v<int (*)(MPI_Request*, int*, MPI_Status*), decltype(&MPI_Test)>);
static_assert(std::is_same_v<decltype(F::test), int (*)(Abi::Request*, int*, void*)>);
static_assert(std::is_same_v<int (*)(int, MPI_Request*, int*, MPI_Status*), decltype(&MPI_Testall)>);
static_assert(std::is_same_v<decltype(F::testall), int (*)(int, Abi::Request*, int*, void*)>);
static_assert(std::is_same_v<int (*)(MPI_Request*, MPI_Status*), decltype(&MPI_Wait)>);
static_assert(std::is_same_v<decltype(F::wait), int (*)(Abi::Request*, void*)>);
static_assert(std::is_same_v<decltype(F::cancel), decltype(&MPI_Cancel)>);
static_assert(std::is_same_v<decltype(F::win_allocate_shared), decltype(&MPI_Win_allocate_shared)>);
static_assert(std::is_same_v<decltype(F::win_shared_query), decltype(&MPI_Win_shared_query)>);
static_assert(std::is_same_v<decltype(F::win_set_errhandler), decltype(&MPI_Win_set_errhandler)>);
static_assert(std::is_same_v<decltype(F::win_get_attr), decltype(&MPI_Win_get_attr)>);
static_assert(std::is_same_v<decltype(F::win_lock_all), decltype(&MPI_Win_lock_all)>);
static_assert(std::is_same_v<decltype(F::win_unlock_all), decltype(&MPI_Win_unlock_all)>);
static_assert(std::is_same_v<decltype(F::win_free), decltype(&MPI_Win_free)>);

TEST(MpiApi, ConstantsAreThoseOfTheHeader) {
    EXPECT_EQ(Abi::any_source, MPI_ANY_SOURCE);
    EXPECT_EQ(Abi::comm_type_shared, MPI_COMM_TYPE_SHARED);
    EXPECT_EQ(Abi::tag_ub, MPI_TAG_UB);
    EXPECT_EQ(Abi::win_model, MPI_WIN_MODEL);
    EXPECT_EQ(Abi::win_unified, MPI_WIN_UNIFIED);
    EXPECT_EQ(Abi::mode_nocheck, MPI_MODE_NOCHECK);
    EXPECT_EQ(Abi::status_ignore(), MPI_STATUS_IGNORE);
    EXPECT_EQ(Abi::status_ignore(), MPI_STATUSES_IGNORE);
}

// The program that links a library and the one that opens it see the same objects, of which the linker may have put
// copies into the program.
TEST(MpiApi, HandlesAreThoseOfTheLinkedLibrary) {
    const Library library = open_library(TUTTI_MPI_LAUNCHER);
    ASSERT_EQ(library.family, (std::is_same_v<Abi, OpenMpi> ? Family::open_mpi : Family::mpich)) << library.tried;
    const Api<Abi> api = api_of<Abi>(library);
    EXPECT_EQ(api.comm_world, MPI_COMM_WORLD);
    EXPECT_EQ(api.comm_null, MPI_COMM_NULL);
    EXPECT_EQ(api.byte, MPI_BYTE);
    EXPECT_EQ(api.character, MPI_CHAR);
    EXPECT_EQ(api.integer, MPI_INT);
    EXPECT_EQ(api.errors_return, MPI_ERRORS_RETURN);
    EXPECT_EQ(api.info_null, MPI_INFO_NULL);
    EXPECT_EQ(api.bor, MPI_BOR);
    EXPECT_EQ(api.request_null, MPI_REQUEST_NULL);
    EXPECT_EQ(api.win_null, MPI_WIN_NULL);
    EXPECT_EQ(api.isend, &MPI_Isend);
}

TEST(MpiApi, NamesTheFilesThatItTried) {
    setenv("TUTTI_MPI", "/no/such/libmpi.so", 1);
    const Library library = open_library(TUTTI_MPI_LAUNCHER);
    unsetenv("TUTTI_MPI");
    EXPECT_EQ(library.family, Family::none);
    EXPECT_NE(library.tried.find("/no/such/libmpi.so: cannot open"), std::string::npos) << library.tried;
}

}  // namespace

}  // namespace tutti::comm::mpi
