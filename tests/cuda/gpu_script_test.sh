#!/usr/bin/env bash
# bench/gpu.sh on the emulated GPU: each call ends in its time, with one archive of its table and of what did not run,
# also when it is killed; and attention whose canary fails is not used.
#   gpu_script_test.sh SOURCE BUILD OUT    BUILD: has tutti and tests/cuda/cuda_gpu_* for the emulated GPU
set -eu
source=$1 build=$2 out=$3
rm -rf "$out"
mkdir -p "$out"
fail() { echo "gpu_script_test: $*" >&2; exit 1; }
from() { tar xzOf "$out/$1.tgz" "./$2"; }
# No PyTorch: what needs it is named as not run.
export PYTHON=python3 SECONDS_EACH=1 MODELS=llama-5m ROWS=llama-5m:64:2:4 CURVES=llama-5m:64:2:4:20 JOBS=2 STEPS=4
export TEST_SECONDS=20 CANARY='*AttentionName*'
unset TUTTI_CUDA_ATTENTION

for call in correctness rates steps; do
  begin=$SECONDS code=0
  BUDGET=40 bash "$source/bench/gpu.sh" $call "$build" "$out/$call" >"$out/$call.txt" 2>&1 || code=$?
  case $code in 0 | 1 | 3) ;; *) cat "$out/$call.txt"; fail "$call: exit code $code" ;; esac
  [ $((SECONDS - begin)) -lt 90 ] || fail "$call took $((SECONDS - begin)) s of 40"
  from $call summary.json | python3 -m json.tool >/dev/null || fail "$call: no summary in the archive"
  from $call table.txt | grep -q 'Figures to reach' || fail "$call: no table in the archive"
  grep -q 'NOT complete' "$out/$call.txt" || fail "$call: nothing is named as missing, and there is no PyTorch"
done
# No test of the canary is one of attention by hopper: the next kernels are tried, and the table says what computes.
from rates missing.txt | grep -q 'TUTTI_CUDA_ATTENTION=plain' || fail "the table does not say which attention computed"
from correctness summary.json | grep -q '"equal_bits": true' || fail "two trainings differ, or did not run"
[ -n "$(from steps step_llama-5m_64_2_4.log)" ] || fail "no step was measured"

# Killed in the middle of its tests.
BUDGET=200 bash "$source/bench/gpu.sh" correctness "$build" "$out/killed" >"$out/killed.txt" 2>&1 &
script=$!
until [ -s "$out/killed/kernels.codes" ]; do kill -0 $script 2>/dev/null || fail "the call ended early"; sleep 0.2; done
kill -TERM $script
wait $script && fail "a killed call says that all is well"
from killed missing.txt | grep -q 'ended by a signal' || fail "the archive of a killed call does not say so"
from killed summary.json >/dev/null || fail "no summary of a killed call"
echo "gpu.sh: three calls and a killed one"
