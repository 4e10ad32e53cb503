# Files of the sources as text inside the program, in generated sources.

# src/tutti/hardware/catalog/*.toml: hardware::catalog().
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

# One file as the std::string_view that tutti::<room>::<name>() gives, which <room>/<header> declares.
function(embed_text room name header file)
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${file})
  file(READ ${CMAKE_CURRENT_SOURCE_DIR}/${file} text)
  file(CONFIGURE OUTPUT ${source} @ONLY CONTENT [[
#include "tutti/@room@/@header@"

namespace tutti::@room@ {

std::string_view @name@() { return R"text(@text@)text"; }

}  // namespace tutti::@room@
]])
  target_sources(tutti_${room} PRIVATE ${source})
endfunction()
embed_text(cli gospels gospels.h src/tutti/cli/gospels.txt)  # the text of `tutti init`
embed_text(published calibration_rows run.h tests/published/runs.json)
embed_text(report live_script live_page.h src/tutti/report/live_page.js)
embed_text(report step_page_script step_page.h src/tutti/report/step_page.js)
embed_text(report step_source step_page.h src/tutti/engine/step.cpp)  # the page shows the line that runs
