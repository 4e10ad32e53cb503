#!/usr/bin/env bash
# scripts/check_runpath.sh BUILD: no program under BUILD may look for libraries where it is started. An empty or relative
# element of RPATH or RUNPATH means the current directory: a file named like a library that lies there would be executed.
set -euo pipefail
[ $# -eq 1 ] && [ -d "$1" ] || { echo "usage: $0 BUILD" >&2; exit 2; }
programs=0 failures=0
while IFS= read -r -d '' file; do
    [[ $(head -c 4 "$file" | tail -c 3) == ELF ]] || continue
    programs=$((programs + 1))
    path=$(readelf -d "$file" | sed -n 's/.*(R\(UN\)\?PATH).*\[\(.*\)\]/\2/p')
    [[ -z $path ]] && continue
    while IFS= read -r -d : element; do
        if [[ $element != /* && $element != '$ORIGIN'* ]]; then
            echo "$file: RUNPATH [$path] has the element \"$element\", which is the directory where it is started" >&2
            failures=$((failures + 1))
        fi
    done <<<"$path:"
done < <(find "$1" -type f -perm -u+x ! -name '*.so*' ! -path '*/CMakeFiles/*' -print0)
[ $programs -gt 0 ] || { echo "no programs under $1" >&2; exit 2; }
echo "$programs programs, $failures elements of RUNPATH that are not absolute"
exit $((failures > 0))
