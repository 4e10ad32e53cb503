# Attention by choice without a GPU: emulated kernels, and a fake in the place of the file that speaks to cuDNN.
add_executable(cuda_attention_choice_tests cudnn/attention_choice_test.cpp cudnn/fake_cudnn.cpp place.cpp
  order_emulated.cpp cuda_kernels.cpp)
target_sources(cuda_attention_choice_tests PRIVATE
  $<FILTER:$<TARGET_OBJECTS:tutti_cuda_emulated>,EXCLUDE,cudnn_graph_absent>)
target_compile_definitions(cuda_attention_choice_tests PRIVATE TUTTI_CUDA_EMULATED)
target_include_directories(cuda_attention_choice_tests PRIVATE ${PROJECT_SOURCE_DIR})
# libstdc++ first, as in CMakeLists.txt.
target_link_libraries(cuda_attention_choice_tests PRIVATE stdc++ tutti_gpu_emulated tutti_comm_emulated tutti_cli
  tutti_train tutti_kernels_testing tutti_options GTest::gtest GTest::gtest_main)
gtest_discover_tests(cuda_attention_choice_tests TEST_PREFIX attention. DISCOVERY_MODE PRE_TEST
  PROPERTIES LABELS slow TIMEOUT ${TUTTI_TEST_SECONDS})
