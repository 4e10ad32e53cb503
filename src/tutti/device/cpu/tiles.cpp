#include "tutti/device/cpu/tiles.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tutti {

namespace {

// CPUID leaf 7, EDX: bit 22 AMX-BF16, bit 24 AMX-TILE. clang 14's __builtin_cpu_supports does not know their names.
bool has_amx_bf16() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d >> 22 & 1) != 0 && (d >> 24 & 1) != 0;
}

// Linux grants the 8 KiB of tile registers on request only; the permission is for the whole process.
bool tiles_allowed() {
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

bool tiles_available() {
    static const bool kAvailable = has_amx_bf16() && tiles_allowed();
    return kAvailable;
}

}  // namespace tutti
