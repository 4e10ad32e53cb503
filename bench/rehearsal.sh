#!/usr/bin/env bash
# bench/rehearsal.sh [PROGRAM] [RUNS]: what `tutti rehearse` takes as a whole process, on one core: wall time (median, least
# and most of RUNS) and resident memory. A run of many ranks rehearses up to 8 of them, one after another.
set -euo pipefail
program=${1:-build/release/tutti}
runs=${2:-11}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

measure() { # NAME MODEL RANKS ZERO SEQ_LEN GLOBAL_BATCH MACHINE
    cat >"$folder/c.toml" <<TOML
[model]
preset = "$2"
[data]
train = "not read"
[train]
seq_len = $5
global_batch = $6
micro_batch = 1
[parallel]
zero = $4
TOML
    for ((i = 0; i < runs; ++i)); do
        taskset -c 0 /usr/bin/time -f '%e %M' -o "$folder/time" "$program" rehearse "$folder/c.toml" --ranks "$3" --for "$7" >/dev/null
        cat "$folder/time"
    done | sort -n | awk -v name="$1" '
        { wall[NR] = $1; if ($2 > most) most = $2 }
        END { printf "%-64s %6.0f ms (%.0f to %.0f) %5.0f MB\n", name, 1000 * wall[int((NR + 1) / 2)], 1000 * wall[1], 1000 * wall[NR], most / 1024 }'
}

echo "$("$program" version | head -1), $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | xargs), one core, $runs runs"
measure "gpt2-124m, 1 rank, T 1024, 8 microbatches, cpu-avx512" gpt2-124m 1 1 1024 8 cpu-avx512
measure "llama3-8b, 1 rank, T 8192, h100" llama3-8b 1 1 8192 1 h100
measure "llama3-70b, 256 ranks, ZeRO-3, T 8192, h100: 8 ranks" llama3-70b 256 3 8192 256 h100
measure "llama3-405b, 16384 ranks, ZeRO-3, T 8192, h100: 8 ranks" llama3-405b 16384 3 8192 16384 h100
measure "llama3-405b, 16384 ranks, 100 microbatches: 8 ranks" llama3-405b 16384 3 8192 1638400 h100
