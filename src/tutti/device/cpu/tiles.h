// device/cpu/tiles.h: whether this process may use AMX tiles. Separate from peak.h, whose code a test replaces.
#pragma once

namespace tutti {

// Whether the CPU multiplies AMX tiles of bf16 and the system grants this process the tile registers. The first call
// requests the registers.
bool tiles_available();

}  // namespace tutti
