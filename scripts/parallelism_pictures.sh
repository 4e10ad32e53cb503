#!/usr/bin/env bash
# scripts/parallelism_pictures.sh PROGRAM [--check]: draws the pictures of docs/parallelism from the program's own
# layouts, rehearsals and schedules; --check: says whether they are up to date, and the figures of sentences such as
# "The first command prints" on the pages. None needs data or a particular machine,
# and every build with oneDNN draws the same.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
program=$1
pictures=docs/parallelism
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

rehearse() { # NAME MODEL RANKS ARGUMENTS...
    local name=$1 model=$2 ranks=$3
    shift 3
    printf '[model]\npreset = "%s"\n[data]\ntrain = "not read"\n[train]\nseq_len = 128\nmicro_batch = 1\nglobal_batch = 64\n' \
        "$model" >"$folder/c.toml"
    "$program" rehearse "$folder/c.toml" --ranks "$ranks" --for cpu-avx512 --threads 8 --svg "$folder/$name.svg" "$@" >/dev/null
}
layout() { rehearse "$@" --layout; }
schedule() { # NAME ARGUMENTS...
    "$program" schedule --kind "$1" --stages 4 --microbatches 8 --svg "$folder/pipeline-$1.svg" "${@:2}" >/dev/null
}

rehearse data-parallel-memory llama2-7b 64 --set train.seq_len=1024 --vary parallel.zero=0,1,2,3
layout data-parallel llama-tiny 4 --set parallel.zero=3 --set parallel.dp_replicate=2
layout nodes llama-tiny 16 --set parallel.tp=2 --set parallel.pp=4 --per-host 8
layout tensor llama-tiny 4 --set parallel.tp=4 --set model.kv_heads=2 --set parallel.zero=0
layout context-ring llama-tiny 4 --set parallel.cp=4 --set parallel.zero=0
layout context-both llama-tiny 4 --set parallel.cp=4 --set parallel.cp_ulysses=2 --set parallel.zero=0
layout pipeline llama-tiny 4 --set parallel.pp=4 --set parallel.schedule=zb-v --set model.layers=8 --set parallel.zero=0
layout expert moe-tiny 8 --set parallel.tp=2 --set parallel.cp=2 --set parallel.ep=4 --set parallel.etp=2 --set parallel.zero=0
rehearse memory llama3.2-1b 8 --set train.seq_len=4096 --set parallel.zero=3 --vary precision.compute=f32,bf16 \
    --vary recompute.policy=selective,every:4,full --vary offload.activations=true --vary offload.optimizer=true
for kind in gpipe 1f1b pipedream zb-h1 zb-v v-half dualpipe; do schedule "$kind"; done
schedule interleaved --virtual 2

if [[ ${2:-} == --check ]]; then
    wrong=0
    for picture in "$folder"/*.svg; do
        cmp "$picture" "$pictures/$(basename "$picture")" || wrong=1
    done
    for picture in "$pictures"/*.svg; do
        [[ -f $folder/$(basename "$picture") ]] || { echo "$picture is drawn by no line of this script" >&2; wrong=1; }
    done
    for page in "$pictures"/*.md; do
        while read -r sentence; do
            number=1
            [[ $sentence != *"The second"* ]] || number=2
            command=$(sed -n '/^## Run it/,$p' "$page" | grep '^tutti ' | sed -n "${number}p")
            read -ra words <<<"${command#tutti }"
            said=$("$program" "${words[@]}")
            for figure in $(grep -o '[0-9.]* [KMG]iB' <<<"$sentence" | tr ' ' _); do
                grep -qF " ${figure/_/ }" <<<"$said" || { echo "$page: $command does not print ${figure/_/ }" >&2; wrong=1; }
            done
        done < <(grep -E '^- The (first|second) command prints .*iB' "$page")
    done
    ((wrong == 0)) || {
        echo "$pictures is not what this build draws; draw it anew: scripts/parallelism_pictures.sh PROGRAM" >&2
        exit 1
    }
else
    mkdir -p "$pictures"
    rm -f "$pictures"/*.svg
    mv "$folder"/*.svg "$pictures"
fi
