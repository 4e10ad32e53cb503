#!/usr/bin/env bash
# Runs clang-tidy 19 with the checks of .clang-tidy; any finding is an error. By hand, not part of scripts/test.sh: a source
# takes three to ten seconds.
#
#   scripts/check_tidy.sh                 the sources that differ from main, committed or not; of a header, one that includes it
#   scripts/check_tidy.sh --since COMMIT  the same, from another commit
#   scripts/check_tidy.sh --all           the whole tree
#   scripts/check_tidy.sh FILE...         these sources
#
# TUTTI_TIDY_BUILD: the build whose compile_commands.json is read (default: build/dev, configured if it is not there).
# TUTTI_JOBS: how many at a time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() { sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
fail() {
    echo "check_tidy: $1" >&2
    exit 2
}

since=main
all=no
asked=()
while (($#)); do
    case "$1" in
        --all) all=yes ;;
        --since)
            if (($# < 2)); then fail "--since takes a commit"; fi
            since=$2
            shift
            ;;
        -h | --help)
            usage
            exit 0
            ;;
        -*)
            usage >&2
            fail "unknown option '$1'"
            ;;
        *) asked+=("${1#"$PWD"/}") ;;
    esac
    shift
done

# Another major version has other checks: the result must be the same on every machine. Those before 16 do not read
# C++20's captured structured bindings, those before 18 not __builtin_cpu_supports("f16c").
tool=clang-tidy-19
if ! command -v "$tool" >/dev/null; then
    fail "required: $tool (Debian 12: apt-get install $tool libomp-19-dev); found: $(clang-tidy --version 2>/dev/null || echo none)"
fi
# kernels/cpu/gemm.cpp includes omp.h, and gcc's is not for clang.
if [[ ! -f $(dirname "$(readlink -f "$(command -v "$tool")")")/../lib/clang/19/include/omp.h ]]; then
    fail "required: omp.h of clang 19 (Debian 12: apt-get install libomp-19-dev)"
fi
build=${TUTTI_TIDY_BUILD:-build/dev}
if [[ ! -f $build/CMakeCache.txt ]]; then cmake --preset dev -B "$build" >/dev/null; fi
cmake "$build" >/dev/null # new files get their lines in compile_commands.json
mapfile -t compiled < <(python3 -c '
import json, os, sys
commands = json.load(open(sys.argv[1]))
print("\n".join(sorted({os.path.relpath(c["file"]) for c in commands})))' "$build/compile_commands.json")

# One compiled source that includes the header, directly or through another header.
source_of() {
    local header=$1 includer
    local name=${header#src/}
    name=${name#tests/}
    mapfile -t includers < <(grep -lF "#include \"$name\"" "${compiled[@]}" || true)
    if ((${#includers[@]})); then
        echo "${includers[0]}"
        return
    fi
    # shellcheck disable=SC2013  # paths of this tree have no spaces
    for includer in $(grep -rlF --include='*.h' "#include \"$name\"" src tests); do
        if [[ $includer != "$header" ]]; then source_of "$includer" && return; fi
    done
    return 1
}

chosen=()
is_compiled() { printf '%s\n' "${compiled[@]}" | grep -qxF "$1"; }
if [[ $all == yes ]]; then
    chosen=("${compiled[@]}")
elif ((${#asked[@]})); then
    for file in "${asked[@]}"; do
        if ! is_compiled "$file"; then fail "$file is not compiled by $build (headers are checked through their sources)"; fi
        chosen+=("$file")
    done
else
    base=$(git merge-base "$since" HEAD) || fail "--since: no common commit with '$since'"
    mapfile -t changed < <({ git diff --name-only --diff-filter=d "$base"; git ls-files --others --exclude-standard; } | sort -u)
    for file in "${changed[@]}"; do
        case "$file" in
            .clang-tidy) fail ".clang-tidy itself has changed: --all" ;;
            *.cpp) if is_compiled "$file"; then chosen+=("$file"); fi ;;
            *.h) if source=$(source_of "$file"); then chosen+=("$source"); fi ;;
        esac
    done
    mapfile -t chosen < <(printf '%s\n' "${chosen[@]}" | sort -u | sed '/^$/d')
fi
if ((${#chosen[@]} == 0)); then
    echo "check_tidy: no source to check"
    exit 0
fi

# -fno-openmp: where its pragmas count, clang refuses captured structured bindings. On standard error clang-tidy counts what it
# suppressed in system headers, which is taken out; its own failures stand there too.
found=0
printf '%s\0' "${chosen[@]}" |
    xargs -0 -n 1 -P "${TUTTI_JOBS:-$(nproc)}" "$tool" --quiet --warnings-as-errors='*' -p "$build" --extra-arg=-fno-openmp \
        2> >(grep -vE '^[0-9]+ warnings?( and [0-9]+ errors?)? (generated|treated as errors?)\.$|^Suppressed ' >&2) || found=$?
if ((found)); then
    echo "check_tidy: findings above, in ${#chosen[@]} sources; a check that does not fit this house is switched off in .clang-tidy," >&2
    echo "check_tidy: one place by // NOLINT(name-of-check) with the reason" >&2
    exit 1
fi
echo "check_tidy: ${#chosen[@]} sources"
