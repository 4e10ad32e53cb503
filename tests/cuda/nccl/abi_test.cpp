// comm/nccl/api.h against NCCL's own header, where there is one: numbers, sizes and places. Compiled only.
#include <nccl.h>

#include <cstddef>

#include "tutti/comm/nccl/api.h"

namespace tutti::comm::nccl {

static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId));
static_assert(int{kSuccess} == ncclSuccess && int{kRemoteError} == ncclRemoteError &&
              int{kInProgress} == ncclInProgress);
static_assert(int{kBytes} == ncclUint8 && int{kInt32} == ncclInt32 && int{kInt64} == ncclInt64);
static_assert(int{kFloat16} == ncclFloat16 && int{kFloat32} == ncclFloat32 && int{kFloat64} == ncclFloat64);
static_assert(int{kBfloat16} == ncclBfloat16 && int{kSum} == ncclSum && int{kMax} == ncclMax);
// The beginning of ncclConfig_t, which later versions only make longer.
static_assert(offsetof(Config, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(Config, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(offsetof(Config, max_ctas) == offsetof(ncclConfig_t, maxCTAs));
static_assert(offsetof(Config, net_name) == offsetof(ncclConfig_t, netName));
static_assert(offsetof(Config, split_share) == offsetof(ncclConfig_t, splitShare));

}  // namespace tutti::comm::nccl
