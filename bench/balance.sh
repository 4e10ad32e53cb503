#!/usr/bin/env bash
# How evenly 300 steps of a small mixture of experts load its experts: without balancing, with a loss, with biases.
# Prints the largest load of any expert of any layer, as a multiple of the mean, and the loss of the last step.
#   bench/balance.sh [build/release/tutti]
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
tutti=${1:-$root/build/release/tutti}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat "$root"/docs/*.md "$root"/docs/decisions/*.md >"$folder/text.txt"
printf '[data]\ntrain = ["%s"]\nvalid_fraction = 0.05\n' "$folder/text.txt" >"$folder/run.toml"

run() {
  local name=$1
  shift
  local sets=(model.preset=moe-tiny train.steps=300 train.seq_len=128 train.global_batch=16 train.micro_batch=16
    optimizer.lr=1e-3 checkpoint.every=0 log.every=1 "$@")
  local arguments=()
  for set in "${sets[@]}"; do arguments+=(--set "$set"); done
  "$tutti" train "$folder/run.toml" --out "$folder/$name" "${arguments[@]}" >/dev/null
  python3 - "$name" "$folder/$name/metrics.jsonl" <<'PYTHON'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[2])]
largest = [max(max(layer) for layer in line["expert_load"]) for line in lines]
last = [[sum(line["expert_load"][l][e] for line in lines[-20:]) / 20 for e in range(len(layer))]
        for l, layer in enumerate(lines[-1]["expert_load"])]
print(f"{sys.argv[1]:<28} largest load: step 1 {largest[0]:.2f}, 100 {largest[99]:.2f}, 300 {largest[-1]:.2f}, "
      f"of the last 20 steps together {max(max(layer) for layer in last):.2f}; loss {lines[-1]['loss']:.3f}, held out {lines[-1]['eval_loss']:.3f}")
PYTHON
}

none=(model.moe.aux_loss=none model.moe.aux_coef=0)
bias=("${none[@]}" model.moe.score=sigmoid model.moe.expert_bias=true)
run none "${none[@]}"
run microbatch_0.05
run sequence_0.05 model.moe.aux_loss=sequence
run global_0.05 model.moe.aux_loss=global
run all_layers_0.05 model.moe.aux_loss=all_layers
run bias_0.001 "${bias[@]}"
