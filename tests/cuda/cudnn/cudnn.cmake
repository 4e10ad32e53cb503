# Attention by choice without a GPU: emulated kernels, and a fake in the place of the file that speaks to cuDNN. Requests,
# and whole runs.
add_executable(cuda_cudnn_emulated_tests cudnn/cudnn_kernels_test.cpp place.cpp order_emulated.cpp)
add_executable(cuda_attention_choice_tests cudnn/attention_choice_test.cpp cuda_kernels.cpp)
foreach(tests cuda_cudnn_emulated_tests cuda_attention_choice_tests)
  target_sources(${tests} PRIVATE cudnn/fake_cudnn.cpp
    $<FILTER:$<TARGET_OBJECTS:tutti_cuda_emulated>,EXCLUDE,cudnn_graph_absent>)
  target_compile_definitions(${tests} PRIVATE TUTTI_CUDA_EMULATED)
  target_include_directories(${tests} PRIVATE ${PROJECT_SOURCE_DIR})
  # libstdc++ first, as in CMakeLists.txt.
  target_link_libraries(${tests} PRIVATE stdc++ tutti_gpu_emulated tutti_options GTest::gtest GTest::gtest_main)
endforeach()
target_link_libraries(cuda_cudnn_emulated_tests PRIVATE tutti_kernels_testing)
target_link_libraries(cuda_attention_choice_tests PRIVATE tutti_comm_emulated tutti_cli tutti_train)
tutti_discover_tests(cuda_cudnn_emulated_tests TEST_PREFIX emulated.)
tutti_gtest_discover_tests(cuda_attention_choice_tests TEST_PREFIX attention.
  PROPERTIES LABELS slow TIMEOUT ${TUTTI_TEST_SECONDS})
