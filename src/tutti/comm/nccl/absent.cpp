// comm/nccl/absent.cpp: NCCL in a build without CUDA. CMake compiles either this file or the others.
#include "tutti/base/error.h"
#include "tutti/comm/nccl/nccl_world.h"

namespace tutti::comm {

namespace {
constexpr const char* kNone = "this build has no CUDA back end, so NCCL has nothing to work on";
}

std::string nccl_library() { throw UsageError(kNone); }
std::unique_ptr<World> nccl_world(World&, Device&, const DeviceWorldOptions&) { throw UsageError(kNone); }

}  // namespace tutti::comm
