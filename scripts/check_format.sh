#!/usr/bin/env bash
# Checks every C++ and CUDA file against .clang-format. `--fix` rewrites them instead. Called by scripts/test.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mode=(--dry-run -Werror)
case "${1:-}" in
    "") ;;
    --fix) mode=(-i) ;;
    *)
        echo "usage: scripts/check_format.sh [--fix]" >&2
        exit 2
        ;;
esac

# Another major version formats some lines differently: the result must be the same on every machine.
tool=clang-format-14
if ! command -v "$tool" >/dev/null; then
    tool=clang-format
    if ! "$tool" --version 2>/dev/null | grep -q 'version 14\.'; then
        echo "check_format: required: clang-format 14 (Debian 12: apt-get install clang-format);" \
            "found: $("$tool" --version 2>/dev/null || echo none)" >&2
        exit 2
    fi
fi

folders=()
for folder in src apps tests examples bench; do
    if [[ -d $folder ]]; then folders+=("$folder"); fi
done
mapfile -d '' files < <(find "${folders[@]}" -type f \
    \( -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) -print0 | sort -z)
if ! "$tool" "${mode[@]}" "${files[@]}"; then
    echo "check_format: the lines above differ from .clang-format; scripts/check_format.sh --fix rewrites them" >&2
    exit 1
fi
echo "check_format: ${#files[@]} files"
