#include "tutti/comm/nccl/api.h"

#include "tutti/device/cuda/library.h"

namespace tutti::comm::nccl {

namespace {

template <class Function>
void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    check<UsageError>(function != nullptr, "NCCL lacks the function ", name, " (required: 2.18 or later): ", dlerror());
}

Api open() {
    void* library = cuda::open_library({.what = "communication between GPUs needs NVIDIA's NCCL",
                                        .file = "libnccl.so.2",
                                        .variable = "TUTTI_NCCL",
                                        .remedy = "install it from Debian or PyPI (nvidia-nccl), or name the file in "
                                                  "TUTTI_NCCL; comm.gpu = \"host\" communicates through the host's "
                                                  "memory instead, many times slower"});
    Api api{};
    find(library, "ncclGetVersion", api.get_version);
    find(library, "ncclGetErrorString", api.get_error_string);
    find(library, "ncclGetUniqueId", api.get_unique_id);
    find(library, "ncclCommInitRankConfig", api.comm_init_rank_config);
    find(library, "ncclCommSplit", api.comm_split);
    find(library, "ncclCommFinalize", api.comm_finalize);
    find(library, "ncclCommDestroy", api.comm_destroy);
    find(library, "ncclCommAbort", api.comm_abort);
    find(library, "ncclCommGetAsyncError", api.comm_get_async_error);
    find(library, "ncclGroupStart", api.group_start);
    find(library, "ncclGroupEnd", api.group_end);
    find(library, "ncclAllReduce", api.all_reduce);
    find(library, "ncclReduceScatter", api.reduce_scatter);
    find(library, "ncclAllGather", api.all_gather);
    find(library, "ncclBroadcast", api.broadcast);
    find(library, "ncclSend", api.send);
    find(library, "ncclRecv", api.receive);
    return api;
}

}  // namespace

const Api& api() {
    static const Api the_api = open();
    return the_api;
}

}  // namespace tutti::comm::nccl
