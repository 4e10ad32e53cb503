# open_sentencepiece has two definitions; the one that this build does not use stays uncompiled.
set(tokenizers ${CMAKE_CURRENT_SOURCE_DIR}/src/tutti/data/tokenizers)
if(TUTTI_SENTENCEPIECE)
  set_source_files_properties(${tokenizers}/sentencepiece_absent.cpp PROPERTIES HEADER_FILE_ONLY ON)
  set_source_files_properties(${tokenizers}/sentencepiece.cpp PROPERTIES COMPILE_DEFINITIONS
    "TUTTI_SENTENCEPIECE_VERSION=\"sentencepiece ${sentencepiece_VERSION}\"")
else()
  set_source_files_properties(${tokenizers}/sentencepiece.cpp PROPERTIES HEADER_FILE_ONLY ON)
endif()
