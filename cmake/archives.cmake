# Libraries that are linked as archives, so that a program needs no further shared library: tutti::archive_NAME. Included by
# Tutti's build and, installed beside tuttiConfig.cmake, by projects that find Tutti. Sets tutti_missing_archives.
set(tutti_missing_archives "")
foreach(library sodium z zstd)
  find_library(TUTTI_ARCHIVE_${library} lib${library}.a)
  mark_as_advanced(TUTTI_ARCHIVE_${library})
  if(NOT TUTTI_ARCHIVE_${library})
    list(APPEND tutti_missing_archives lib${library}.a)
  elseif(NOT TARGET tutti::archive_${library})
    add_library(tutti::archive_${library} STATIC IMPORTED)
    set_target_properties(tutti::archive_${library} PROPERTIES IMPORTED_LOCATION ${TUTTI_ARCHIVE_${library}})
  endif()
endforeach()
