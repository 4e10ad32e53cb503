#!/usr/bin/env bash
# scripts/check_isa.sh libtutti_kernels.a: an object with code for AVX2, AVX-512 or AMX may define functions of its own
# namespace only. Any other global or weak function in it (say, an inline function of std that was not inlined) could be
# the copy that the linker keeps for the whole program, on machines that cannot run it.
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: $0 path/to/libtutti_kernels.a" >&2; exit 2; }

nm --defined-only "$1" | awk '
    /:$/ { finish(); member = $0; own = ""; count = 0; next }
    NF == 3 && $2 ~ /^[TWiu]$/ {
        symbols[count++] = $3
        if (match($3, /^_ZN5tutti7kernels(6avx512|11avx512_bf16|4avx2|3amx)/)) own = substr($3, 18, RLENGTH - 17)
    }
    function finish(   i) {
        if (own == "") return
        members++
        for (i = 0; i < count; i++)
            if (index(symbols[i], own) == 0) {
                printf "%s %s is not of namespace %s\n", member, symbols[i], substr(own, 2) | "c++filt"
                failures++
            }
    }
    END {
        finish()
        close("c++filt")
        if (members == 0) { print "no object with vector code found: is this the right library?"; exit 1 }
        printf "%d objects with vector code, %d functions that could leak from them\n", members, failures
        exit failures > 0
    }'
