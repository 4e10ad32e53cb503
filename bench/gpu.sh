#!/usr/bin/env bash
# Everything that needs a GPU, in under ten minutes: the tests with the label gpu, Tutti's benchmarks, and PyTorch's steps
# of the same models. Prints a short table last and writes JSON and logs to OUT.
#
#   bench/gpu.sh [BUILD] [OUT]        on the machine with the GPU; BUILD [build/main] a build directory or a pack
#   bench/gpu.sh --pack BUILD PACK    where it was built: PACK gets the programs and the libraries that they need, for a
#                                     machine without cmake, compiler or network. Copy it there with bench/. A build with
#                                     -DTUTTI_ONEDNN=OFF -DTUTTI_MPI=OFF -DTUTTI_SENTENCEPIECE=OFF makes the smallest.
#
# Tutti finds cuBLASLt where the loader looks, in CUDA_HOME, in /usr/local/cuda or in TUTTI_CUBLASLT; here the one that
# came with PyTorch is taken when there is no other. PyTorch is whatever `${PYTHON:-python3}` has; without it, its rows
# are missing and the table says so.
set -u
here=$(cd "$(dirname "$0")" && pwd)

programs="tutti tests/cuda/cuda_gpu_tests tests/cuda/cuda_gpu_training_tests"
if [ "${1:-}" = --pack ]; then
  build=$2 pack=$3
  mkdir -p "$pack/lib" "$pack/tests/cuda"
  for program in $programs; do
    strip -o "$pack/$program" "$build/$program" || exit 1
    # All but those of glibc and of the compiler: newer ones do, and two of them in a process do not.
    ldd "$build/$program" | awk '$3 ~ /^\// {print $3}' |
      grep -vE '/(libc|libm|libdl|librt|libpthread|libresolv|libstdc\+\+|libgcc_s|ld-linux[^/]*)\.so' |
      while read -r library; do cp -Lu "$library" "$pack/lib/"; done
  done
  du -sh "$pack"
  exit 0
fi

build=${1:-build/main}
out=${2:-$here/results/gpu_$(date -u +%Y%m%d_%H%M%S)}
python=${PYTHON:-python3}
mkdir -p "$out"
ours=()  # in front of our programs only: PyTorch has libraries of its own
[ -d "$build/lib" ] && ours=(env "LD_LIBRARY_PATH=$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}")
if [ -z "${TUTTI_CUBLASLT:-}" ] && ! "${ours[@]}" "$build/tutti" doctor >"$out/doctor.txt" 2>&1; then
  found=$("$python" -c 'import glob, sysconfig
print(next(iter(glob.glob(sysconfig.get_paths()["purelib"] + "/nvidia/**/libcublasLt.so.13", recursive=True)), ""))')
  [ -n "$found" ] && export TUTTI_CUBLASLT=$found
fi
"${ours[@]}" "$build/tutti" doctor >"$out/doctor.txt" 2>&1
"${ours[@]}" "$build/tutti" doctor --json >"$out/doctor.json" 2>/dev/null
grep -A3 '^GPUs' "$out/doctor.txt"

# name, seconds that it may take, command; the output goes to OUT/name.log
run() {
  local name=$1 limit=$2 begin=$SECONDS
  shift 2
  timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>"$out/$name.err"
  local code=$?
  printf '%-28s %3d s  exit code %d\n' "$name" $((SECONDS - begin)) $code
  echo $code >"$out/$name.code"
}
bench() {  # name, seconds of patience, arguments
  local name=$1 seconds=$2
  shift 2
  run "$name" $((seconds + 25)) "${ours[@]}" "$build/tutti" bench "$@" --device cuda --seconds "$seconds" --json
}

# The limits add up to nine and a half minutes.
run tests_kernels 60 "${ours[@]}" "$build/tests/cuda/cuda_gpu_tests" --gtest_brief=1
run tests_training 60 "${ours[@]}" "$build/tests/cuda/cuda_gpu_training_tests" --gtest_brief=1
bench gemm 15 gemm
bench attention 10 attention
TUTTI_CUDA_ATTENTION=tensor bench attention_tensor 5 attention  # beside the one for Hopper
bench memory 5 memory
for model in llama3.2-1b llama3.2-3b; do
  steps="--set train.seq_len=4096 --set train.global_batch=4 --set train.micro_batch=1"
  # shellcheck disable=SC2086
  bench "step_$model" 12 step --model $model $steps --kernels
done
for model in llama3.2-1b llama3.2-3b; do
  pytorch="$python $here/pytorch_step.py step --device cuda --dtype bf16 --model $model --batch 4 --micro-batch 1
    --seq-len 4096"
  # shellcheck disable=SC2086
  run "pytorch_$model" 40 $pytorch --steps 12
  # shellcheck disable=SC2086
  run "pytorch_compiled_$model" 75 $pytorch --steps 12 --compile
done

"$python" "$here/gpu_table.py" "$out"
