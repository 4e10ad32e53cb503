#!/usr/bin/env bash
# bench/gpu.sh on the emulated GPU, from a pack, on a machine that is no more than the pack, bench/ and examples/, without
# a network: each call ends with one archive of its table and of what did not run, also when its time is up and when it is
# ended or killed; and attention whose canary fails is not used.
#   gpu_script_test.sh SOURCE BUILD CUBLASLT OUT
# BUILD: has tutti and tests/cuda/cuda_gpu_* for the emulated GPU, and tuning/tutti with emulated kernels. CUBLASLT: a fake.
set -eu
source=$1 build=$2 cublaslt=$3 out=$4
rm -rf "$out"
mkdir -p "$out"
fail() { echo "gpu_script_test: $*" >&2; exit 1; }
from() { tar xzOf "$out/$1.tgz" "./$2"; }
machine=$out/machine
mkdir -p "$machine/home"
bash "$source/bench/gpu.sh" --pack "$build" "$machine/pack" >"$out/pack.txt" 2>&1 || { cat "$out/pack.txt"; fail "no pack"; }
# The compressed pack is what travels.
rm -r "$machine/pack"
tar xzf "$machine/pack.tgz" -C "$machine" || fail "no compressed pack"
mkdir "$machine/bench"
cp "$source"/bench/*.sh "$source"/bench/*.py "$machine/bench"
cp -r "$source/examples" "$machine"
# No network, where this machine lets a user make a namespace.
there=() network="with the network of this machine"
unshare -rn true 2>/dev/null && there=(unshare -rn) network="without a network"
# No PyTorch: what needs it is named as not run.
settings=("PATH=/usr/local/bin:/usr/bin:/bin" "HOME=$machine/home" PYTHON=python3 SECONDS_EACH=1 MODELS=llama-5m ROWS=llama-5m:64:2:4 CURVES=llama-5m:64:2:4:20 JOBS=2 STEPS=4
  "CANARY=*AttentionName*")
few='^(Emulation|TreeSum|CommunicationOfGpus|CudaTools\.(Which|GeForce))'  # in each program, a few that take milliseconds
gpu_sh() { cd "$machine"; exec "${there[@]}" env -i "${settings[@]}" bash bench/gpu.sh "$@"; }  # in a subshell

# Nsight Compute locks the clocks unless told not to, and a lent machine's clocks are not ours to change.
grep -v '^ *#' "$source/bench/gpu.sh" | grep -q ' ncu -' || fail "the script asks for no profile"
grep -v '^ *#' "$source/bench/gpu.sh" | grep ' ncu -' | grep -v clock-control && fail "a profile that locks the clocks"

# Calls with ten times the time that they need, of a few tests each.
for call in first correctness rates steps; do
  code=0
  (settings+=("TESTS=$few" BUDGET=400) && gpu_sh $call pack "$out/$call") >"$out/$call.txt" 2>&1 || code=$?
  case $code in 0 | 1 | 3) ;; *) cat "$out/$call.txt"; fail "$call: exit code $code" ;; esac
  from $call summary.json | python3 -m json.tool >/dev/null || fail "$call: no summary in the archive"
  from $call table.txt | grep -q 'Figures to reach' || fail "$call: no table in the archive"
  [ "$(wc -c <"$out/$call.tgz")" -lt 4000000 ] || fail "$call: an archive of $(wc -c <"$out/$call.tgz") bytes"
  grep -q 'NOT complete' "$out/$call.txt" || fail "$call: nothing is named as missing, and there is no PyTorch"
done
for call in first correctness; do
  from $call summary.json | grep -q '"equal_bits": true' || fail "$call: two trainings differ, or did not run"
  grep -E '^(kernels|training) .* [1-9][0-9]* passed, 0 failed, 0 hung, 0 skipped, 0 not run' -c "$out/$call.txt" | grep -qx 2 ||
    { cat "$out/$call.txt"; fail "$call: a test did not pass"; }
done
from first table.txt | grep -q 'compute-sanitizer' && fail "first: the table has a figure of a part that it has not"
# A part whose time is not enough for its tests names those that did not run, none of which counts as failed or hung, and the
# next part begins.
code=0
(settings+=("PARTS=kernels training" BUDGET=20) && gpu_sh first pack "$out/short") >"$out/short.txt" 2>&1 || code=$?
[ $code = 3 ] || { cat "$out/short.txt"; fail "short: exit code $code"; }
from short missing.txt | grep -qE "^kernels: [1-9][0-9]* tests not run" || fail "short: the tests that did not run are not named"
[ -s "$out/short/training.codes" ] || fail "short: the part after the one that was cut off did not begin"
grep -qE ' [1-9][0-9]* (failed|hung)' "$out/short.txt" && fail "short: a test that the end of its part cut off counts as failed"
# Parts are named; what no part is called runs nothing.
(settings+=("PARTS=memory health") && gpu_sh rates pack "$out/parts") >"$out/parts.txt" 2>&1 || true
from parts table.txt | grep -q '^memory ' || fail "PARTS: no row of memory"
from parts table.txt | grep -q 'beside torch.mm' && fail "PARTS: a figure of a part that was not asked for"
code=0
(settings+=(PARTS=kernel) && gpu_sh correctness pack "$out/parts") >"$out/parts.txt" 2>&1 || code=$?
[ $code = 2 ] && grep -q 'there is no part `kernel`' "$out/parts.txt" || fail "PARTS=kernel: exit code $code"
# Steps that are tuned: each file of algorithms and times is written, and read by the step that follows.
cp "$machine/pack/tutti" "$out/tutti"
cp "$build/tuning/tutti" "$machine/pack/tutti"
code=0
(settings+=(PARTS=tuning MODELS=llama-tiny TUNED=16:1 ATTENTION=own "TUTTI_CUBLASLT=$cublaslt" BUDGET=800 beyond=600) &&
  gpu_sh rates pack "$out/tuning") >"$out/tuning.txt" 2>&1 || code=$?
mv "$out/tutti" "$machine/pack/tutti"
[ $code = 0 ] || { cat "$out/tuning.txt"; fail "tuning: exit code $code"; }
for log in tune heuristic_step tuned_step tune_attention fastest_step; do
  from tuning "${log}_llama-tiny.log" | grep -q '"rows"' || fail "tuning: nothing in $log"
done
# A tool that the machine lets not at its GPU is one line of the table, and no test of it counts as failed.
mkdir "$machine/refusing"
printf '#!/bin/sh\necho "Device not supported"; exit 1\n' >"$machine/refusing/compute-sanitizer"
printf '#!/bin/sh\necho "    Compute Mode                          : Exclusive_Process"\n' >"$machine/refusing/nvidia-smi"
chmod +x "$machine/refusing"/*
code=0
(settings[0]="PATH=$machine/refusing:/usr/local/bin:/usr/bin:/bin" settings+=(PARTS=sanitizers) &&
  gpu_sh correctness pack "$out/refused") >"$out/refused.txt" 2>&1 || code=$?
[ $code = 3 ] && grep -q 'compute-sanitizer: it runs no program' "$out/refused.txt" || fail "a sanitizer that refuses: exit code $code"
grep -q 'one process at a time' "$out/refused.txt" || fail "tests run beside one another on a GPU that takes one process"
# No test of the canary is one of attention by hopper: the next kernels are tried, and the table says what computes.
from rates missing.txt | grep -q 'train.attention=plain' || fail "the table does not say which attention computed"
[ -n "$(from steps step_llama-5m_64_2_4.log)" ] || fail "no step was measured"

# Of two versions of cuBLASLt the newer one is taken, whatever their files are called, and both are named.
mkdir -p "$machine/cuda/lib64"
make_cublaslt() { # version, end of the file's name
  echo "unsigned long cublasLtGetVersion(void) { return $1; }" |
    ${CC:-cc} -shared -fPIC -x c -o "$machine/cuda/lib64/libcublasLt.so.$2" - || fail "no library of version $1"
}
for newer in 12 13; do
  make_cublaslt 130100 $newer
  make_cublaslt 120906 $((25 - newer))
  (settings+=("CUDA_HOME=$machine/cuda" BUDGET=3) && gpu_sh steps pack "$out/versions") >"$out/versions.txt" 2>&1 || true
  grep -q "^TUTTI_CUBLASLT=.*libcublasLt.so.$newer\$" "$out/versions.txt" || { cat "$out/versions.txt"; fail "not the newer cuBLASLt"; }
  grep -q '^cuBLASLt 120906: ' "$out/versions.txt" || fail "the older cuBLASLt is not named"
done

# Ended in the middle of its tests; and killed with all that it started, when it can write nothing more, so that the
# archive is that of its last part.
settings+=(BUDGET=400)
for signal in TERM KILL; do
  name=ended_by_$signal
  set -m  # a process group of its own
  gpu_sh correctness pack "$out/$name" >"$out/$name.txt" 2>&1 &
  script=$!
  set +m
  until [ -s "$out/$name/kernels.codes" ]; do kill -0 $script 2>/dev/null || fail "$name: the call ended early"; sleep 0.2; done
  if [ $signal = KILL ]; then kill -KILL -- -$script; else kill -$signal $script; fi
  wait $script && fail "$name: the call says that all is well"
  [ -n "$(from $name canary.codes)" ] || fail "$name: the archive lacks the part before"
done
from ended_by_TERM missing.txt | grep -q 'ended by a signal' || fail "the archive of an ended call does not say so"
from ended_by_TERM summary.json >/dev/null || fail "no summary of an ended call"
rm -rf "$machine"
echo "gpu.sh: four calls $network, one ended and one killed"
