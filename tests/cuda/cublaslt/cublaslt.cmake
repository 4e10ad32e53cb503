# Products by cuBLASLt without a GPU: its engine over the emulated GPU and a library that stands for cuBLASLt and is
# opened as that one is. It finds the emulation in the program that opens it.
add_library(fake_cublaslt MODULE cublaslt/fake_cublaslt.cpp)
target_compile_definitions(fake_cublaslt PRIVATE TUTTI_CUDA_EMULATED)
target_include_directories(fake_cublaslt PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(fake_cublaslt PRIVATE tutti_options)
target_compile_options(fake_cublaslt PRIVATE $<$<CONFIG:Release>:-O3>)

set(kernels_cuda ${PROJECT_SOURCE_DIR}/src/tutti/kernels/cuda)
add_executable(cuda_cublaslt_tests cublaslt/cublaslt_test.cpp cublaslt/products.cpp
  ${kernels_cuda}/gemm_cublaslt.cpp ${kernels_cuda}/grouped_gemm.cpp ${kernels_cuda}/cublaslt.cpp)
target_sources(cuda_cublaslt_tests PRIVATE
  $<FILTER:$<TARGET_OBJECTS:tutti_borrowed_kernels>,EXCLUDE,borrowed_products>)  # products.cpp is in its place
target_compile_definitions(cuda_cublaslt_tests PRIVATE TUTTI_FAKE_CUBLASLT="$<TARGET_FILE:fake_cublaslt>")
# libstdc++ first, as in CMakeLists.txt.
target_link_libraries(cuda_cublaslt_tests PRIVATE stdc++ tutti_gpu_emulated tutti_comm_emulated tutti_cli
  tutti_train tutti_options GTest::gtest GTest::gtest_main)
set_target_properties(cuda_cublaslt_tests PROPERTIES ENABLE_EXPORTS ON)
add_dependencies(cuda_cublaslt_tests fake_cublaslt)
tutti_gtest_discover_tests(cuda_cublaslt_tests TEST_PREFIX cublaslt.
  PROPERTIES LABELS slow TIMEOUT ${TUTTI_TEST_SECONDS})

# Our declarations against cuBLASLt's, where its header is.
if(TUTTI_CUDA)
  add_library(tutti_cublaslt_abi OBJECT cublaslt/abi_test.cpp)
  target_include_directories(tutti_cublaslt_abi SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  target_include_directories(tutti_cublaslt_abi PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(tutti_cublaslt_abi PRIVATE tutti_options)
endif()
