# Read by ctest, in any build directory and however it is called. Threads of OpenMP that wait leave the cores to the other
# tests; the program itself does the same (decision 8).
if(NOT DEFINED ENV{GOMP_SPINCOUNT})
  set(ENV{GOMP_SPINCOUNT} 1000)
endif()
