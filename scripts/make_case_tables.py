#!/usr/bin/env python3
"""Writes src/tutti/jinja/case_tables.cpp: str.upper() and str.lower() of every code point outside of ASCII.

    scripts/make_case_tables.py     # with the Unicode of its Python: 14.0 for Python 3.11
"""
import pathlib
import sys
import textwrap
import unicodedata

TARGET = pathlib.Path(__file__).resolve().parent.parent / "src/tutti/jinja/case_tables.cpp"
CODES = [code for code in range(0x80, 0x110000) if not 0xD800 <= code < 0xE000]


def runs(change):
    """(first, count, stride, delta) of the code points that become one other."""
    delta = {c: ord(change(chr(c))) - c for c in CODES if len(change(chr(c))) == 1 and change(chr(c)) != chr(c)}
    result, codes = [], sorted(delta)
    at = 0
    while at < len(codes):
        first, best = codes[at], (1, 1)
        for stride in (1, 2):
            count = 1
            while (delta.get(first + count * stride) == delta[first]
                   and (stride == 1 or first + count * stride - 1 not in delta)):
                count += 1
            best = max(best, (count, stride))
        result.append(f"{{{first:#x}, {best[0]}, {best[1]}, {delta[first]}}}")
        at += best[0]
    return result


def array(type_, name, rows):
    lines = textwrap.wrap(", ".join(rows), 112, initial_indent="    ", subsequent_indent="    ")
    return f"constexpr {type_} {name}[] = {{\n" + "\n".join(lines) + "};\n"


def main():
    def literal(text):
        return "".join(f"\\U{ord(u):08x}" if ord(u) > 126 else u for u in text)

    several = [f"{{{c:#x}, U\"{literal(chr(c).upper())}\"}}" for c in CODES if len(chr(c).upper()) > 1]
    titles = [f"{c:#x}" for c in CODES if chr(c).title() != chr(c).upper() and len(chr(c).upper()) == 1]
    TARGET.write_text(f"""// jinja/case_tables.cpp: made by scripts/make_case_tables.py, not by hand. Unicode {unicodedata.unidata_version}.
#include "tutti/jinja/case_tables.h"

namespace tutti::jinja {{

namespace {{

// clang-format off
{array("CaseRun", "kUpper", runs(str.upper))}
{array("CaseRun", "kLower", runs(str.lower))}
{array("CaseExpansion", "kUpperExpansions", several)}
{array("char32_t", "kOwnTitles", titles)}// clang-format on

}}  // namespace

std::span<const CaseRun> upper_runs() {{ return kUpper; }}
std::span<const CaseRun> lower_runs() {{ return kLower; }}
std::span<const CaseExpansion> upper_expansions() {{ return kUpperExpansions; }}
std::span<const char32_t> own_titles() {{ return kOwnTitles; }}

}}  // namespace tutti::jinja
""", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
