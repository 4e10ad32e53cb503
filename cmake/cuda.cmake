# The CUDA back end: src/tutti/device/cuda, src/tutti/kernels/cuda and src/tutti/comm/nccl. The .cu files are compiled as objects inside the
# libraries of their rooms, for the architectures of TUTTI_CUDA_ARCHITECTURES; a build without CUDA compiles absent.cpp
# of each folder instead. tests/cuda compiles the same files with g++ to run them without a GPU.
#
# --fmad=false is set for the one file that must give the bits of base/philox.h.
# Attention by cuDNN, where the headers of cudnn-frontend and cudnn.h are installed: one file, 44 s of
# compile time. The library itself is opened at run time.
if(TUTTI_CUDA)
  execute_process(COMMAND python3 -c "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    OUTPUT_VARIABLE python_packages OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  find_path(TUTTI_CUDNN_FRONTEND cudnn_frontend.h HINTS ${python_packages}/include
    DOC "The directory of cudnn_frontend.h (Python package nvidia-cudnn-frontend)")
  find_path(TUTTI_CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${python_packages}/nvidia/cudnn/include
    DOC "The directory of cudnn.h")
endif()
if(TUTTI_CUDA AND TUTTI_CUDNN_FRONTEND AND TUTTI_CUDNN_INCLUDE)
  set(unused_cudnn cudnn_graph_absent.cpp)
  set_source_files_properties(${CMAKE_CURRENT_SOURCE_DIR}/src/tutti/kernels/cuda/cudnn_graph.cpp PROPERTIES
    COMPILE_OPTIONS "-O1;-isystem;${TUTTI_CUDNN_FRONTEND};-isystem;${TUTTI_CUDNN_INCLUDE}"
    COMPILE_DEFINITIONS "NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING;CUDNN_FRONTEND_SKIP_JSON_LIB")
else()
  set(unused_cudnn cudnn_graph.cpp)
endif()

foreach(part device/cuda kernels/cuda comm/nccl)
  get_filename_component(room ${part} DIRECTORY)
  set(folder ${CMAKE_CURRENT_SOURCE_DIR}/src/tutti/${part})
  file(GLOB TUTTI_CUDA_SOURCES_${room} CONFIGURE_DEPENDS ${folder}/*.cpp ${folder}/*.cu)
  list(FILTER TUTTI_CUDA_SOURCES_${room} EXCLUDE REGEX "/absent\\.cpp$|_test\\.cpp$|/${unused_cudnn}$")
  if(NOT TUTTI_CUDA)
    file(GLOB absent CONFIGURE_DEPENDS ${folder}/absent.cpp ${folder}/*_absent.cpp)
    target_sources(tutti_${room} PRIVATE ${absent})
    # Programs with an emulated GPU define these functions themselves: each file must stay an object of its own.
    set_source_files_properties(${absent} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    continue()
  endif()
  if(NOT TUTTI_CUDA_SOURCES_${room})
    continue()
  endif()
  add_library(tutti_${room}_cuda OBJECT ${TUTTI_CUDA_SOURCES_${room}})
  target_include_directories(tutti_${room}_cuda PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/src)
  target_link_libraries(tutti_${room}_cuda PRIVATE tutti_options CUDA::cudart_static)
  # The kernels for Hopper are compiled for 90a and are empty elsewhere.
  if(TUTTI_CUDA_ARCHITECTURES MATCHES "90a")
    target_compile_definitions(tutti_${room}_cuda PRIVATE TUTTI_CUDA_SM90A)
  endif()
  # Relaxed constexpr: the exact conversions and Philox of base/ are the same functions on both sides.
  target_compile_options(tutti_${room}_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr
    -Xcompiler=-Wall,-Wextra,-Wno-unused-parameter $<$<BOOL:${TUTTI_WERROR}>:--Werror=all-warnings -Xcompiler=-Werror>>)
  target_sources(tutti_${room} PRIVATE $<TARGET_OBJECTS:tutti_${room}_cuda>)
endforeach()
list(JOIN TUTTI_CUDA_ARCHITECTURES "," architectures)
set_source_files_properties(${CMAKE_CURRENT_SOURCE_DIR}/src/tutti/device/cuda/architectures.cpp PROPERTIES
  COMPILE_DEFINITIONS TUTTI_CUDA_ARCHITECTURES="${architectures}")
set_source_files_properties(${CMAKE_CURRENT_SOURCE_DIR}/src/tutti/kernels/cuda/random.cu PROPERTIES
  COMPILE_OPTIONS $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false>)
