// device/cpu/tiles.h: whether this process may use AMX tiles. Asked where kernels and peak loops are chosen.
#pragma once

namespace tutti {

// The CPU multiplies tiles of bf16 and the system gives this process their registers, which are asked for here, once.
bool tiles_available();

}  // namespace tutti
