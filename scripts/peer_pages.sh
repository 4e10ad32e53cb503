#!/usr/bin/env bash
# scripts/peer_pages.sh PROGRAM [--check]: writes the tables of docs/from/, another trainer's options beside the keys of a
# config, as `tutti config --from` prints them; --check: says whether they are up to date. What is above a table is
# written by hand.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
program=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
code=0
for page in docs/from/*.md; do
    name=$(basename "$page" .md)
    [[ $name != README ]] || continue
    {
        sed '/^```options$/,$d' "$page"
        echo '```options'
        "$program" config --from "$name" | grep -v '^next: \|^      tutti '
        echo '```'
    } >"$folder/page.md"
    if [[ ${2:-} != --check ]]; then
        cp "$folder/page.md" "$page"
    elif ! diff -u "$page" "$folder/page.md"; then
        echo "$page is not what this build prints; write it anew: scripts/peer_pages.sh PROGRAM" >&2
        code=1
    fi
done
exit $code
