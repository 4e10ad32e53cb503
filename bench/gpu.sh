#!/usr/bin/env bash
# Everything that needs a GPU, in ten minutes at most: the tests with the label gpu, Tutti's benchmarks, and PyTorch's steps
# of the same models. Prints a short table last and writes JSON and logs to OUT. Exit code 1: a test failed.
#
#   bench/gpu.sh [BUILD] [OUT]        on the machine with the GPU; BUILD [build/main] a build directory or a pack
#   bench/gpu.sh --pack BUILD PACK    where it was built: PACK gets the programs and the libraries that they need, for a
#                                     machine without cmake, compiler or network. Copy it there with bench/. BUILD needs
#                                     -DTUTTI_CUDA=ON where there is no GPU; the smallest has also
#                                     -DTUTTI_ONEDNN=OFF -DTUTTI_SENTENCEPIECE=OFF.
#   bench/gpu.sh --sanitize BUILD OUT the kernel tests under compute-sanitizer: memcheck, racecheck, initcheck; each for
#                                     SANITIZE_SECONDS [180], the tests of GTEST_FILTER [all]
#
# Tutti finds cuBLASLt where the loader looks, in CUDA_HOME, in /usr/local/cuda or in TUTTI_CUBLASLT; here the one that
# came with PyTorch is taken when there is no other, and its cuDNN likewise. PyTorch is whatever `${PYTHON:-python3}`
# has; without it, its rows are missing and the table says so.
#
# To rehearse on a machine without a GPU: DEVICE=cpu MODELS=llama-110m SEQ_LEN=64 BATCH=2 STEPS=5 PATIENCE=1 bench/gpu.sh
set -u
here=$(cd "$(dirname "$0")" && pwd)

programs=(tutti tests/cuda/cuda_gpu_tests tests/cuda/cuda_gpu_training_tests)
if [ "${1:-}" = --pack ]; then
  [ $# = 3 ] || { echo "usage: bench/gpu.sh --pack BUILD PACK" >&2; exit 2; }
  build=$2 pack=$3
  mkdir -p "$pack/lib" "$pack/tests/cuda" || exit 1
  [ -x "$build/tests/cuda/cuda_cudnn_tests" ] && programs+=(tests/cuda/cuda_cudnn_tests)
  for program in "${programs[@]}"; do
    strip -o "$pack/$program" "$build/$program" || exit 1
    # All but those of glibc and of the compiler: newer ones do, and two of them in a process do not.
    ldd "$build/$program" | awk '$3 ~ /^\// {print $3}' |
      grep -vE '/(libc|libm|libdl|librt|libpthread|libresolv|libstdc\+\+|libgcc_s|ld-linux[^/]*)\.so' |
      while read -r library; do cp -Lu "$library" "$pack/lib/"; done
  done
  du -sh "$pack"
  exit 0
fi

sanitize=no
if [ "${1:-}" = --sanitize ]; then
  sanitize=yes
  shift
  [ $# = 2 ] || { echo "usage: bench/gpu.sh --sanitize BUILD OUT" >&2; exit 2; }
fi
build=${1:-build/main}
out=${2:-$here/results/gpu_$(date -u +%Y%m%d_%H%M%S)}
python=${PYTHON:-python3}
device=${DEVICE:-cuda}
mkdir -p "$out" || exit 1
ours=(env)  # in front of our programs only: PyTorch has libraries of its own
[ -d "$build/lib" ] && ours+=("LD_LIBRARY_PATH=$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}")
if ! "${ours[@]}" "$build/tutti" version >"$out/version.txt" 2>&1; then
  echo "gpu.sh: $build/tutti does not start here:" >&2
  cat "$out/version.txt" >&2
  exit 2
fi

# name, seconds that it may take, command; the output goes to OUT/name.log
run() {
  local name=$1 limit=$2 begin=$SECONDS
  shift 2
  timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>"$out/$name.err"
  local code=$?
  printf '%-28s %3d s  exit code %d\n' "$name" $((SECONDS - begin)) $code
  echo $code >"$out/$name.code"
}

# NVIDIA's libraries that a Python package of this machine brought: variable, file
take_from_python() {
  [ -n "${!1:-}" ] && return
  local found
  found=$("$python" - "$2" <<'PYTHON'
import importlib.util, pathlib, sys
spec = importlib.util.find_spec("nvidia")
for folder in spec.submodule_search_locations if spec else []:
    for path in sorted(pathlib.Path(folder).rglob(sys.argv[1])):
        print(path)
        sys.exit()
PYTHON
  )
  [ -n "$found" ] && export "$1=$found" && echo "$1=$found"
}
can() { "${ours[@]}" "$build/tutti" doctor 2>&1 | grep -q "$1"; }
if [ "$device" = cuda ]; then
  command -v nvidia-smi >/dev/null && timeout 20 nvidia-smi -q >"$out/nvidia_smi.txt" 2>&1
  "${ours[@]}" "$build/tutti" doctor >"$out/doctor.txt" 2>&1
  if ! grep -q 'compute capability' "$out/doctor.txt"; then
    echo "gpu.sh: Tutti sees no GPU here" >&2
    grep -A6 '^GPUs' "$out/doctor.txt" >&2
    exit 2
  fi
  can 'cuBLASLt, which was not found' && take_from_python TUTTI_CUBLASLT libcublasLt.so.13
  if can 'cuBLASLt, which was not found'; then
    echo "gpu.sh: no cuBLASLt here: matrix products are our own plain kernel's (TUTTI_CUDA_GEMM=plain), far slower"
    export TUTTI_CUDA_GEMM=plain
  fi
  if can 'cuDNN 9, which was not found'; then
    take_from_python TUTTI_CUDNN libcudnn.so.9
    take_from_python CUDNN_FRONTEND_CUDART_LIB_NAME 'libcudart.so.1[23]'
  fi
fi
"${ours[@]}" "$build/tutti" doctor >"$out/doctor.txt" 2>&1
"${ours[@]}" "$build/tutti" doctor --json >"$out/doctor.json" 2>/dev/null
sed -n '/^GPUs/,/^$/p' "$out/doctor.txt"
grep '^problem' "$out/doctor.txt"

if [ $sanitize = yes ]; then
  tool=$(command -v compute-sanitizer || ls "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer" 2>/dev/null)
  if [ -z "$tool" ]; then
    echo "gpu.sh: compute-sanitizer is neither on the path nor in ${CUDA_HOME:-/usr/local/cuda}/bin; it comes with the" \
      "CUDA toolkit (cuda-sanitizer-13-0)" >&2
    exit 2
  fi
  worst=0
  for check in memcheck racecheck initcheck; do
    run "sanitize_$check" "${SANITIZE_SECONDS:-180}" "${ours[@]}" "$tool" --tool $check --error-exitcode 9 \
      --print-limit 20 "$build/tests/cuda/cuda_gpu_tests" --gtest_filter="${GTEST_FILTER:-*}"
    grep -h '^=========' "$out/sanitize_$check.log" | grep -v 'COMPUTE-SANITIZER' | head -20
    [ "$(cat "$out/sanitize_$check.code")" = 0 ] || worst=1
  done
  echo "raw: $out (exit code 9: the tool found something; 124: out of time, see the last test in the log)"
  exit $worst
fi

patience=${PATIENCE:-12}
bench() {  # name, seconds of patience, arguments
  local name=$1 seconds=$2
  shift 2
  run "$name" $((seconds + 30)) "${ours[@]}" "$build/tutti" bench "$@" --device "$device" --seconds "$seconds" --json
}
read -ra models <<<"${MODELS:-llama3.2-1b llama3.2-3b}"
seq_len=${SEQ_LEN:-4096} batch=${BATCH:-4} steps=${STEPS:-12}
printf '{"device": "%s", "models": [%s], "seq_len": %d, "batch": %d}\n' "$device" \
  "$(printf '"%s"\n' "${models[@]}" | paste -sd,)" "$seq_len" "$batch" >"$out/setup.json"

# The limits add up to ten minutes. Were it cut off, bench/gpu_table.py OUT prints what there is.
run tests_kernels 60 "${ours[@]}" "$build/tests/cuda/cuda_gpu_tests"
run tests_training 60 "${ours[@]}" "$build/tests/cuda/cuda_gpu_training_tests"
if [ -x "$build/tests/cuda/cuda_cudnn_tests" ] && grep -q 'can be chosen: TUTTI_CUDA_ATTENTION=cudnn' "$out/doctor.txt"; then
  run tests_cudnn 40 "${ours[@]}" "$build/tests/cuda/cuda_cudnn_tests"
fi
bench gemm "$patience" gemm
bench attention "$patience" attention
TUTTI_CUDA_ATTENTION=tensor bench attention_tensor $((patience / 3 + 1)) attention  # beside the one for Hopper
bench memory $((patience / 3 + 1)) memory
run health 35 "${ours[@]}" "$build/tutti" health --device "$device" --seconds "$patience" --json
for model in "${models[@]}"; do
  bench "step_$model" "$patience" step --model "$model" --set "train.seq_len=$seq_len" \
    --set "train.global_batch=$batch" --set train.micro_batch=1 --kernels
done
for model in "${models[@]}"; do
  pytorch=("$python" "$here/pytorch_step.py" step --device "$device" --dtype bf16 --model "$model" --batch "$batch"
    --micro-batch 1 --seq-len "$seq_len" --steps "$steps")
  run "pytorch_$model" 45 "${pytorch[@]}"
  run "pytorch_compiled_$model" 60 "${pytorch[@]}" --compile
done

"$python" "$here/gpu_table.py" "$out"
