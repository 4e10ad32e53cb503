#include "tutti/cli/io.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "tutti/base/error.h"

namespace tutti::cli {

void write_file(const std::string& option, const std::string& path, const std::string& text) {
    errno = 0;
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file << text;
    file.close();
    check<DataError>(file.good(), path, " cannot be written: ", std::strerror(errno), "; ", option,
                     " names another place");
}

}  // namespace tutti::cli
