# tutti_room(NAME DEPENDS rooms... LIBRARIES targets...): src/tutti/NAME/**.cpp becomes the library tutti_NAME;
# its *_test.cpp become the test program NAME_tests. A room without a .cpp is an interface library. Sources in folders
# testing/ are no part of the product: they become tutti_NAME_testing, which exists with TUTTI_TESTS only, and which
# NAME_tests and tests elsewhere link.

set(TUTTI_ROOMS "")

# How long a test may take. The slowest needs ten seconds, with AMX, where five tables are compared, nearly two minutes;
# under the thread sanitizer more.
set(TUTTI_TEST_SECONDS 300)
if(TUTTI_SANITIZE)
  set(TUTTI_TEST_SECONDS 1800)
endif()

# -O1 compiles in two thirds of the time of -O3. For rooms that read, decide and print: what takes time in a run, loops over
# elements, tokens and candidate layouts, is in the other rooms, which keep -O3. Tests are compiled with -Og, in five sixths of
# the time of -O1. gcc 12 warns in vain of std::optional there.
set(TUTTI_LOW_OPTIMIZATION
  "$<$<AND:$<CONFIG:Release>,$<COMPILE_LANG_AND_ID:CXX,GNU>>:-O1;-Wno-maybe-uninitialized>")
set(TUTTI_TEST_OPTIMIZATION
  "$<$<AND:$<CONFIG:Release>,$<COMPILE_LANG_AND_ID:CXX,GNU>>:-Og;-Wno-maybe-uninitialized>")
set(TUTTI_LOW_OPTIMIZATION_ROOMS jinja spec http hf report launch diagnose hardware published lectures cli)

add_library(tutti_options INTERFACE)
target_compile_features(tutti_options INTERFACE cxx_std_20)
set(TUTTI_WARNINGS -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wno-missing-field-initializers
  -Wno-restrict $<$<BOOL:${TUTTI_WERROR}>:-Werror>)
target_compile_options(tutti_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${TUTTI_WARNINGS}>)
# gcc collects garbage when its heap has grown by some part; beginning at 512 MiB, few sources need it. A twelfth less
# processor time, for up to a third more memory: 620 MB where a unity source took 475.
target_compile_options(tutti_options INTERFACE
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=524288>)
if(TUTTI_FUZZ)
  target_compile_options(tutti_options INTERFACE -fsanitize=fuzzer-no-link)
  target_link_options(tutti_options INTERFACE -fsanitize=fuzzer-no-link)
endif()
if(TUTTI_SANITIZE)
  # -Wno-maybe-uninitialized: with sanitizers gcc 12 warns of its own <regex> (GCC bug 105562).
  target_compile_options(tutti_options INTERFACE -fsanitize=${TUTTI_SANITIZE} -fno-omit-frame-pointer
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  if(TUTTI_SANITIZE MATCHES undefined)
    target_compile_options(tutti_options INTERFACE -fno-sanitize-recover=all)
  endif()
  target_link_options(tutti_options INTERFACE -fsanitize=${TUTTI_SANITIZE})
endif()

# Standard headers are a quarter of the compile time of a source. A compiler cache cannot store what uses them compiled,
# so a build with one, which a developer's mostly is, does without and notices includes that are missing.
set(without_cache ON)
if(CMAKE_CXX_COMPILER_LAUNCHER MATCHES "ccache|sccache")
  set(without_cache OFF)
endif()
option(TUTTI_PRECOMPILED_HEADERS "Compile standard headers once (ON without a compiler cache)" ${without_cache})
set(TUTTI_STANDARD_HEADERS <algorithm> <array> <cmath> <cstdint> <filesystem> <functional> <map> <memory> <mutex>
  <optional> <set> <span> <sstream> <string> <string_view> <utility> <variant> <vector>)

# What the sources of `target` compile first is compiled for `owner`, whose flags must be the same.
# gcc 12 forgets that precompiled headers are the system's, and warns in vain of its own std::string (GCC bug 105329).
function(tutti_precompiled_headers target owner)
  if(NOT TUTTI_PRECOMPILED_HEADERS)
    return()
  endif()
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-array-bounds;-Wno-stringop-overflow;-Wno-stringop-overread>)
  if(target STREQUAL owner)
    target_precompile_headers(${target} PRIVATE ${TUTTI_STANDARD_HEADERS} ${ARGN})
  else()
    target_precompile_headers(${target} REUSE_FROM ${owner})
  endif()
endfunction()

# Sources of a room share most of their headers, and reading these takes longer than what follows: twelve at a time, six of
# tests, in one translation unit, compile in two thirds of the time. After an edit, one source alone is faster. gcc inlines
# across them and warns of values that it cannot follow.
option(TUTTI_UNITY_BUILD "Compile the sources of a room and its tests several at a time (ON without a compiler cache)"
  ${without_cache})
function(tutti_unity_build target sources)
  if(TUTTI_UNITY_BUILD)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${sources})
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized;-Wno-subobject-linkage>)
  endif()
endfunction()

include(${CMAKE_CURRENT_LIST_DIR}/slow_tests.cmake)

function(tutti_room name)
  cmake_parse_arguments(ROOM "" "" "DEPENDS;LIBRARIES" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/src/tutti/${name}/*.cpp)
  set(tests ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")
  list(FILTER tests EXCLUDE REGEX "/cuda/|/comm/nccl/")
  # cmake/kernels.cmake and cmake/cuda.cmake compile those.
  set(testing ${sources})
  list(FILTER testing INCLUDE REGEX "/testing/")
  list(FILTER sources EXCLUDE REGEX "_test\\.cpp$|/testing/|/kernels/cpu/isa/|/(device|kernels)/cuda/|/comm/nccl/")
  list(TRANSFORM ROOM_DEPENDS PREPEND tutti_)
  set(headers_of base)
  if("${ROOM_LIBRARIES}" MATCHES OpenMP)
    set(headers_of device)  # the first room with -fopenmp
  endif()

  if(sources)
    add_library(tutti_${name} STATIC ${sources})
    set(scope PUBLIC)
    target_link_libraries(tutti_${name} PRIVATE $<BUILD_INTERFACE:tutti_options> ${ROOM_LIBRARIES})
    if(name IN_LIST TUTTI_LOW_OPTIMIZATION_ROOMS)
      target_compile_options(tutti_${name} PRIVATE "${TUTTI_LOW_OPTIMIZATION}")
    endif()
    tutti_precompiled_headers(tutti_${name} tutti_${headers_of})
    if(NOT name STREQUAL kernels)  # whose sources have flags of their own
      set_source_files_properties(${CMAKE_CURRENT_SOURCE_DIR}/src/tutti/device/cpu/peak.cpp
        PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)  # tests/campaign/flips.cpp replaces the object
      tutti_unity_build(tutti_${name} 12)
    endif()
  else()
    add_library(tutti_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_compile_features(tutti_${name} ${scope} cxx_std_20)
  target_include_directories(tutti_${name} ${scope}
    $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/src> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(tutti_${name} ${scope} ${ROOM_DEPENDS} Threads::Threads)
  set_target_properties(tutti_${name} PROPERTIES EXPORT_NAME ${name})

  set(testing_library "")
  if(TUTTI_TESTS AND testing)
    set(testing_library tutti_${name}_testing)
    add_library(tutti_${name}_testing STATIC ${testing})
    target_link_libraries(tutti_${name}_testing PUBLIC tutti_${name} PRIVATE tutti_options)
    tutti_precompiled_headers(tutti_${name}_testing tutti_base)
    tutti_unity_build(tutti_${name}_testing 6)
  endif()
  if(TUTTI_TESTS AND tests)
    add_executable(${name}_tests ${tests})
    target_link_libraries(${name}_tests PRIVATE ${testing_library} tutti_${name} tutti_options ${ROOM_LIBRARIES}
      GTest::gtest GTest::gtest_main)
    target_compile_options(${name}_tests PRIVATE "${TUTTI_TEST_OPTIMIZATION}")
    tutti_precompiled_headers(${name}_tests ${headers_of}_tests <gtest/gtest.h>)
    tutti_unity_build(${name}_tests 6)
    tutti_discover_tests(${name}_tests)
  endif()
  set(TUTTI_ROOMS ${TUTTI_ROOMS} ${name} PARENT_SCOPE)
endfunction()

# Definitions of NAME_tests, for sources of the room NAME. They name folders of this machine: for other sources they would
# make entries of a compiler's cache that no second tree can use. A source with definitions of its own would leave the
# unity build, which has no cache.
function(tutti_test_definitions name)
  cmake_parse_arguments(TEST "" "" "SOURCES;DEFINITIONS" ${ARGN})
  if(TUTTI_UNITY_BUILD)
    target_compile_definitions(${name}_tests PRIVATE ${TEST_DEFINITIONS})
  else()
    list(TRANSFORM TEST_SOURCES PREPEND ${PROJECT_SOURCE_DIR}/src/tutti/${name}/)
    set_source_files_properties(${TEST_SOURCES} TARGET_DIRECTORY ${name}_tests PROPERTIES
      COMPILE_DEFINITIONS "${TEST_DEFINITIONS}")
  endif()
endfunction()

# The tests of a program that draw their cases (base/testing/draws.h), once more with many: label nightly.
function(tutti_nightly program)
  foreach(filter IN LISTS ARGN)
    add_test(NAME nightly.${filter} COMMAND ${program} --gtest_filter=${filter})
    set_tests_properties(nightly.${filter} PROPERTIES LABELS nightly TIMEOUT 3600 ENVIRONMENT TUTTI_NIGHTLY=1)
  endforeach()
endfunction()
