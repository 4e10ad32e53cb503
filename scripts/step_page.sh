#!/usr/bin/env bash
# scripts/step_page.sh PROGRAM [--check]: writes docs/step.md, the kernels of a step in their order, as `tutti rehearse`
# prints them; --check: says whether it is up to date. A plan needs no data and no machine, so every build prints the same.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
program=$1
page=docs/step.md
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

program_of() { # MODEL SEQ_LEN ARGUMENTS...
    local model=$1 seq_len=$2
    shift 2
    printf '[model]\npreset = "%s"\n[data]\ntrain = "not read"\n[train]\nseq_len = %s\nmicro_batch = 1\n' "$model" "$seq_len" >"$folder/c.toml"
    printf '```\n'
    "$program" rehearse "$folder/c.toml" --kernels --for cpu-avx512 --json "$@" 2>&1 >/dev/null | sed '/^$/,$d'
    printf '```\n'
}

write_page() {
    cat <<'TEXT'
# A training step, kernel by kernel

The tape records a forward and runs it backwards, so the order of a step is written nowhere in the source.
This page is that order, as `tutti rehearse CONFIG --kernels` prints it for any model, layout and machine.
`scripts/step_page.sh PROGRAM` writes the page, and a test (`docs.step_page`) fails when it is out of date.

Each line is a kernel of [`kernel_table.h`](../src/tutti/kernels/kernel_table.h), or an operation of a group of ranks.
Behind a kernel stand its problem (a product as M x K x N), its FLOPs, and the bytes of its operands, each read or written once.
Behind an operation stand its group and the bytes of its larger tensor.
One block stands for all of its kind.

## GPT-2, 124M parameters, one rank

One microbatch of 1024 tokens in bf16.

TEXT
    program_of gpt2-124m 1024 --set train.global_batch=1
    cat <<'TEXT'

## Llama 3.2, 1B parameters, ZeRO-3 on 8 ranks

One microbatch of 2048 tokens on each rank, in bf16.
The weights of the next unit are gathered while a unit computes, and the gradients of a unit are reduced while the one before it runs backward.

TEXT
    program_of llama3.2-1b 2048 --ranks 8 --set train.global_batch=8 --set parallel.zero=3
}

if [[ ${2:-} == --check ]]; then
    write_page >"$folder/page.md"
    diff -u "$page" "$folder/page.md" || {
        echo "$page is not what this build prints; write it anew: scripts/step_page.sh PROGRAM" >&2
        exit 1
    }
else
    write_page >"$page.new" && mv "$page.new" "$page"
fi
