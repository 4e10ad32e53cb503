#!/bin/bash
# usage: tests/golden/make.sh PROGRAM VERSION
# Writes tests/golden/VERSION/{dense,mixture,hybrid}, run directories of four steps, by the program of that version, beside
# what the same program prints when it continues them: expected.jsonl (steps 5 to 8) and expected.txt (a drawn text).
set -euo pipefail
cd "$(dirname "$0")/../.."
program=$(realpath "$1")
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT

golden() {  # NAME, options of the run
  local name=$1 run=tests/golden/$version/$1
  shift
  "$program" train "tests/golden/$name.toml" --out "$run" "$@"
  cp -r "$run" "$scratch/$name"
  "$program" train "tests/golden/$name.toml" --out "$scratch/$name" --set train.steps=8
  tail -n 4 "$scratch/$name/metrics.jsonl" > "$run/expected.jsonl"
  "$program" generate "$run" --prompt "the License" --max-tokens 20 --temperature 1 --seed 36 > "$run/expected.txt"
  rm "$run/report.html" "$run/run.lock" "$run/checkpoints/.lock"  # large and never read; process ids
}
version=$2
golden dense
golden mixture --ranks 4 --set parallel.ep=2 --set parallel.tp=2
golden hybrid --ranks 4 --set parallel.tp=2 --set parallel.zero=1
