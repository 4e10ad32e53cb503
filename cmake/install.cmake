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
install(TARGETS tutti_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
install(DIRECTORY src/tutti DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h"
  PATTERN "testing" EXCLUDE)

# The manual page and the scripts of shells, which the program makes from its table of commands. Debian's zsh looks in
# vendor-completions.
set(made_by_program "")
function(tutti_makes file destination)
  set(path ${CMAKE_CURRENT_BINARY_DIR}/made_by_program/${file})
  add_custom_command(OUTPUT ${path} COMMAND tutti_program ${ARGN} > ${path} DEPENDS tutti_program VERBATIM)
  set(made_by_program ${made_by_program} ${path} PARENT_SCOPE)
  install(FILES ${path} DESTINATION ${destination} COMPONENT program)
endfunction()
file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/made_by_program)
tutti_makes(tutti.1 ${CMAKE_INSTALL_MANDIR}/man1 man)
tutti_makes(tutti ${CMAKE_INSTALL_DATADIR}/bash-completion/completions completion bash)
tutti_makes(_tutti ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions completion zsh)
tutti_makes(tutti.fish ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d completion fish)
add_custom_target(tutti_made_by_program ALL DEPENDS ${made_by_program})

install(FILES share/grafana/tutti.json DESTINATION ${CMAKE_INSTALL_DATADIR}/tutti/grafana COMPONENT program)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/tutti COMPONENT program)
install(EXPORT tuttiTargets NAMESPACE tutti:: DESTINATION ${TUTTI_INSTALL_CMAKEDIR})

# A static library does not carry what it links: the config file finds those libraries again on the user's machine,
# by name and never by the path that they had here.
configure_package_config_file(cmake/tuttiConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/tuttiConfig.cmake
  INSTALL_DESTINATION ${TUTTI_INSTALL_CMAKEDIR} NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/tuttiConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/tuttiConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/tuttiConfigVersion.cmake
  cmake/archives.cmake DESTINATION ${TUTTI_INSTALL_CMAKEDIR})
