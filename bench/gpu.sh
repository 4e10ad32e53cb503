#!/usr/bin/env bash
# Everything that needs a GPU, in three calls of eight minutes; or what tells most of it in one. Each is complete by
# itself, begins with a canary of at most 40 s, prints what to read first, and writes JSON and logs to OUT. After each part
# all of OUT but weights is written as one archive to ARCHIVE [OUT.tgz], a few MB, so that a call that is killed leaves what
# it had.
#
#   bench/gpu.sh first BUILD OUT        the kernels' and the trainings' tests, equal bits of two trainings, a step of each
#                                       model, the tuning files of the two smaller ones, gpt2-124m by torch.compile
#   bench/gpu.sh correctness BUILD OUT  the tests with the label gpu, one process an operation; equal bits of two trainings;
#                                       loss curves beside PyTorch's from the same weights; compute-sanitizer
#   bench/gpu.sh rates BUILD OUT        products of the models' shapes beside torch.mm and by cuBLASLt's candidates,
#                                       attention, memory, health, ncu of the first model
#   bench/gpu.sh steps BUILD OUT        training steps beside PyTorch's, compiled; clocks and power meanwhile
#   bench/gpu.sh --pack BUILD PACK      where it was built: PACK gets the programs and the libraries that they need, for a
#                                       machine without cmake, compiler or network, and PACK.tgz all of it (37 of 116 MB).
#                                       Copy it there with bench/ and examples/. BUILD needs -DTUTTI_CUDA=ON where there
#                                       is no GPU; the smallest has also -DTUTTI_ONEDNN=OFF -DTUTTI_SENTENCEPIECE=OFF.
#
# BUILD: a build directory or a pack. Exit code 0: all that was asked for ran, and all tests passed; 1: a test failed; 2:
# nothing could run; 3: a part did not run, failed or ran out of time, and the last lines name it. The last table has each
# figure to reach, what was measured, or that it was not. The parts of a run share BUDGET seconds [480]. A test may take
# TEST_SECONDS [100], or it has hung. Where tests take long, those of the same part that no time is left for, or that its end
# cuts off, are named as not run, and the next part begins in time. No clock of the GPU is changed.
#
# PARTS: those of the call that run, in this order, of kernels training nccl cudnn equal_bits curves sanitizers (correctness),
# products tuning attention memory health ncu (rates), steps pytorch (steps) [those of the call].
#
# The canary: tests of each attention kernel. The first of hopper, tensor and plain that passes computes the attention of
# everything that follows (train.attention; ATTENTION names one), and the table says so when that is not the fastest.
#
# Tutti finds cuBLASLt where the loader looks, in CUDA_HOME, in /usr/local/cuda or in TUTTI_CUBLASLT; here the newer of
# these and of the one that came with PyTorch is taken, that of CUDA 12 too, and PyTorch's cuDNN when there is no other. Of
# NCCL, PyTorch's is taken before others. PyTorch is whatever `${PYTHON:-python3}` has. torch.compile needs a C compiler
# (gcc, clang or CC).
#
# ROWS of `steps`: model:seq_len:micro_batch:global_batch, with :KEY=VALUE for another key of the config [large batches of
# gpt2-124m, llama3.2-1b and llama3.2-3b, 8 layers of llama3-8b, and CUDA graphs; first: one batch of each of the three].
# MODES: of PyTorch [compiled; "compiled eager"]. CURVES of `correctness`: model:seq_len:micro_batch:global_batch:steps
# [llama-5m, 200 steps]. MODELS of `rates` [gpt2-124m, llama3.2-1b, llama3.2-3b; first: without the last]. TESTS: a regular
# expression (grep -E) of the tests that run after the canary [all]. JOBS: tests at a time [6]. TUNED: seq_len:micro_batch of
# the steps that are tuned [1024:16 for gpt2-124m, 4096:1 for others].
# To rehearse on a machine without a GPU: DEVICE=cpu ROWS=llama-5m:64:2:4 CURVES=llama-5m:64:2:4:20 MODELS=llama-5m
# SECONDS_EACH=1 bench/gpu.sh steps ...; THREADS=1 where other programs run beside. `ctest -R gpu_script` rehearses all of it
# on the emulated GPU.
set -u
here=$(cd "$(dirname "$0")" && pwd)
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }

programs=(tutti tests/cuda/cuda_gpu_tests tests/cuda/cuda_gpu_training_tests tests/cuda/cuda_gpu_nccl_tests)
if [ "${1:-}" = --pack ]; then
  [ $# = 3 ] || { usage >&2; exit 2; }
  build=$2 pack=$3
  mkdir -p "$pack/lib" "$pack/tests/cuda" || exit 1
  [ -x "$build/tests/cuda/cuda_cudnn_tests" ] && programs+=(tests/cuda/cuda_cudnn_tests)
  for program in "${programs[@]}"; do
    strip -o "$pack/$program" "$build/$program" || exit 1
    # All but those of glibc and of the compiler: newer ones do, and two of them in a process do not.
    ldd "$build/$program" | awk '$3 ~ /^\// {print $3}' |
      grep -vE '/(libc|libm|libmvec|libdl|librt|libpthread|libresolv|libstdc\+\+|libgcc_s|ld-linux[^/]*)\.so' |
      while read -r library; do cp -Lu "$library" "$pack/lib/"; done
  done
  tar czf "$pack.tgz" -C "$(dirname "$pack")" "$(basename "$pack")" || exit 1
  du -sh "$pack" "$pack.tgz"
  exit 0
fi
case "${1:-}" in
  first | correctness | rates | steps) [ $# = 3 ] || { usage >&2; exit 2; } ;;
  -h | --help) usage; exit 0 ;;
  *) usage >&2; exit 2 ;;
esac
what=$1 build=$2 out=$3
python=${PYTHON:-python3} device=${DEVICE:-cuda} seconds=${SECONDS_EACH:-8}
budget=${BUDGET:-480} start=$SECONDS
end=$((start + budget))
mkdir -p "$out" || exit 1
archive=${ARCHIVE:-${out%/}.tgz}
ours=(env)  # in front of our programs only: PyTorch has libraries of its own
[ -d "$build/lib" ] && ours+=("LD_LIBRARY_PATH=$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}")
if ! timeout 60 "${ours[@]}" "$build/tutti" version >"$out/version.txt" 2>&1; then
  echo "gpu.sh: $build/tutti does not start here:" >&2
  cat "$out/version.txt" >&2
  exit 2
fi

missing=()  # parts that did not run to their end
save() {
  printf '%s\n' "${missing[@]}" | sort -u >"$out/missing.txt"
  tar czf "$archive.part" --exclude='*.safetensors' -C "$out" . 2>/dev/null && mv "$archive.part" "$archive"
}
# The table, what is missing, the archive: at the end, and when the call is killed.
finish() {
  trap - EXIT HUP INT TERM
  [ -n "${child:-}" ] && kill "$child" 2>/dev/null
  [ -n "${clocks:-}" ] && kill "$clocks" 2>/dev/null
  [ "$1" = 0 ] || missing+=("what came after $SECONDS s: the call was ended by a signal")
  save
  rm -f "$out/summary.json"
  "$python" "$here/gpu_table.py" "$out" 2>&1 | tee "$out/table.txt"
  local code=${PIPESTATUS[0]}
  [ -s "$out/summary.json" ] || missing+=("the table: exit code $code")
  if [ ${#missing[@]} -gt 0 ]; then
    printf '\nNOT complete:\n'
    printf '  %s\n' "${missing[@]}" | sort -u
    [ "$code" = 0 ] && code=3
  fi
  save
  echo "all of it: $archive, $(wc -c <"$archive") bytes"
  exit "$code"
}
trap 'finish 1' HUP INT TERM
# name, seconds that it may take, command; the output goes to OUT/name.log, the exit code to OUT/name.code. attempt: a
# command that may fail
attempt() {
  local name=$1 limit=$2 begin=$SECONDS left=$((end - SECONDS))
  shift 2
  [ "$left" -lt "$limit" ] && limit=$left
  if [ "$limit" -lt 3 ]; then
    missing+=("$name: no time was left")
    return 124
  fi
  timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>"$out/$name.err" &
  child=$!  # in the background: a signal to this script does not wait for it
  wait "$child"
  local code=$?
  child=
  printf '%-40s %3d s  exit code %d\n' "$name" $((SECONDS - begin)) $code
  echo $code >"$out/$name.code"
  save
  [ $code = 124 ] || [ $code = 137 ] && missing+=("$name: cut off after $limit s")
  return $code
}
run() {
  attempt "$@"
  local code=$?
  [ $code = 0 ] || [ $code = 124 ] || [ $code = 137 ] || missing+=("$1: exit code $code, see $out/$1.err")
  return $code
}

# NVIDIA's libraries that a Python package of this machine brought: variable, file
take_from_python() {
  [ -n "${!1:-}" ] && return
  local found
  found=$("$python" - "$2" <<'PYTHON'
import importlib.util, pathlib, sys
spec = importlib.util.find_spec("nvidia")
found = [path for folder in (spec.submodule_search_locations if spec else []) for path in pathlib.Path(folder).rglob(sys.argv[1])]
if found:
    print(max(found, key=lambda path: path.name))  # the newest
PYTHON
  )
  [ -n "$found" ] && export "$1=$found" && echo "$1=$found"
}
# torch.mm calls PyTorch's cuBLASLt: two versions would be compared, not two programs.
take_newest_cublaslt() {
  [ -n "${TUTTI_CUBLASLT:-}" ] && return
  local found
  found=$("$python" - "${CUDA_HOME:-/usr/local/cuda}" <<'PYTHON'
import ctypes, importlib.util, pathlib, sys
spec = importlib.util.find_spec("nvidia")
folders = [pathlib.Path(sys.argv[1]) / "lib64", *(pathlib.Path(x) for x in (spec.submodule_search_locations if spec else []))]
found = []
for path in (path for folder in folders for path in sorted(folder.rglob("libcublasLt.so.1[23]"))):
    try:
        library = ctypes.CDLL(str(path))
        library.cublasLtGetVersion.restype = ctypes.c_size_t
        found.append((library.cublasLtGetVersion(), str(path)))
    except (OSError, AttributeError) as error:
        print(f"gpu.sh: {path}: {error}", file=sys.stderr)
for version, path in sorted(found, reverse=True):
    print(f"cuBLASLt {version}: {path}", file=sys.stderr)
if found:
    print(max(found)[1])
PYTHON
  )
  [ -n "$found" ] && export "TUTTI_CUBLASLT=$found" && echo "TUTTI_CUBLASLT=$found"
}
has_cudnn() { grep -q 'can be chosen: --set train.attention=cudnn' "$out/doctor.txt"; }
doctor() { timeout 60 "${ours[@]}" "$build/tutti" doctor "$@"; }
can() { doctor 2>&1 | grep -q "$1"; }
# The CUDA runtime inside the programs needs a driver of its own generation.
see_driver() {
  local driver
  command -v nvidia-smi >/dev/null && timeout 20 nvidia-smi -q >"$out/nvidia_smi.txt" 2>&1
  driver=$(cat "$out/nvidia_smi.txt" /proc/driver/nvidia/version 2>/dev/null | grep -E '^Driver Version|^NVRM' |
    grep -oE '[0-9]{3}\.[0-9.]+' | head -1)
  echo "driver ${driver:-unknown} (CUDA 13 needs 580 or later, CUDA 12 needs 525)"
  if [ -n "$driver" ] && [ "${driver%%.*}" -lt 580 ]; then
    echo "gpu.sh: the driver $driver is older than 580: programs that were built with CUDA 13 see no GPU with it" >&2
  fi
  if grep -qE 'Compute Mode *: *Exclusive' "$out/nvidia_smi.txt" 2>/dev/null; then
    echo "the GPU takes one process at a time (its compute mode): so do the tests"
    JOBS=1
  fi
}
if [ "$device" = cuda ]; then
  see_driver
  if ! can 'compute capability'; then
    echo "gpu.sh: Tutti sees no GPU here" >&2
    doctor 2>&1 | grep -A6 '^GPUs' >&2
    exit 2
  fi
  take_newest_cublaslt
  if can 'cuBLASLt, which was not found'; then
    echo "gpu.sh: no cuBLASLt here: matrix products are our own plain kernel's (TUTTI_CUDA_GEMM=plain), far slower"
    export TUTTI_CUDA_GEMM=plain
  fi
  if can 'cuDNN 9, which was not found'; then
    take_from_python TUTTI_CUDNN libcudnn.so.9
    take_from_python CUDNN_FRONTEND_CUDART_LIB_NAME 'libcudart.so.1[23]'
  fi
  take_from_python TUTTI_NCCL libnccl.so.2
fi
doctor >"$out/doctor.txt" 2>&1
doctor --json >"$out/doctor.json" 2>/dev/null
sed -n '/^GPUs/,/^$/p' "$out/doctor.txt"
grep '^problem' "$out/doctor.txt"

# Batches that models are trained with: in small ones the optimizer is 6 to 12 % of a step. The largest first.
rows="llama3.2-3b:4096:1:32 llama3.2-1b:4096:4:32 gpt2-124m:1024:32:512"
models="gpt2-124m llama3.2-1b llama3.2-3b"
all_parts="kernels training nccl cudnn equal_bits curves sanitizers products tuning attention memory health ncu steps pytorch"
declare -A share=()  # per cent of BUDGET after which no test of a part runs
case $what in
  first)
    parts="kernels training equal_bits steps tuning memory pytorch"
    share=([kernels]=40 [training]=55)
    models="gpt2-124m llama3.2-1b"
    compared=gpt2-124m  # compiling the others takes a minute each
    ;;
  correctness)
    parts="kernels training nccl cudnn equal_bits curves sanitizers"
    share=([kernels]=32 [training]=52 [nccl]=58 [cudnn]=64 [memcheck]=80 [synccheck]=88 [racecheck]=95 [initcheck]=99)
    ;;
  rates) parts="products tuning attention memory health ncu" ;;
  steps)
    parts="steps pytorch"
    rows+=" gpt2-124m:1024:64:512 llama3-8b:8192:1:16:model.layers=8 gpt2-124m:1024:4:16:train.cuda_graphs=true"
    ;;
esac
parts=(${PARTS:-$parts}) models=(${MODELS:-$models}) rows=(${ROWS:-$rows})
for part in "${parts[@]}"; do
  [[ " $all_parts " == *" $part "* ]] || { echo "gpu.sh: PARTS: there is no part \`$part\`, but these: $all_parts" >&2; exit 2; }
done
stepped=($(printf '%s\n' "${rows[@]%%:*}" | uniq))
compared=(${compared:-${stepped[@]}})
[ -n "${ROWS:-}" ] && compared=("${stepped[@]}")
list() { printf '"%s", ' "$@" | sed 's/^/[/; s/, $/]/'; }
printf '{"run": "%s", "device": "%s", "seconds": %s, "parts": %s, "models": %s, "stepped": %s, "compared": %s}\n' "$what" "$device" \
  "$seconds" "$(list "${parts[@]}")" "$(list "${models[@]}")" "$(list "${stepped[@]}")" "$(list "${compared[@]}")" >"$out/setup.json"

bench() {  # name, seconds of measurement, arguments
  local name=$1 seconds=$2
  shift 2
  run "$name" $((seconds + ${beyond:-40})) "${ours[@]}" "$build/tutti" bench "$@" --device "$device" --seconds "$seconds" --json
}

# Each test in a process of its own: the first wrong address ends a CUDA context, and what follows in it says nothing.
# name, program, filter of GoogleTest; as many at a time as memory of the GPU allows. OUT/name.codes gets a line for each
# test: its exit code, 0 skip where it skipped itself.
tests_apart() {
  local name=$1 program=$build/tests/cuda/$2 filter=$3 begin=$SECONDS
  local until=$((start + budget * ${share[$name]:-99} / 100))
  [ -x "$program" ] || { missing+=("$name: there is no $program"); return; }
  mkdir -p "$out/$name"
  timeout 60 "${ours[@]}" "$program" --gtest_list_tests --gtest_filter="$filter" 2>"$out/$name.err" |
    awk '/^[^ ]/ {suite = $1; next} NF {print suite $1}' | grep -E -e "${TESTS:-.}" >"$out/$name.list"
  [ -s "$out/$name.list" ] || missing+=("$name: no test matches $filter${TESTS:+ and TESTS=$TESTS}, see $out/$name.err")
  export out name program
  export command="${ours[*]} ${prefix[*]:-}" limit="${TEST_SECONDS:-100}" last=$(($(date +%s) + until - SECONDS))
  xargs -a "$out/$name.list" -P "${JOBS:-6}" -I '{}' bash -c '
    log=$out/$name/$(echo "{}" | tr / _).log
    left=$((last - $(date +%s)))
    [ "$left" -lt 5 ] && { echo "not-run {}"; exit 0; }
    cut=
    [ "$left" -lt "$limit" ] && limit=$left cut=yes
    timeout -k 5 "$limit" $command "$program" --gtest_filter="{}" >"$log" 2>&1
    code=$?
    case $cut$code in yes124 | yes137) code=not-run ;; esac  # it may have passed with all of its time
    [ $code = 0 ] && grep -q "^\[  SKIPPED \]" "$log" && code=skip
    echo "$code {}"' >"$out/$name.codes" &
  child=$!
  wait "$child"
  child=
  save
  count() { grep -cE "^($1) " "$out/$name.codes"; }
  printf '%-40s %3d s  %d tests, %d passed, %d failed, %d hung, %d skipped, %d not run\n' "$name" $((SECONDS - begin)) \
    "$(wc -l <"$out/$name.list")" "$(count 0)" "$(grep -cvE '^(0|124|137|skip|not-run) ' "$out/$name.codes")" \
    "$(count '124|137')" "$(count skip)" "$(count not-run)"
  [ "$(count not-run)" = 0 ] || missing+=("$name: $(count not-run) tests not run, as no time was left for them: see $out/$name.codes")
  [ "$(count 0)" -gt 0 ] || missing+=("$name: no test passed")
}
prefix=()

# Attention that is wrong or hangs would leave nothing of what follows.
attention=${ATTENTION:-own}
if [ "$device" = cuda ] && [ -z "${ATTENTION:-}" ]; then
  share[canary]=$((100 * 40 / budget))
  TESTS= TEST_SECONDS=${CANARY_SECONDS:-40} tests_apart canary cuda_gpu_tests "${CANARY:-*CudaAttention*:*LongAttention*}"
  passes() { grep -q "^0 .*$1" "$out/canary.codes" && ! grep -vE '^(0|skip) ' "$out/canary.codes" | grep -q "$1"; }
  if ! passes hopper && ! grep -q '^skip .*hopper' "$out/canary.codes"; then
    for kernel in tensor plain; do passes $kernel && break; done
    attention=$kernel
    missing+=("attention by hopper: its canary failed, see $out/canary; all that follows has train.attention=$kernel")
  fi
fi
export TUTTI_TEST_ATTENTION=$attention  # of the tests of whole runs
step_attention=()
[ "$attention" = own ] || step_attention=(--set "train.attention=$attention")

# The parts, each by its name in PARTS.
kernels() { tests_apart kernels cuda_gpu_tests '*'; }
training() { tests_apart training cuda_gpu_training_tests '*'; }
nccl() { tests_apart nccl cuda_gpu_nccl_tests '*'; }
cudnn() {
  [ -x "$build/tests/cuda/cuda_cudnn_tests" ] && has_cudnn && tests_apart cudnn cuda_cudnn_tests '*'
}
text() { cat "$here"/*.py >"$out/text.txt"; }
# Two trainings of 20 steps: equal bits of every weight.
equal_bits() {
  text
  for i in 1 2; do
    run "train_$i" 30 "${ours[@]}" "$build/tutti" train "$here/../examples/configs/llama-tiny.toml" --out "$out/train_$i" \
      --set "data.train=$out/text.txt" --set "train.device=$device" --set train.steps=20 --set checkpoint.every=20 --set precision.compute=bf16 \
      "${step_attention[@]}"
  done
  find "$out/train_1" -name '*.safetensors' | sort | while read -r file; do
    cmp "$file" "${file/train_1/train_2}" >>"$out/equal_bits.log" 2>&1 || echo "differs: $file" >>"$out/equal_bits.log"
  done
}
# Same weights, same samples in the same order: loss by loss. Exit code 1: a curve is too far away, as the table says.
curves() {
  text
  for row in ${CURVES:-llama-5m:256:8:16:200}; do
    IFS=: read -r model seq micro batch count <<<"$row"
    name=curve_${row//:/_}
    attempt "$name" 150 "$python" "$here/loss_curve.py" --tutti "${ours[*]} $build/tutti" --device "$device" --text "$out/text.txt" \
      --out "$out/$name" --model "$model" --seq-len "$seq" --micro-batch "$micro" --batch "$batch" --steps "$count" \
      --threads "${THREADS:-0}"
    [ -s "$out/$name/loss_curve.json" ] || missing+=("$name: not compared, see $out/$name.err")
  done
}
sanitizers() {
  local tool
  tool=$(command -v compute-sanitizer || ls "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer" 2>/dev/null)
  if [ -z "$tool" ]; then
    missing+=("compute-sanitizer: neither on the path nor in ${CUDA_HOME:-/usr/local/cuda}/bin")
    return
  fi
  # Where the runtime of the machine lets no tool at the GPU, as gVisor does, all tests would count as failed.
  local first=("$build/tests/cuda/cuda_gpu_tests" "--gtest_filter=*/fill")
  if ! timeout -k 5 60 "${ours[@]}" "$tool" "${first[@]}" >"$out/sanitizer.log" 2>&1 &&
    timeout -k 5 60 "${ours[@]}" "${first[@]}" >/dev/null 2>&1; then
    missing+=("compute-sanitizer: it runs no program on this GPU, see $out/sanitizer.log")
    return
  fi
  export TUTTI_TEST_WITHOUT_GUARDS=1  # the tool sees what lies behind an array
  checked() {  # tool, program, filter
    prefix=("$tool" --tool "$1" --error-exitcode 9 --print-limit 5)
    tests_apart "$@"
  }
  checked memcheck cuda_gpu_tests '*attention*:*norm*:*cross_entropy*:*bias*:*rope*:*embedding*:*adamw*'
  checked synccheck cuda_gpu_tests '*CudaAttention*:*norm*:*cross_entropy*'
  # Of kernels without wgmma and TMA.
  checked racecheck cuda_gpu_tests '*CudaAttention*/tensor:*norm*:*cross_entropy*:*column*:*bias*'
  # Reads of memory that nothing wrote: in whole runs, since the arrays of kernel tests are filled with NaN.
  checked initcheck cuda_gpu_training_tests '*TwentyStepsInBf16*:*DocumentsAreRespected*:*AccumulationDoesNot*'
  prefix=()
}
products() {
  for model in "${models[@]}"; do
    bench "gemm_$model" "$seconds" gemm --model "$model"
    [ -s "$out/gemm_$model.log" ] &&
      run "torch_mm_$model" 45 "$python" "$here/pytorch_step.py" gemm --device "$device" --dtype bf16 \
        --shapes "$out/gemm_$model.log" --seconds "$seconds"
  done
}
# The candidates for each product of a step, heuristic's first and fastest; and the step with either.
tuning() {
  for model in "${models[@]}"; do
    [ "$device" = cuda ] || break  # a CPU has no cuBLASLt
    IFS=: read -r seq micro <<<"${TUNED:-$([[ $model == gpt2* ]] && echo 1024:16 || echo 4096:1)}"
    sizes=(--set "train.seq_len=$seq" --set "train.micro_batch=$micro" --set "train.global_batch=$micro")
    products=$out/products_$model.json
    sizes+=("${step_attention[@]}")
    bench "tune_$model" 2 step --model "$model" "${sizes[@]}" --tune "$products" || continue
    bench "heuristic_step_$model" $((seconds / 2 + 1)) step --model "$model" "${sizes[@]}"
    bench "tuned_step_$model" $((seconds / 2 + 1)) step --model "$model" "${sizes[@]}" --set "train.gemm_tuning=$products"
    [ "$attention" = own ] || continue  # the times of all kernels need all to be right
    times=$out/attention_$model.json
    run "tune_attention_$model" "${beyond:-40}" "${ours[@]}" "$build/tutti" bench attention --model "$model" "${sizes[@]}" \
      --tune "$times" --device "$device" --json || continue
    bench "fastest_step_$model" $((seconds / 2 + 1)) step --model "$model" "${sizes[@]}" \
      --set "train.gemm_tuning=$products" --set train.attention=fastest --set "train.attention_tuning=$times"
  done
}
attention() {
  local kernels=(--by "$attention")
  [ "$attention" = own ] && kernels+=(--by tensor)
  has_cudnn && kernels+=(--by cudnn)
  [ "$device" = cuda ] || kernels=()
  bench attention $((2 * seconds)) attention "${kernels[@]}"
}
memory() { bench memory "$seconds" memory; }
health() { run health 45 "${ours[@]}" "$build/tutti" health --device "$device" --seconds "$seconds" --json; }
# What limits each of our kernels: memory, tensor cores, stalls. A step of two layers.
ncu() {
  if [ -n "$(type -P ncu)" ]; then
    model=${models[0]}
    run "ncu_$model" 90 "${ours[@]}" ncu --csv --clock-control none --set basic --section MemoryWorkloadAnalysis \
      --section WarpStateStats --section Occupancy -c 80 \
      -k 'regex:hopper|column|norm_kernel|norm_input|norm_gradients|cross|delta|rope|embedding|update|swiglu|gelu' \
      "$build/tutti" bench step --model "$model" --device "$device" --seconds 1 --set model.layers=2 \
      --set train.global_batch=1 --set train.micro_batch=1 --set train.seq_len=1024 "${step_attention[@]}"
  elif [ "$device" = cuda ]; then
    missing+=("ncu: not on the path")
  fi
}
steps() {
  if [ "$device" = cuda ] && command -v nvidia-smi >/dev/null; then
    nvidia-smi --query-gpu=timestamp,clocks.sm,power.draw,temperature.gpu --format=csv -lms 200 >"$out/clocks.csv" 2>&1 &
    clocks=$!
  fi
  for row in "${rows[@]}"; do
    IFS=: read -r model seq micro batch setting <<<"$row"
    name=${row//[:=]/_}
    # Seven steps are the fewest, of 6 s for the largest model.
    beyond=90 bench "step_$name" "$seconds" step --model "$model" --kernels --set "train.seq_len=$seq" \
      --set "train.global_batch=$batch" --set "train.micro_batch=$micro" ${setting:+--set "$setting"} \
      "${step_attention[@]}"
  done
}
# PyTorch takes the largest micro-batch of each model, which its memory may not: then the next smaller one. Compiled
# first, which the figures need. The 28 blocks of the 3B are compiled one as the other: whole it takes minutes.
# torch.compile builds what starts its kernels; without a C compiler each row would fail after its start-up time.
pytorch() {
  local modes=(${MODES:-compiled}) ran
  [ -n "${CC:-$(command -v gcc || command -v clang)}" ] || { modes=(${modes[@]/compiled/}); missing+=("torch.compile: neither gcc nor clang here, nor CC"); }
  for mode in "${modes[@]}"; do
    ran=" "
    for ((i = ${#rows[@]} - 1; i >= 0; --i)); do
      IFS=: read -r model seq micro batch setting <<<"${rows[i]}"
      [ -n "${setting:-}" ] || [[ $ran == *" $model "* || " ${compared[*]} " != *" $model "* ]] && continue
      how=()
      [ $mode = compiled ] && how=(--compile)
      [ $mode = compiled ] && [[ $model == *3b ]] && how=(--compile-blocks)
      attempt "pytorch_${mode}_${rows[i]//[:=]/_}" 110 "$python" "$here/pytorch_step.py" step --device "$device" --dtype bf16 \
        --model "$model" --batch "$batch" --micro-batch "$micro" --seq-len "$seq" --steps "${STEPS:-6}" "${how[@]}"
      case $? in 0 | 124 | 137) ran+="$model " ;; esac  # a smaller micro-batch takes no less time
    done
    for row in "${rows[@]}"; do
      [[ $row == *=* || $ran == *" ${row%%:*} "* || " ${compared[*]} " != *" ${row%%:*} "* ]] ||
        missing+=("PyTorch, $mode, on ${row%%:*}: no row ran, see $out/pytorch_${mode}_*.err")
    done
  done
}

for part in "${parts[@]}"; do "$part"; done

finish 0
