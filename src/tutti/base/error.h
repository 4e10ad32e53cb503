// base/error.h: the errors of all rooms. check(condition, parts...) throws if the condition is false; only then are the
// parts joined. A message says what was required, what was given, where, and what to try. The type of an error decides
// the exit code of the program.
#pragma once

#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tutti {

// Its arguments, written with operator<< one after another.
template <class... Parts>
std::string concat(const Parts&... parts) {
    std::ostringstream text;
    (text << ... << parts);
    return text.str();
}

// The elements of `values`, or `text_of` of each, separated by `between`.
template <class Values, class TextOf = std::identity>
std::string joined(const Values& values, std::string_view between = ", ", const TextOf& text_of = {}) {
    std::ostringstream text;
    std::string_view before = "";
    for (const auto& value : values) {
        text << before << std::invoke(text_of, value);
        before = between;
    }
    return text.str();
}

// Exit codes of the program, for launchers and schedulers; 0 is success.
namespace exit_codes {
inline constexpr int kUsage = 2, kData = 3, kFailed = 4;
inline constexpr int kBecauseOfOthers = 5;  // another rank failed, or the launcher or the hosts are gone
inline constexpr int kInternal = 70;        // EX_SOFTWARE of sysexits.h: a restart would fail in the same way
inline constexpr int kPreempted = 75;       // EX_TEMPFAIL: stopped on request without loss; start it again
}  // namespace exit_codes

// A step, a kernel or a rank failed. Exit code 4.
class Error : public std::runtime_error {
  public:
    explicit Error(const std::string& message) : std::runtime_error(message) {}
    virtual int exit_code() const { return exit_codes::kFailed; }
};

// The command line or the config asks for something wrong or impossible. Exit code 2.
class UsageError : public Error {
  public:
    using Error::Error;
    int exit_code() const override { return exit_codes::kUsage; }
};

// A tensor has more elements than a kernel takes at once; a smaller microbatch has fewer.
class SizeError : public UsageError {
  public:
    using UsageError::UsageError;
};

// A data file or a checkpoint is missing, damaged or does not fit. Exit code 3.
class DataError : public Error {
  public:
    using Error::Error;
    int exit_code() const override { return exit_codes::kData; }
};

// A fault of this program, or a run that dies again and again. Exit code 70: schedulers that restart failed jobs must
// not restart this one.
class InternalError : public Error {
  public:
    using Error::Error;
    int exit_code() const override { return exit_codes::kInternal; }
};

// check<DataError>(size > 0, path, " is empty: ...");
template <class E = Error, class... Parts>
inline void check(bool ok, const Parts&... parts) {
    if (!ok) [[unlikely]]
        throw E(concat(parts...));
}

}  // namespace tutti
