#!/usr/bin/env bash
# Installs what is missing, builds, and runs the tests. The last lines are ctest's own summary.
#
#   scripts/test.sh                         release build, warnings are errors, layers, format, all tests but `peer` and `nightly`
#   scripts/test.sh --sanitize asan         the same tests under a sanitizer: asan, ubsan or tsan
#   scripts/test.sh --fast                  only the tests of label `fast`, two minutes of processor time
#   scripts/test.sh --peer                  only the tests against PyTorch, in a virtual environment outside the tree
#   scripts/test.sh --nightly               only what takes long: many draws, and a minute of each fuzz target
#
# TUTTI_PEER_VENV: where that environment is (default: ~/.cache/tutti/peer-venv). TUTTI_CUDA_TOOLS: NVIDIA's cuobjdump and
# CUTLASS's headers (default: ~/.cache/tutti/cuda-tools). TUTTI_JOBS: parallel tests and compilers.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() { sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

preset=release
peer=no
labels=(-LE '^(peer|nightly)$')
while (($#)); do
    case "$1" in
        --peer) peer=yes ;;
        --fast) labels=(-L '^fast$') ;;
        --nightly) labels=(-L '^nightly$') ;;
        --sanitize)
            case "${2:-}" in
                asan | ubsan | tsan) preset=$2 ;;
                *)
                    echo "test.sh: --sanitize takes asan, ubsan or tsan, got '${2:-}'" >&2
                    exit 2
                    ;;
            esac
            shift
            ;;
        -h | --help)
            usage
            exit 0
            ;;
        *)
            echo "test.sh: unknown option '$1'" >&2
            usage >&2
            exit 2
            ;;
    esac
    shift
done
jobs=${TUTTI_JOBS:-$(nproc)}
test_jobs=${TUTTI_JOBS:-$((2 * $(nproc) + 1))} # two at a time of faults and launches, which mostly wait, and another
export TUTTI_CUDA_TOOLS=${TUTTI_CUDA_TOOLS:-$HOME/.cache/tutti/cuda-tools}
build=build/$preset

# Runs a named step; a failure ends the script with the step's name and the command to repeat it.
step() {
    local name=$1
    shift
    echo "== $name"
    local code=0
    "$@" || code=$?
    if ((code)); then
        echo "test.sh: step '$name' failed with exit code $code: $*" >&2
        exit 1
    fi
}

make_peer_environment() {
    local venv=$1
    if [[ ! -x $venv/bin/python ]]; then
        mkdir -p "$(dirname "$venv")" || return 1
        python3 -m venv "$venv" || return 1
    fi
    if ! "$venv/bin/python" -c 'import torch, transformers, safetensors, tokenizers, numpy, sentencepiece, tensorboard, bitsandbytes, prometheus_client' 2>/dev/null; then
        "$venv/bin/python" -m pip install --quiet torch transformers safetensors tokenizers numpy sentencepiece tensorboard bitsandbytes prometheus-client </dev/null || return 1
    fi
    if ! "$venv/bin/python" -c 'import importlib.util as u; assert u.find_spec("trl") and u.find_spec("axolotl")' 2>/dev/null; then
        "$venv/bin/python" -m pip install --quiet --no-deps trl axolotl </dev/null || return 1  # their chat templates
    fi
}

packages=(libopenmpi-dev mpich libmpich-dev slurm-wlm munge # for tests of label mpi
    zsh fish man-db)                                         # for tests of completion and the manual page
if [[ $peer == yes ]]; then packages+=(python3-venv chromium); fi
step "packages" scripts/install_packages.sh "${packages[@]}"
step "layers" python3 scripts/check_layers.py
step "format" scripts/check_format.sh

launcher=()
if command -v ccache >/dev/null; then launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
cuda=() # compiled wherever it can be, without a GPU too
if command -v "${CUDACXX:-nvcc}" >/dev/null; then cuda=(-DTUTTI_CUDA=ON); fi
# Without these in TUTTI_CUDA_TOOLS, tests are absent: of the machine code of kernels, which a toolkit may have no program to
# read (scripts/check_sass.py), and against the layouts of CUTLASS's headers (tests/cuda/cute).
take_tool() { # folder that the packages make, what is not checked without them, packages
    [[ -d $TUTTI_CUDA_TOOLS/$1 ]] || python3 -m pip install --quiet --no-deps --target "$TUTTI_CUDA_TOOLS" "${@:3}" ||
        echo "test.sh: no ${*:3}: $2 not checked"
}
if ((${#cuda[@]})); then
    command -v cuobjdump >/dev/null ||
        take_tool nvidia "the machine code of the CUDA kernels is" nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm
    take_tool cutlass_library "the tiles of attention on Hopper are" nvidia-cutlass
fi
step "configure" cmake --preset "$preset" -DTUTTI_WERROR=ON "${cuda[@]}" "${launcher[@]}"
step "build" cmake --build "$build" --parallel "$jobs"

run_tests=(ctest --test-dir "$build" --output-on-failure --no-tests=error --parallel "$test_jobs")
if [[ $preset == tsan ]] && setarch --addr-no-randomize true 2>/dev/null; then
    # gcc 12's thread sanitizer refuses the memory maps of kernels with 32 bits of address randomisation.
    run_tests=(setarch --addr-no-randomize "${run_tests[@]}")
fi
if [[ $peer == yes ]]; then
    venv=${TUTTI_PEER_VENV:-$HOME/.cache/tutti/peer-venv}
    step "peer environment" make_peer_environment "$venv"
    export TUTTI_PEER_VENV=$venv
    exec "${run_tests[@]}" -L '^peer$'
fi
exec "${run_tests[@]}" "${labels[@]}"
