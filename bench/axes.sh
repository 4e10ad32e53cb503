#!/usr/bin/env bash
# bench/axes.sh PROGRAM [ROUNDS] [overlap]: what tensor and context parallelism cost on one machine: two ranks of one
# core each against one rank with two cores, in turns; with `overlap` tensor parallelism alone, with its collectives
# beside products in 1, 2 and 4 pieces, without and with progress threads. Prints milliseconds of a step (fastest and
# median of steps 2 to 5) and, at the end, the ratio of the medians over all rounds: 100 % is as fast as one rank.
set -euo pipefail
program=$(realpath "$1")
rounds=${2:-3}
what=${3:-axes}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
head -c 400000 < <(yes 'all together now, the music plays: ') >"$folder/text.txt"

config() { # MODEL SEQ_LEN
    printf '[model]\npreset = "%s"\nmax_positions = 8192\n[data]\ntrain = ["%s/text.txt"]\n' "$1" "$folder"
    printf '[train]\nsteps = 5\nseq_len = %s\nmicro_batch = 1\nglobal_batch = 1\n[log]\nevery = 1\n[checkpoint]\nevery = 0\n' "$2"
}
config llama-110m 1024 >"$folder/short.toml"
config llama-110m 8192 >"$folder/long.toml"

measure() { # NAME CONFIG ARGUMENTS...
    local name=$1 toml=$2
    shift 2
    rm -rf "$folder/run"
    "$program" train "$folder/$toml" --out "$folder/run" "$@" >/dev/null
    python3 - "$name" "$folder/run/metrics.jsonl" <<'PY'
import json, statistics, sys
steps = [json.loads(line)["step_ms"] for line in open(sys.argv[2])][1:]
print(f"{sys.argv[1]:24} {min(steps):9.1f} {statistics.median(steps):9.1f}", flush=True)
PY
}

echo "$("$program" --version) on $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2), $(nproc) cores; $(date -u +%F)"
measure_overlap() {
    measure "one rank, 1024" short.toml --set train.threads=2
    for progress in false true; do
        for pieces in 1 2 4; do
            measure "overlap $pieces$($progress && echo ", progress")" short.toml --ranks 2 --set train.threads=1 \
                --set parallel.tp=2 --set parallel.tp_overlap=$pieces --set comm.progress_thread=$progress
        done
    done
}

measure_axes() {
    measure "one rank, 1024" short.toml --set train.threads=2
    measure "tp 2, 1024" short.toml --ranks 2 --set train.threads=1 --set parallel.tp=2
    measure "tp 2 without sp, 1024" short.toml --ranks 2 --set train.threads=1 --set parallel.tp=2 --set parallel.sequence_parallel=false
    measure "one rank, 8192" long.toml --set train.threads=2 --set model.layers=2
    measure "cp 2, 8192" long.toml --ranks 2 --set train.threads=1 --set parallel.cp=2 --set model.layers=2
}

{
    for _ in $(seq "$rounds"); do "measure_$what"; done
} | tee "$folder/lines"
python3 - "$folder/lines" <<'PY'
import collections, statistics, sys
medians = collections.defaultdict(list)
for line in open(sys.argv[1]):
    name, _, median = line[:24].strip(), *line[24:].split()
    medians[name].append(float(median))
middle = {name: statistics.median(values) for name, values in medians.items()}
for name, value in middle.items():
    if name.startswith("one rank"): base = value
    else: print(f"{name}: {100 * base / value:.1f} % of one rank")
PY
