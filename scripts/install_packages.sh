#!/usr/bin/env bash
# Installs the Debian packages that Tutti needs, only those that dpkg says are missing. Further names may be given:
# scripts/install_packages.sh python3-venv. Called by scripts/test.sh and scripts/quickstart.sh.
set -euo pipefail

packages=(
    build-essential cmake ninja-build pkg-config python3
    libdnnl-dev ocl-icd-opencl-dev # the latter only because the former's CMake file asks for it
    libtomlplusplus-dev libcli11-dev nlohmann-json3-dev libfmt-dev libxxhash-dev libsodium-dev zlib1g-dev libzstd-dev
    libsentencepiece-dev
    openmpi-bin libgtest-dev libbenchmark-dev clang-format
    bible-kjv # the public-domain text that quickstart.sh trains on
    "$@"
)

missing=()
for package in "${packages[@]}"; do
    status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
    if [[ $status != installed ]]; then missing+=("$package"); fi
done
if ((${#missing[@]} == 0)); then
    echo "install_packages: all ${#packages[@]} packages are there"
    exit 0
fi

as_root=()
if ((EUID != 0)); then
    if ! command -v sudo >/dev/null; then
        echo "install_packages: missing: ${missing[*]}" >&2
        echo "install_packages: installing them needs root, and there is no sudo; as root: apt-get install ${missing[*]}" >&2
        exit 1
    fi
    as_root=(sudo)
fi

give_up() {
    echo "install_packages: $1 failed (its own message is above). Missing: ${missing[*]}" >&2
    echo "install_packages: required: Debian 12 with a reachable package mirror (/etc/apt/sources.list*), free disk," >&2
    echo "install_packages: and no other apt running. By hand: apt-get update && apt-get install ${missing[*]}" >&2
    exit 1
}

echo "install_packages: installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=120)
run() { "${apt[@]}" "$@" </dev/null >"$log" 2>&1 || { cat "$log" >&2 && return 1; }; } # quiet where it succeeds
# A stale list may still name all of them; a mirror that does not answer is fatal only if the install then fails.
run update || echo "install_packages: apt-get update failed; trying with the lists that are here" >&2
run install -y --no-install-recommends "${missing[@]}" || give_up "apt-get install"
