#!/usr/bin/env python3
"""Writes src/tutti/text/unicode_tables.cpp: what the tokenizers need to know of every code point.

    pip install tokenizers unicodedata2==16.0.0 && scripts/make_unicode_tables.py

The `tokenizers` package is what our ids are compared with, so its Unicode versions are ours: 16.0 in the regexes that
cut text into words, 9.0 in its NFC (the crate unicode-normalization-alignments). Values come from unicodedata2; what the
package's older NFC does not know yet is found by asking it. The script stops when the package sees any code point
otherwise than the table (tests/peer/test_tokenizers.py asks again).
"""

import pathlib
import sys

import unicodedata2 as ucd
from tokenizers import Regex, normalizers, pre_tokenizers

TARGET = pathlib.Path(__file__).resolve().parent.parent / "src/tutti/text/unicode_tables.cpp"
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
LETTER, MARK, NUMBER, SPACE, WORD = 1, 2, 4, 8, 16
WHITE_SPACE = {*range(9, 14), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}
# \w of the regex crate: letters, marks, decimal digits, connectors, join controls, and what else is alphabetic
OTHER_ALPHABETIC = {*range(0x24B6, 0x24EA), *range(0x1F130, 0x1F14A), *range(0x1F150, 0x1F16A), *range(0x1F170, 0x1F18A)}


def classes(c):
    category = ucd.category(chr(c))
    word = category[0] in "LM" or category in ("Nd", "Nl", "Pc") or c in (0x200C, 0x200D) or c in OTHER_ALPHABETIC
    return (LETTER * (category[0] == "L") + MARK * (category[0] == "M") + NUMBER * (category[0] == "N")
            + SPACE * (c in WHITE_SPACE) + WORD * word)


def ranges_of(value_of):
    """(first, last, value) of neighbours with equal values; those with value 0 are left out."""
    ranges = []
    for c in CODE_POINTS:
        value = value_of(c)
        if not value:
            continue
        if ranges and ranges[-1][1] == c - 1 and ranges[-1][2] == value:
            ranges[-1][1] = c
        else:
            ranges.append([c, c, value])
    return ranges


def check_classes():
    """Every code point in the package's own regexes."""
    for pattern, bit in ((r"\p{L}", LETTER), (r"\p{M}", MARK), (r"\p{N}", NUMBER), (r"\s", SPACE)):
        removed = pre_tokenizers.Split(Regex(pattern), "removed")
        for first in range(0, len(CODE_POINTS), 20000):
            chunk = CODE_POINTS[first:first + 20000]
            kept = {i for _, (begin, end) in removed.pre_tokenize_str("".join(map(chr, chunk)))
                    for i in range(begin, end)}
            for i, c in enumerate(chunk):
                if (i not in kept) != bool(classes(c) & bit):
                    sys.exit(f"U+{c:04X}: tokenizers and the table disagree about {pattern}")
    words = pre_tokenizers.Whitespace()
    for c in CODE_POINTS:
        pieces = words.pre_tokenize_str("a" + chr(c))
        if (pieces[0][1][1] == 2) != bool(classes(c) & WORD):
            sys.exit(f"U+{c:04X}: tokenizers and the table disagree about \\w")


def combining(c, nfc=normalizers.NFC()):
    """The canonical combining class of what the package's NFC moves; 0 for the rest."""
    value = ucd.combining(chr(c))
    text = "\u0345" + chr(c)  # U+0345 has class 240, the largest
    return 0 if value and c != 0x345 and nfc.normalize_str(text) == text else value


def decompositions():
    """The rows (code point, first) and (code point, first, second), and the code points whose pair NFC does not
    compose again. Hangul is arithmetic."""
    nfc, nfd = normalizers.NFC(), normalizers.NFD()
    rows, excluded = [], []
    for c in CODE_POINTS:
        if 0xAC00 <= c < 0xD7A4 or nfd.normalize_str(chr(c)) == chr(c):
            continue
        parts = [int(x, 16) for x in ucd.decomposition(chr(c)).split()]
        rows.append([c, *parts])
        if len(parts) == 2 and nfc.normalize_str(chr(c)) != chr(c):
            excluded.append([c])
    return rows, excluded


def array(kind, name, rows, hex_columns):
    """The rows as aggregates (of one column: as numbers), as many a line as fit 120 columns."""
    lines, line = [], "   "
    for row in rows:
        values = ", ".join(f"0x{v:x}" if i < hex_columns else str(v) for i, v in enumerate(row))
        item = f" {values}," if len(row) == 1 else f" {{{values}}},"
        if len(line) + len(item) > 120:
            lines.append(line)
            line = "   "
        line += item
    return f"constexpr {kind} {name}[] = {{\n" + "\n".join([*lines, line]) + "\n};\n"


def main():
    if ucd.unidata_version != "16.0.0":
        sys.exit(f"unicodedata2 16.0.0 is required, got {ucd.unidata_version}")
    check_classes()
    rows, excluded = decompositions()
    TARGET.write_text("""\
// text/unicode_tables.cpp: made by scripts/make_unicode_tables.py, not by hand. Unicode 16.0 for the
// classes, 9.0 for the canonical forms, as in the `tokenizers` package (0.23).
#include "tutti/text/unicode_tables.h"

namespace tutti::data {

namespace {

// clang-format off
// first, last, sum of letter 1, mark 2, number 4, space 8, word 16
""" + array("ClassRange", "kClasses", ranges_of(classes), 2) + """
// first, last, canonical combining class
""" + array("CombiningRange", "kCombining", ranges_of(combining), 2) + """
// composed, first, second
""" + array("Decomposition", "kDecompositions", rows, 3) + """
""" + array("uint32_t", "kCompositionExclusions", excluded, 1) + """// clang-format on

}  // namespace

std::span<const ClassRange> class_ranges() { return kClasses; }
std::span<const CombiningRange> combining_ranges() { return kCombining; }
std::span<const Decomposition> decompositions() { return kDecompositions; }
std::span<const uint32_t> composition_exclusions() { return kCompositionExclusions; }

}  // namespace tutti::data
""")
    print(f"{TARGET}: {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
