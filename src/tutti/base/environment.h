// base/environment.h: environment variables. An empty variable counts as not set, so `NAME= program` undoes a setting.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace tutti {

inline std::optional<std::string> environment_variable(const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr && *value != '\0' ? std::optional<std::string>(value) : std::nullopt;
}

}  // namespace tutti
