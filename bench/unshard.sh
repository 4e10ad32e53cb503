#!/usr/bin/env bash
# bench/unshard.sh PROGRAM: ZeRO-3 in a pipeline (pp 2, dp_shard 2, 8 microbatches): bytes that the first rank sends in
# all-gathers of weights in a step, and its peak memory, with weights gathered unit by unit (unsharded_stages = 0) and
# with 1 or 2 stages gathered whole. Measured beside rehearsed.
set -euo pipefail
program=$(realpath "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
for i in $(seq 1 400); do echo "line $((i * i)) of a text"; done >text.txt
cat >c.toml <<TOML
[model]
preset = "llama-tiny"
width = 128
layers = 8
heads = 4
kv_heads = 4
head_dim = 32
ffn = 384
[data]
train = ["$folder/text.txt"]
[train]
steps = 6
seq_len = 128
global_batch = 16
micro_batch = 1
threads = 1
[parallel]
pp = 2
dp_shard = 2
zero = 3
[checkpoint]
every = 0
TOML
echo "$("$program" --version | head -1) on $(lscpu | sed -n 's/^Model name: *//p'); $(date +%F)"
for case in "1f1b 1 0" "1f1b 1 1" "zb-v 1 0" "zb-v 1 1" "zb-v 1 2" "looped-bfs 2 0" "looped-bfs 2 1" \
    "interleaved 2 0" "interleaved 2 1" "interleaved 2 2" "dualpipe-v 1 0" "dualpipe-v 1 2"; do
    read -r schedule stages unsharded <<<"$case"
    rm -rf run
    "$program" train c.toml --ranks 4 --set "parallel.schedule=$schedule" --set "parallel.virtual_stages=$stages" \
        --set "parallel.unsharded_stages=$unsharded" --out run >log
    python3 - "$schedule" "$unsharded" <<'PYTHON'
import json
import sys

run = json.load(open("run/run.json"))
last = [json.loads(line) for line in open("run/metrics.jsonl")][-1]


def gathered(communication):
    return sum(x["sent"] for x in communication if (x["group"], x["operation"]) == ("dp_shard", "all_gather")) / 1e6


print(f"{sys.argv[1]}, unsharded_stages {sys.argv[2]}: gathered {gathered(run['communication']):.3f} MB measured, "
      f"{gathered(run['rehearsed']['communication']):.3f} MB rehearsed, peak {last['mem_peak_bytes'] / 1e6:.2f} MB, "
      f"loss {last['loss']:.6f}")
PYTHON
done
