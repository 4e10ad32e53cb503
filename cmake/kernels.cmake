# The vector kernels: src/tutti/kernels/cpu/isa/*.cpp, compiled once per instruction set into namespace
# tutti::kernels::avx2, ::avx512 and ::avx512_bf16 (cpu/isa.h), as objects inside libtutti_kernels.a; what multiplies
# matrices also into ::amx. cpu/table.cpp chooses at run time. ::amx_emulated goes into the tests only.
#
# -ffp-contract=off: a multiply-add is fused where the source says fma() and nowhere else, so that the last elements of an
# array get the same bits as those in the middle. -O3 in every build type: without inlining nothing here makes sense.
# -Wno-maybe-uninitialized: gcc 12's own AVX-512 headers trip it (GCC bug 105593).
set(TUTTI_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c)
set(TUTTI_ISA_FLAGS_avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c)
set(TUTTI_ISA_FLAGS_avx512_bf16 ${TUTTI_ISA_FLAGS_avx512} -mavx512bf16)
set(TUTTI_ISA_FLAGS_amx ${TUTTI_ISA_FLAGS_avx512_bf16})  # tile instructions are inline assembly
set(TUTTI_ISA_FLAGS_amx_emulated ${TUTTI_ISA_FLAGS_avx512})

file(GLOB isa_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/src/tutti/kernels/cpu/isa/*.cpp)
set(tile_sources ${isa_sources})
list(FILTER tile_sources INCLUDE REGEX "/(attention|gemm)[a-z_]*\\.cpp$")
foreach(isa avx2 avx512 avx512_bf16 amx amx_emulated)
  string(TOUPPER ${isa} upper)
  if(isa MATCHES amx)
    add_library(tutti_kernels_${isa} OBJECT ${tile_sources})
  else()
    add_library(tutti_kernels_${isa} OBJECT ${isa_sources})
  endif()
  target_compile_definitions(tutti_kernels_${isa} PRIVATE TUTTI_ISA_${upper})
  target_include_directories(tutti_kernels_${isa} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/src)
  target_link_libraries(tutti_kernels_${isa} PRIVATE tutti_options)
  # Functions begin at a line of the cache: a product differs by 2 % with the address of its loop.
  target_compile_options(tutti_kernels_${isa} PRIVATE ${TUTTI_ISA_FLAGS_${isa}} -falign-functions=64
    -O3 -fno-math-errno -fno-trapping-math -ffp-contract=off -fopenmp-simd -Wno-uninitialized -Wno-maybe-uninitialized)
  tutti_precompiled_headers(tutti_kernels_${isa} tutti_kernels_${isa} <immintrin.h>)
  if(NOT isa STREQUAL amx_emulated)
    target_sources(tutti_kernels PRIVATE $<TARGET_OBJECTS:tutti_kernels_${isa}>)
  elseif(TUTTI_TESTS)
    target_sources(kernels_tests PRIVATE $<TARGET_OBJECTS:tutti_kernels_${isa}>)
  endif()
endforeach()

# fill_gemm has two definitions; the one that this build does not use stays uncompiled.
if(TUTTI_ONEDNN)
  set(unused_gemm gemm_own.cpp)
else()
  set(unused_gemm gemm.cpp)
endif()
set_source_files_properties(${CMAKE_CURRENT_SOURCE_DIR}/src/tutti/kernels/cpu/${unused_gemm} PROPERTIES HEADER_FILE_ONLY ON)

if(TUTTI_TESTS AND NOT TUTTI_SANITIZE)
  add_test(NAME kernels_isa COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/scripts/check_isa.sh $<TARGET_FILE:tutti_kernels>)
  set_tests_properties(kernels_isa PROPERTIES LABELS fast TIMEOUT 60)
endif()
