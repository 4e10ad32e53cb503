// kernels/cpu/isa.h: configuration of the vector kernels. Every .cpp file in cpu/isa is compiled once per instruction
// set (cmake/kernels.cmake) and opens `namespace tutti::kernels::TUTTI_ISA`, where a compile definition chooses the
// name.
//
// A weak symbol that such a file shares with the rest of the program (an inline function of tutti or std that was not
// inlined) can be the copy that the linker keeps for the whole program, which then fails with an illegal instruction on
// a machine without AVX-512. Therefore helpers live in the ISA namespace only, sizes of views come from cpu/isa/loops.h
// (the checks in Shape would need std::ostream), and these files use no std containers or algorithms.
// scripts/check_isa.sh checks the objects.
#pragma once

// The files that multiply matrices are also compiled for `amx` (AVX-512 with AMX tiles), and for tests once more for
// `amx_emulated`.
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
inline constexpr Isa kIsa = Isa::amx;  // same sizes as amx
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
