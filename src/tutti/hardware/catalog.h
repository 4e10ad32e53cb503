// hardware/catalog.h: the texts of catalog/*.toml, embedded by the build (cmake/embedded_files.cmake).
#pragma once

#include <string_view>
#include <vector>

namespace tutti::hardware {

struct CatalogEntry {
    std::string_view name;  // of the file, without .toml
    std::string_view text;
};

const std::vector<CatalogEntry>& catalog();  // by name

}  // namespace tutti::hardware
