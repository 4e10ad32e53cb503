// kernels/cpu/isa.h: the config header of the vector kernels. Every .cpp in cpu/isa is compiled once per instruction
// set (cmake/kernels.cmake) and opens `namespace tutti::kernels::TUTTI_ISA`: the name is the compile definition's.
//
// A weak symbol that such a file shares with the rest of the program (an inline function of tutti or std that was not
// inlined) can be the copy that the linker keeps for all, and then a machine without AVX-512 dies in it. So: own
// helpers in the ISA namespace only, sizes of views through cpu/isa/loops.h (Shape's own checks would drag in
// std::ostream), no std containers or algorithms. scripts/check_isa.sh looks at the objects.
#pragma once

// AVX-512 with AMX tiles beside it: the files for which tiles matter are compiled for `amx` too, and, for tests, once
// more for `amx_emulated`.
#if defined(TUTTI_ISA_AMX)
#define TUTTI_ISA amx
#elif defined(TUTTI_ISA_AMX_EMULATED)
#define TUTTI_ISA amx_emulated
#define TUTTI_AMX_EMULATED
#elif defined(TUTTI_ISA_AVX512_BF16)
#define TUTTI_ISA avx512_bf16
#elif defined(TUTTI_ISA_AVX512)
#define TUTTI_ISA avx512
#elif defined(TUTTI_ISA_AVX2)
#define TUTTI_ISA avx2
#else
#error "a file of kernels/cpu/isa is compiled by cmake/kernels.cmake only"
#endif

#if defined(TUTTI_ISA_AVX2)
#include "tutti/kernels/cpu/isa/vec_avx2.h"
#else
#include "tutti/kernels/cpu/isa/vec_avx512.h"
#endif
#if defined(TUTTI_ISA_AMX) || defined(TUTTI_ISA_AMX_EMULATED)
#include "tutti/kernels/cpu/isa/tiles_amx.h"
#endif

#include "tutti/kernels/kernel_table.h"

namespace tutti::kernels::TUTTI_ISA {
#if defined(TUTTI_ISA_AMX_EMULATED)
inline constexpr Isa kIsa = Isa::amx;  // whose sizes it takes
#else
inline constexpr Isa kIsa = Isa::TUTTI_ISA;
#endif
#if defined(TUTTI_ISA_AMX) || defined(TUTTI_ISA_AMX_EMULATED)
inline constexpr bool kTiles = true;  // products of bf16 pairs go through tiles
#else
inline constexpr bool kTiles = false;
struct TileScope {};
#endif
}  // namespace tutti::kernels::TUTTI_ISA
