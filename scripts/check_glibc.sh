#!/usr/bin/env bash
# scripts/check_glibc.sh FILE MOST [LIBRARY...]: prints the version of glibc that a program or library needs, such as
# 2.35, from the symbols that it takes from it. Exit code 1: it needs a glibc beyond MOST, or a library that is neither the
# C library nor among LIBRARY.
set -euo pipefail
[ $# -ge 2 ] && [ -f "$1" ] || { echo "usage: $0 FILE MOST [LIBRARY...]" >&2; exit 2; }
allowed=$(printf '%s\n' libc.so.6 libm.so.6 ld-linux-x86-64.so.2 "${@:3}")
others=$(readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
    grep -vxF "$allowed" || true)
[[ -z $others ]] || { echo "$1 needs a library that is not allowed: ${others//$'\n'/ }" >&2; exit 1; }
needed=$(objdump -T "$1" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -Vu | tail -1)
[[ -n $needed ]] || { echo "$1 names no version of glibc: is it a dynamic program?" >&2; exit 1; }
if [[ $(printf '%s\n' "$needed" "$2" | sort -V | tail -1) != "$2" ]]; then
    echo "$1 needs glibc $needed, at most $2 is allowed; the newest symbols:" >&2
    objdump -T "$1" | grep -F "GLIBC_$needed" >&2
    exit 1
fi
echo "$needed"
