// spec/problems.h: broken rules of a config, gathered, and the nearest values that keep a rule.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/spec/run_spec.h"

namespace tutti::spec {

using Problems = std::vector<std::string>;

// require(problems, rule holds?, message parts...)
template <class... Parts>
void require(Problems& problems, bool holds, const Parts&... parts) {
    if (!holds) problems.push_back(concat(parts...));
}

// Saturates: a value out of its range (reported by itself) must not overflow a rule.
int64_t product(std::initializer_list<int64_t> factors);

// Each begins with `before`, and is "" when the field at `path` ("train.steps") allows no such value.
// "; nearest: KEY = 6 or 10": those of the two that the field allows.
std::string suggestion(const std::string& before, int64_t low, int64_t high, std::string_view path);
std::string nearest_multiples(const std::string& before, int64_t n, int64_t unit, std::string_view path);
std::string nearest_divisors(const std::string& before, int64_t n, int64_t value, std::string_view path);

// The rules of [model]; ranges of single fields aside. Of validate_model.cpp.
void check_model(const ModelSpec& model, Problems& problems);

}  // namespace tutti::spec
