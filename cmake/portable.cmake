# TUTTI_PORTABLE: the program of the packages (scripts/package.sh, docs/decisions/0029-packages.md). Libraries of C++
# and of OpenMP go into the program, so that it needs the C library alone. Included before find_package(OpenMP), after
# the other libraries were found.
#
# gcc's libraries: a shared libstdc++ beside the program would be the one that libraries opened later get, too, and those
# of a newer system (plug-ins of NCCL and MPI) would miss symbols in it.
set(TUTTI_PORTABLE_LINK -static-libstdc++ -static-libgcc -Wl,--exclude-libs,ALL -Wl,--gc-sections)

if(TUTTI_ONEDNN)
  message(FATAL_ERROR "TUTTI_PORTABLE needs -DTUTTI_ONEDNN=OFF: Debian has the library as a shared one only")
endif()

# tutti_library_file(RESULT FILE PACKAGE): the path of a library that the compiler finds.
function(tutti_library_file result file package)
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=${file} OUTPUT_VARIABLE path OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT IS_ABSOLUTE "${path}")
    message(FATAL_ERROR "TUTTI_PORTABLE needs the library ${file}; Debian has it in ${package}")
  endif()
  set(${result} ${path} PARENT_SCOPE)
endfunction()

tutti_library_file(xxhash_archive libxxhash.a libxxhash-dev)
tutti_library_file(gomp_archive libgomp.a libgcc-12-dev)
set_target_properties(PkgConfig::xxhash PROPERTIES INTERFACE_LINK_LIBRARIES ${xxhash_archive})
set(OpenMP_gomp_LIBRARY ${gomp_archive} CACHE FILEPATH "libgomp as a static library")
# These two have no static library; their headers hold all.
set_target_properties(PkgConfig::tomlplusplus PROPERTIES INTERFACE_LINK_LIBRARIES "" INTERFACE_COMPILE_OPTIONS ""
  INTERFACE_COMPILE_DEFINITIONS TOML_HEADER_ONLY=1)
