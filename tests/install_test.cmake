# Installs the built tree into a prefix, moves that prefix (an installed package must not remember where it was made),
# builds the programs of examples/ against it and runs their tests. Called by ctest with:
#   cmake -DSOURCE=... -DBUILD=... -DCXX=... -DFLAGS=... -DVERSION=... -P tests/install_test.cmake
set(work ${BUILD}/install_test)
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

# Nothing in the package may point into the tree that built it.
file(GLOB_RECURSE package_files ${work}/moved/*.cmake)
foreach(file IN LISTS package_files)
  file(READ ${file} text)
  foreach(place IN ITEMS ${SOURCE} ${BUILD})
    string(FIND "${text}" "${place}" found)
    if(NOT found EQUAL -1)
      message(FATAL_ERROR "${file} names ${place}: the package is not relocatable")
    endif()
  endforeach()
endforeach()

set(configure ${CMAKE_COMMAND} -G Ninja -DCMAKE_CXX_COMPILER=${CXX} "-DCMAKE_CXX_FLAGS=${FLAGS}"
  -DCMAKE_PREFIX_PATH=${work}/moved)
run(${configure} -S ${SOURCE}/examples -B ${work}/examples)
run(${CMAKE_COMMAND} --build ${work}/examples)
run(${CMAKE_CTEST_COMMAND} --test-dir ${work}/examples --output-on-failure)

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
