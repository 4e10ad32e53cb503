# NCCL's engine without a GPU: ranks as threads with an emulated GPU each, whose kernels are the CPU's, and a library that
# stands for NCCL and is opened as that one is. It finds the emulation in the program that opens it.
add_library(fake_nccl MODULE nccl/fake_nccl.cpp)
target_compile_definitions(fake_nccl PRIVATE TUTTI_CUDA_EMULATED)
target_include_directories(fake_nccl PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(fake_nccl PRIVATE tutti_options)

add_executable(cuda_nccl_tests nccl/nccl_test.cpp nccl/pipeline_test.cpp nccl/training_test.cpp
  nccl/tree_sum_test.cpp)
add_executable(cuda_nccl_fault_tests nccl/fault_test.cpp)
foreach(test cuda_nccl_tests cuda_nccl_fault_tests)
  target_compile_definitions(${test} PRIVATE TUTTI_FAKE_NCCL="$<TARGET_FILE:fake_nccl>")
  # libstdc++ first, as in CMakeLists.txt.
  target_link_libraries(${test} PRIVATE stdc++ tutti_borrowed_kernels tutti_gpu_emulated tutti_comm_emulated tutti_train
    tutti_comm_testing tutti_diagnose tutti_options tutti_base GTest::gtest GTest::gtest_main)
  set_target_properties(${test} PROPERTIES ENABLE_EXPORTS ON)
  add_dependencies(${test} fake_nccl)
endforeach()
tutti_discover_tests(cuda_nccl_tests TEST_PREFIX nccl.)
tutti_gtest_discover_tests(cuda_nccl_fault_tests TEST_PREFIX nccl.
  PROPERTIES LABELS slow TIMEOUT 600 PROCESSORS 2 COST 200)
tutti_nightly(cuda_nccl_fault_tests NcclFaults.AtRandom)

# Our declarations against NCCL's, where its header and CUDA's are.
find_path(TUTTI_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} DOC "The directory of nccl.h")
if(TUTTI_CUDA AND TUTTI_NCCL_INCLUDE)
  add_library(tutti_nccl_abi OBJECT nccl/abi_test.cpp)
  target_include_directories(tutti_nccl_abi SYSTEM PRIVATE ${TUTTI_NCCL_INCLUDE} ${CUDAToolkit_INCLUDE_DIRS})
  target_include_directories(tutti_nccl_abi PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(tutti_nccl_abi PRIVATE tutti_options)
endif()

# NCCL itself, on the GPUs of this machine.
if(TUTTI_CUDA)
  add_executable(cuda_gpu_nccl_tests nccl/gpu_test.cpp)
  target_link_libraries(cuda_gpu_nccl_tests PRIVATE tutti_comm_testing tutti_options GTest::gtest GTest::gtest_main)
  if(TUTTI_GPUS)
    tutti_gtest_discover_tests(cuda_gpu_nccl_tests TEST_PREFIX gpu.
      PROPERTIES LABELS gpu TIMEOUT ${TUTTI_TEST_SECONDS})
  endif()
endif()
