// comm/nccl/api.h: the functions and constants of NCCL that Tutti uses (NCCL user guide, "API"; stable throughout NCCL
// 2). The declarations are our own, so that a build does not need NCCL; tests/cuda/nccl/abi_test.cpp compares them with
// nccl.h.
#pragma once

#include <climits>
#include <cstddef>

namespace tutti::comm::nccl {

using Comm = struct Opaque*;
using StreamHandle = void*;  // cudaStream_t

enum Result : int { kSuccess = 0, kRemoteError = 6, kInProgress = 7 };
enum Type : int { kBytes = 1, kInt32 = 2, kInt64 = 4, kFloat16 = 6, kFloat32 = 7, kFloat64 = 8, kBfloat16 = 9 };
enum Op : int { kSum = 0, kMax = 2 };

struct UniqueId {
    char bytes[128];
};

// ncclConfig_t of NCCL 2.18, which later versions accept because of its size and version.
struct Config {
    size_t size = sizeof(Config);
    unsigned magic = 0xcafebeef, version = 21801;
    // 0: a call returns kInProgress, a new thread of NCCL completes it, and the caller polls (about 100 us per call).
    // 1: a call returns when it is complete (about 8 us) or aborted.
    int blocking = 0;
    int cluster_size = INT_MIN, min_ctas = INT_MIN, max_ctas = INT_MIN;
    const char* net_name = nullptr;
    int split_share = 1;  // a communicator split from another shares its buffers
};

struct Api {
    Result (*get_version)(int* version);
    const char* (*get_error_string)(Result result);
    Result (*get_unique_id)(UniqueId* id);
    Result (*comm_init_rank_config)(Comm* comm, int ranks, UniqueId id, int rank, Config* config);
    Result (*comm_split)(Comm comm, int colour, int key, Comm* split, Config* config);
    Result (*comm_finalize)(Comm comm);
    Result (*comm_destroy)(Comm comm);
    Result (*comm_abort)(Comm comm);
    Result (*comm_get_async_error)(Comm comm, Result* error);
    Result (*group_start)();
    Result (*group_end)();
    Result (*all_reduce)(const void* from, void* to, size_t count, Type type, Op op, Comm comm, StreamHandle stream);
    Result (*reduce_scatter)(const void* from, void* to, size_t count, Type type, Op op, Comm comm,
                             StreamHandle stream);
    Result (*all_gather)(const void* from, void* to, size_t count, Type type, Comm comm, StreamHandle stream);
    Result (*broadcast)(const void* from, void* to, size_t count, Type type, int root, Comm comm, StreamHandle stream);
    Result (*send)(const void* from, size_t count, Type type, int to, Comm comm, StreamHandle stream);
    Result (*receive)(void* to, size_t count, Type type, int from, Comm comm, StreamHandle stream);
};

// The functions of the library that TUTTI_NCCL names, else of libnccl.so.2 in the loader's path, $CUDA_HOME/lib64 or
// /usr/local/cuda/lib64; opened once and never closed. UsageError, with the files that were tried, if there is none.
const Api& api();

}  // namespace tutti::comm::nccl
