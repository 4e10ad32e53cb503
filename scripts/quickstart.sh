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
say() { printf '\n== %s\n' "$*"; }

say "packages"
scripts/install_packages.sh

say "build"
cmake --preset release >build-configure.log 2>&1 || { cat build-configure.log; exit 1; }
rm -f build-configure.log
cmake --build --preset release --target tutti_program

say "text"
mkdir -p "$(dirname "$text")"
scripts/prepare_text.sh "$text"

say "tokenizer"
if [[ -s $tokenizer ]]; then
    echo "$tokenizer: already there"
else
    "$program" data train-tokenizer "$text" --vocab 2048 --out "$tokenizer"
fi

say "training (continues where it stopped; a finished run is left as it is)"
"$program" train examples/configs/quickstart.toml --out "$run"

say "a sample"
"$program" generate "$run" --prompt $'In the beginning' --max-tokens 150 --temperature 0.7
printf '\n'

say "done"
printf 'report:      %s/report.html\n' "$run"
printf 'more text:   %s generate %s --prompt "And the LORD said"\n' "$program" "$run"
printf 'train again: %s train examples/configs/quickstart.toml --out runs/another --set train.steps=2000\n' "$program"
