#!/usr/bin/env bash
# scripts/check_glibc.sh PROGRAM [MOST]: prints the version of glibc that a program needs, such as 2.35, from the symbols
# that it takes from it. Exit code 1: the program needs another library than the C library's, or a glibc beyond MOST.
set -euo pipefail
[ $# -ge 1 ] && [ -f "$1" ] || { echo "usage: $0 PROGRAM [MOST]" >&2; exit 2; }
others=$(readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
    grep -vxE 'lib(c|m|dl|rt|pthread)\.so\.[0-9]|ld-linux-x86-64\.so\.2' || true)
[[ -z $others ]] || { echo "$1 needs more than the C library: ${others//$'\n'/ }" >&2; exit 1; }
needed=$(objdump -T "$1" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -Vu | tail -1)
[[ -n $needed ]] || { echo "$1 names no version of glibc: is it a dynamic program?" >&2; exit 1; }
if [[ -n ${2:-} && $(printf '%s\n' "$needed" "$2" | sort -V | tail -1) != "$2" ]]; then
    echo "$1 needs glibc $needed, at most $2 is allowed; the newest symbols:" >&2
    objdump -T "$1" | grep -F "GLIBC_$needed" >&2
    exit 1
fi
echo "$needed"
