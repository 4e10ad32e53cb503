# src/tutti/hardware/catalog/*.toml as text inside the program: a generated source that defines hardware::catalog().
file(GLOB catalog_files CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/src/tutti/hardware/catalog/*.toml)
set(catalog_source ${CMAKE_CURRENT_BINARY_DIR}/hardware_catalog.cpp)
set(entries "")
foreach(file ${catalog_files})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  get_filename_component(name ${file} NAME_WE)
  file(READ ${file} text)
  string(APPEND entries "        {\"${name}\", R\"toml(${text})toml\"},\n")
endforeach()
file(CONFIGURE OUTPUT ${catalog_source} @ONLY CONTENT [[
#include "tutti/hardware/catalog.h"

namespace tutti::hardware {

const std::vector<CatalogEntry>& catalog() {
    static const std::vector<CatalogEntry> entries = {
@entries@    };
    return entries;
}

}  // namespace tutti::hardware
]])
target_sources(tutti_hardware PRIVATE ${catalog_source})
