# The archive and the Debian package that cpack makes of a build with TUTTI_PORTABLE (scripts/package.sh): the component
# `program` of cmake/install.cmake. The headers and static libraries are for builds from source only.

# The licences of the libraries that are linked into the program, as Debian's packages state them.
set(third_party ${CMAKE_CURRENT_BINARY_DIR}/THIRD_PARTY)
file(WRITE ${third_party} "Code of these libraries is inside the program or beside it. Their licences, as Debian's packages state them, follow.\n")
foreach(package libfmt-dev libtomlplusplus-dev libcli11-dev nlohmann-json3-dev libxxhash-dev libsodium-dev zlib1g-dev libzstd-dev libsentencepiece0 gcc-12-base)
  set(copyright /usr/share/doc/${package}/copyright)
  if(NOT EXISTS ${copyright})
    message(FATAL_ERROR "${copyright} is not there: a package must carry the licences of the libraries that it has inside")
  endif()
  file(READ ${copyright} text)
  file(APPEND ${third_party} "\n\n======== ${package} ========\n\n${text}")
endforeach()
if(TUTTI_CUDA)
  file(APPEND ${third_party} "\n\n======== CUDA runtime (libcudart_static.a, ${CUDAToolkit_VERSION}) ========\n\n"
    "Copyright NVIDIA Corporation. Distributed under the CUDA Toolkit End User License Agreement,\n"
    "https://docs.nvidia.com/cuda/eula/, whose attachment A names this library as redistributable.\n")
  file(GLOB agreement ${CUDAToolkit_LIBRARY_ROOT}/EULA.txt
    ${CUDAToolkit_LIBRARY_ROOT}/dist-info/nvidia_cuda_runtime*/licenses/License.txt)
  foreach(file IN LISTS agreement)
    file(READ ${file} text)
    file(APPEND ${third_party} "\n${text}")
  endforeach()
endif()
install(FILES ${third_party} DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/tutti COMPONENT program)

set(CPACK_GENERATOR TGZ DEB)
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/packages)
set(CPACK_PACKAGE_FILE_NAME tutti-${PROJECT_VERSION}-linux-x86_64)
set(CPACK_PACKAGE_CONTACT "Tutti maintainers <maintainers@tutti.invalid>")
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL program)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
# The archive has everything in one directory; for both, cpack would put the Debian package's /usr below one, too.
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_CURRENT_BINARY_DIR}/cpack_generator.cmake)
file(WRITE ${CPACK_PROJECT_CONFIG_FILE}
  "if(CPACK_GENERATOR STREQUAL TGZ)\n  set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ON)\nendif()\n")
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_NAME tutti)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
# The dependency on libc6, with the version that the program needs, comes from scripts/package.sh.
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libopenmpi3 | libmpich12")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION "Trains large neural networks on all your devices at once
 Data, ZeRO, tensor, sequence, context, pipeline and expert parallelism on CPUs
 and NVIDIA GPUs, with a planner that says beforehand how fast and how large a
 run will be. MPI, NCCL, cuBLASLt and cuDNN are opened where they are installed.")
include(CPack)
