#!/bin/sh
# scripts/prepare_text.sh FILE: writes the King James Bible (public domain, Debian package bible-kjv, about 4.2 MB) as
# plain text for training. quickstart.sh calls it. An existing FILE is kept as it is.
#
# The format is what a byte-level model should learn to write: a heading with the full name of book and chapter between
# blank lines, then one verse a line.
#
#     Genesis 1
#
#     In the beginning God created the heaven and the earth.
#     And the earth was without form, and void; ...
#
# `bible -f` prints "Ge1:2 And the earth" instead. Its 31,102 references are 6 % of the bytes, cut the sentences that run
# over verses, and teach a small model to count in place of English. Headings stay: they are words, they distinguish the
# books' styles, and "Psalms 23" is a good prompt.
set -eu

[ $# -eq 1 ] || { echo "usage: $0 FILE" >&2; exit 2; }
out=$1
if [ -s "$out" ]; then
    echo "$out: already there ($(wc -c <"$out") bytes)"
    exit 0
fi
command -v bible >/dev/null || { echo "$0: needs the program 'bible': apt-get install bible-kjv" >&2; exit 2; }

mkdir -p "$(dirname "$out")"
temporary=$(mktemp "$out.XXXXXX")
trap 'rm -f "$temporary" "$temporary.raw"' EXIT
trap 'exit 130' INT TERM

# Pretty printing breaks lines: a heading follows a blank line, a verse begins with two blanks and its number, anything
# else continues the verse. Two verses have doubled blanks.
bible -l 79 'Gen1:1-Rev22:21' </dev/null >"$temporary.raw"
awk '
    function flush() { if (verse != "") { gsub(/  +/, " ", verse); sub(/ $/, "", verse); print verse }; verse = "" }
    /^$/                        { flush(); after_blank = 1; next }
    /^  [0-9]+ /                { flush(); sub(/^  [0-9]+ /, ""); verse = $0; verses++; after_blank = 0; next }
    after_blank                 { if (chapters++) print ""; print; print ""; after_blank = 0; next }
                                { verse = verse " " $0 }
    END {
        flush()
        if (chapters != 1189 || verses != 31102) {
            printf "prepare_text.sh: expected 1189 chapters and 31102 verses, got %d and %d\n", chapters, verses > "/dev/stderr"
            exit 3
        }
    }' "$temporary.raw" >"$temporary"

chmod 644 "$temporary"
mv "$temporary" "$out"
echo "$out: $(wc -c <"$out") bytes"
