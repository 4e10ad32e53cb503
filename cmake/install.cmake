# find_package(tutti) for other projects: the program, the headers, every room as tutti::ROOM, and tutti::tutti which
# links them all. Included last by CMakeLists.txt; the programs of examples/ use it, tests/install_test.cmake proves it.
include(CMakePackageConfigHelpers)

add_library(tutti_all INTERFACE)
set_target_properties(tutti_all PROPERTIES EXPORT_NAME tutti)
set(room_targets ${TUTTI_ROOMS})
list(TRANSFORM room_targets PREPEND tutti_)
target_link_libraries(tutti_all INTERFACE ${room_targets})

# The same names inside the build, so that add_subdirectory(tutti) and find_package(tutti) are used alike.
add_library(tutti::tutti ALIAS tutti_all)
foreach(room IN LISTS TUTTI_ROOMS)
  add_library(tutti::${room} ALIAS tutti_${room})
endforeach()

set(TUTTI_INSTALL_CMAKEDIR ${CMAKE_INSTALL_LIBDIR}/cmake/tutti)
install(TARGETS tutti_all ${room_targets} EXPORT tuttiTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS tutti_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY src/tutti DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h"
  PATTERN "testing" EXCLUDE)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/tutti)
install(EXPORT tuttiTargets NAMESPACE tutti:: DESTINATION ${TUTTI_INSTALL_CMAKEDIR})

# A static library does not carry what it links: the config file finds those libraries again on the user's machine,
# by name and never by the path that they had here.
configure_package_config_file(cmake/tuttiConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/tuttiConfig.cmake
  INSTALL_DESTINATION ${TUTTI_INSTALL_CMAKEDIR} NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/tuttiConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/tuttiConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/tuttiConfigVersion.cmake
  DESTINATION ${TUTTI_INSTALL_CMAKEDIR})
