// base/digits.h: conversion between numbers and digits.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/strings.h"

namespace tutti {

// nullopt unless the whole text is a number in the range of T: no blanks, no '+'.
template <class T>
std::optional<T> parse_number(std::string_view text) {
    T number{};
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, number);
    return error == std::errc() && stop == end ? std::optional(number) : std::nullopt;
}

// {11, 11, 10} for "11,11,10"; nullopt unless each part between commas is a number.
template <class T>
std::optional<std::vector<T>> parse_numbers(std::string_view text) {
    std::vector<T> numbers;
    for (const std::string_view part : split(text, ',')) {
        const std::optional<T> number = parse_number<T>(part);
        if (!number) return std::nullopt;
        numbers.push_back(*number);
    }
    return numbers;
}

// Of a hexadecimal digit; -1 of another character.
constexpr int hex_value(char32_t c) {
    if (c >= '0' && c <= '9') return static_cast<int>(c - '0');
    const char32_t small = c | 0x20;
    return small >= 'a' && small <= 'f' ? static_cast<int>(small - 'a' + 10) : -1;
}

// Two lower-case hexadecimal digits for each byte.
inline std::string to_hex(std::span<const unsigned char> bytes) {
    constexpr const char* kDigits = "0123456789abcdef";
    std::string text;
    for (const unsigned char byte : bytes) {
        text += kDigits[byte >> 4];
        text += kDigits[byte & 15];
    }
    return text;
}

// 16 digits, the highest first.
inline std::string to_hex(uint64_t value) {
    unsigned char bytes[8];
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<unsigned char>(value >> (56 - 8 * i));
    return to_hex(bytes);
}

}  // namespace tutti
