// base/environment.h: variables of the environment. An empty variable counts as one that is not set, so that
// `NAME= program` undoes a setting for one command.
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
