"""The recipes of docs/launch.md on the launchers themselves: signals and exit codes of mpirun (Open MPI and MPICH), of
torchrun and of a batch script of Slurm, whose job is put back into the queue and goes on; and `tutti launch` below srun.
Usage: test_recipes.py TUTTI SLURM_SH. Launchers that are not installed are named as not tried."""

import json
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

TUTTI, SLURM = sys.argv[1:3]
CONFIG = """
[model]
preset = "llama-tiny"
width = 32
layers = 2
heads = 2
kv_heads = 2
head_dim = 16
ffn = 48
[data]
train = ["{text}"]
[train]
steps = {steps}
seq_len = 16
global_batch = 8
micro_batch = 1
threads = 1
[log]
every = 1
[checkpoint]
every = 0
"""
LONG = 1000000


def wait_for(fact, what, seconds=300):
    end = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.05)


def write_config(folder, steps):
    (folder / "text.txt").write_text("".join(f"line {i * i} of a text that repeats itself\n" for i in range(300)))
    (folder / "run.toml").write_text(CONFIG.format(text=folder / "text.txt", steps=steps))


def lines(folder):
    file = folder / "out/metrics.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


def train(folder):
    return [TUTTI, "train", str(folder / "run.toml"), "--out", str(folder / "out")]


def stopped(name, start, number, *codes, saves=True):
    """Starts a long run, sends the signal to the launcher, and expects one of its codes; then the run goes on to its end."""
    with tempfile.TemporaryDirectory() as f:
        folder = pathlib.Path(f)
        write_config(folder, LONG)
        with open(folder / "log", "w") as log:
            process = subprocess.Popen([*start, *train(folder)], stdout=log, stderr=subprocess.STDOUT)
            wait_for(lambda: lines(folder) >= 5 or process.poll() is not None, f"{name}: five steps")
            process.send_signal(number)
            got = process.wait(timeout=300)
        text = (folder / "log").read_text()
        assert got in codes, f"{name} ended with {got}, expected one of {codes}:\n{text}"
        assert not saves or json.loads((folder / "out/run.json").read_text())["preempted"], text
        saved = list((folder / "out/checkpoints").glob("step-*/MANIFEST.json"))
        assert bool(saved) == saves, f"{name}: checkpoints {saved}:\n{text}"
        step = max((int(s.parent.name[5:]) for s in saved), default=0)
        write_config(folder, step + 3)
        again = subprocess.run([*start, *train(folder)], capture_output=True, text=True, timeout=300)
        assert again.returncode == 0, f"{name}: the second start ended with {again.returncode}:\n{again.stdout}{again.stderr}"
        assert not saves or f"continuing after step {step} " in again.stdout, again.stdout
    print(f"{name}: {signal.Signals(number).name} gives {got}, and the next start goes on")


BATCH_OF_MPIRUN = """#!/bin/bash
"$@" & pid=$!
trap 'kill -USR1 $pid' USR1
wait $pid; wait $pid; exit $?
"""

SLURM_JOB = """#!/bin/bash
#SBATCH --ntasks=2 --requeue --open-mode=append --output={folder}/log --signal=USR1@120
srun --mpi=none --kill-on-bad-exit=1 {train} --set comm.backend=tcp; rc=$?
if [ $rc -eq 75 ]; then scontrol requeue $SLURM_JOB_ID; sleep 300; fi
exit $rc
"""

# USR1 to the steps of a job is what --signal=USR1@120 sends; a requeued job waits two minutes unless its start is moved.
SLURM_SESSION = """#!/bin/bash
set -euo pipefail
folder=$1
lines() { wc -l <"$folder/out/metrics.jsonl" 2>/dev/null || echo 0; }
until_() { for _ in $(seq 3000); do if eval "$1"; then return; fi; sleep 0.1; done; echo "in vain: $1" >&2; scontrol show job "$id" >&2; exit 1; }
id=$(sbatch --parsable "$folder/job.sh")
until_ '(( $(lines) >= 5 ))'
scancel --signal=USR1 "$id"
until_ 'scontrol show job "$id" | grep -q "Restarts=1"'
until_ 'scontrol show job "$id" | grep -q "JobState=PENDING"'
step=$(ls -d "$folder"/out/checkpoints/step-* | sed 's/.*step-0*//' | sort -n | tail -1)
sed -i "s/^steps = .*/steps = $((step + 3))/" "$folder/run.toml"
scontrol update jobid="$id" StartTime=now
until_ 'scontrol show job "$id" | grep -qE "JobState=(COMPLETED|FAILED|CANCELLED)"'
scontrol show job "$id" | grep -q "JobState=COMPLETED" && scontrol show job "$id" | grep -q "ExitCode=0:0"
grep -q "continuing after step $step " "$folder/log"
"""


def batch_job():
    with tempfile.TemporaryDirectory() as f:
        folder = pathlib.Path(f)
        write_config(folder, LONG)
        (folder / "job.sh").write_text(SLURM_JOB.format(folder=folder, train=" ".join(train(folder))))
        session = folder / "session.sh"
        session.write_text(SLURM_SESSION)
        session.chmod(0o755)
        r = subprocess.run([SLURM, "--script", str(session), str(folder)], capture_output=True, text=True, timeout=900)
        log = (folder / "log").read_text() if (folder / "log").exists() else ""
        assert r.returncode == 0, f"{r.returncode}: {r.stdout}{r.stderr}\n{log}"
    print("Slurm: a batch job is requeued on 75, and goes on to its end")


# Three tasks, each the agent of a host; the last one is killed. srun's own code is that of a task or of its signal.
SRUN_SESSION = """#!/bin/bash
set -uo pipefail
folder=$1; shift
lines() { wc -l <"$folder/out/metrics.jsonl" 2>/dev/null || echo 0; }
generations() { ls "$folder/out/generations" 2>/dev/null | wc -l; }
until_() { for _ in $(seq 3000); do if eval "$1"; then return; fi; sleep 0.1; done; echo "in vain: $1" >&2; exit 1; }
srun --mpi=none --kill-on-bad-exit=0 -n 3 "$@" >"$folder/log" 2>&1 & step=$!
until_ '(( $(lines) >= 5 ))'
victim=
for process in /proc/[0-9]*; do
    if tr '\\0' '\\n' <"$process/environ" 2>/dev/null | grep -qx SLURM_PROCID=2 &&
        tr '\\0' ' ' <"$process/cmdline" | grep -q "tutti launch"; then victim=${process#/proc/}; fi
done
kill -9 "$victim"
until_ '(( $(generations) >= 2 ))'
now=$(lines); until_ '(( $(lines) >= now + 5 ))'
scancel --signal=TERM "$(squeue -h -o %A).0"
wait $step; echo "srun ended with $?"
"""


def agents_of_srun():
    with tempfile.TemporaryDirectory() as f:
        folder = pathlib.Path(f)
        write_config(folder, LONG)
        session = folder / "session.sh"
        session.write_text(SRUN_SESSION)
        session.chmod(0o755)
        words = [TUTTI, "launch", "-n", "6", "--min-ranks", "2", "--silence", "4", *train(folder)[2:], "--set",
                 "train.global_batch=12"]
        r = subprocess.run([SLURM, "--script", str(session), str(folder), *words], capture_output=True, text=True,
                           timeout=900)
        log = (folder / "log").read_text() if (folder / "log").exists() else ""
        assert r.returncode == 0 and "srun ended with 0" not in r.stdout, f"{r.returncode}: {r.stdout}{r.stderr}\n{log}"
        events = (folder / "out/events.jsonl").read_text()
        assert '"ranks":4' in events and '"code 75"' in events, events
        saved = list((folder / "out/checkpoints").glob("step-*/MANIFEST.json"))
        assert saved, log
    print("Slurm: tutti launch below srun goes on without a task that was killed, and saves when the step is stopped")


def main():
    open_mpi = shutil.which("mpirun.openmpi")
    if open_mpi:
        start = [open_mpi, "--oversubscribe", "--allow-run-as-root", "--bind-to", "none", "-n", "2"]
        stopped("Open MPI's mpirun", start, signal.SIGUSR1, 75)
        with tempfile.NamedTemporaryFile("w", suffix=".sh") as script:
            script.write(BATCH_OF_MPIRUN)
            script.flush()
            stopped("mpirun in a batch script", ["bash", script.name, *start], signal.SIGUSR1, 75)
    else:
        print("NOT TRIED: Open MPI")
    hydra = shutil.which("mpiexec.hydra") or shutil.which("mpirun.mpich")
    if hydra:
        for number in (signal.SIGUSR1, signal.SIGTERM):
            stopped("MPICH's hydra", [hydra, "-n", "2"], number, 75, 0)  # 0: it loses the ranks' codes now and then
    else:
        print("NOT TRIED: MPICH")
    try:
        import torch.distributed.run  # noqa: F401
        agent = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
        stopped("torchrun", agent, signal.SIGTERM, 1)
    except ImportError:
        print("NOT TRIED: torchrun")
    if subprocess.run([SLURM, "--possible"], check=False).returncode == 0:
        batch_job()
        agents_of_srun()
    else:
        print("NOT TRIED: Slurm")


main()
