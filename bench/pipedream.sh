#!/usr/bin/env bash
# bench/pipedream.sh PROGRAM [STEPS]: what stale weights do to the loss. The same model, samples and number of updates
# with PipeDream over 1, 2, 4 and 8 stages (1: each microbatch updates in turn, nothing is stale), for two learning rates;
# and 1F1B, which updates once a step. Prints the mean training loss of the last ten steps.
set -euo pipefail
program=$(realpath "$1")
steps=${2:-80}
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
scripts/prepare_text.sh "$folder/bible.txt" >/dev/null
cat >"$folder/c.toml" <<TOML
[model]
preset = "llama-tiny"
width = 64
layers = 8
heads = 4
kv_heads = 4
head_dim = 16
ffn = 192
tie_embeddings = false
[data]
train = ["$folder/bible.txt"]
[train]
steps = $steps
seq_len = 64
micro_batch = 2
global_batch = 32
threads = 1
[optimizer]
schedule = "constant"
warmup_steps = 0
clip = 0.0
[log]
every = 1
[checkpoint]
every = 0
TOML
loss_of() { # RANKS ARGUMENTS...
    local ranks=$1
    shift
    rm -rf "$folder/run"
    "$program" train "$folder/c.toml" --ranks "$ranks" --out "$folder/run" "$@" >/dev/null 2>&1 || return 1
    python3 -c '
import json, sys
losses = [json.loads(line)["loss"] for line in open(sys.argv[1])][-10:]
print(f"{sum(losses) / len(losses):.3f}")' "$folder/run/metrics.jsonl"
}
echo "$("$program" --version) on $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2); $(date -u +%F); $steps steps of 16 microbatches"
for optimizer in adamw sgd; do
    for lr in $([[ $optimizer == adamw ]] && echo 1e-3 4e-3 || echo 0.02 0.1); do
        set_lr=(--set optimizer.name="$optimizer" --set optimizer.lr="$lr" --set optimizer.min_lr="$lr")
        line="$optimizer, lr $lr: 1f1b $(loss_of 2 "${set_lr[@]}" --set parallel.pp=2 || echo not finite)"
        for p in 1 2 4 8; do
            loss=$(loss_of "$p" "${set_lr[@]}" --set parallel.pp="$p" --set parallel.schedule=pipedream) || loss="not finite"
            line+=", pipedream over $p $loss"
        done
        echo "$line"
    done
done
