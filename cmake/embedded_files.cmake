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

# The step's own source and the script of its page: report::step_source(), report::step_page_script().
set(step_source_file ${CMAKE_CURRENT_SOURCE_DIR}/src/tutti/engine/step.cpp)
set(step_script_file ${CMAKE_CURRENT_SOURCE_DIR}/src/tutti/report/step_page.js)
set(step_page_source ${CMAKE_CURRENT_BINARY_DIR}/step_page_texts.cpp)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${step_source_file} ${step_script_file})
file(READ ${step_source_file} step_text)
file(READ ${step_script_file} script_text)
file(CONFIGURE OUTPUT ${step_page_source} @ONLY CONTENT [[
#include "tutti/report/step_page.h"

namespace tutti::report {

std::string_view step_source() { return R"source(@step_text@)source"; }

std::string_view step_page_script() { return R"script(@script_text@)script"; }

}  // namespace tutti::report
]])
target_sources(tutti_report PRIVATE ${step_page_source})
