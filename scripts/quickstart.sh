#!/usr/bin/env bash
# From nothing to a language model in a few minutes: installs what is missing, builds, trains a small Llama on the King
# James Bible, prints a sample and says where the report is. Run again, it does only what is not done yet; an
# interrupted training continues.
set -euo pipefail
cd "$(dirname "$0")/.."

run=${TUTTI_QUICKSTART_RUN:-runs/quickstart}
text=build/data/kjv.txt
tokenizer=build/data/kjv-2048.json
program=build/release/tutti
# say WHAT HOW_LONG: before each stage. Minutes are those of AMD EPYCs (Zen 5 and Zen 3); compiling takes all cores.
say() { printf '\n== %s (%s)\n' "$1" "$2"; }
cores=$(nproc)
# 350 s of processor time (bench/results/build_zen5.txt) to 700 s (bench/results/quickstart_small_zen3.txt).
compile_minutes="$(((350 / cores + 59) / 60)) to $(((700 / cores + 59) / 60))"

say "Debian packages that are missing" "about 2 minutes, or nothing to do"
scripts/install_packages.sh

say "compiling tutti with $cores processes" "about $compile_minutes minutes without a compiler cache"
configured=$(cmake --preset release 2>&1) || { echo "$configured"; exit 1; }
grep -m 1 '^-- CUDA' <<<"$configured"
# Ninja's lines with the time that is left, one over the other on a terminal.
with_time_left() {
    awk -v over="$([[ -t 1 ]] && echo 1)" '
        /^[0-9]+ [0-9]+ [0-9.]+ / {
            printf "%s[%d of %d, %d s, about %d s left]%s", over ? "\r\033[K" : "", $1, $2, $3, $3 * ($2 - $1) / $1, over ? "" : "\n"
            next
        }
        { print }
        END { if (over) print "" }'
}
NINJA_STATUS='%f %t %e ' cmake --build --preset release --target tutti_program | with_time_left

say "the text: the King James Bible, 4.2 MB" "some seconds"
mkdir -p "$(dirname "$text")"
scripts/prepare_text.sh "$text"

say "a tokenizer of 2048 tokens, learnt from the text" "some seconds"
if [[ -s $tokenizer ]]; then
    echo "$tokenizer: already there"
else
    "$program" data train-tokenizer "$text" --vocab 2048 --out "$tokenizer"
fi

config=examples/configs/quickstart.toml
model="5.6 million parameters for 4500 steps"
if [[ $("$program" doctor) =~ 'kernels that run'\ +cpu-avx2 ]]; then
    config=examples/configs/quickstart-small.toml
    model="1.1 million parameters for 3000 steps (AVX2 alone: more would take long)"
fi
say "training $model; continues where it stopped" "about 4 to 9 minutes on two cores"
"$program" train "$config" --out "$run"

say "a sample of what it learnt" "some seconds"
"$program" generate "$run" --prompt $'In the beginning' --max-tokens 150 --temperature 0.7
printf '\n'

printf '\n== done\n'
printf 'report:      %s/report.html\n' "$run"
printf 'more text:   %s generate %s --prompt "And the LORD said"\n' "$program" "$run"
printf 'train again: %s train %s --out runs/another --set train.steps=9000\n' "$program" "$config"
