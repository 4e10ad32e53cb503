// comm/nccl/api.h: NCCL's functions as Tutti calls them, by their own names and numbers (NCCL user guide, "API"; NCCL 2
// has kept them). Own declarations, so that a build needs no file of NCCL's; api_test.cpp compares them with nccl.h.
#pragma once

#include <climits>
#include <cstddef>

namespace tutti::comm::nccl {

using Comm = struct Opaque*;
using Stream = void*;  // cudaStream_t

enum Result : int { kSuccess = 0, kRemoteError = 6, kInProgress = 7 };
enum Type : int { kBytes = 1, kInt32 = 2, kInt64 = 4, kFloat16 = 6, kFloat32 = 7, kFloat64 = 8, kBfloat16 = 9 };
enum Op : int { kSum = 0, kMax = 2 };

struct UniqueId {
    char bytes[128];
};

// As of NCCL 2.18; later libraries accept this form, by its size and version.
struct Config {
    size_t size = sizeof(Config);
    unsigned magic = 0xcafebeef, version = 21801;
    // 0: calls return kInProgress, a new thread of NCCL's completes each, and the caller polls (some 100 us a call). 1:
    // calls return when they are complete (some 8 us), or by an abort.
    int blocking = 0;
    int cluster_size = INT_MIN, min_ctas = INT_MIN, max_ctas = INT_MIN;
    const char* net_name = nullptr;
    int split_share = 1;  // a communicator split from another uses its buffers
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
    Result (*all_reduce)(const void* from, void* to, size_t count, Type type, Op op, Comm comm, Stream stream);
    Result (*reduce_scatter)(const void* from, void* to, size_t count, Type type, Op op, Comm comm, Stream stream);
    Result (*all_gather)(const void* from, void* to, size_t count, Type type, Comm comm, Stream stream);
    Result (*broadcast)(const void* from, void* to, size_t count, Type type, int root, Comm comm, Stream stream);
    Result (*send)(const void* from, size_t count, Type type, int to, Comm comm, Stream stream);
    Result (*receive)(void* to, size_t count, Type type, int from, Comm comm, Stream stream);
};

// The library that TUTTI_NCCL names, else libnccl.so.2 where the loader looks, in $CUDA_HOME/lib64 and in
// /usr/local/cuda/lib64; opened once and never closed. UsageError, with the tried files, when there is none.
const Api& api();

}  // namespace tutti::comm::nccl
