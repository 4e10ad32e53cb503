# src/tutti/comm/mpi has two definitions of its functions; the one that this build does not use stays uncompiled.
set(mpi_folder ${CMAKE_CURRENT_SOURCE_DIR}/src/tutti/comm/mpi)
if(TUTTI_MPI)
  find_package(MPI REQUIRED COMPONENTS CXX)
  set(unused_mpi ${mpi_folder}/absent.cpp)
else()
  set(unused_mpi ${mpi_folder}/mpi_wire.cpp)
endif()
set_source_files_properties(${unused_mpi} PROPERTIES HEADER_FILE_ONLY ON)
