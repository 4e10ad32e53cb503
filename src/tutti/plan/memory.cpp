#include "tutti/plan/memory.h"

#include "tutti/base/dtype.h"
#include "tutti/base/error.h"

namespace tutti::plan {

MemoryByPurpose state_bytes(int64_t values, const std::string& compute, const std::string& optimizer) {
    check<UsageError>(optimizer == "adamw" || optimizer == "sgd", "optimizer.name must be adamw or sgd, got \"",
                      optimizer, "\"");
    const auto compute_type = compute_type_from(compute);
    check<UsageError>(compute_type.has_value(), "precision.compute must be f32, tf32 or bf16, got \"", compute, "\"");
    constexpr int64_t kF32 = 4;
    const int64_t element = size_of(storage_of(*compute_type));
    const int64_t moments = optimizer == "adamw" ? 2 : 1;  // m and v; the momentum
    const int64_t masters = element == kF32 ? 0 : 1;       // in f32 the weights are their own masters
    MemoryByPurpose bytes;
    bytes[Purpose::weights] = values * element;
    bytes[Purpose::gradients] = values * kF32;
    bytes[Purpose::optimizer] = values * kF32 * (moments + masters);
    return bytes;
}

}  // namespace tutti::plan
