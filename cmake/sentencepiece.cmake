# Google's sentencepiece library. A build links it (sentencepiece_library.cpp) or does not (sentencepiece_module.cpp).
# A portable program opens the library as a module, lib/tutti/libtutti_sentencepiece.so, because Debian has it as a
# shared library only: with the library itself, and with gcc's for systems without.
set(text ${CMAKE_CURRENT_SOURCE_DIR}/src/tutti/text)
set(sentencepiece_module "")
if(TUTTI_PORTABLE AND TUTTI_SENTENCEPIECE)
  set(sentencepiece_module lib/tutti/libtutti_sentencepiece.so)
endif()
set(sentencepiece_unused module)
if(TUTTI_PORTABLE OR NOT TUTTI_SENTENCEPIECE)
  set(sentencepiece_unused library)
endif()
get_target_property(sources tutti_text SOURCES)
list(REMOVE_ITEM sources ${text}/sentencepiece_${sentencepiece_unused}.cpp)
set_target_properties(tutti_text PROPERTIES SOURCES "${sources}")
set_source_files_properties(${text}/sentencepiece_module.cpp PROPERTIES COMPILE_DEFINITIONS
  "TUTTI_SENTENCEPIECE_MODULE=\"${sentencepiece_module}\"")
set_source_files_properties(${text}/sentencepiece_library.cpp PROPERTIES COMPILE_DEFINITIONS
  "TUTTI_SENTENCEPIECE_VERSION=\"sentencepiece ${sentencepiece_VERSION}\"")

if(TUTTI_SENTENCEPIECE AND TUTTI_PORTABLE)
  add_library(tutti_sentencepiece MODULE ${text}/sentencepiece_library.cpp)
  target_include_directories(tutti_sentencepiece PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/src)
  target_link_libraries(tutti_sentencepiece PRIVATE tutti_options PkgConfig::sentencepiece)
  target_link_options(tutti_sentencepiece PRIVATE -Wl,--as-needed)
  set_target_properties(tutti_sentencepiece PROPERTIES INSTALL_RPATH $ORIGIN CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON)
  install(TARGETS tutti_sentencepiece LIBRARY DESTINATION lib/tutti COMPONENT program)
  foreach(library libsentencepiece.so.0 gcc/libstdc++.so.6 gcc/libgcc_s.so.1)
    get_filename_component(name ${library} NAME)
    get_filename_component(folder lib/tutti/${library} DIRECTORY)
    tutti_library_file(file ${name} "libsentencepiece-dev, g++")
    file(REAL_PATH ${file} file)
    install(FILES ${file} DESTINATION ${folder} RENAME ${name} COMPONENT program)
  endforeach()
endif()
