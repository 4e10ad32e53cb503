// base/error.h: the errors of all rooms. check(condition, parts...) throws if the condition is false; only then are the
// parts joined. A message says what was required, what was given, where, and what to try. The type of an error decides
// the exit code of the program.
#pragma once

#include <concepts>
#include <initializer_list>
#include <iosfwd>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace tutti {

// A reference to a value that becomes text as operator<< writes it: characters, a number, or what has an operator<<.
class TextPart {
  public:
    TextPart(std::string_view value) : value_(value.data()), size_(value.size()), append_(nullptr) {}
    template <class T>
    requires(!std::convertible_to<const T&, std::string_view>) TextPart(const T& value)
        : value_(&value), append_(&append_value<T>) {}

    void append_to(std::string& text) const {
        if (append_ != nullptr)
            append_(text, value_);
        else
            text.append(static_cast<const char*>(value_), size_);
    }

  private:
    using Write = void(std::ostream&, const void* value);
    static void append(std::string& text, long long value);
    static void append(std::string& text, unsigned long long value);
    static void append(std::string& text, double value);
    static void append(std::string& text, Write* write, const void* value);

    template <class T>
    static void append_value(std::string& text, const void* at) {
        const T& value = *static_cast<const T*>(at);
        if constexpr (std::is_floating_point_v<T>)
            append(text, static_cast<double>(value));
        else if constexpr (std::is_same_v<T, char>)
            text += value;
        else if constexpr (std::is_integral_v<T> && sizeof(T) > 1)
            append(text, static_cast<std::conditional_t<std::is_signed_v<T>, long long, unsigned long long>>(value));
        else
            append(
                text, [](std::ostream& out, const void* it) { out << *static_cast<const T*>(it); }, at);
    }

    const void* value_;
    size_t size_ = 0;
    void (*append_)(std::string& text, const void* value);
};

std::string concat(std::initializer_list<TextPart> parts);

// Its arguments, one after another.
template <class... Parts>
std::string concat(const Parts&... parts) {
    return concat({TextPart(parts)...});
}

// The elements of `values`, or `text_of` of each (a function or a member), separated by `between`, the last by `last`.
template <class Values, class TextOf>
std::string joined(const Values& values, std::string_view between, std::string_view last, const TextOf& text_of) {
    std::string text;
    for (auto value = std::begin(values); value != std::end(values); ++value) {
        if (value != std::begin(values)) text += std::next(value) == std::end(values) ? last : between;
        if constexpr (std::is_member_object_pointer_v<TextOf>)
            TextPart((*value).*text_of).append_to(text);
        else
            TextPart(text_of(*value)).append_to(text);
    }
    return text;
}
template <class Values, class TextOf>
std::string joined(const Values& values, std::string_view between, const TextOf& text_of) {
    return joined(values, between, between, text_of);
}
template <class Values>
std::string joined(const Values& values, std::string_view between = ", ") {
    return joined(
        values, between, [](const auto& value) -> const auto& { return value; });
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

template <class E>
[[noreturn, gnu::cold, gnu::noinline]] void throw_error(std::initializer_list<TextPart> parts) {
    throw E(concat(parts));
}

// check<DataError>(size > 0, path, " is empty: ...");
template <class E = Error, class... Parts>
inline void check(bool ok, const Parts&... parts) {
    if (!ok) [[unlikely]]
        throw_error<E>({TextPart(parts)...});
}

}  // namespace tutti
