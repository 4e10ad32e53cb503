# Installs the built tree into a prefix, moves that prefix (an installed package must not remember where it was made),
# builds programs of examples/ against it and runs their tests. By day these are one that trains and one that plans and
# simulates: Tutti's own build has compiled and run the others. With TUTTI_NIGHTLY in the environment, all.
# Called by ctest with:
#   cmake -DSOURCE=... -DBUILD=... -DCXX=... -DFLAGS=... -P tests/install_test.cmake
set(work ${BUILD}/install_test)
set(targets all)
set(tests .)
if(NOT "$ENV{TUTTI_NIGHTLY}")
  set(targets example_02_train_from_cpp exercise_solved)
  set(tests "^(example\\.02_|exercise\\.(plan|schedule)\\.solution)")
else()
  string(APPEND work _nightly)
endif()
file(REMOVE_RECURSE ${work})

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT code EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "exit code ${code} from: ${command}\n${output}")
  endif()
  set(output ${output} PARENT_SCOPE)
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${work}/made)
file(RENAME ${work}/made ${work}/moved)

# Nothing in the package may point into the tree that built it, and no target to a library by a path of this machine.
file(GLOB_RECURSE package_files ${work}/moved/*.cmake)
foreach(file IN LISTS package_files)
  file(READ ${file} text)
  if(file MATCHES "Targets" AND text MATCHES "[\";](/[a-zA-Z][^\";]*)")
    message(FATAL_ERROR "${file} names ${CMAKE_MATCH_1}: required: the name of a target, which tuttiConfig.cmake finds")
  endif()
  foreach(place IN ITEMS ${SOURCE} ${BUILD})
    string(FIND "${text}" "${place}" found)
    if(NOT found EQUAL -1)
      message(FATAL_ERROR "${file} names ${place}: the package is not relocatable")
    endif()
  endforeach()
endforeach()

# What headers of the package and all examples include is in the package.
file(GLOB_RECURSE readers ${work}/moved/include/*.h ${SOURCE}/examples/*.cpp ${SOURCE}/examples/*.h)
foreach(reader IN LISTS readers)
  file(STRINGS ${reader} includes REGEX "^#include \"tutti/")
  foreach(include IN LISTS includes)
    string(REGEX REPLACE "^#include \"([^\"]*)\".*" "\\1" header "${include}")
    if(NOT EXISTS ${work}/moved/include/${header})
      message(FATAL_ERROR "${reader} includes ${header}, which is not installed")
    endif()
  endforeach()
endforeach()

set(configure ${CMAKE_COMMAND} -G Ninja -DCMAKE_CXX_COMPILER=${CXX} "-DCMAKE_CXX_FLAGS=${FLAGS}"
  -DCMAKE_PREFIX_PATH=${work}/moved)
run(${configure} -S ${SOURCE}/examples -B ${work}/examples)
run(${CMAKE_COMMAND} --build ${work}/examples --target ${targets})
run(${CMAKE_CTEST_COMMAND} --test-dir ${work}/examples --output-on-failure --no-tests=error -R ${tests})

# A text of one repeated line is learned from 5.5 nats (256 bytes, untrained) to below 1 in 60 steps.
set(train ${work}/examples/02_train_from_cpp)
string(REPEAT "all together now, tutti.\n" 400 text)
file(WRITE ${work}/text.txt "${text}")
run(${train} ${work}/text.txt 60)
if(NOT output MATCHES "step 1 loss 5\\.[0-9]+" OR NOT output MATCHES "step 60 loss 0\\.[0-9]+")
  message(FATAL_ERROR "the example printed: ${output}")
endif()
execute_process(COMMAND ${train} ${work}/missing.txt RESULT_VARIABLE code ERROR_VARIABLE output)
if(NOT code EQUAL 3)
  message(FATAL_ERROR "a missing text must end with exit code 3, not ${code}: ${output}")
endif()

# The installed program starts.
run(${work}/moved/bin/tutti --help)
