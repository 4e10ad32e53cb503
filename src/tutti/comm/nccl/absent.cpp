// comm/nccl/absent.cpp: NCCL in a build without CUDA. CMake compiles either this file or the others of this folder.
#include "tutti/base/error.h"
#include "tutti/comm/nccl/nccl_world.h"

namespace tutti::comm {

namespace {
constexpr const char* kNone = "NCCL needs the CUDA back end, which this build does not have (-DTUTTI_CUDA=ON)";
}

std::string nccl_library() { throw UsageError(kNone); }
std::unique_ptr<World> nccl_world(World&, Device&, const DeviceWorldOptions&) { throw UsageError(kNone); }

}  // namespace tutti::comm
